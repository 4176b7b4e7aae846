"""Joining a cluster: an address where none answers is said in seconds; a local one is not reached from elsewhere."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent import futures

import pytest
import ray
from kit.fake_openai import FakeOpenAI
from kit.own_ray import environment
from kit.ray_processes import reached_from_elsewhere

from kohaku_ray.config.schema import ClusterConfig
from kohaku_ray.engine import cluster
from kohaku_ray.errors import ConfigError, KohakuRayError
from kohaku_ray.records import digest_text
from kohaku_ray.systems.offline import ExtractiveConfig


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(cluster, "ANSWERS_S", 1.0)
    monkeypatch.delenv("RAY_USE_TLS", raising=False)


def refused(address: str) -> str:
    began = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        cluster._check_answers(address)
    assert time.perf_counter() - began < 5
    return str(caught.value)


def test_a_port_that_another_program_has_is_said():
    with FakeOpenAI() as server:
        address = server.base_url.removeprefix("http://").removesuffix("/v1")
        message = refused(address)
    assert f"cluster.address is {address!r} but another program than Ray has that port: give the port" in message


def test_a_port_at_which_nothing_listens_is_said():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        message = refused(address)
    assert f"cluster.address is {address!r} and no Ray cluster answers there" in message
    assert "ray start --head" in message


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


_JOIN = """
import sys
from kohaku_ray.engine.cluster import _check_answers
try:
    print(_check_answers(sys.argv[1]))
except Exception as error:
    print(error)
"""


def test_a_missing_and_a_wrong_token_are_named_as_that(pool, tmp_path):
    address = ray.get_runtime_context().gcs_address
    right = os.environ["RAY_AUTH_TOKEN"]  # of a local cluster, which sets one
    asks, export = f"cluster.address is '{address}', whose Ray asks for a token, and", "export RAY_AUTH_MODE=token RAY_"
    said = {
        f"{asks} RAY_AUTH_MODE is not set here, so none was sent: {export}": {},
        f"{asks} the one in RAY_AUTH_TOKEN is another: {export}": {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab"},
        f"{asks} there is none in {tmp_path}/.ray/auth_token: {export}": {"RAY_AUTH_MODE": "token"},
        "None": {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": right},
    }
    command = [sys.executable, "-c", _JOIN, address]
    joining = {  # each in a process of its own: Ray reads the mode once
        line: subprocess.Popen(command, env=environment(HOME=str(tmp_path), **set_), stdout=subprocess.PIPE, text=True)
        for line, set_ in said.items()
    }
    printed = {line: process.communicate(timeout=100)[0] for line, process in joining.items()}
    assert [line for line, text in printed.items() if not text.startswith(line)] == [], printed


@pytest.mark.usefixtures("pool")
def test_every_process_listens_on_loopback_alone():
    from kohaku_ray.engine.serving.applications import serving

    with serving({"two": ExtractiveConfig(replicas=2)}):
        listening, open_to_all = reached_from_elsewhere()
    assert not open_to_all
    assert {"gcs_server", "raylet"} <= listening
    assert any(name.startswith("ray::ServeReplica") for name in listening)


def test_a_ray_that_does_not_start_is_said_in_words(monkeypatch):
    def init(**settings: object) -> None:
        raise RuntimeError("Timed out waiting for file metrics_agent_port")

    monkeypatch.setattr(cluster.ray, "init", init)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster.ray, "shutdown", lambda: None)  # it would end the session's cluster
    with (
        pytest.raises(KohakuRayError, match=r"Ray did not start on this machine .*metrics_agent_port.*logs"),
        cluster.connect(ClusterConfig()),
    ):
        raise AssertionError("not reached")


def test_a_file_that_is_another_one_there_is_told_from_a_missing_one(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    file, content = str(tmp_path / "a"), digest_text(b"1")
    assert cluster.find_unseen({"index.path": (file, content)}) is None
    assert cluster.find_unseen({"index.path": (file, "other")}) == ("index.path", "it is another directory there")
    assert cluster.find_unseen({"x": (file, content), "y": (f"{file}b", content)}) == (
        "y",
        "there is no such file there",
    )
