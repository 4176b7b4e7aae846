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
from typing import Any

import numpy as np

from kit.local_server import Action, LocalServer

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
        self._turn = threading.Lock()
        super().__init__()

    @property
    def sent(self) -> list[str]:
        """Every text that was to be encoded, in order of arrival."""
        return [text for _, body in self.requests for text in body.get("input", [])]

    def receive(self, path: str, headers: dict[str, str], raw: bytes) -> Action:
        body = json.loads(raw)
        with self.lock:
            number = len(self.requests)
            self.requests.append((path, body))
            self.n_at_once += 1
            self.most_at_once = max(self.most_at_once, self.n_at_once)
        try:
            status, content = self._reply(number, path, body)
        finally:
            with self.lock:
                self.n_at_once -= 1
        return Action(status, json.dumps(content), self.headers)

    def _reply(self, number: int, path: str, body: dict[str, Any]) -> tuple[int, Any]:
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
