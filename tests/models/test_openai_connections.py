"""A reply is taken for the request that its connection was opened for, whatever a server or proxy sends besides."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import contextmanager, suppress
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest
from kit.fake_openai import Action, FakeOpenAI, client_of

from kohaku_ray.errors import TransientModelError
from kohaku_ray.models.request import ChatRequest


def asked(question: str) -> ChatRequest:
    return ChatRequest(
        model="fake", messages=(("user", question),), temperature=0.0, top_p=1.0, max_tokens=8, seed=1, schema=None
    )


def response(text: str, status: str = "200 OK") -> bytes:
    body = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}).encode()
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


@contextmanager
def serving(answer):
    """A server on raw sockets: ``answer(send, question, number)`` per request, as often as a connection brings one."""
    numbers = iter(range(1000))

    class Handler(StreamRequestHandler):
        def handle(self):
            while line := self.rfile.readline():
                n_bytes = 0
                while (line := self.rfile.readline().strip()) != b"":
                    name, _, value = line.partition(b":")
                    n_bytes = int(value) if name.lower() == b"content-length" else n_bytes
                question = json.loads(self.rfile.read(n_bytes))["messages"][0]["content"]
                answer(self.wfile.write, question, next(numbers))

    ThreadingTCPServer.allow_reuse_address = True
    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


def replies(url: str, *questions: str, pause_s: float = 0.0, **options) -> list[str]:
    async def run():
        backend = client_of(url, "fake", **{"backoff_s": 0.001, "timeout_s": 5.0, "max_tries": 2, **options})
        try:
            texts = []
            for question in questions:
                try:
                    texts.append((await backend.chat(asked(question))).text)
                except TransientModelError as error:
                    texts.append(f"error: {error}")
                await asyncio.sleep(pause_s)
            return texts
        finally:
            await backend.close()

    return asyncio.run(run())


@pytest.mark.parametrize("pause_s", [0.0, 0.1])
@pytest.mark.parametrize("in_one_part", [True, False])
def test_a_second_response_to_one_request_is_never_anothers_reply(in_one_part, pause_s):
    def twice(send, question, number):
        parts = [response(f"to {question}"), response("left over")]
        for part in [b"".join(parts)] if in_one_part else parts:
            send(part)

    with serving(twice) as url:
        assert replies(url, "a", "b", "c", pause_s=pause_s) == ["to a", "to b", "to c"]


def test_a_second_response_that_comes_while_the_next_request_waits():
    """A gateway sends its own page at its time limit, and the model's late reply when that comes."""
    late: list[threading.Thread] = []

    def send_late(send):
        with suppress(OSError):  # the connection is closed: there is nobody to mislead
            send(response("late reply to a"))

    def gateway(send, question, number):
        if question == "a" and number == 0:
            send(response("gateway time-out", "504 Gateway Time-out"))
            late.append(threading.Timer(0.2, send_late, [send]))
            late[0].start()
        else:
            time.sleep(0.4)
            send(response(f"to {question}"))

    with serving(gateway) as url:
        assert replies(url, "a", "b") == ["to a", "to b"]
    late[0].join()


def test_a_reply_later_than_the_time_limit_is_not_the_next_ones():
    def slow(send, question, number):
        time.sleep(0.5 if number == 0 else 0.0)
        send(response(f"{number} to {question}"))

    with serving(slow) as url:
        assert replies(url, "a", "b", timeout_s=0.2, pause_s=0.5) == ["1 to a", "2 to b"]


def test_a_connection_carries_one_request():
    """So a server that swaps the replies of two requests, or answers in its own order, has no second one to swap."""
    peers: list[object] = []

    def swap(send, question, number):
        peers.append(send.__self__)
        send(response(f"to {question}"))

    with serving(swap) as url:
        assert replies(url, "a", "b", "c") == ["to a", "to b", "to c"]
    assert len({id(peer) for peer in peers}) == 3


def test_a_cookie_of_one_reply_is_not_sent_with_the_next_request():
    """A gateway's cookie may stand for a conversation, and its replies for what was said in it before."""
    with FakeOpenAI(lambda index, body: Action(headers={"Set-Cookie": f"conversation{index}=1"})) as server:
        assert len(replies(server.base_url, "a", "b")) == 2
    assert [received.headers.get("cookie") for received in server.log] == [None, None]


@pytest.mark.parametrize(
    "broken",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\r\n",
    ],
)
def test_what_is_not_whole_is_asked_again_on_another_connection(broken):
    connections: list[int] = []

    def cut(send, question, number):
        connections.append(number)
        if number == 0:
            send(broken)
            raise ConnectionAbortedError
        send(response(f"to {question}"))

    with serving(cut) as url:
        assert replies(url, "a") == ["to a"]
    assert connections == [0, 1]
