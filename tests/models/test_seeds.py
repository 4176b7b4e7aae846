"""Seeds and keys."""

from __future__ import annotations

import dataclasses

import pytest
from kit.rows import check_rows

from kohaku_ray.models.request import ChatRequest, request_key, seed_for, shard_of
from kohaku_ray.models.schema import answer_schema

TEXT = {"type": "string"}
FIELDS = dict.fromkeys(("explanation", "answer", "answer_value", "answer_unit"), TEXT)
FIELDS |= {"ref_id": {"type": "array", "items": {"type": "string", "enum": ["a"]}}, "is_blank": {"type": "boolean"}}
SCHEMA = {"type": "object", "properties": FIELDS, "required": list(FIELDS), "additionalProperties": False}
REQUEST = ChatRequest(
    model="extractive/1",
    messages=(("system", "s"), ("user", "ü")),
    temperature=0.7,
    top_p=1.0,
    max_tokens=10,
    seed=3,
    schema=SCHEMA,
    session_id="q1",
    variables={"role": "answer", "question": "?"},
)


def test_a_seed_and_a_key_never_change():
    """If this fails, every ledger on disk is worthless: think twice."""
    assert seed_for(0, "q1", 2, 1, "answer") == 316456702
    assert request_key(REQUEST) == "8d1198133e4d1be30d8d55e06025f4aa"


def test_everything_changes_the_seed():
    seeds = [
        seed_for(0, "q1", 1, 0, "plan"),
        seed_for(1, "q1", 1, 0, "plan"),
        seed_for(0, "q", 11, 0, "plan"),
        seed_for(0, "q1", 11, 0, "plan"),
        seed_for(0, "q1", 1, 1, "plan"),
        seed_for(0, "q1", 1, 0, "answer"),
    ]
    assert len(set(seeds)) == len(seeds)


@check_rows(
    "change",
    [
        {"model": "m"},
        {"messages": (("user", "ü"),)},
        {"messages": (("system", "sü"), ("user", ""))},
        {"temperature": 0.8},
        {"top_p": 0.9},
        {"max_tokens": 11},
        {"seed": 4},
        {"schema": None},
        {"schema": answer_schema(["b"])},
    ],
)
def test_what_decides_the_reply_is_in_the_key(change):
    assert request_key(dataclasses.replace(REQUEST, **change)) != request_key(REQUEST)


def test_one_prompt_has_one_shard_whoever_asks():
    members = [dataclasses.replace(REQUEST, seed=seed, model=f"m{seed % 2}", temperature=seed / 9) for seed in range(9)]
    assert len({shard_of(request_key(member), 1000) for member in members}) == 1
    prompts = [dataclasses.replace(REQUEST, messages=(("user", f"{n}?"),)) for n in range(200)]
    assert len({shard_of(request_key(prompt), 10) for prompt in prompts}) == 10


def test_what_does_not_is_not():
    same = dataclasses.replace(
        REQUEST, session_id="q2", variables={"x": object()}, schema=dict(reversed(REQUEST.schema.items()))
    )
    assert request_key(same) == request_key(REQUEST)
    whole, point = (dataclasses.replace(REQUEST, temperature=value) for value in (1, 1.0))
    assert request_key(whole) == request_key(point)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": {"enum": {"a", "b"}}}, r"request\.schema\.enum is of type set, which has no stable form"),
        ({"schema": {"a": [1, object()]}}, r"request\.schema\.a\[1\] is of type object"),
        ({"temperature": float("inf")}, r"request\.sampling\.temperature is inf"),
    ],
)
def test_what_has_no_stable_form_is_refused(change, message):
    with pytest.raises(TypeError, match=message):
        request_key(dataclasses.replace(REQUEST, **change))
