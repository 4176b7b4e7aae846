"""`validate` asks an OpenAI-compatible server for the list of its models, and for nothing else."""

from __future__ import annotations

import json
import socket

import pytest
from kit.fake_openai import FakeOpenAI

from kohaku_ray.cli import main


@pytest.fixture
def checked(tmp_path, monkeypatch, capsys):
    """Validate a configuration with this deployment; returns exit code, output and errors."""
    monkeypatch.setenv("MY_KEY", "open-sesame")

    def checked(**deployment) -> tuple[int, str, str]:
        deployment = {"kind": "openai", "model": "small", "api_key_env": "MY_KEY", **deployment}
        own = [f"run={tmp_path}/run", f"index.path={tmp_path}/index", f"deployments.mine={json.dumps(deployment)}"]
        code = main(["validate", "demo", *(part for one in (*own, "model=mine") for part in ("--set", one))])
        return code, *capsys.readouterr()

    return checked


def test_a_server_that_is_not_there_is_asked_once_and_named(checked):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    code, out, err = checked(base_url=url)
    assert (code, "valid\n" in out) == (2, False)
    assert f"deployments.mine cannot be reached ({url}: ConnectError: All connection attempts failed)" in err
    assert "start the server, or correct deployments.mine.base_url" in err


def test_the_server_is_asked_for_its_list_alone(checked):
    with FakeOpenAI(models=["small", "large"]) as server:
        code, out, _ = checked(base_url=server.base_url)
        assert (code, server.n_requests) == (0, 0)
        assert "deployments.mine: openai, small, it answers\n" in out
        _, out, _ = checked(base_url=server.base_url, model="smal")
    assert "warning: not among the server's 2 models (large, small), did you mean small?" in out


def test_a_window_beyond_the_servers_is_refused_with_both(checked):
    with FakeOpenAI(models={"small": 4096}) as server:
        code, out, err = checked(base_url=server.base_url, window_tokens=8192)
        assert (code, "valid\n" in out) == (2, False)
        assert "window_tokens is 8,192 but the server takes 4,096 tokens of small" in err
        assert "set window_tokens to 4096" in err
        assert checked(base_url=server.base_url, window_tokens=4096)[0] == 0
