"""A server on 127.0.0.1 with `/v1/embeddings` and `/v1/rerank`, over a real encoder or any function of texts.

    with EndpointServer(vectors_of) as server:
        EndpointConfig(kind="openai", base_url=server.base_url, model="m", api_key_env=None)
        server.requests          # (path, body) of every request

`script(number, body)` says what happens to a request instead: a status, or a status and a body; None: the usual reply.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy as np

from kit.local_server import LocalServer

Script = Callable[[int, dict[str, Any]], "int | tuple[int, Any] | None"]


class EndpointServer(LocalServer):
    """The server, as a context manager; one thread computes at a time."""

    def __init__(
        self,
        vectors_of: Callable[[list[str]], Any] | None = None,
        script: Script | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._vectors_of = vectors_of or letters
        self._script = script or (lambda number, body: None)
        self.headers = headers or {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.n_at_once = self.most_at_once = 0
        self._lock, self._turn = threading.Lock(), threading.Lock()
        super().__init__(type("Handler", (_Handler,), {"of": self}))

    @property
    def sent(self) -> list[str]:
        """Every text that was to be encoded, in order of arrival."""
        return [text for _, body in self.requests for text in body.get("input", [])]

    def reply(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        with self._lock:
            number = len(self.requests)
            self.requests.append((path, body))
        scripted = self._script(number, body)
        if scripted is not None:
            return scripted if isinstance(scripted, tuple) else (scripted, {"error": f"scripted {scripted}"})
        if path == "/v1/embeddings":
            with self._turn:
                vectors = np.asarray(self._vectors_of(body["input"]))
            return 200, embeddings(vectors.tolist())
        return 404, {"error": f"no such path: {path}"}


def letters(texts: list[str]) -> np.ndarray:
    """Vectors of 26 numbers: how often a text has each letter, and a bit of everything."""
    return np.array([[text.lower().count(chr(97 + number)) + 0.01 for number in range(26)] for text in texts])


def embeddings(vectors: list[list[float]]) -> dict[str, Any]:
    """A reply with these vectors, the last one first: clients go by the index."""
    data = [{"object": "embedding", "index": position, "embedding": vector} for position, vector in enumerate(vectors)]
    return {"object": "list", "data": data[::-1], "usage": {"prompt_tokens": 1, "total_tokens": 1}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    of: EndpointServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        with self.of._lock:
            self.of.n_at_once += 1
            self.of.most_at_once = max(self.of.most_at_once, self.of.n_at_once)
        try:
            status, content = self.of.reply(self.path, body)
        finally:
            with self.of._lock:
                self.of.n_at_once -= 1
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in self.of.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""
