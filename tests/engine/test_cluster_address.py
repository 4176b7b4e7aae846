"""An address at which no Ray cluster answers is said in seconds, with what mends it."""

from __future__ import annotations

import socket
import time
from concurrent import futures

import pytest
from kit.fake_openai import FakeOpenAI

from kohaku_ray.engine import cluster
from kohaku_ray.errors import ConfigError


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(cluster, "ANSWERS_S", 1.0)
    monkeypatch.delenv("RAY_USE_TLS", raising=False)


def refused(address: str) -> str:
    began = time.perf_counter()
    with pytest.raises(ConfigError) as found:
        cluster._check_answers(address)
    assert time.perf_counter() - began < 5
    return str(found.value)


def test_a_port_that_another_program_has_is_said():
    with FakeOpenAI() as server:
        address = server.base_url.removeprefix("http://").removesuffix("/v1")
        said = refused(address)
    assert f"cluster.address is {address!r} but another program than Ray has that port: give the port" in said


def test_a_port_at_which_nothing_listens_is_said():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        said = refused(address)
    assert f"cluster.address is {address!r} and no Ray cluster answers there" in said
    assert "ray start --head" in said


def test_names_without_a_port_and_servers_of_ray_pass():
    import grpc

    for address in ("auto", "local"):
        cluster._check_answers(address)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        cluster._check_answers(f"127.0.0.1:{port}")
    finally:
        server.stop(None)
