"""The OpenAI backend against a server that misbehaves."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import resource
import time
import traceback
import zlib
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from kit.fake_openai import Action, FakeOpenAI, client_of, completion, error_body
from kit.rows import check_rows

from kohaku_ray.errors import (
    ConfigError,
    ContextOverflowError,
    ModelError,
    RefusedAccessError,
    TransientModelError,
)
from kohaku_ray.models.openai import TokenBucket
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.schema import answer_schema, plan_schema
from kohaku_ray.records import Reply

KEY = "sk-secret-0123456789"


def request(seed=1, schema=None, user="[ref_id=a] text\nQuestion: ?", **changes):
    fields = {
        "model": "fake",
        "messages": (("system", "Cite ref_id."), ("user", user)),
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 64,
        "seed": seed,
        "schema": schema,
    }
    return ChatRequest(**{**fields, **changes})


def ask(server, *requests, key=KEY, query="", in_turn=False, **options):
    """Send the requests, at once or one after the other, by one client; a failure comes back as its exception."""

    async def run():
        backend = client_of(server.base_url + query, "fake", key, **{"backoff_s": 0.001, "timeout_s": 5.0, **options})
        turn = asyncio.Semaphore(1 if in_turn else len(requests))

        async def send(request):
            async with turn:
                return await backend.chat(request)

        try:
            return await asyncio.gather(*map(send, requests), return_exceptions=True)
        finally:
            await backend.close()

    return asyncio.run(run())


def scripted(*actions):
    """The first requests go by the actions, later ones by the default."""
    return lambda index, body: actions[index] if index < len(actions) else None


def test_a_request_carries_everything_and_its_reply_is_read():
    schema = answer_schema(["a", "b"])
    with FakeOpenAI(lambda index, body: Action(body=completion('{"answer_value": 3}', cached_tokens=64))) as server:
        (reply,) = ask(server, request(schema=schema), extra_body={"top_k": 5, "max_tokens": None})
    sent = server.log[0]
    assert sent.path == "/v1/chat/completions"
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.body == {
        "model": "fake",
        "messages": [
            {"role": "system", "content": "Cite ref_id."},
            {"role": "user", "content": "[ref_id=a] text\nQuestion: ?"},
        ],
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 1,
        "stream": False,
        "top_k": 5,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
    }
    assert reply == Reply('{"answer_value": 3}', 100, 64, 2, "stop")


def test_schema_modes():
    with FakeOpenAI() as server:
        ask(server, request(schema=answer_schema(["a"])), schema_mode="json_object")
        ask(server, request(schema=answer_schema(["a"])), schema_mode="none")
        ask(server, request(schema=plan_schema(4)))
    formats = [received.body.get("response_format") for received in server.log]
    assert formats[:2] == [{"type": "json_object"}, None]
    assert formats[2]["json_schema"]["schema"] == plan_schema(4)


def test_requests_run_concurrently():
    with FakeOpenAI(lambda index, body: Action(delay_s=0.3)) as server:
        begin = time.monotonic()
        replies = ask(server, *map(request, range(120)))
        elapsed = time.monotonic() - begin
    assert not any(isinstance(reply, Exception) for reply in replies)
    assert elapsed < 0.3 * 120 / 4


@check_rows(
    "failure",
    [
        Action(500, "oops"),
        Action(503, "<html>busy</html>"),
        *(Action(status, error_body("later")) for status in (408, 409, 425, 429)),
        Action(body=b"\xff\xfe"),
        Action(body="[1, 2]"),
        Action(body={"choices": []}),
        Action(body={"choices": [{"message": None}]}),
        Action(body='{"choices": [{"mess', cut=True),
        Action(reset=True),
    ],
)
def test_what_may_pass_is_tried_again(failure):
    with FakeOpenAI(scripted(failure, failure)) as server:
        (reply,) = ask(server, request(), max_tries=3)
    assert server.n_requests == 3
    assert json.loads(reply.text)["ref_id"] == ["a"]
    assert server.log[0].body == server.log[2].body


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Action(500, f"oops {KEY}"), r"HTTP 500 Internal Server Error: oops \[key\]"),
        (Action(body='"' + "x" * 40), "malformed JSON in a body of 41 bytes"),
        (Action(body={"error": {"message": f"bad {KEY}"}}), r"no choices in the reply: .*bad \[key\]"),
        (Action(reset=True), "ReadError"),
        (Action(drip_s=0.01), "no reply within timeout_s of 0.2 s"),
    ],
)
def test_giving_up_says_how_often_and_why(failure, reason):
    with FakeOpenAI(lambda index, body: failure) as server:
        times_out = reason.startswith("no reply")  # on a busy machine even before the server sees the request
        (error,) = ask(server, request(), max_tries=3, timeout_s=0.2 if times_out else 30.0)
        assert type(error) is TransientModelError
        with pytest.raises(TransientModelError, match=rf"fake at http://127.*/v1: gave up after 3 tries.*{reason}"):
            raise error
    assert times_out or server.n_requests == 3
    assert KEY not in str(error)


async def test_retry_after_holds_back_every_request_of_the_limiter():
    limiter = TokenBucket(None)
    with FakeOpenAI(scripted(Action(503, error_body("busy"), {"Retry-After": "0.6"}))) as server:
        client, other = (client_of(server.base_url, "fake", backoff_s=0.001, limiter=limiter) for _ in range(2))
        first = asyncio.create_task(client.chat(request(0)))
        while server.n_requests == 0:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await asyncio.gather(
            first, *[backend.chat(request(seed)) for backend in (client, other) for seed in range(1, 4)]
        )
        await client.close()
        await other.close()
    assert server.n_requests == 8
    assert min(received.arrived_s for received in server.log[1:]) - server.log[0].arrived_s >= 0.6


@check_rows(
    "failure",
    [
        Action(400, error_body("too many", "context_length_exceeded")),
        Action(400, error_body("This model's maximum context length is 4096 tokens. However, you requested 5000.")),
        Action(400, {"message": "Prompt is too long."}),
        Action(422, "Please reduce the length of the messages."),
        Action(413, "Payload Too Large"),
        Action(500, "the request is too large to process"),  # llama.cpp
    ],
)
def test_overflow_is_told_apart_and_not_retried(failure):
    with FakeOpenAI(lambda index, body: failure) as server:
        (error,) = ask(server, request())
    assert type(error) is ContextOverflowError
    assert f"fake at {server.base_url}/chat/completions refuses the prompt's length: HTTP" in str(error)
    assert "lower deployments.*.window_tokens, now 131072, to what the server takes" in str(error)
    assert server.n_requests == 1


def test_a_prompt_far_beyond_the_window_is_not_sent():
    with FakeOpenAI() as server:
        (error,) = ask(server, request(user="x" * 8100), window_tokens=1000)
    assert type(error) is ContextOverflowError
    assert "8112 characters, at least 1014 tokens, but the window of fake is 1000 tokens" in str(error)
    assert server.n_requests == 0


@check_rows(
    ("status", "variable", "way_out"),
    [
        (400, None, "check deployments.*.schema_mode and extra_body"),
        (401, "MY_KEY", "export MY_KEY=…"),
        (403, None, "set deployments.*.api_key_env to the key's variable"),
        (404, None, "check deployments.*.base_url"),
        (301, None, "check deployments.*.base_url"),
    ],
)
def test_a_refusal_is_final_and_named_without_the_key(status, variable, way_out):
    with FakeOpenAI(lambda index, body: Action(status, error_body(f"Incorrect key {KEY} " + "y" * 900))) as server:
        (error,) = ask(server, request(), api_key_env=variable)
    assert type(error) is (RefusedAccessError if status in (401, 403, 404) else ModelError)
    assert server.n_requests == 1
    message = str(error)
    assert f"fake at {server.base_url}/chat/completions: HTTP {status}" in message
    assert "Incorrect key [key]" in message
    assert way_out in message
    assert KEY not in message
    assert 200 < message.count("y") < 310


def test_a_model_that_is_not_there_is_said_with_those_that_are():
    missing = Action(404, error_body("The model `fake` does not exist", "model_not_found"))
    with FakeOpenAI(lambda index, body: missing, models=["fake:7b", "large"]) as server:
        (error,) = ask(server, request())
    assert str(error).startswith(
        "model 'fake' is not on the server, which has fake:7b, large (did you mean fake:7b?) (fake at"
    )
    with FakeOpenAI(lambda index, body: missing, models=["fake"]) as server:
        (error,) = ask(server, request())
    assert "not on the server" not in str(error)


def test_an_answer_that_was_only_thought_is_empty_not_an_error():
    with FakeOpenAI(lambda index, body: Action(body=completion(None, finish_reason="length"))) as server:
        (reply,) = ask(server, request())
    assert (reply.text, reply.finish_reason, server.n_requests) == ("", "length", 1)


def test_identity_follows_the_requests_not_the_server():
    def identity(url="http://a/v1", **options):
        return client_of(url, "m", KEY, **options).identity

    assert identity() == identity("http://b:8/v1", timeout_s=3, max_tries=1)
    assert len({identity(), identity(schema_mode="none"), identity(extra_body={"top_k": 3})}) == 3
    assert KEY not in identity()


@check_rows(
    ("arguments", "message"),
    [
        (("localhost:8000/v1", "m"), "scheme 'localhost' and the host ''"),
        (("ftp://h/v1", "m"), "scheme 'ftp' and the host 'h': write http"),
        (("http://h:port/v1", "m"), "base_url is no URL"),
        (("http://h:99999/v1", "m"), "base_url is no URL (Invalid port: 99999"),
        (("http://xn--/v1", "m"), "base_url is no URL"),
        (("http://me:sk-1/2@h/v1", "m"), "base_url is no URL: percent-encode the user and password in it"),
        (("http://me:password@h/v1", "m", "sk-12345678"), "base_url has a user, which takes the place of the key"),
        (("http://h/v1", "m", "sk-1\n2"), "the API key in MY_KEY cannot stand in an HTTP header"),
    ],
)
def test_bad_settings_are_refused_at_once(arguments, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")) as caught:
        client_of(*arguments, api_key_env="MY_KEY")
    with pytest.raises(ConfigError, match="extra_body is no JSON"):
        client_of("http://h/v1", "m", extra_body={"since": datetime(2024, 1, 1, tzinfo=UTC)})
    assert "sk-1" not in str(caught.value)


def test_a_dead_server_is_transient_and_a_secret_in_its_url_is_not_shown():
    dead = SimpleNamespace(base_url="http://user:hidden@127.0.0.1:9/v1")
    (error,) = ask(dead, request(), key=None, max_tries=2)
    with pytest.raises(TransientModelError, match=r"at http://127.0.0.1:9/v1: gave up after 2 tries.*ConnectError"):
        raise error
    assert "hidden" not in str(error)


def test_the_proxy_that_was_asked_is_named_and_none_is_for_this_machine(monkeypatch):
    """attack6.md, B16."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://me:hunter2@127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "near.example")
    for host, told in (("far.example", " by the proxy 127.0.0.1:9 of the environment"), ("127.0.0.2", "")):
        (error,) = ask(SimpleNamespace(base_url=f"http://{host}:9/v1"), request(), key=None, max_tries=1)
        assert str(error).endswith(f"All connection attempts failed{told}"), host
    with FakeOpenAI() as server:
        (reply,) = ask(server, request())
    assert isinstance(reply, Reply), reply


def test_a_key_is_hidden_in_all_that_enters_from_a_server():
    """A reply's text and model, pieces of a stream, names of models, a header that cannot be read (attack6.md, B4)."""
    told = completion(f"as {KEY} says") | {"model": f"m-{KEY}"}
    pieces = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in (KEY[:9], KEY[9:])]
    ended = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    events = "".join(f"data: {json.dumps(event)}\n\n" for event in [*pieces, ended]) + "data: [DONE]\n\n"
    actions = iter([Action(body=told), Action(body=events), Action(500, "", {"Retry-After": f"\x01{KEY}"})])
    with FakeOpenAI(lambda index, body: next(actions)) as server:
        whole, streamed, failed = ask(server, request(), request(), request(), in_turn=True, max_tries=1)
    assert (whole.text, whole.served_model) == ("as [key] says", "m-[key]")
    assert streamed.text == "[key]"
    assert isinstance(failed, TransientModelError)
    assert KEY not in repr((whole, streamed, failed))


PROXIES = {
    "a SOCKS proxy without its package": ("ALL_PROXY", "socks5://me:hunter2@127.0.0.1:9"),
    "an unknown kind": ("HTTP_PROXY", "gopher://me:hunter2@127.0.0.1:9"),
    "a port that is none": ("HTTP_PROXY", "http://me:hunter2/@127.0.0.1:9"),
    "exceptions that are none": ("NO_PROXY", "[::hunter2],http://x:y"),
    "certificates that are not there": ("SSL_CERT_FILE", "/hunter2/certificates"),
}


@pytest.mark.parametrize("case", PROXIES)
def test_what_the_environment_says_of_proxies_and_is_wrong_is_said_without_a_password(case, monkeypatch):
    monkeypatch.setenv(*PROXIES[case])
    (error,) = ask(SimpleNamespace(base_url="http://me:hunter2@127.0.0.1:9/v1"), request(), key=None, max_tries=1)
    assert type(error) is TransientModelError
    assert "correct HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY and SSL_CERT_FILE" in str(error)
    assert "hunter2" not in str(error)


def test_a_user_and_password_that_a_server_sends_back_are_hidden_as_they_were_sent():
    def echo(index, body):
        return Action(400, error_body(f"refused: {server.log[-1].headers['authorization']}"))

    with FakeOpenAI(echo) as server:
        address = server.base_url.replace("://", "://me:p%2Fhunter2@")
        (error,) = ask(SimpleNamespace(base_url=address), request(), key=None)
    assert server.log[-1].headers["authorization"] == "Basic bWU6cC9odW50ZXIy"
    assert "refused: Basic [key]" in str(error)


def asked_of(script, *requests, **options):
    with FakeOpenAI(script) as server:
        return ask(server, *(requests or [request()]), **options), [received.body for received in server.log]


WHOLE_ANSWER = '{"answer_value": "12", "ref_id": ["a"]}'


def finished(reason, text=WHOLE_ANSWER, **usage):
    return Action(body={"choices": [{"message": {"content": text}, "finish_reason": reason}], "usage": usage})


@check_rows("failure", [finished("abort"), finished("stop", "", prompt_tokens=9, completion_tokens=0)])
def test_a_reply_that_says_it_failed_is_asked_again_with_another_seed_and_is_no_reply(failure):
    [reply], sent = asked_of(scripted(failure))
    assert (reply.text == WHOLE_ANSWER, reply.finish_reason) == (False, "stop")
    assert [body["seed"] for body in sent] == [1, 2]
    [error], sent = asked_of(lambda *_: failure, max_tries=3)
    with pytest.raises(TransientModelError, match=r"gave up after 3 tries, the last one: (the reply ended|the model)"):
        raise error
    assert len(str(error)) < 700
    assert [body["seed"] for body in sent] == [1, 2, 3]


def test_what_is_odd_in_a_reply_is_noted_and_a_prompt_without_a_count_is_estimated():
    [reply], _ = asked_of(lambda *_: finished("stop"))
    assert reply.prompt_tokens == -(-request().n_chars // 4)
    assert reply.note.startswith("token counts are estimated")


def test_a_reply_that_a_filter_stopped_is_an_error_at_once():
    [error], sent = asked_of(lambda *_: finished("content_filter"))
    assert type(error) is ModelError
    assert len(sent) == 1


NO_ROOM = {
    "vllm#42474": "'max_tokens' or 'max_completion_tokens' is too large: 1024. This model's maximum context length is "
    "8192 tokens and your request has 7892 input tokens (1024 > 8192 - 7892).",
    "OpenAI": "This model's maximum context length is 8192 tokens. However, you requested 8916 tokens (7892 in the "
    "messages, 1024 in the completion). Please reduce the length of the messages or completion.",
    "Anthropic": "input length and `max_tokens` exceed context limit: 7,892 + 1024 > 8,192, decrease input length or "
    "`max_tokens` and try again",
    "TGI": "`inputs` tokens + `max_new_tokens` must be <= 8192. Given: 7892 `inputs` tokens and 1024 `max_new_tokens`",
}


@pytest.mark.parametrize("server", NO_ROOM)
def test_where_the_prompt_leaves_less_room_less_is_asked_and_said(server):
    refused = Action(400, error_body(NO_ROOM[server]))
    script = lambda _, body: refused if body["max_tokens"] > 300 else None  # noqa: E731
    large, small = request(max_tokens=1024, schema=answer_schema(["a"])), request(max_tokens=64)
    (reply, other), sent = asked_of(script, large, small)
    assert [body["max_tokens"] for body in sent if body["max_tokens"] != 64] == [1024, 300]
    assert (reply.note, other.note) == ("max_tokens is lowered where the prompt leaves less room", "")
    # Less than the shortest answer of the schema, or refused again: the prompt is too long.
    tight = Action(400, error_body(NO_ROOM["vllm#42474"].replace("7892", "8180")))
    for action in (tight, refused):
        [error], _ = asked_of(lambda *_, action=action: action, large)
        assert isinstance(error, ModelError)
        assert not isinstance(error, TransientModelError)


def test_a_wait_that_the_body_tells_is_waited():
    told = [{"error": {"code": 429, "details": [{"retryDelay": "0.5s"}]}}]
    with FakeOpenAI(scripted(Action(429, told))) as server:
        (reply,) = ask(server, request())
        first, second = (received.arrived_s for received in server.log)
    assert isinstance(reply, Reply)
    assert second - first >= 0.5


def test_a_wait_of_a_day_is_said_and_not_slept():
    day = Action(429, error_body("slow down"), {"Retry-After": "86400"})
    [error], sent = asked_of(lambda *_: day)
    assert type(error) is TransientModelError
    assert "asks to wait 86,400 s, more than 300 s: repeat the command then" in str(error)
    assert len(sent) == 1


def test_a_stream_is_not_asked_for_and_an_error_in_one_is_that_of_its_status():
    """9router#3492, modlens#94, unsloth#6570: gateways that stream, also where they are told not to."""
    overloaded = Action(body='data: {"error": {"message": "overloaded", "code": 529}}\n\n')
    [error], [sent] = asked_of(lambda *_: overloaded, max_tries=1)
    assert sent["stream"] is False
    assert "HTTP 529" in str(error)


NO_CREDIT = "its credit is used up: top up the account, then repeat the command"


@check_rows(
    ("action", "way_out"),
    [
        (Action(429, error_body("You exceeded your current quota", "insufficient_quota")), NO_CREDIT),  # qwen-code#7842
        (Action(402, error_body("Insufficient Balance")), NO_CREDIT),  # gptme#2383
        (Action(200, {"error": {"message": "Insufficient credits", "code": 402}}), NO_CREDIT),  # as OpenRouter says it
        (Action(401, error_body("no such key")), "set deployments.*.api_key_env"),
        (Action(403, error_body("no access to this model")), "set deployments.*.api_key_env"),
        (Action(404, error_body("no such model", "model_not_found")), "check deployments.*.base_url"),
    ],
)
def test_a_refusal_of_every_call_is_told_from_a_rate_limit(action, way_out):
    [error], sent = asked_of(lambda *_: action)
    assert type(error) is RefusedAccessError
    assert way_out in str(error)
    assert len(sent) <= 1


@pytest.mark.parametrize(
    "action",
    [
        Action(429, error_body("You exceeded your current quota, please check your plan")),  # Google's rate limits
        Action(429, error_body("insufficient_quota, try again in 0.1s")),  # openclaw#148275
        Action(403, error_body("the input was flagged by moderation")),
    ],
)
def test_a_rate_limit_and_a_refused_prompt_are_of_one_call(action):
    [error], _ = asked_of(lambda *_: action, max_tries=2)
    assert isinstance(error, ModelError)
    assert not isinstance(error, RefusedAccessError)


MIB = 2**20
WHOLE = json.dumps(completion("good"))
ZIPPED, TWICE = {"Content-Encoding": "gzip"}, {"Content-Encoding": "gzip, gzip"}


def compressed_zeros(n_mib: int) -> bytes:
    """The beginning of a gzip stream of so many MiB of zeros, made of copies of one block: in no time, in no memory."""
    compressor = zlib.compressobj(wbits=31)
    blocks = [compressor.compress(bytes(MIB)) + compressor.flush(zlib.Z_FULL_FLUSH) for _ in range(2)]
    return blocks[0] + blocks[1] * (n_mib - 1)


BOMB = compressed_zeros(512)
TOO_LARGE = r"the body has more than 4 MiB: ask for less at once, or name another server$"


@check_rows(
    ("bad", "message"),
    [
        (Action(body=BOMB, headers=ZIPPED), TOO_LARGE),
        (Action(body=gzip.compress(BOMB), headers=TWICE), "other than gzip and deflate$"),
        (Action(body=b" " * (64 * MIB)), TOO_LARGE),
        (Action(body=WHOLE, headers=ZIPPED), "DecodingError"),
        (Action(body=b"[" * (3 * MIB)), "malformed JSON in a body of 3145728 bytes$"),
        (Action(body=json.dumps(completion("é"), ensure_ascii=False).encode("latin-1")), "malformed JSON"),
        (Action(body=gzip.compress(WHOLE.encode())[:60], headers=ZIPPED), "malformed JSON in a body of"),
    ],
)
def test_a_bad_body_is_an_error_of_its_request_alone(bad, message):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with FakeOpenAI(lambda _, body: bad if body["seed"] == 0 else Action(body=completion("good"))) as server:
        error, *good = ask(server, *map(request, range(5)), max_tries=2, timeout_s=60)
    with pytest.raises(ModelError, match=message):
        raise error
    assert [reply.text for reply in good] == ["good"] * 4
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


def test_large_replies_are_decompressed_each_on_a_connection_of_its_own():
    text = "long " * (MIB // 2)
    zipped = Action(body=gzip.compress(json.dumps(completion(text)).encode()), headers=ZIPPED)
    with FakeOpenAI(lambda *_: zipped) as server:
        replies = ask(server, *map(request, range(3)), in_turn=True, key=None, timeout_s=60)
    assert [reply.text for reply in replies] == [text] * 3
    assert server.n_connections == 3
    assert "authorization" not in server.log[0].headers


def test_a_cookie_of_one_reply_is_not_sent_with_the_next_request():
    """A gateway's cookie may stand for a conversation, and its replies for what was said in it before."""
    with FakeOpenAI(lambda index, _: Action(headers={"Set-Cookie": f"conversation{index}=1"})) as server:
        ask(server, request(1), request(2), in_turn=True)
    assert [received.headers.get("cookie") for received in server.log] == [None, None]


@pytest.mark.parametrize(
    "action",
    [
        Action(401, {"error": KEY}, reason=f"no {KEY}"),
        Action(401, "x" * 290 + KEY, {"WWW-Authenticate": KEY}),
        Action(500, f"<p>{KEY}</p>", {"Retry-After": KEY}, reason=KEY),
        Action(500, f"<p>{KEY[:9]}\x00{KEY[9:]}</p>"),
        Action(500, f"<p>{KEY[:9]}\n  {KEY[9:]}</p>"),
        Action(400, "".join(f"\\u{ord(char):04x}" for char in KEY)),
        Action(400, f"the model {KEY} maximum context length"),
        Action(404, f"no model {KEY}"),
        Action(200, {"key": KEY}),
        Action(200, completion(f"it is {KEY}", finish_reason=KEY)),
        Action(200, json.dumps(completion(KEY)).replace(KEY, f"\\u{ord(KEY[0]):04x}{KEY[1:]}").encode()),
        Action(200, b"\xff", {"Content-Type": KEY}),
        Action(302, "", {"Location": f"http://127.0.0.1:9/{KEY}"}),
    ],
)
def test_the_key_is_in_no_reply_no_error_and_no_log(action, caplog):
    with caplog.at_level(logging.DEBUG), FakeOpenAI(lambda *_: action, models=[KEY]) as server:
        [got] = ask(server, request(), max_tries=2)
    text = "".join(traceback.format_exception(got)) if isinstance(got, Exception) else repr(got)
    assert KEY not in text + repr(vars(got) if isinstance(got, Exception) else "") + caplog.text


def test_a_key_that_is_a_word_is_left_in_replies():
    with FakeOpenAI(lambda *_: Action(body=completion("EMPTY is a word"))) as server:
        (reply,) = ask(server, request(), key="EMPTY")
    assert reply.text == "EMPTY is a word"


class CountingLimiter:
    def __init__(self):
        self.n_tokens = []

    async def acquire(self, n_tokens=0):
        self.n_tokens.append(n_tokens)

    async def penalise(self, pause_s):
        raise AssertionError("no penalty was due")


def test_every_try_waits_for_its_turn_by_its_tokens():
    """The limiter's own clock is tested in ``test_limits``."""
    limiter = CountingLimiter()
    with FakeOpenAI(scripted(Action(500), Action(503))) as server:
        ask(server, request(user="x" * 4000), limiter=limiter)
    assert limiter.n_tokens == [1003 + 64] * 3  # the system's text too


def test_headers_and_a_query_go_with_every_request():
    headers, query = {"api-key": "azure-key-123", "x-team": "green"}, "?api-version=2024-10-21&deployment=a%20b"
    with FakeOpenAI() as server:
        ask(server, request(), request(2), key=None, query=query, headers=headers)
    for received in server.log:
        assert received.path.replace("+", "%20") == f"/v1/chat/completions{query}"
        assert headers.items() <= {name.lower(): value for name, value in received.headers.items()}.items()


@check_rows(
    ("headers", "message"),
    [
        ({"Content-Length": "3"}, "'Content-Length' cannot be set"),
        ({"a b": "x"}, "'a b' cannot be set"),
        ({"X-A": "a\r\nX-B: b"}, "the value of X-A cannot stand in an HTTP header"),
        ({"X-A": "é"}, "the value of X-A cannot stand in an HTTP header"),
        ({"authorization": "Basic abc"}, "set api_key_env to null"),
    ],
)
def test_headers_that_cannot_be_sent(headers, message):
    with pytest.raises(ConfigError, match=message):
        client_of("http://127.0.0.1:1/v1", "fake", KEY, headers=headers)


GIVEN = {
    "a header": {"headers": {"api-key": "s3cr3t-in-clear"}},
    "another header": {"headers": {"X-Auth-Token": "s3cr3t-in-clear"}},
    "the body": {"extra_body": {"auth": {"api_key": ["s3cr3t-in-clear"]}}},
    "the address": {"query": "?api_key=s3cr3t-in-clear"},
    "a function's address": {"query": "?api-version=1&code=s3cr3t-in-clear"},
    "a signed address": {"query": "?SAS=s3cr3t-in-clear"},
}


@check_rows("case", GIVEN)
def test_a_key_in_any_place_is_in_no_reply_error_or_identity(case):
    options = {"key": None, "query": "", **GIVEN[case]}
    actions = [Action(body=completion("it is s3cr3t-in-clear")), Action(400, error_body("s3cr3t-in-clear"))]
    with FakeOpenAI(scripted(*actions)) as server:
        reply, error = ask(server, request(), request(), in_turn=True, **options)
        identity = client_of(server.base_url + options.pop("query"), "fake", **options).identity
    assert reply.text == "it is [key]"
    assert isinstance(error, ModelError)
    assert "s3cr3t" not in f"{identity} {error}"


async def test_a_models_name_of_several_lines_is_one():
    with FakeOpenAI(models=["EVIL\n\nfake line\x1b[31m", "b"]) as server:
        backend = client_of(server.base_url, "b")
        assert list(await backend.models()) == ["EVIL fake line[31m", "b"]
        await backend.close()


ECHOED = {
    "a header with its scheme": ({"headers": {"Authorization": "Bearer tokenA1B2C3D4"}}, "", "Bearer tokenA1B2C3D4"),
    "its token alone": ({"headers": {"Authorization": "Bearer tokenA1B2C3D4"}}, "", "the token tokenA1B2C3D4"),
    "a percent-encoded key": ({}, "?api_key=a%2Fb%2Fcdefgh12", "/v1/chat?api_key=a%2Fb%2Fcdefgh12"),
    "the same decoded": ({}, "?api_key=a%2Fb%2Fcdefgh12", "api_key a/b/cdefgh12"),
}


@check_rows("case", ECHOED)
def test_what_a_server_says_of_a_secret_is_hidden(case):
    options, query, echoed = ECHOED[case]
    with FakeOpenAI(lambda *_: Action(403, error_body(f"no access with {echoed}"))) as server:
        (error,) = ask(server, request(), key=None, query=query, **options)
    assert isinstance(error, ModelError)
    assert "[key]" in str(error)
    assert not any(secret in str(error) for secret in ("tokenA1B2C3D4", "a%2Fb", "a/b"))
