"""Hostile values: whatever stands at whatever key, a configuration loads or is refused in plain words."""

from __future__ import annotations

import datetime
import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from kohaku_ray.config import as_yaml, build_config, keys_of, load_config
from kohaku_ray.config.deployments import CrossEncoderConfig, ExtractiveConfig, OpenAIConfig, VllmConfig
from kohaku_ray.config.load import put
from kohaku_ray.config.plain import leaves, plain
from kohaku_ray.config.sections import RoleConfig
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.run.sources import find_sources, questions_of, read_metadata, resolve_paths
from kohaku_ray.sweep import load as sweeps
from kohaku_ray.sweep.load import PoolConfig, SweepConfig, TableConfig, load_sweep

BACKENDS = (ExtractiveConfig, OpenAIConfig, VllmConfig, CrossEncoderConfig)
NEEDED = {"model": "m", "base_url": "http://h/v1"}


def kind_of(backend: type[BaseModel]) -> str:
    return backend.model_fields["kind"].default


KEYS = [
    *keys_of(),
    *(f"deployments.{kind_of(one)}_x.{key}" for one in BACKENDS for key in keys_of(one)),
    *(
        f"roles.{role}{key}"
        for role in ("answer", "plan")
        for key in ("", *(f".{name}" for name in keys_of(RoleConfig)))
    ),
    *("kohaku", "index", "index.encoder", "ensemble", "ensemble.vote", "cluster", "settings", "deployments.x"),
    *("deployments.extractive", "deployments.extractive.kind", "no_such_key", "kohaku.no_such_key", "retrieval", ""),
]


def base_for(key: str) -> dict[str, Any]:
    """What stands beside a key, so that its own value is looked at."""
    for one in BACKENDS:
        if key.startswith(f"deployments.{kind_of(one)}_x"):
            needed = {name: NEEDED[name] for name in NEEDED if name in one.model_fields}
            return {"deployments": {f"{kind_of(one)}_x": {"kind": kind_of(one), **needed}}}
    return {}


class Odd:
    """No plain value."""


def knot() -> list[Any]:
    tied: list[Any] = []
    tied.append({"again": tied})
    return tied


deep: Any = 1
for _ in range(3000):
    deep = [deep]

TEXTS = ["", " ", "\0", "a\0b", "\ud800", "x" * 5000, "/" * 5000, "é" * 200, "${", "${}", "${A:-${B}}"]
TEXTS += ["${NOT_THERE_1}", "../" * 2000, "file:///\0", "s3://", "inf", "nan", "-inf", "1e999", "9" * 400, "9" * 5000]
TEXTS += ["0x1p9", "true", "on", "\n", "\x85\u2028", "a.b", "sample:", "sample:../..", "kind", "~nobody/x", ":"]
TEXTS += ["os:path", "sys:exit", "\udcff.csv"]
ODD = [None, True, False, 0, -1, 1, 2**63, -(2**64), 10**400, 10**5000, 0.5, -0.0, math.nan, math.inf, -math.inf]
ODD += [1e308, [], {}, [None], [[]], {"": None}, {"kind": []}, {"kind": {}}, {"kind": ["vllm"]}, {"kind": None}]
ODD += [{"kind": 1}, {1: 2}, {None: 1}, {True: False}, {1.5: "x"}, {"a": {3: 4}}, {"\0": 1}, {"\ud800": 1}]
ODD += [{"k" * 5000: 1}, {(1, 2): 3}, datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1), b"\xff", {1, 2}]
ODD += [(1, 2), Odd(), Odd, deep, knot()]

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
VALUES = st.sampled_from([*TEXTS, *ODD]) | PLAIN
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check(config, again: bool = True) -> None:
    """What was accepted can be written, read again as the same, and resolved."""
    assert all(math.isfinite(value) for _, value in leaves(config.model_dump()) if isinstance(value, float))
    resolve_paths(config)
    if again:
        text = as_yaml(config)
        text.encode()
        try:
            printed = build_config(yaml.safe_load(text), "printed")
        except ConfigError as error:
            raise AssertionError("what was accepted is refused when it is read again") from error
        assert printed.model_dump() == config.model_dump()


def refusal(call: Callable[[], Any]) -> str:
    """Why a call refuses, in words that fit on a screen; empty: it does not. Any other exception is a failure."""
    try:
        call()
    except ConfigError as error:
        said = str(error)
    else:
        return ""
    assert 0 < len(said) < 8000
    return said


def build(again: bool, *places: tuple[str, Any]) -> None:
    values = base_for(places[0][0])
    for key, value in places:
        put(values, key, value, where="here")
    check(build_config(values, where="here"), again)


@pytest.mark.parametrize("key", KEYS)
def test_every_hostile_value_at_every_key_is_taken_or_refused(key):
    refusals = [refusal(lambda value=value: build(False, (key, value))) for value in [*TEXTS, *ODD]]
    assert sum(map(bool, refusals)) > 5


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_texts_are_written_as_they_are_read(text):
    refusal(lambda: build(True, ("index.encoder.query_prompt", text)))


@RELAXED
@given(key=st.sampled_from(KEYS), value=VALUES, other=st.sampled_from(KEYS), second=VALUES)
def test_any_two_values_are_taken_or_refused(key, value, other, second):
    refusal(lambda: build(True, (key, value), (other, second)))


def test_a_value_too_deep_to_be_shown_is_refused():
    """Hypothesis found it, and could not show it either."""
    places = (("index.encoder", deep), ("index.encoder.revision", "x"))
    assert "a list, nested too deep to be shown, which has no keys" in refusal(lambda: build(True, *places))


OVERRIDES = [*TEXTS, "[", "{", "&a [*a]", "*a", "&a {b: *a}", "{<<: 3}", "{<<: {a: 1}}"]
OVERRIDES += ["!!python/object:os.system x", "!!set {a}", "!!timestamp x", "!!int x", "!!int ''", "!!bool x"]
OVERRIDES += ["!!float x", "!!binary x", "!!null x", "2020-13-45", "=", "? a", "{? [1]: 2}", "{[1]: 2}", "{1: 2}"]
OVERRIDES += ["{~: 1}", ".nan", ".inf", "-.INF", "0b_", "1:99:99", "{kind: [1]}", "{kind: {a: b}}", "[" * 900]
OVERRIDES += ["{a: " * 500, "- " * 900, "\t", "%", "@", "`", "---\n---\n", "a: b: c", "!<x> y", "'", '"\\ud800"']
OVERRIDES += ['"\\0"']


def load(*overrides: str) -> None:
    check(load_config(None, overrides))


@pytest.mark.parametrize("text", OVERRIDES, ids=range(len(OVERRIDES)))
def test_every_hostile_override_is_taken_or_refused(text):
    for key in ("run", "seed", "ensemble.waves", "deployments.vllm_x.engine_kwargs", "kohaku"):
        beside = [f"{name}={json.dumps(value)}" for name, value in base_for(key).items()]
        refusal(lambda key=key, beside=beside: load(*beside, f"{key}={text}"))


@RELAXED
@given(
    key=st.sampled_from([*KEYS, "deployments.a.kind.b.c", ".", "..", "kohaku.", ".kohaku"]), text=st.text(max_size=40)
)
def test_any_override_is_taken_or_refused(key, text):
    refusal(lambda: load(f"{key}={text}"))
    refusal(lambda: load(text))


@pytest.mark.parametrize("key", ["seed", "kohaku.top_k", "kohaku.alpha", "ensemble.members", "ledger.flush_s"])
def test_true_is_no_number(key):
    with pytest.raises(ConfigError, match=f"{key} is true: give a number"):
        load_config(None, [f"{key}=true"])


def test_true_is_no_number_in_a_list_either():
    with pytest.raises(ConfigError, match=r"ensemble\.waves\.1 is true: give a number"):
        load_config(None, ["ensemble.members=2", "ensemble.waves=[1, true]"])
    assert load_config(None, ["kohaku.constrain_refs=no"]).settings.constrain_refs is False


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("roles.answer.temperature=.inf", r"roles\.answer\.temperature is inf: give a finite number"),
        ("roles.answer.temperature='inf'", r"roles\.answer\.temperature is inf: give a finite number"),
        ("ledger.flush_s=1e999", r"ledger\.flush_s is inf: give a finite number"),
        ("seed=99999999999999999999", r"seed is beyond ±9223372036854775807: give a smaller number"),
        ("deployments={a: {kind: [x], model: m}}", r"deployments\.a"),
        (
            "deployments.a={kind: vllm, model: m, engine_kwargs: {1: 2}}",
            r"deployments\.a\.engine_kwargs has the key 1, ",
        ),
        ("run=2020-01-01", r"run is datetime\.date\(2020, 1, 1\), of type date: put it in quotes"),
        ('run="a\\0b"', r"run holds a NUL character: remove it"),
        ('run="\\ud800"', r"run holds '\\ud800', which is no Unicode"),
        (
            "run=" + "x" * 5000,
            r"run is 'x{199}…: a path has at most 4095 bytes and each of its names 255, this one 5000",
        ),
        ("run=&a [*a]", r"run is nested more than 32 deep: is an alias"),
    ],
)
def test_what_cannot_be_is_said_with_the_way_out(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, [override])


def test_two_names_of_one_section_are_two_sections(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("deployments:\n  a: &a {kind: vllm, model: m}\n  b: *a\n  c: {<<: *a, replicas: 2}\n")
    config = load_config(str(file), ["deployments.a.replicas=5"])
    assert [config.deployments[name].replicas for name in "abc"] == [5, 1, 2]


FILES = {
    "a bomb": "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
    ),
    "a knot": "kohaku: &a {top_k: *a}\n",
    "a knot under a base": "base: knot.yaml\nkohaku: &a {kohaku: *a}\n",
    "a key of a list": "? [a]\n: b\n",
    "a number as a key": "1: 2\n",
    "null as a key": "kohaku: {~: 1}\n",
    "bytes": "run: !!binary aGVsbG8=\n",
    "a date": "run: 2020-01-01\n",
    "no date": "run: 2020-13-45\n",
    "a broken tag": "run: !!timestamp x\n",
    "a long number": "seed: " + "9" * 5000,
    "depth": "a: " + "[" * 1000,
    "two documents": "a: 1\n---\nb: 2\n",
    "control characters": "run: \x01\n",
    "a list of bases with a number": "base: [paper, 3]\n",
    "a base with NUL": 'base: "\\0"\n',
    "a long base": "base: " + "x" * 5000,
}  # fmt: skip


@pytest.mark.parametrize("what", FILES)
def test_a_hostile_file_is_refused_in_plain_words(tmp_path, what):
    (tmp_path / "knot.yaml").write_text("kohaku: &a {kohaku: *a}\n")
    file = tmp_path / "c.yaml"
    file.write_text(FILES[what])
    assert refusal(lambda: load_config(str(file)))
    assert refusal(lambda: load_sweep(str(file)))


@pytest.mark.parametrize(
    "text", ['{"seed": NaN}', '{"ledger": {"flush_s": Infinity}}', '{"run": "\\u0000"}', "[" * 9**4]
)
def test_a_hostile_json_file_is_refused(tmp_path, text):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(ConfigError, match=r"c\.json"):
        load_config(str(tmp_path / "c.json"))


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b", "\ud800", "x/" * 4000, ""])
def test_a_hostile_name_of_a_file_is_refused(path):
    assert refusal(lambda: load_config(path))
    assert refusal(lambda: load_sweep(path))


SWEEP_KEYS = [
    *SweepConfig.model_fields,
    *TableConfig.model_fields,
    *(f"pool.{key}" for key in PoolConfig.model_fields),
    *(f"tables.0.{key}" for key in TableConfig.model_fields),
    *("axes.seed", "axes.ensemble.members", "axes.kohaku.top_k", "axes.x", "set.run", "set.deployments", "no_such_key"),
]


def load_with(tmp_path, key: str, value: Any) -> None:
    """Load a sweep with a value at a key: as a file where YAML can write it, as parsed otherwise."""
    whole: dict[str, Any] = {"axes": {"ensemble.members": [1, 2]}}
    if key.startswith("tables.0."):
        whole = {"tables": [{"axes": {"ensemble.members": [1]}, key.removeprefix("tables.0."): value}]}
    elif key.startswith(("axes.", "set.", "pool.")):
        section, _, name = key.partition(".")
        whole[section] = {name: value}
    else:
        whole[key] = value
    file = tmp_path / "s.yaml"
    file.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "parse_file", lambda *_: plain(whole, str(file)))
        loaded = load_sweep(str(file))
    for table in loaded.sweep.tables:
        assert table.n_cells >= 1
        for setting in itertools.islice(table.settings(), 5):
            refusal(lambda table=table, setting=setting: check(loaded.config(table, setting, 0), again=False))


@pytest.mark.parametrize("key", SWEEP_KEYS)
def test_every_hostile_value_in_a_sweep_is_taken_or_refused(tmp_path, key):
    refusals = [refusal(lambda value=value: load_with(tmp_path, key, value)) for value in [*TEXTS, *ODD]]
    assert sum(map(bool, refusals)) > 5


@RELAXED
@given(key=st.sampled_from(SWEEP_KEYS), value=VALUES)
def test_any_value_in_a_sweep_is_taken_or_refused(tmp_path, key, value):
    refusal(lambda: load_with(tmp_path, key, value))


def read(key: str, path: str) -> None:
    config = resolve_paths(build_config(_at(key, [path] if key == "documents.paths" else path), "here"))
    find_sources(config)
    questions_of(config)
    read_metadata(config.documents.metadata)
    config.declaration.prompts(config.prompts)


@pytest.mark.parametrize("key", ["questions.path", "documents.metadata", "documents.paths", "prompts"])
@pytest.mark.parametrize(
    "path", ["x" * 5000, "a\0b", "\udcff", "x/" * 3000, "s3://\0", "sample:" + "x" * 300, "/" + "y" * 255]
)
def test_a_path_that_no_file_system_takes_is_refused_before_or_where_it_is_read(key, path):
    with pytest.raises((ConfigError, DataError)) as caught:
        read(key, path)
    assert len(str(caught.value)) < 8000


def _at(key: str, value: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    put(values, key, value, where="here")
    return values
