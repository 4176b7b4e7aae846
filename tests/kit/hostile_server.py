"""A chat-completions server on raw sockets with some hundred modes, most of them hostile.

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
from typing import Any, Literal, NamedTuple, Self

from kit.fake_openai import completion, doc_ids_of, text_of

KEY = "sk-hostile-0123456789abcdef"
POISON = "666999"
Outcome = Literal["own", "error", "any"]


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
    port: int

    @property
    def text(self) -> str:
        fields = {
            "explanation": "It says so.",
            "answer": f"It is {own_value(self.mode)}.",
            "answer_value": own_value(self.mode),
            "answer_unit": "",
            "ref_id": self.doc_ids[:1],
            "is_blank": False,
        }
        return json.dumps(fields)

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


# HTTP: refusals of every kind, whose bodies hold a whole completion with the poison.

enter_all(
    "error",
    **{
        f"status_{status}": lambda x, status=status: http(x.poison, f"{status} Refused")
        for status in (400, 401, 402, 404, 409, 413, 429, 500, 504, 999)
    },
    **{
        f"status_{status}_empty": lambda x, status=status: http(b"", f"{status} Refused", length="0")
        for status in (400, 404, 413, 429, 500)
    },
    no_content=lambda x: http(b"", "204 No Content", length=None),
    not_modified=lambda x: http(b"", "304 Not Modified", length=None),
    model_unknown=lambda x: http(b'{"error": {"message": "The model does not exist"}}', "404 Not Found"),
    page_of_a_proxy=lambda x: http(b"<html><h1>502</h1></html>", "502 Bad Gateway"),
    page_with_200=lambda x: http(b"<html>log in</html>"),
)
enter_all(
    "own",
    **{
        f"status_{status}_then_well": lambda x, status=status: (
            http(x.poison, f"{status} Wait", "Retry-After: 0") if x.n_before == 0 else whole(x)
        )
        for status in (429, 503)
    },
    retry_after_twice=lambda x: (
        http(x.poison, "429 Wait", "Retry-After: 0", "Retry-After: 0") if x.n_before == 0 else whole(x)
    ),
)

# Bodies: a second answer in them, what hurts a reader, and the key. `test_completion` and `test_parse` have the others.


def content(text: str) -> Callable[[Exchange], bytes]:
    """Send an answer whose explanation is spelled so in its JSON."""
    return lambda x: http(json.dumps(completion(x.text.replace("It says so.", text))).encode())


def choices(body: bytes) -> list[Any]:
    return json.loads(body)["choices"]


enter_all(
    "error",
    empty_body=lambda x: http(b""),
    json_two_objects=lambda x: http(x.own + x.poison),
    json_deep=lambda x: http(b"[" * 10**5 + b"]" * 10**5),
    json_long_number=lambda x: http(b'{"choices": ' + b"9" * 10**5 + b"}"),
    key_in_error=lambda x: http(f'{{"error": "bad {KEY}"}}'.encode(), "401 Unauthorized"),
    key_in_reason=lambda x: http(b"", f"500 {KEY}", length="0"),
    key_in_location=lambda x: http(b"", "302 Found", f"Location: http://127.0.0.1:{x.port}/{KEY}", length="0"),
    key_in_retry_after=lambda x: http(b"", "503 Wait", f"Retry-After: {KEY}", length="0"),
)
enter_all(
    "own",
    keys_twice=lambda x: http(b'{"choices": [], ' + x.own[1:]),
    two_choices=lambda x: http(json.dumps({"choices": choices(x.own) + choices(x.poison)}).encode()),
    usage_missing=lambda x: http(json.dumps({"choices": choices(x.own)}).encode()),
    content_of_a_megabyte=content("word " * 2 * 10**5),
    key_in_content=content(f"it is {KEY}"),
    key_in_model=lambda x: http(x.own.replace(b'"fake"', f'"{KEY}"'.encode())),
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
        x = Exchange(writer, name, self.asked[name], doc_ids_of(request), self._port)
        self.asked[name] += 1
        written = MODES[name].behave(x)
        if isinstance(written, bytes):
            await x.send(written)
        else:
            await written
