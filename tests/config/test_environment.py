"""What the environment gives to a configuration is used and never written."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import yaml
from kit.rows import check_rows

from kohaku_ray.config import as_yaml, build_config, load_config
from kohaku_ray.errors import ConfigError
from kohaku_ray.runs.facts import run_record
from kohaku_ray.settings import resolve_paths
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.sweep.load import load_sweep

SECRET = "tok'\"\\é-hunter2"
"""Quotes and a backslash: `repr` and YAML write them otherwise."""


@pytest.fixture(autouse=True)
def _secret(monkeypatch):
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.setenv("TINY", "zq")
    monkeypatch.delenv("NOT_THERE", raising=False)


def deployment(**values):
    return {"deployments": {"api": {"kind": "openai", "base_url": "http://h/v1", "model": "m", **values}}}


def leaks(text: str, secret: str = SECRET) -> bool:
    return secret in text or repr(secret)[1:-1] in text or "hunter2" in text


PLACES = {
    "a text": (deployment(base_url="${SECRET}"), "base_url: ${SECRET}"),
    "part of a text": (deployment(base_url="http://u:${SECRET}@h/v1"), "base_url: http://u:${SECRET}@h/v1"),
    "beside one that is not there": (deployment(base_url="${NOT_THERE:-http}://${SECRET}"), "http://${SECRET}"),
    "a section of free form": (
        deployment(extra_body={"auth": {"keys": ["a", {"deep": ["${SECRET}"]}]}}),
        "- ${SECRET}",
    ),
    "a path": ({"run": "/runs/${SECRET}/x"}, "run: /runs/${SECRET}/x"),
    "a relative path": ({"index": {"path": "idx/${SECRET}"}}, "/idx/${SECRET}"),
    "a path of the home directory": ({"ledger": {"path": "~/${SECRET}"}}, "path: ~/${SECRET}"),
    "a model's directory": ({"index": {"encoder": {"model": "./${SECRET}"}}}, "/./${SECRET}"),
    "the system's section": ({"kohaku": {"cross_encoder": "${X}"}}, "cross_encoder: ${X}"),
}


@pytest.mark.parametrize("where", PLACES)
def test_references_are_written_where_their_values_were(where, monkeypatch, tmp_path):
    values, written = PLACES[where]
    monkeypatch.setenv("X", "ranker")
    monkeypatch.chdir(tmp_path)
    if "kohaku" in values:
        values = {**values, "deployments": {"ranker": {"kind": "cross_encoder", "model": "m"}}}
    config = build_config(values, "here")
    resolved = resolve_paths(config)
    copies = [resolved, resolved.model_copy(), pickle.loads(pickle.dumps(resolved)), copy.deepcopy(resolved)]
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()  # as that of a submitted job (users5.md 3.2)
    texts = [as_yaml(config) for config in copies]
    assert len(set(texts)) == 1
    assert written in texts[0]
    assert not leaks(texts[0])
    assert not leaks(as_yaml(config))
    monkeypatch.chdir("/")
    again = resolve_paths(build_config(yaml.safe_load(texts[0]), "there"))
    assert again.model_dump() == resolved.model_dump(), "what is written is the same configuration from anywhere"


def test_a_run_directory_holds_the_reference(tmp_path, monkeypatch):
    config = build_config({**deployment(extra_body={"key": "${SECRET}"}), "run": f"{tmp_path}/run"}, "here")
    directory = RunDirectory(config.run)
    directory.check_writable()
    directory.begin(run_record(resolve_paths(config)))
    assert not leaks("".join(file.read_text() for file in Path(config.run).iterdir()))
    assert load_config(f"{config.run}/config.yaml").deployments["api"].extra_body == {"key": SECRET}
    monkeypatch.delenv("SECRET")
    with pytest.raises(ConfigError, match="the environment has no SECRET"):
        load_config(f"{config.run}/config.yaml")


def test_cells_of_a_sweep_hold_the_reference(tmp_path):
    sweep = {
        "set": {"deployments": deployment(extra_body={"k": "${SECRET}"})["deployments"]},
        "axes": {"depth": {"${SECRET}": {"kohaku.top_k": 8, "deployments.api.identity": "${SECRET}"}}},
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(sweep))
    loaded = load_sweep(str(tmp_path / "s.yaml"))
    [table] = loaded.sweep.tables
    [setting] = table.settings()
    config = loaded.config(table, setting, 3)
    assert config.deployments["api"].identity == SECRET
    text = as_yaml(resolve_paths(config).model_copy(update={"run": f"{tmp_path}/run"}))
    assert "identity: ${SECRET}" in text
    assert f"run: {tmp_path}/run" in text
    assert not leaks(text + str(setting.labels) + str(table.labels()))


def test_a_value_that_was_replaced_is_written_and_not_the_reference():
    config = build_config({"run": "/a/${SECRET}", "seed": "${NOT_THERE:-3}"}, "here")
    assert "run: /elsewhere\n" in as_yaml(config.model_copy(update={"run": "/elsewhere"}))
    assert "run: /a/${SECRET}/again\n" in as_yaml(config.model_copy(update={"run": f"/a/{SECRET}/again"}))
    shorter = config.documents.model_copy(update={"paths": ()})
    assert "paths: []" in as_yaml(config.model_copy(update={"documents": shorter}))


@pytest.mark.parametrize(("key", "value"), [("seed", "70071"), ("kohaku.alpha", "0.707"), ("ledger.flush_s", "7.70")])
def test_a_number_from_the_environment_stays_a_reference(monkeypatch, key, value):
    monkeypatch.setenv("NUMBER", value)
    config = load_config(None, [f"{key}=${{NUMBER}}"])
    assert f"{key.split('.')[-1]}: ${{NUMBER}}" in as_yaml(config)
    assert build_config(yaml.safe_load(as_yaml(config)), "printed").model_dump() == config.model_dump()
    section = "kohaku" if key.startswith("kohaku") else key.split(".")[0]
    assert value not in yaml.safe_dump(yaml.safe_load(as_yaml(config))[section])


def test_a_models_name_is_shown_and_written_as_a_reference(monkeypatch):
    monkeypatch.setenv("KOHAKU_MODEL", "/models/small")
    monkeypatch.setenv("KEY", "/models/small/secret")
    config = load_config(
        "default", ["deployments.a={kind: openai, base_url: 'http://h/${KEY}', model: '${KOHAKU_MODEL}'}"]
    )
    assert (
        config.hide("loads /models/small from http://h/models/small/secret")
        == "loads /models/small from http://h${KEY}"
    )
    assert "model: ${KOHAKU_MODEL}" in as_yaml(config)


ERRORS = {
    "of a number": ["kohaku.top_k=${SECRET}"],
    "of a word": ["ensemble.vote.strategy=x${SECRET}"],
    "of a kind": ["deployments.a={kind: '${SECRET}', model: m}"],
    "of a model": ["roles.answer.model=${SECRET}"],
    "of a system": ["system=${SECRET}"],
}


@pytest.mark.parametrize("what", ERRORS)
@pytest.mark.parametrize("secret", [SECRET, "zq\nhunter2", "zq"], ids=["quotes", "lines", "short"])
def test_errors_name_the_reference(what, secret, monkeypatch):
    monkeypatch.setenv("SECRET", secret)
    with pytest.raises(ConfigError) as caught:
        load_config(None, ERRORS[what])
    assert not leaks(str(caught.value), secret)
    assert caught.value.__cause__ is None, "a chained error would print it"
    assert "${SECRET}" in str(caught.value)


def test_a_configuration_hides_what_the_environment_gave_it_in_any_text():
    config = resolve_paths(load_config(None, ["questions.path=q/${SECRET}.csv", "run=/r/${TINY}"]))
    text = config.hide(f"{config.questions.path} cannot be read; {SECRET!r}; zq; a prezqfix; {config.run}")
    assert not leaks(text)
    assert text.endswith("/q/${SECRET}.csv cannot be read; '${SECRET}'; ${TINY}; a prezqfix; /r/${TINY}")
    assert load_config().hide("nothing") == "nothing"


CLEAR = {
    "a header": {"headers": {"api-key": "s3cr3t-in-clear"}},
    "the body": {"extra_body": {"auth": {"keys": ["s3cr3t-in-clear"]}}},
    "the address": {"base_url": "http://h/v1?api_key=s3cr3t-in-clear&api-version=1"},
    "a function's address": {"base_url": "http://h/v1?code=s3cr3t-in-clear&deployment=s3c"},
    "a session": {"base_url": "http://h/v1?sessionId=s3cr3t-in-clear"},
    "a password": {"base_url": "http://me:s3cr3t-in-clear@h/v1"},
}


@check_rows("key", CLEAR)
def test_a_key_of_the_file_itself_is_hidden_where_it_is_printed_or_written(key):
    config = build_config(deployment(**CLEAR[key]), "here")
    assert "s3cr3t" not in as_yaml(config)
    assert "[hidden]" in as_yaml(config)
    assert config.hide("refused: s3cr3t-in-clear") == "refused: [hidden]"
    assert "s3cr3t-in-clear" in str(config.deployments["api"].model_dump())  # it is used
    with pytest.raises(ConfigError) as caught:
        build_config(deployment(**CLEAR[key], model=3.5, window_tokens="s3cr3t-in-clear"), "here")
    assert "s3cr3t" not in str(caught.value)


ELSEWHERE = {
    "a header of the encoder": {
        "index": {
            "encoder": {
                "kind": "openai",
                "base_url": "http://me:s3cr3t-in-clear@h/v1?code=s3cr3t-in-clear",
                "model": "m",
                "headers": {"api-key": "s3cr3t-in-clear"},
                "extra_body": {"token": "s3cr3t-in-clear"},
            }
        }
    },
    "the tracker's address": {"tracking": {"to": "mlflow", "uri": "postgresql://me:s3cr3t-in-clear@h/db"}},
}


@pytest.mark.parametrize("key", ELSEWHERE)
def test_a_key_of_the_encoder_or_the_tracker_is_hidden_where_it_is_printed_or_written(key):
    config = build_config(ELSEWHERE[key], "here")
    text = as_yaml(config)
    assert "s3cr3t" not in text
    assert "[hidden]" in text
    assert config.hide("refused: s3cr3t-in-clear") == "refused: [hidden]"
    assert "s3cr3t-in-clear" in str(config.model_dump())  # it is used


@pytest.mark.parametrize("key", ["sk-abcdefgh0123456789ijkl", "gsk_0123456789abcdefghij", "two words"])
def test_a_key_in_place_of_its_variables_name_is_refused_and_not_shown(key):
    with pytest.raises(ConfigError, match="perhaps the key itself: export the key as a variable") as caught:
        build_config(deployment(api_key_env=key), "here")
    assert key not in str(caught.value)
    assert caught.value.__cause__ is None


def test_any_variable_that_is_there_and_any_plain_name_is_the_name_of_a_key(monkeypatch):
    monkeypatch.setenv("my_gateways_key_of_2026", "x")
    for name in ("MY_KEY", "_key", "OPENAI_API_KEY_2", "my_gateways_key_of_2026", "key"):
        build_config(deployment(api_key_env=name), "here")


def test_a_key_in_clear_beside_a_variable_is_hidden_too():
    config = build_config(deployment(base_url="http://me:s3cr3t-in-clear@h/${TINY}?code=s3cr3t-in-clear"), "here")
    assert "base_url: http://me:[hidden]@h/${TINY}?code=[hidden]" in as_yaml(config)
    assert config.hide(config.deployments["api"].base_url) == "http://me:[hidden]@h/${TINY}?code=[hidden]"


def test_words_that_are_no_keys_stay():
    values = {"headers": {"X-Title": "kohaku_ray sweep"}, "extra_body": {"num_keep": 4, "api_key": "EMPTY"}}
    values["extra_body"]["language_code"] = "en-US-posix"
    values["base_url"] = "http://h/v1?api-version=2024-10-21-preview&deployment=gpt-4o-mini-2024-07-18"
    text = as_yaml(build_config(deployment(**values), "here"))
    assert "kohaku_ray sweep" in text
    assert "EMPTY" in text
    assert "en-US-posix" in text
    assert "?api-version=2024-10-21-preview&deployment=gpt-4o-mini-2024-07-18" in text
