"""Servers of real engines as processes of their own: vLLM's, and any that takes ``--port``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ON_CPUS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Variables of an engine on CPUs that computes in its own process: one less imports vLLM (9 s of CPU, half a GiB)."""


@contextmanager
def vllm_server(model: str, window: int, log: Path, *more: str) -> Iterator[str]:
    """Serve a pooling model on CPUs by vLLM while the block runs; gives the URL. A busy machine takes minutes."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--runner", "pooling"]
    command += ["--dtype", "float32", "--served-model-name", "served", "--max-model-len", str(window)]
    command += ["--enforce-eager", *more]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", **ON_CPUS}
    with started_server(command, log, environment) as url:
        yield url


@contextmanager
def started_server(
    command: list[str],
    log: Path,
    environment: dict[str, str] | None = None,
    host: tuple[str, ...] = ("--host", "127.0.0.1"),
    health: str = "/health",
) -> Iterator[str]:
    """Run a server with its ``host`` and a free ``--port`` while the block runs; gives the URL once it is healthy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*command, *host, "--port", str(port)]
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
    try:
        while not is_up(f"http://127.0.0.1:{port}{health}"):
            assert server.poll() is None, log.read_text()[-3000:]
            time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False
