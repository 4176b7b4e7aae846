"""A connection carries one request; what a server or proxy sends besides is in test_hostile_server.py."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest
from kit.fake_openai import client_of

from kohaku_ray.errors import TransientModelError
from kohaku_ray.models.request import ChatRequest


def asked(question: str) -> ChatRequest:
    return ChatRequest(
        model="fake", messages=(("user", question),), temperature=0.0, top_p=1.0, max_tokens=8, seed=1, schema=None
    )


def response(text: str) -> bytes:
    body = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


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


def replies(url: str, *questions: str) -> list[str]:
    async def run():
        backend = client_of(url, "fake", backoff_s=0.001, timeout_s=5.0, max_tries=2)
        try:
            texts = []
            for question in questions:
                try:
                    texts.append((await backend.chat(asked(question))).text)
                except TransientModelError as error:
                    texts.append(f"error: {error}")
            return texts
        finally:
            await backend.close()

    return asyncio.run(run())


def test_a_connection_carries_one_request():
    """So a server that swaps the replies of two requests, or answers in its own order, has no second one to swap."""
    peers: list[object] = []

    def swap(send, question, number):
        peers.append(send.__self__)
        send(response(f"to {question}"))

    with serving(swap) as url:
        assert replies(url, "a", "b", "c") == ["to a", "to b", "to c"]
    assert len({id(peer) for peer in peers}) == 3


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
