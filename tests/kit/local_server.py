"""The HTTP server of tests: on 127.0.0.1, in a thread, while a block runs; what it answers is a subclass's.

It waits, drips, resets and cuts as its `Action` says. Replies that are no HTTP are `kit.hostile_server`'s.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Action:
    """What the server does with one request.

    The body is sent as it is (str, bytes) or as JSON; None: the default reply. It may wait ``delay_s``, send a byte
    at a time with a pause of ``drip_s``, ``reset`` the connection by TCP, or promise more than it sends (``cut``).
    """

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    drip_s: float = 0.0
    reset: bool = False
    cut: bool = False
    reason: str | None = None


def error_body(message: str, code: str | None = None) -> dict[str, Any]:
    """An error as OpenAI writes it."""
    return {"error": {"message": message, "type": "invalid_request_error", "code": code}}


def not_found(path: str) -> Action:
    return Action(404, error_body(f"no such path: {path}"))


class LocalServer:
    """A server, as a context manager; requests are answered concurrently, connections kept alive."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.plays = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def receive(self, path: str, headers: dict[str, str], raw: bytes) -> Action:
        """Say what is done with a POST."""
        raise NotImplementedError

    def list_models(self) -> Action:
        return not_found("/v1/models")

    def receive_get(self, path: str) -> Action:
        """Say what is done with a GET."""
        return self.list_models() if path == "/v1/models" else not_found(path)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def n_connections(self) -> int:
        return self._server.n_connections


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    plays: LocalServer
    n_connections = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is part of the play."""

    def process_request(self, request: Any, client_address: Any) -> None:
        self.n_connections += 1
        super().process_request(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        action = self.server.plays.receive(self.path, headers, raw)
        time.sleep(action.delay_s)
        if action.reset:
            self._reset()
        else:
            self._send(action)

    def do_GET(self) -> None:
        action = self.server.plays.receive_get(self.path)
        if action.reset:
            self._reset()
        else:
            self._send(action)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def _send(self, action: Action) -> None:
        body = action.body
        data = (
            body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        )
        self.send_response(action.status, action.reason)
        if "Content-Type" not in action.headers:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data) + (100 if action.cut else 0)))
        for name, value in action.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if action.drip_s:
            for position in range(len(data)):
                self.wfile.write(data[position : position + 1])
                time.sleep(action.drip_s)
        else:
            self.wfile.write(data)
        if action.cut:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""
