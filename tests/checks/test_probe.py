"""`validate --probe` against a real HTTP server that answers, refuses, or is not there."""

from __future__ import annotations

import json
import socket

import pytest
from kit import tiny_llama
from kit.fake_batches import FakeBatches
from kit.fake_openai import Action, FakeOpenAI, completion, error_body

from kohaku_ray.cli import main
from kohaku_ray.models.openai import MAX_LISTED


@pytest.fixture
def probe(tmp_path, monkeypatch, capsys):
    """Run the command on a configuration with this deployment; returns exit code, output and errors."""
    monkeypatch.setenv("MY_KEY", "open-sesame")

    def probe(*overrides: str, ask: bool = True, **deployment) -> tuple[int, str, str]:
        deployment = {"kind": "openai", "model": "small", "api_key_env": "MY_KEY", **deployment}
        defaults = [f"run={tmp_path}/run", f"index.path={tmp_path}/index", f"deployments.mine={json.dumps(deployment)}"]
        settings = [part for override in (*defaults, "model=mine", *overrides) for part in ("--set", override)]
        code = main(["validate", "demo", *(["--probe"] if ask else []), *settings])
        out, err = capsys.readouterr()
        return code, out.partition(" has them\n")[2].removesuffix("valid\n") if ask else out, err

    return probe


def reply(text: str):
    return Action(body=completion(text))


def capital(index, body):
    return reply('{"capital":"Paris"}' if "response_format" in body else "one two three")


def test_a_server_that_keeps_the_schema_is_described_in_one_line(probe):
    with FakeOpenAI(capital) as server:
        code, out, err = probe(base_url=server.base_url, window_tokens=9000)
    assert (code, err) == (0, "")
    [line] = out.splitlines()
    assert line.startswith("deployments.mine: openai, window 9,000 tokens, JSON schema kept, ")
    assert "tokens/s alone (3 in " in line
    assert [item.headers["authorization"] for item in server.log] == ["Bearer open-sesame"] * 2
    assert server.log[1].body["response_format"]["json_schema"]["schema"]["required"] == ["capital"]


def test_a_server_without_batches_is_said_in_one_line(probe):
    with FakeOpenAI(capital) as server:
        code, out, err = probe(base_url=server.base_url, batch=True)
    assert code != 0
    [line] = [line for line in (out + err).splitlines() if "batch" in line]
    assert "HTTP 404" in line
    assert "the server has no batches: set deployments.mine.batch to false" in line
    with FakeOpenAI(capital, batches=FakeBatches()) as server:
        code, out, _ = probe(base_url=server.base_url, batch=True)
    assert code == 0
    assert ", calls by batches" in out


@pytest.mark.parametrize("text", ["Paris.", '{"answer": "Paris"}'])
def test_a_schema_that_is_ignored_is_said_and_no_error(probe, text):
    with FakeOpenAI(lambda index, body: reply(text)) as server:
        code, out, _ = probe(base_url=server.base_url)
    assert code == 0
    assert f"JSON schema not kept (replied {text!r}), so replies are read as they come" in out


def test_a_refused_schema_is_sent_in_the_prompt_and_said(probe):
    def script(index, body):
        return Action(400, error_body("response_format is not supported")) if "response_format" in body else None

    with FakeOpenAI(script) as server:
        code, out, err = probe(base_url=server.base_url)
        assert (code, err) == (0, "")
        assert "schemas are sent in the prompt, with json_object, response_format is not sent" in out
        assert "capital" in server.log[-1].body["messages"][-1]["content"]
        code, out, _ = probe(base_url=server.base_url, schema_mode="none")
    assert (code, "JSON schema not kept" in out) == (0, True)


def test_a_reply_that_stands_in_another_field_is_said(probe):
    """vllm#19222: a reasoning parser takes all that a model writes without thinking for its thoughts."""

    def script(index, body):
        if "response_format" not in body:
            return capital(index, body)
        told = completion(None) | {"usage": {"prompt_tokens": 9, "completion_tokens": 5}}
        told["choices"][0]["message"]["reasoning_content"] = '{"capital":"Paris"}'
        return Action(body=told)

    with FakeOpenAI(script) as server:
        code, out, _ = probe(base_url=server.base_url)
    assert code == 0
    assert "JSON schema kept" in out
    assert "replies are read from reasoning_content, as their content is empty" in out


def test_a_refused_key_names_its_variable_and_not_its_value(probe):
    with FakeOpenAI(lambda index, body: Action(401, error_body("Incorrect API key provided: open-sesame"))) as server:
        code, out, err = probe(base_url=server.base_url)
        assert (code, out) == (2, "")
        assert err.startswith(f"kohaku-ray: deployments.mine: small at {server.base_url}/chat/completions: HTTP 401")
        assert err.endswith(": the key in MY_KEY is wrong, or may not do this: `export MY_KEY=…` with one that may\n")
        assert "open-sesame" not in err
        _, _, err = probe(base_url=server.base_url, api_key_env=None)
    assert err.endswith(": set deployments.mine.api_key_env to the key's variable\n")


def test_a_model_that_is_not_on_the_server_lists_those_that_are(probe):
    missing = Action(404, error_body("The model `small` does not exist", "model_not_found"))
    with FakeOpenAI(lambda index, body: missing, models=["smal:7b", "large"]) as server:
        code, _, err = probe(base_url=server.base_url)
    assert code == 2
    assert "model 'small' is not on the server, which has large, smal:7b (did you mean smal:7b?)" in err
    many = [f"m{number:02d}" for number in range(MAX_LISTED + 5)]
    with FakeOpenAI(lambda index, body: missing, models=many) as server:
        _, _, err = probe(base_url=server.base_url)
    assert f"m{MAX_LISTED - 1:02d} and 5 more" in err
    broken = Action(400, error_body("temperature is not supported"))
    for models in (["small"], None):  # it is there, or there is no list: the server's own words
        with FakeOpenAI(lambda index, body: broken, models=models) as server:
            code, _, err = probe(base_url=server.base_url)
        assert code == 2
        assert "temperature is not supported" in err
        assert "not on the server" not in err


def test_a_server_that_is_not_there_is_asked_once_and_named(probe, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
        url = f"http://127.0.0.1:{address[1]}/v1"
    asked, connect = [], socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", lambda self, to: asked.append(to) or connect(self, to))
    for ask in (True, False):
        asked.clear()
        code, out, err = probe(ask=ask, base_url=url)
        assert asked == [address]
        assert (code, "valid\n" in out) == (1, False)
        assert f"deployments.mine cannot be reached ({url}: ConnectError: All connection attempts failed)" in err
        assert "start the server, or correct deployments.mine.base_url" in err


def test_a_model_that_only_reasons_is_told_to_have_more_room(probe):
    with FakeOpenAI(lambda index, body: Action(body=completion("", finish_reason="length"))) as server:
        code, _, err = probe(base_url=server.base_url, reasoning_tokens=50)
    assert code == 2
    assert "raise deployments.mine.reasoning_tokens above 50, or switch reasoning off" in err
    assert server.log[0].body["max_tokens"] == 128 + 50


def test_every_deployment_is_probed_whatever_is_wrong_with_another(probe):
    with FakeOpenAI(lambda index, body: Action(401, error_body("no"))) as bad, FakeOpenAI(capital) as good:
        other = f"deployments.other={{kind: openai, model: m, api_key_env: null, base_url: '{good.base_url}'}}"
        code, out, err = probe(other, "roles.plan.model=other", base_url=bad.base_url)
        assert code == 2
        assert "deployments.other: openai" in out
        assert err.count("kohaku-ray: deployments.") == 1
        both = other.replace(good.base_url, bad.base_url)
        code, out, err = probe(both, "roles.plan.model=other", base_url=bad.base_url)
    assert (code, out, err.count("kohaku-ray: deployments.")) == (2, "", 2)


def test_without_a_model_there_is_nothing_to_ask(probe):
    code, out, _ = probe("model=extractive", base_url="http://127.0.0.1:9/v1")
    assert (code, out) == (0, "deployments.extractive: extractive, no model: nothing to ask\n")


def test_a_local_model_is_loaded_here_and_asked(probe, tmp_path, capsys):
    model = tiny_llama.build(tmp_path / "tiny", ["The capital of France is Paris."], window=512)
    mine = f"deployments.mine={{kind: transformers, model: {model}}}"
    code, _, err = probe(mine)
    assert code == 2
    assert "max_tokens is " in err
    assert "but the window of mine is 512 tokens" in err
    code, out, err = probe(mine, "roles.plan.max_tokens=64", "roles.answer.max_tokens=64")
    assert code == 0
    assert f"probe   mine: loads {model} in this process" in err
    assert "deployments.mine: transformers, window 512 tokens, JSON schema kept, " in out


def test_without_a_probe_the_server_is_asked_for_its_list_alone(probe):
    with FakeOpenAI(models=["small", "large"]) as server:
        code, out, _ = probe(ask=False, base_url=server.base_url)
        assert (code, server.n_requests) == (0, 0)
        assert "deployments.mine: openai, small, it answers\n" in out
        _, out, _ = probe(ask=False, base_url=server.base_url, model="smal")
    assert "warning: not among the server's 2 models (large, small) (did you mean small?)" in out


def test_a_window_beyond_the_servers_is_refused_with_both(probe):
    with FakeOpenAI(models={"small": 4096}) as server:
        code, out, err = probe(ask=False, base_url=server.base_url, window_tokens=8192)
        assert (code, "valid\n" in out) == (2, False)
        assert "window_tokens is 8,192 but the server takes 4,096 tokens of small" in err
        assert "set window_tokens to auto, which is what the server says, or to 4096" in err
        assert probe(ask=False, base_url=server.base_url, window_tokens=4096)[0] == 0


def test_a_window_that_nobody_set_is_refused_only_where_a_prompt_may_be_longer(probe):
    """users6.md 2: 131,072 is the default, a part of a run's identity; the server takes less than that and enough."""
    with FakeOpenAI(models={"small": 32768, "less": 16384}) as server:
        assert probe(ask=False, base_url=server.base_url)[0] == 0
        code, _, err = probe(ask=False, base_url=server.base_url, model="less")
        assert code == 2
        assert "deployments.mine.window_tokens is 131,072 by default but the server takes 16,384 tokens of less" in err
        assert "role answer may need 1,024 for its reply and 24,000 of context in the last attempt" in err
        assert "set window_tokens to auto, which is what the server says, or to 16384" in err
        assert probe("kohaku.max_retries=0", ask=False, base_url=server.base_url, model="less")[0] == 0
        assert probe(ask=False, base_url=server.base_url, model="less", window_tokens="auto")[0] == 0


def test_an_unset_key_is_said_once(probe):
    with FakeOpenAI(models=["small"]) as server:
        for window in (4096, "auto"):
            code, out, err = probe(ask=False, base_url=server.base_url, api_key_env="NOT_SET", window_tokens=window)
            assert code == 2
            assert (out + err).count("has no such variable") == 1
