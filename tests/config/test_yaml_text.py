"""A configuration is what it looks like: doubled keys, odd numbers and texts that unfold are said, at once."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.config import build_config, load_config
from kohaku_ray.config.yaml_text import MOST_DEPTH, read_json, read_yaml, write_yaml
from kohaku_ray.errors import ConfigError

LAUGHS = "a0: &a0 [lol, lol]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))

BOMBS = {
    "a value that unfolds": (LAUGHS + "index: {resources: *a11}\n", r"line 6 unfolds to more than 100,000 values"),
    "a section that holds itself": ("index:\n  resources: &a {b: *a}\n", r"value in line 2 holds itself, by an alias"),
    "a list that holds itself": ("deployments: {x: {kind: openai, extra_body: &a [1, *a]}}\n", r"line 1 holds itself"),
    "a depth": ("run: " + "[" * (MOST_DEPTH + 5) + "]" * (MOST_DEPTH + 5), r"more than 64 lists and sections"),
    "a great depth": ("run: " + "[" * 5000 + "]" * 5000, r"more than 64 lists and sections"),
    "a doubled key": ("seed: 1\nrun: r\nseed: 2\n", r"key seed is there twice, in lines 1 and 3: leave one"),
    "a doubled key of a section": (
        "kohaku: {queries: 1, queries: 2}\n",
        r"key queries is there twice, in lines 1 and 1",
    ),
    "a doubled quoted key": ("seed: 1\n'seed': 2\n", r"key seed is there twice, in lines 1 and 2"),
    "a number with commas within braces": (
        "seed: 1\nbudget: {tokens: 2,000,000}\n",
        r"line 2: within braces a comma ends a value, so that 000 is a key: write numbers as 2_000_000 or 1\.5",
    ),
    "a decimal comma within braces": ("budget: {dollars: 1,5}\n", r"line 1: within braces .* 5 is a key"),
    "a number with commas": ("budget:\n  tokens: 2,000,000\n", r"is '2,000,000': .*: write it as 2_000_000 or 2000000"),
    "a key in two spellings": ("seed: 1\ntrue: 1\nTrue: 2\n", r"key True is there twice, in lines 2 and 3"),
    "a key that YAML takes for true": ("index: {on: 1}\n", r"index: key true is no text: put it in quotes, or correct"),
    "a key that is a number": ("1: 2\n", r": key 1 is no text: put it in quotes, or correct it"),
    "a key that is nothing": ("~: 2\n", r": key none is no text"),
    "a placeholder": ("seed: 1\nrun: {{name}}\n", r"line 2: a list or section stands where a key should: write a text"),
    "two merges": (
        "index:\n  <<: {path: a}\n  <<: {path: b}\n",
        r"key << is there twice, in lines 2 and 3: write one, <<: \[\*a, \*b\]",
    ),
    "no YAML": ("a: [\n", r"is not YAML: while parsing a flow node .* in line 2, column 1:"),
    "an unknown tag": ("a: !!python/object:os.system x\n", r"is not YAML: "),
}


@check_rows("kind", BOMBS)
def test_what_is_no_plain_configuration_is_said_at_once(kind, tmp_path):
    text, message = BOMBS[kind]
    file = tmp_path / "bomb.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(str(file))  # 9^11 values would take days
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("text", ["*a", "&a [*a]", "[" * 500])
def test_an_override_that_is_no_plain_value(text):
    try:
        load_config("default", overrides=[f"prompts={text}"])
    except ConfigError as error:
        assert "--set" in str(error) or "prompts" in str(error)  # noqa: PT017  # a text is a text, or is refused


def test_json_with_a_doubled_key(tmp_path):
    (tmp_path / "c.json").write_text('{"seed": 1, "kohaku": {"queries": 1, "queries": 2}}')
    with pytest.raises(ConfigError, match=r"c\.json: key queries is there twice: leave one"):
        load_config(str(tmp_path / "c.json"))
    assert read_json('{"a": {"b": 1}, "c": {"b": 1}}') == {"a": {"b": 1}, "c": {"b": 1}}


@check_rows(
    ("text", "value"),
    [
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1:30", "1:30"),
        ("190:20:30.15", "190:20:30.15"),
        ("2_000_000", 2_000_000),
        ("-5", -5),
        ("+5", 5),
        ("1e5", 1e5),
        ("1.5e-3", 1.5e-3),
        (".5", 0.5),
        ("1.", 1.0),
        ("-.inf", float("-inf")),
        ("1.2.3", "1.2.3"),
        ("0b11", "0b11"),
        ("1-2", "1-2"),
        ("_1", "_1"),
        (".", "."),
        ("e5", "e5"),
        ("null", None),
        ("true", True),
        ("'010'", "010"),
    ],
)
def test_a_number_is_what_it_looks_like(text, value):
    assert read_yaml(f"a: {text}") == {"a": value}
    assert type(read_yaml(f"a: {text}")["a"]) is type(value)


def test_aliases_and_merges_that_are_no_bombs_stay():
    text = "a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n"
    assert read_yaml(text) == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}, {"x": 1}]}


texts = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(plain)
@example({"0E0": "1e5", "0o7": "_1"})
def test_what_is_written_is_read_again(values):
    assert read_yaml(write_yaml(values)) == values


def test_seeds_and_runs_that_only_look_like_others():
    assert build_config(read_yaml("seed: 010"), "here").seed == 10
    with pytest.raises(ConfigError, match=r"seed"):
        build_config(read_yaml("seed: 1:30"), "here")
