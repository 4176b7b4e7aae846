"""The schemas, checked by a validator."""

from __future__ import annotations

import jsonschema
import pytest

from kohaku_ray.models.schema import answer_schema, plan_schema

ANSWER = {
    "explanation": "e",
    "answer": "a",
    "answer_value": "1",
    "answer_unit": "",
    "ref_id": ["a"],
    "is_blank": False,
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


def test_without_documents_nothing_can_be_cited():
    assert is_valid({**ANSWER, "ref_id": []}, answer_schema([]))
    assert not is_valid({**ANSWER, "ref_id": ["a"]}, answer_schema([]))


@pytest.mark.parametrize("field", ANSWER)
def test_every_field_is_required_and_typed(field):
    schema = answer_schema(["a"])
    assert not is_valid({name: value for name, value in ANSWER.items() if name != field}, schema)
    assert not is_valid({**ANSWER, field: 7}, schema)
    assert not is_valid({**ANSWER, "more": 1}, schema)


def test_the_reasoning_comes_before_the_value():
    assert list(answer_schema(["a"])["properties"]) == list(ANSWER)


def test_no_keyword_that_grammar_engines_lack():
    assert "uniqueItems" not in repr(answer_schema(["a"]))


def test_a_plan_has_one_to_n_queries():
    schema = plan_schema(2)
    assert is_valid(["a"], schema)
    assert is_valid(["a", "b"], schema)
    assert not is_valid([], schema)
    assert not is_valid(["a", "b", "c"], schema)
    assert not is_valid([1], schema)
