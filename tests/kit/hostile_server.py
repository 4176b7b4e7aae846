"""A chat-completions server on raw sockets with some 320 modes, most of them hostile.

    with HostileServer() as server:
        client_of(server.base_url, "fake", ...)      # a request that says "mode pipelined" is answered by that mode

Every question has a value of its own (``own_value(mode)``). Whatever else the server writes, such as a second response,
the body of an error or the target of a redirect, holds a ``poison`` value that is the answer to no question.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import threading
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Literal, NamedTuple, Self

from kit.fake_openai import completion, doc_ids_of, text_of

KEY = "sk-hostile-0123456789abcdef"
POISON = "666999"
Outcome = Literal["own", "blank", "error", "any"]


def own_value(mode: str) -> str:
    """The value that answers a mode's question, and no other's."""
    return str(100_000 + list(MODES).index(mode) * 7)


@dataclass
class Exchange:
    """One request and the connection that it came on."""

    writer: asyncio.StreamWriter
    mode: str
    n_before: int
    doc_ids: list[str]
    request: dict[str, Any]
    port: int

    def answer(self, **changes: Any) -> dict[str, Any]:
        fields = {
            "explanation": "It says so.",
            "answer": f"It is {own_value(self.mode)}.",
            "answer_value": own_value(self.mode),
            "answer_unit": "",
            "ref_id": self.doc_ids[:1],
            "is_blank": False,
        }
        return {**fields, **changes}

    @property
    def text(self) -> str:
        return json.dumps(self.answer())

    @property
    def own(self) -> bytes:
        return json.dumps(completion(self.text)).encode()

    @property
    def poison(self) -> bytes:
        return self.own.replace(own_value(self.mode).encode(), POISON.encode())

    async def send(self, *parts: bytes, pause_s: float = 0.0) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            await asyncio.sleep(pause_s)


def http(body: bytes, status: str = "200 OK", *headers: str, length: str | None = "") -> bytes:
    """Write a response; ``length`` None leaves Content-Length out, and a text replaces it."""
    sized = [] if length is None else [f"Content-Length: {length or len(body)}"]
    return "\r\n".join([f"HTTP/1.1 {status}", *sized, *headers, "", ""]).encode("latin-1") + body


def chunks(body: bytes, n_chars: int = 64, end: bytes = b"0\r\n\r\n") -> bytes:
    parts = (body[start : start + n_chars] for start in range(0, len(body), n_chars))
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + end


def chunked(coded: bytes, *headers: str, status: str = "200 OK") -> bytes:
    return http(coded, status, "Transfer-Encoding: chunked", *headers, length=None)


class Mode(NamedTuple):
    """What the server does, and what the client must make of it; a hanging one needs the client's time-out."""

    behave: Callable[[Exchange], bytes | Awaitable[None]]
    outcome: Outcome
    hangs: bool = False


MODES: dict[str, Mode] = {}


def mode(outcome: Outcome, hangs: bool = False) -> Callable[[Any], Any]:
    def enter(behave: Any) -> Any:
        MODES[behave.__name__] = Mode(behave, outcome, hangs)
        return behave

    return enter


def enter_all(outcome: Outcome, **modes: Callable[[Exchange], bytes]) -> None:
    MODES.update({name: Mode(behave, outcome) for name, behave in modes.items()})


# Transport: more than one response, less than one, and other framings.


def closing(*parts: Callable[[Exchange], bytes], reset: bool = False) -> Callable[[Exchange], Awaitable[None]]:
    async def behave(x: Exchange) -> None:
        await x.send(*(part(x) for part in parts))
        if reset:
            x.writer.transport.abort()
        x.writer.close()

    return behave


def in_parts(pause_s: float, *parts: Callable[[Exchange], bytes]) -> Callable[[Exchange], Awaitable[None]]:
    return lambda x: x.send(*(part(x) for part in parts), pause_s=pause_s)


def whole(x: Exchange) -> bytes:
    return http(x.own)


def foreign(x: Exchange) -> bytes:
    return http(x.poison)


enter_all(
    "own",
    ok=whole,
    pipelined=lambda x: whole(x) + foreign(x),
    pipelined_later=in_parts(0.1, whole, foreign),
    junk_behind=lambda x: whole(x) + b"GARBAGE",
    body_to_the_close=closing(lambda x: http(x.own, length=None)),
    chunked_small=lambda x: chunked(chunks(x.own, 1)),
    trailers=lambda x: chunked(chunks(x.own, end=b"0\r\nX-Sum: 1\r\nPoison: 666999\r\n\r\n"), "Trailer: X-Sum"),
    continue_first=lambda x: b"HTTP/1.1 100 Continue\r\n\r\n" + whole(x),
    text_html=lambda x: http(x.own, "200 OK", "Content-Type: text/html"),
    wrong_charset=lambda x: http(x.own, "200 OK", "Content-Type: application/json; charset=utf-16"),
    utf_8_bom=lambda x: http(b"\xef\xbb\xbf" + x.own),
    utf_16=lambda x: http(x.own.decode().encode("utf-16")),
    gzip_whole=lambda x: http(gzip.compress(x.own), "200 OK", "Content-Encoding: gzip"),
    gzip_second_member=lambda x: http(
        gzip.compress(x.own) + gzip.compress(x.poison), "200 OK", "Content-Encoding: gzip"
    ),
    deflate_whole=lambda x: http(zlib.compress(x.own), "200 OK", "Content-Encoding: deflate"),
    slow_parts=in_parts(0.05, *((lambda x, n=n: whole(x)[n * 60 : n * 60 + 60]) for n in range(20))),
    status_201=lambda x: http(x.own, "201 Created"),
)

enter_all(
    "error",
    length_short=lambda x: http(x.own, length=str(len(x.own) - 9)),
    length_one=lambda x: http(x.own, length="1"),
    length_zero_then_body=lambda x: http(x.own, length="0"),
    length_long=closing(lambda x: http(x.own, length=str(len(x.own) + 9))),
    length_a_word=closing(lambda x: http(x.own, length="all")),
    chunk_cut=closing(lambda x: chunked(chunks(x.own)[:-40])),
    chunk_odd_size=closing(lambda x: chunked(b"xyz\r\n" + x.own + b"\r\n0\r\n\r\n")),
    chunk_short=closing(lambda x: chunked(b"5\r\n" + x.own + b"\r\n0\r\n\r\n")),
    closes_at_once=closing(),
    closes_in_head=closing(lambda x: whole(x)[:30]),
    closes_in_body=closing(lambda x: whole(x)[:-30]),
    resets_at_once=closing(reset=True),
    resets_in_body=closing(lambda x: whole(x)[:-30], reset=True),
    http_2=closing(lambda x: whole(x).replace(b"HTTP/1.1", b"HTTP/2")),
    tls_bytes=closing(lambda x: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(50)),
    head_too_large=closing(lambda x: http(x.own, "200 OK", "X-Large: " + "x" * 10**6)),
    header_without_colon=closing(lambda x: http(x.own, "200 OK", "nonsense")),
    header_with_nul=closing(lambda x: http(x.own, "200 OK", "X-Nul: a\0b")),
    switches_protocol=closing(lambda x: http(x.poison, "101 Switching Protocols", "Upgrade: websocket")),
    gzip_bomb=lambda x: http(BOMB, "200 OK", "Content-Encoding: gzip"),
    gzip_cut=lambda x: http(gzip.compress(x.own)[:60], "200 OK", "Content-Encoding: gzip"),
    gzip_twice=lambda x: http(gzip.compress(gzip.compress(x.own)), "200 OK", "Content-Encoding: gzip, gzip"),
    gzip_said=lambda x: http(x.own, "200 OK", "Content-Encoding: gzip"),
    gzip_unsaid=lambda x: http(gzip.compress(x.own)),
    gzip_damaged=lambda x: http(gzip.compress(x.own)[:30] + bytes(40), "200 OK", "Content-Encoding: gzip"),
    brotli=lambda x: http(x.own, "200 OK", "Content-Encoding: br"),
    large_body=lambda x: http(b" " * (5 * 2**20) + x.own),
    latin_1=lambda x: http(x.own.replace(b"It says", b"\xe9t\xe9")),
    broken_utf_8=lambda x: http(x.own.replace(b"It says", b"\xf0\x9f\xff")),
    event_stream_cut=lambda x: http(stream(x, end="")),
    event_stream_with_error=lambda x: http(stream(x, "data: " + json.dumps({"error": {"code": 502}}))),
    **{
        f"redirect_{status}": lambda x, status=status: http(
            x.poison, f"{status} Elsewhere", f"Location: http://127.0.0.1:{x.port}/v1/poison"
        )
        for status in (301, 303, 307)
    },
    redirect_to_itself=lambda x: http(x.poison, "307 Again", "Location: /v1/chat/completions"),
    redirect_without_target=lambda x: http(x.poison, "302 Found"),
    redirect_to_a_file=lambda x: http(x.poison, "302 Found", "Location: file:///etc/passwd"),
)
BOMB = gzip.compress(bytes(2**26))


def stream(x: Exchange, last: str = "", end: str = "data: [DONE]") -> bytes:
    """Write the answer as a stream, word by word."""
    deltas = [{"choices": [{"delta": {"content": part}}]} for part in re.split("(?<= )", x.text)]
    events = [f"event: message\ndata: {json.dumps(delta)}" for delta in deltas]
    return "\n\n".join((": hello", *events, last, end, "")).encode()


enter_all(
    "own",
    event_stream=lambda x: http(
        b"data: " + x.own + b"\n\ndata: [DONE]\n\n", "200 OK", "Content-Type: text/event-stream"
    ),
    event_stream_of_words=lambda x: http(stream(x)),
    event_stream_with_finish=lambda x: http(
        stream(x, "data: " + json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]}), "")
    ),
)


@mode("any", hangs=True)
async def late_reply(x: Exchange) -> None:
    """Answers the first request when its time is over, where the connection may carry the next one already."""
    if x.n_before == 0:
        await asyncio.sleep(0.7)
        await x.send(foreign(x))
    else:
        await x.send(whole(x))


@mode("any", hangs=True)
async def late_reply_behind_504(x: Exchange) -> None:
    if x.n_before == 0:
        await x.send(http(x.poison, "504 Gateway Time-out"), foreign(x), pause_s=0.2)
    else:
        await asyncio.sleep(0.3)
        await x.send(whole(x))


@mode("own")
async def swapped_first(x: Exchange) -> None:
    """Answered after the request that came behind it."""
    await asyncio.sleep(0.3)
    await x.send(whole(x))


enter_all("own", swapped_second=lambda x: whole(x))


@mode("own")
async def closes_between_requests(x: Exchange) -> None:
    await x.send(http(x.own, "200 OK", "Connection: keep-alive"), pause_s=0.02)
    x.writer.close()


@mode("error", hangs=True)
async def says_nothing(x: Exchange) -> None:
    await asyncio.sleep(8)


@mode("error", hangs=True)
async def stops_in_body(x: Exchange) -> None:
    await x.send(whole(x)[:-9], pause_s=8)


@mode("error", hangs=True)
async def chunk_without_end(x: Exchange) -> None:
    await x.send(chunked(chunks(x.own, end=b"")), pause_s=8)


@mode("error", hangs=True)
async def a_byte_at_a_time(x: Exchange) -> None:
    await x.send(*(bytes([byte]) for byte in whole(x)), pause_s=0.05)


@mode("error", hangs=True)
async def continues_for_ever(x: Exchange) -> None:
    await x.send(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 200, pause_s=0.05)


@mode("error", hangs=True)
async def body_for_ever(x: Exchange) -> None:
    await x.send(chunked(b""), *[b"1\r\n \r\n"] * 200, pause_s=0.05)


# HTTP: refusals of every status, whose bodies hold a whole completion with the poison.

RETRY_AFTER = {
    "none": (),
    "zero": ("0",),
    "tenths": ("0.2",),
    "spaces": ("  0 ",),
    "negative": ("-1",),
    "exponent": ("1e0",),
    "hexadecimal": ("0x1",),
    "word": ("soon",),
    "empty": ("",),
    "digits_of_other_scripts": ("\xb2",),
    "twenty_digits": ("9" * 20,),
    "two_values": ("0, 0",),
    "two_headers": ("0", "0"),
    "parameter": ("0;q=1",),
    "unit": ("0s",),
    "past": ("Fri, 31 Dec 1999 23:59:59 GMT",),
    "past_rfc_850": ("Friday, 31-Dec-99 23:59:59 GMT",),
    "past_asctime": ("Fri Dec 31 23:59:59 1999",),
    "past_iso": ("1999-12-31T23:59:59Z",),
    "year_of_eleven_digits": ("Fri, 31 Dec 99999999999 23:59:59 GMT",),
    "now": (format_datetime(datetime.now(UTC) - timedelta(seconds=1), usegmt=True),),
}
enter_all(
    "error",
    **{
        f"status_{status}": lambda x, status=status: http(x.poison, f"{status} Refused")
        for status in (
            400,
            401,
            402,
            403,
            404,
            405,
            408,
            409,
            413,
            422,
            425,
            429,
            451,
            500,
            502,
            503,
            504,
            529,
            599,
            999,
        )
    },
    **{
        f"status_{status}_empty": lambda x, status=status: http(b"", f"{status} Refused", length="0")
        for status in (400, 404, 413, 429, 500, 503)
    },
    no_content=lambda x: http(b"", "204 No Content", length=None),
    not_modified=lambda x: http(b"", "304 Not Modified", length=None),
    quota_used_up=lambda x: http(b'{"error": {"code": "insufficient_quota"}}', "429 Too Many Requests"),
    credit_used_up_with_200=lambda x: http(b'{"error": {"message": "Insufficient credits", "code": 402}}'),
    wait_of_a_day=lambda x: http(x.poison, "429 Wait", "Retry-After: 86400"),
    length_refused=lambda x: http(b'{"error": {"code": "context_length_exceeded"}}', "400 Bad Request"),
    length_refused_by_500=lambda x: http(b"the request is too large to process", "500 Oops"),
    model_unknown=lambda x: http(b'{"error": {"message": "The model does not exist"}}', "404 Not Found"),
    page_of_a_proxy=lambda x: http(b"<html><h1>502</h1></html>", "502 Bad Gateway"),
    page_with_200=lambda x: http(b"<html>log in</html>"),
    error_with_200=lambda x: http(b'{"error": {"message": "overloaded", "code": 529}}'),
    check_failed_with_nothing=lambda x: http(b'{"error": {"code": "json_validate_failed"}}', "400 Bad Request"),
)
enter_all(
    "own",
    check_failed_with_text=lambda x: http(
        json.dumps({"error": {"code": "json_validate_failed", "failed_generation": x.text}}).encode(), "400 Bad Request"
    ),
    **{
        f"{status}_retry_after_{name}": lambda x, status=status, values=values: (
            http(x.poison, f"{status} Wait", *(f"Retry-After: {value}" for value in values))
            if x.n_before == 0
            else whole(x)
        )
        for status, names in ((429, RETRY_AFTER), (503, ("none", "zero", "past")))
        for name, values in RETRY_AFTER.items()
        if name in names
    },
    told_in_the_body=lambda x: (
        http(b'[{"error": {"details": [{"retryDelay": "0.1s"}]}}]', "429 Wait") if x.n_before == 0 else whole(x)
    ),
    no_room=lambda x: (
        http(
            b'{"error": "max_tokens is too large: 64. The maximum context is 8192 tokens, of which 8150 are taken."}',
            "400 Bad Request",
        )
        if x.request["max_tokens"] > 42
        else whole(x)
    ),
    no_system=lambda x: (
        http(b'{"error": "roles must alternate. System role not supported"}', "400 Bad Request")
        if x.request["messages"][0]["role"] == "system"
        else whole(x)
    ),
    **{
        f"refuses_{field}": lambda x, field=field: (
            http(json.dumps({"error": {"message": f"Unsupported parameter: '{field}'"}}).encode(), "400 Bad Request")
            if field in x.request
            else whole(x)
        )
        for field in ("top_p", "seed")
    },
)

# JSON: bodies that are none, and completions of other shapes.


def body(text: str) -> Callable[[Exchange], bytes]:
    return lambda x: http(text.encode())


def shaped(change: Callable[[dict[str, Any], Exchange], Any]) -> Callable[[Exchange], bytes]:
    """Send the completion as ``change`` returns it, or as it left it."""

    def behave(x: Exchange) -> bytes:
        value = json.loads(x.own)
        returned = change(value, x)
        return http(json.dumps(value if returned is None else returned).encode())

    return behave


def message(**fields: Any) -> Callable[[Exchange], bytes]:
    return shaped(lambda value, x: value["choices"][0].update(message=fields))


def choices(value: Any) -> Callable[[Exchange], bytes]:
    return shaped(lambda body, x: body.update(choices=value))


def usage(value: Any) -> Callable[[Exchange], bytes]:
    return shaped(lambda body, x: body.update(usage=value))


def finish(value: Any) -> Callable[[Exchange], bytes]:
    return shaped(lambda body, x: body["choices"][0].update(finish_reason=value))


enter_all(
    "error",
    empty_body=body(""),
    only_space=body(" \n "),
    json_null=body("null"),
    json_true=body("true"),
    json_number=body("7"),
    json_text=body('"text"'),
    json_empty_list=body("[]"),
    json_empty_object=body("{}"),
    json_cut=lambda x: http(x.own[:-20]),
    json_two_objects=lambda x: http(x.own + x.poison),
    json_in_a_list=lambda x: http(b"[" + x.own + b"]"),
    json_as_text=lambda x: http(json.dumps(x.own.decode()).encode()),
    json_with_comma=lambda x: http(x.own[:-1] + b",}"),
    json_single_quotes=lambda x: http(x.own.replace(b'"', b"'")),
    json_deep=body("[" * 10**5 + "]" * 10**5),
    json_deep_object=body('{"a":' * 10**5),
    json_long_number=body('{"choices": ' + "9" * 10**5 + "}"),
    choices_missing=shaped(lambda value, x: value.pop("choices") and None),
    choices_null=choices(None),
    choices_empty=choices([]),
    choices_object=choices({"0": "x"}),
    choices_text=choices("x"),
    choices_number=choices(1),
    choices_of_null=choices([None]),
    choices_of_text=choices(["x"]),
    message_missing=choices([{"index": 0}]),
    message_null=choices([{"message": None}]),
    message_text=choices([{"message": "text"}]),
    message_list=choices([{"message": []}]),
    delta=choices([{"delta": {"content": "x"}}]),
    text_completion=choices([{"text": "x"}]),
)
enter_all(
    "blank",
    content_missing=message(role="assistant"),
    content_null=message(content=None),
    content_empty=message(content=""),
    content_space=message(content=" \n "),
    content_number=message(content=7),
    content_true=message(content=True),
    content_object=message(content={"answer_value": 7}),
    content_parts_of_other_kinds=message(content=[{"type": "image_url"}, None, 7, "x"]),
    tool_call=message(
        content=None, tool_calls=[{"function": {"name": "f", "arguments": '{"answer_value": "666999"}'}}]
    ),
    function_call=message(content=None, function_call={"name": "f", "arguments": "{}"}),
    only_reasoning_of_others=message(content="", reasoning="666999"),
    refusal=message(content=None, refusal="I cannot help with that."),
)
enter_all(
    "own",
    content_parts=lambda x: message(content=[{"type": "text", "text": x.text[:9]}, {"text": x.text[9:]}])(x),
    only_reasoning=lambda x: message(content=None, reasoning_content=x.text)(x),
    only_parsed=lambda x: message(content=None, parsed=x.answer())(x),
    reasoning_beside=lambda x: message(content=x.text, reasoning_content='{"answer_value": "666999"}')(x),
    tool_call_beside=lambda x: message(content=x.text, tool_calls=[{"function": {"arguments": "666999"}}])(x),
    role_user=lambda x: message(role="user", content=x.text)(x),
    two_choices=shaped(lambda value, x: value["choices"].append(json.loads(x.poison)["choices"][0])),
    keys_twice=lambda x: http(b'{"choices": [], ' + x.own[1:]),
    other_model=shaped(lambda value, x: value.update(model="another")),
    model_of_lines=shaped(lambda value, x: value.update(model="a\n\x1b[2Jb")),
    id_of_another=shaped(lambda value, x: value.update(id="chatcmpl-666999", object="x", created="never")),
    error_null_beside=shaped(lambda value, x: value.update(error=None)),
    warnings_beside=shaped(lambda value, x: value.update(warnings=["x"] * 1000)),
    usage_missing=shaped(lambda value, x: value.pop("usage") and None),
    usage_nan=lambda x: http(x.own.replace(b'"prompt_tokens": 100', b'"prompt_tokens": NaN')),
    usage_infinite=lambda x: http(x.own.replace(b'"prompt_tokens": 100', b'"prompt_tokens": -Infinity')),
    **{
        f"usage_{name}": usage(value)
        for name, value in {
            "null": None,
            "text": "many",
            "list": [1, 2],
            "of_null": {"prompt_tokens": None, "completion_tokens": None, "prompt_tokens_details": None},
            "negative": {"prompt_tokens": -5, "completion_tokens": -1},
            "of_text": {"prompt_tokens": "5", "completion_tokens": "1e9"},
            "of_floats": {"prompt_tokens": 5.5, "completion_tokens": 1e300},
            "of_total": {"total_tokens": 55},
            "zero": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            "total_less": {"prompt_tokens": 12, "total_tokens": 3},
            "of_nan_text": {"prompt_tokens": "NaN", "completion_tokens": "-1"},
            "true": True,
            "number": 9,
            "of_booleans": {"prompt_tokens": True, "completion_tokens": False},
            "of_lists": {"prompt_tokens": [5], "completion_tokens": {}, "prompt_tokens_details": [3]},
            "huge": {"prompt_tokens": 2**63, "completion_tokens": 10**40},
            "cached_more": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 10**12}},
        }.items()
    },
    **{
        f"finish_{name}": finish(value)
        for name, value in {
            "stop": "stop",
            "capitals": "STOP",
            "end_turn": "end_turn",
            "eos_token": "eos_token",
            "length": "length",
            "null": None,
            "empty": "",
        }.items()
    },
)


def failed(**fields: Any) -> Callable[[Exchange], bytes]:
    """Send a whole answer with the poison, and say that it failed (claudexor#144, OmniRoute#8210)."""

    def change(value: dict[str, Any], x: Exchange) -> None:
        value["choices"][0].update(fields, message={"content": drafted(x)})

    return shaped(change)


def drafted(x: Exchange) -> str:
    """The answer with the poison in place of its value."""
    return x.text.replace(own_value(x.mode), POISON)


enter_all(
    "error",
    error_beside=shaped(lambda value, x: value.update(error={"message": "but"})),
    error_in_choice=failed(error={"code": 502, "message": "cut"}),
    no_token=shaped(
        lambda value, x: value.update(
            choices=[{"message": {"content": ""}, "finish_reason": "stop"}], usage={"prompt_tokens": 9}
        )
    ),
    key_in_finish=finish(KEY),
    **{
        f"finish_{name}": failed(finish_reason=value)
        for name, value in {
            "error": "error",
            "abort": "abort",
            "filter": "content_filter",
            "tool_calls": "tool_calls",
            "number": 7,
            "list": ["stop"],
            "unknown": "shrug",
            "of_lines": "st\nop\x00\x1b[31m",
            "long": "x" * 10**5,
        }.items()
    },
)

# Content: what a model may write.


def content(write: Callable[[Exchange], str]) -> Callable[[Exchange], bytes]:
    return lambda x: http(json.dumps(completion(write(x))).encode())


def answered(**changes: Any) -> Callable[[Exchange], bytes]:
    return content(lambda x: json.dumps(x.answer(**changes)))


def spell(**spelled: str) -> dict[str, Callable[[Exchange], bytes]]:
    """Modes whose explanation is spelled so in the content's JSON."""
    return {
        name: content(lambda x, text=text: x.text.replace('"It says so."', f'"{text}"'))
        for name, text in spelled.items()
    }


enter_all(
    "own",
    fence=content(lambda x: f"```json\n{x.text}\n```"),
    fence_without_end=content(lambda x: f"```\n{x.text}"),
    prose_around=content(lambda x: f"Here it is:\n\n{x.text}\n\nI hope this helps }}}}"),
    thoughts=content(lambda x: f'<think>Perhaps {{"answer_value": "7"}}, no.</think>{x.text}'),
    channels=content(
        lambda x: f"<|channel|>analysis<|message|>{drafted(x)}<|end|><|channel|>final<|message|>{x.text}<|return|>"
    ),
    channels_without_marks=content(lambda x: f"analysisDraft {drafted(x)}assistantfinal{x.text}"),
    draft_before=content(lambda x: f"First {drafted(x)}, but rather {x.text}"),
    schema_before=content(lambda x: f'{{"properties": {{"answer_value": {{"type": "string"}}}}}}\n{x.text}'),
    comma_behind=content(lambda x: x.text[:-1] + ",}"),
    single_quotes=content(lambda x: str(x.answer())),
    curly_quotes=content(lambda x: re.sub('"([^"]*)"', r"“\1”", x.text)),
    comment_within=content(lambda x: x.text.replace(', "answer"', ', // so\n"answer"')),
    quote_within=content(lambda x: x.text.replace("It says so.", 'It says "so" there.')),
    tex_within=content(lambda x: x.text.replace("It says so.", r"so \(x\) is")),
    value_bare=content(lambda x: x.text.replace(f'"{own_value(x.mode)}"', f"{int(own_value(x.mode)):,}")),
    thoughts_without_begin=content(lambda x: f"so it is.</think>{x.text}"),
    template_marks=content(lambda x: f"<|im_start|>assistant\n{x.text}<|im_end|>"),
    encoded_twice=content(lambda x: json.dumps(x.text)),
    in_a_list=content(lambda x: f"[{x.text}]"),
    in_an_object=content(lambda x: f'{{"result": {x.text}}}'),
    keys_in_capitals=content(lambda x: x.text.replace("answer_value", "ANSWER_VALUE")),
    more_keys=answered(confidence=1, answer_value_2="666999"),
    line_breaks=content(lambda x: json.dumps(x.answer(), indent=8)),
    no_flag=content(lambda x: x.text.replace(', "is_blank": false', "")),
    flag_text=answered(is_blank="false"),
    flag_null=answered(is_blank=None),
    flag_contradicts=answered(is_blank=True),
    refs_null=answered(ref_id=None),
    refs_foreign=answered(ref_id=["poison", "666999"]),
    refs_number=answered(ref_id=666999),
    refs_object=answered(ref_id={"poison": 666999}),
    refs_many=answered(ref_id=[f"doc{n}" for n in range(10**4)]),
    refs_deep=answered(ref_id=[[[[[[[[["poison"]]]]]]]]]),
    explanation_null=answered(explanation=None),
    explanation_list=answered(explanation=["a", {"b": 1}]),
    explanation_long=answered(explanation="word " * 10**5),
    explanation_marks=answered(explanation="[ref_id=poison] <script>alert(666999)</script> =cmd|' /C calc'!A0"),
    explanation_controls=answered(explanation="\x1b[2J\x07\x00\r\nline\u2028\u2029\x85"),
    explanation_reversed=answered(explanation="\u202egnp.exe\u2066\u200b\ufeff"),
    explanation_surrogates=content(lambda x: x.text.replace("It says so.", "\\ud800 \\udfff")),
    unit_null=answered(answer_unit=None),
    unit_number=answered(answer_unit=7),
    unit_list=answered(answer_unit=["kW", "h"]),
    value_a_number=content(lambda x: x.text.replace(f'value": "{own_value(x.mode)}"', f'value": {own_value(x.mode)}')),
    value_in_an_object=content(lambda x: json.dumps(x.answer(answer_value={"value": own_value(x.mode)}))),
    value_in_a_list=content(lambda x: json.dumps(x.answer(answer_value=[own_value(x.mode)]))),
    value_with_spaces=content(lambda x: json.dumps(x.answer(answer_value=f"\u2007{own_value(x.mode)}\u200b "))),
    value_full_width=content(
        lambda x: json.dumps(x.answer(answer_value="".join(chr(ord(c) + 0xFEE0) for c in own_value(x.mode))))
    ),
    key_plain=answered(explanation=f"it is {KEY}"),
    key_in_unit=answered(answer_unit=KEY),
    key_in_refs=answered(ref_id=[KEY]),
    key_in_model=shaped(lambda value, x: value.update(model=KEY)),
    **spell(
        key_escaped="".join(f"\\u{ord(char):04x}" for char in KEY),
        key_escaped_in_part=f"\\u{ord('s'):04x}{KEY[1:]}",
        key_with_nul=f"{KEY[:9]}\\u0000{KEY[9:]}",
        key_with_surrogate=f"{KEY[:9]}\\ud800{KEY[9:]}",
        key_on_two_lines=f"{KEY[:9]}\\n{KEY[9:]}",
        key_with_zero_width=f"{KEY[:9]}\\u200b{KEY[9:]}",
    ),
)
enter_all(
    "error",
    key_in_error=lambda x: http(f'{{"error": "bad {KEY}"}}'.encode(), "401 Unauthorized"),
    key_in_reason=lambda x: http(b"", f"500 {KEY}", length="0"),
    key_in_location=lambda x: http(b"", "302 Found", f"Location: http://127.0.0.1:{x.port}/{KEY}", length="0"),
    key_in_retry_after=lambda x: http(b"", "503 Wait", f"Retry-After: {KEY}", length="0"),
    key_escaped_in_error=lambda x: http("".join(f"\\u{ord(char):04x}" for char in KEY).encode(), "400 Bad Request"),
)
enter_all(
    "blank",
    thoughts_open=content(lambda x: f"<think>maybe {drafted(x)} hmm"),
    channel_open=content(lambda x: f"<|channel|>analysis<|message|>{drafted(x)}"),
    channel_of_tools=content(lambda x: f"<|channel|>commentary<|message|>{drafted(x)}<|end|>"),
    thoughts_alone=content(lambda x: f"<think>{drafted(x)}</think>"),
    nearly_json_of_a_megabyte=content(lambda x: f"{{'answer_value': '{POISON}', " + "'k': [1, 2, 3,], " * 60_000 + "}"),
    prose=content(lambda x: "I do not know."),
    prose_with_braces=content(lambda x: "{ so } and { so"),
    other_object=content(lambda x: '{"x": 666999}'),
    object_cut_before_the_value=content(lambda x: x.text[:40]),
    object_cut_in_the_value=content(lambda x: x.text[: x.text.index('"answer_value": "') + 19]),
    braces=content(lambda x: "{" * 10**5),
    brackets=content(lambda x: "[" * 10**5),
    quotes=content(lambda x: '"' * 10**5),
    repeated=content(lambda x: '{"explanation": "' + "and so on " * 10**4),
    flag_alone=content(lambda x: '{"is_blank": true}'),
    value_blank=answered(answer_value="is_blank"),
    value_null=answered(answer_value=None),
    value_nan=content(lambda x: x.text.replace(f'value": "{own_value(x.mode)}"', 'value": NaN')),
    value_infinite=content(lambda x: x.text.replace(f'value": "{own_value(x.mode)}"', 'value": -Infinity')),
    value_empty_list=answered(answer_value=[]),
    value_deep=content(lambda x: x.text.replace(f'"{own_value(x.mode)}"', "[" * 500 + "7" + "]" * 500)),
    values_for_keys=content(lambda x: json.dumps(dict.fromkeys(x.answer()))),
)
enter_all(
    "any",
    value_huge=answered(answer_value=10**400),
    value_exponent=answered(answer_value="1e999"),
    value_text_of_digits=answered(answer_value="9" * 10**4),
    value_controls=answered(answer_value="\x1b[31m7\x00\x07"),
    value_formula=answered(answer_value="=1+1"),
    value_of_lines=answered(answer_value="a\n7,b\n"),
    value_markup=answered(answer_value="<img src=x onerror=alert(1)>"),
    value_look_alike=answered(answer_value="１２\u2010３０ ½ Ⅷ 十"),
    key_in_value=answered(answer_value=KEY),
)


class HostileServer:
    """The server, as a context manager; each connection may bring any number of requests."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.poison_asked = 0
        """Requests that followed a redirect."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._server = started.result()
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *exc: object) -> None:
        async def stop() -> None:
            self._server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not writer.is_closing() and (head := await reader.readuntil(b"\r\n\r\n")):
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                raw = await reader.readexactly(int(length[1]) if length else 0)
                if head.startswith(b"POST /v1/chat/completions"):
                    await self._answer(json.loads(raw), writer)
                elif head.startswith(b"GET /v1/models"):
                    writer.write(http(json.dumps({"data": [{"id": "fake"}]}).encode()))
                else:
                    self.poison_asked += 1
                    writer.write(http(json.dumps(completion(POISON)).encode()))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        name = re.findall(r"mode (\w+)", "\n".join(map(text_of, request["messages"])))[-1]
        x = Exchange(writer, name, self.asked[name], doc_ids_of(request), request, self._port)
        self.asked[name] += 1
        written = MODES[name].behave(x)
        if isinstance(written, bytes):
            await x.send(written)
        else:
            await written
