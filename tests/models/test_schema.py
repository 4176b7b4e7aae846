"""The schemas, checked by a validator."""

from __future__ import annotations

import json

import jsonschema
import pytest
from kit.rows import check_rows

from kohaku_ray.models.schema import SHORT_FIELDS, answer_schema, plan_schema

ANSWER = {
    "explanation": "e",
    "answer": "a",
    "answer_value": "1",
    "answer_unit": "",
    "ref_id": ["a"],
}


def is_valid(value, schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def test_only_documents_of_the_context_can_be_cited():
    schema = answer_schema(["a", "b", "a"])
    assert schema["properties"]["ref_id"]["items"]["enum"] == ["a", "b"]
    assert is_valid(ANSWER, schema)
    assert is_valid({**ANSWER, "ref_id": []}, schema)
    assert not is_valid({**ANSWER, "ref_id": ["c"]}, schema)
    assert is_valid({**ANSWER, "ref_id": ["c"]}, answer_schema(["a", "b"], constrain=False))
    assert is_valid({**ANSWER, "ref_id": []}, answer_schema([]))
    assert not is_valid(ANSWER, answer_schema([]))


@check_rows(
    ("kind", "good", "bad"),
    [
        ("number", ["1383.9", "-3", "1.62e24", "[3,6]", "0"], ["", "1,383.9", "3 MWh", "about 3", "[3,6", "9" * 30]),
        ("range", ["[3,6]", "[0.02,0.1]"], ["3", "[3]", "3-6", "[3, 6]"]),
        ("boolean", ["1", "0", "True", "False"], ["yes", "2", ""]),
        ("text", ["Solana Mesa", "12 MW"], ["w" * 201]),
        (None, ["Solana Mesa", "12 MW"], ["w" * 201]),
    ],
)
def test_a_value_is_of_the_kind_asked_for_or_blank(kind, good, bad):
    schema = answer_schema(["a"], kind=kind)
    assert all(is_valid({**ANSWER, "answer_value": value}, schema) for value in (*good, "is_blank"))
    assert not any(is_valid({**ANSWER, "answer_value": value}, schema) for value in bad)


def test_a_small_model_may_copy_a_number_with_its_separators():
    schema = answer_schema(["a"], kind="number", fields=SHORT_FIELDS)
    short = {name: ANSWER[name] for name in SHORT_FIELDS}
    good = ("138,125", "-1,234,567.5", "138125", "[3,6]", "is_blank")
    assert all(is_valid({**short, "answer_value": value}, schema) for value in good)
    assert not any(is_valid({**short, "answer_value": value}, schema) for value in ("13,81", ",125", "1,2345"))


def test_every_string_and_list_has_a_bound():
    schema = answer_schema(["a", "b", "a"], constrain=False, most_chars=50)
    for field in ("explanation", "answer"):
        assert not is_valid({**ANSWER, field: "w" * 51}, schema)
    assert not is_valid({**ANSWER, "ref_id": ["a"] * 3}, schema)
    assert not is_valid({**ANSWER, "ref_id": ["w" * 201]}, schema)
    assert is_valid({"queries": ["a", "b"]}, plan_schema(2))
    assert is_valid({"queries": ["a"]}, plan_schema(2, 1))
    for queries in (["w" * 201, "a"], ["a"], ["a", "b", "c"], [1, 2]):
        assert not is_valid({"queries": queries}, plan_schema(2))


@check_rows("kind", ["number", "range", "boolean", "text", None])
def test_the_schema_has_no_keyword_that_grammar_engines_lack(kind):
    schema = answer_schema(["a", "b"], kind=kind, most_chars=50)
    assert "uniqueItems" not in repr(schema)
    assert not {"pattern", "maxLength"} <= set(schema["properties"]["answer_value"])
    xgrammar = pytest.importorskip("xgrammar")
    for item in (schema, plan_schema(3)):
        assert xgrammar.Grammar.from_json_schema(json.dumps(item), any_whitespace=False)
