"""A local S3 server (moto's, in a process of its own) behind a proxy that fails on demand."""

from __future__ import annotations

import http.client
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BUCKET = "kohaku"

BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass
class Fault:
    """What the proxy does instead of forwarding.

    ``busy``: a 503; ``hang``: no answer; ``drop``: the connection ends; ``cut``: half an answer.
    """

    kind: str
    method: str
    path: str
    times: int


@dataclass
class FaultyS3:
    """The server's addresses, and the faults still to come."""

    moto: str
    endpoint: str = ""
    faults: list[Fault] = field(default_factory=list)
    met: list[str] = field(default_factory=list)
    """Every request that met a fault, as ``KIND METHOD PATH``."""
    requests: list[str] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    """Bytes that were read of each path."""

    def uri(self, path: str) -> str:
        """URI of a path in the bucket, with the end point among its options."""
        host = self.endpoint.removeprefix("http://")
        return f"s3://{BUCKET}/{path}?endpoint_override={host}&scheme=http&region=us-east-1"

    def fail(self, kind: str, method: str = ".*", path: str = ".*", times: int = 1) -> None:
        self.faults.append(Fault(kind, method, path, times))

    def demand_credentials(self, is_demanded: bool) -> None:
        """Let the server refuse every key it has not issued itself (it has issued none), or take any."""
        request = urllib.request.Request(
            f"{self.moto}/moto-api/reset-auth",
            data=b"0" if is_demanded else b"inf",
            headers={"Content-Type": "application/octet-stream"},
            method="POST",
        )
        urllib.request.urlopen(request, timeout=10).read()

    def due(self, method: str, path: str) -> str | None:
        """The fault that a request meets; counted."""
        self.requests.append(f"{method} {path}")
        for fault in self.faults:
            if fault.times > 0 and re.fullmatch(fault.method, method) and re.search(fault.path, path):
                fault.times -= 1
                self.met.append(f"{fault.kind} {method} {path}")
                return fault.kind
        return None


def _handler(s3: FaultyS3) -> type[BaseHTTPRequestHandler]:
    host = s3.moto.removeprefix("http://")

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def forward(self) -> None:
            body = self.body()
            fault = s3.due(self.command, self.path)
            if fault == "busy":
                return self.answer(503, {"Content-Type": "application/xml"}, BUSY)
            if fault == "hang":
                time.sleep(20)
            if fault in ("hang", "drop"):
                self.close_connection = True
                return None
            connection = http.client.HTTPConnection(host, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "transfer-encoding"}
            connection.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
            reply = connection.getresponse()
            data, headers = reply.read(), dict(reply.getheaders())
            connection.close()
            if self.command == "GET":
                s3.sent[self.path.partition("?")[0]] += len(data)
            return self.answer(reply.status, headers, data, cut=fault == "cut")

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def answer(self, status: int, headers: dict[str, str], data: bytes, cut: bool = False) -> None:
            self.send_response_only(status)
            is_head = self.command == "HEAD"
            for name, value in headers.items():
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            length = headers.get("Content-Length", "0") if is_head else str(len(data))
            self.send_header("Content-Length", length)
            self.end_headers()
            if not is_head:
                self.wfile.write(data[: len(data) // 2] if cut else data)
            self.close_connection = cut

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

    return Proxy


@contextmanager
def serving() -> Iterator[FaultyS3]:
    """Run the server and its proxy while the block runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    s3 = FaultyS3(f"http://127.0.0.1:{port}")
    try:
        _wait(lambda: urllib.request.urlopen(f"{s3.moto}/moto-api/data.json", timeout=5).read(), process)
        with ThreadingHTTPServer(("127.0.0.1", 0), _handler(s3)) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
            s3.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
            _make_bucket(s3)
            yield s3
            server.shutdown()
    finally:
        process.terminate()
        process.wait(20)


def _wait(ready: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while True:
        assert process.poll() is None, f"moto's server exited with {process.returncode}"
        try:
            ready()
            return
        except OSError:
            assert time.monotonic() < until, "moto's server did not start in 60 s"
            time.sleep(0.1)


def _make_bucket(s3: FaultyS3) -> None:
    import pyarrow.fs as fs

    filesystem = fs.S3FileSystem(
        endpoint_override=s3.moto, scheme="http", region="us-east-1", allow_bucket_creation=True
    )
    filesystem.create_dir(BUCKET)
