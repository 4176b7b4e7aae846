"""Servers that refuse a parameter by name: the request is written again, once for all that follow."""

from __future__ import annotations

import asyncio
import json
from itertools import product

import pytest
from kit.fake_openai import Action, FakeOpenAI, client_of, completion, error_body
from kit.refusals import ASKED, QUOTES
from kit.rows import check_rows

from kohaku_ray.errors import ModelError, TransientModelError
from kohaku_ray.models.dialect import Dialect
from kohaku_ray.models.openai import TokenBucket
from kohaku_ray.models.request import ChatRequest, request_key
from kohaku_ray.models.schema import answer_schema, plan_schema

SCHEMA = answer_schema(["a", "b"], most_chars=200)


def asked(seed=1, schema=SCHEMA, **changes):
    fields = {"temperature": 0.7, "top_p": 1.0, "max_tokens": 64, "seed": seed, "schema": schema}
    messages = (("system", "Cite."), ("user", "Question?"))
    return ChatRequest(**{"model": "fake", "messages": messages, **fields, **changes})


def ask_in_turn(server, *requests, **options):
    async def run():
        backend = client_of(server.base_url, "fake", **{"backoff_s": 0.001, "timeout_s": 5.0, **options})
        try:
            return [await backend.chat(request) for request in requests]
        finally:
            await backend.close()

    return asyncio.run(run())


def refusing(holds, message, code=None, status=400):
    """A server that refuses the requests for which ``holds``, and answers the others."""
    return lambda index, body: Action(status, error_body(message, code)) if holds(body) else None


def keywords_in(body):
    return json.dumps(body["response_format"])


REFUSALS = {
    "Claude's endpoint": (
        lambda body: "temperature" in body and "top_p" in body,
        "`temperature` and `top_p` cannot both be specified for this model. Please use only one.",
        "top_p is not sent where it is 1",
    ),
    "OpenAI's reasoning models": (
        lambda body: "max_tokens" in body,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        "max_tokens is sent as max_completion_tokens",
    ),
    "a fixed temperature": (
        lambda body: "temperature" in body,
        "Unsupported value: 'temperature' does not support 0.7 with this model. Only the default (1) is supported.",
        "temperature is not sent",
    ),
    "no top_p": (lambda body: "top_p" in body, "Unsupported parameter: 'top_p'", "top_p is not sent where it is 1"),
    "TGI (synthetic-data-generator#48)": (
        lambda body: body.get("top_p") == 1,
        "Input validation error: `top_p` must be > 0.0 and < 1.0",
        "top_p is not sent where it is 1",
    ),
    "no schema (inspect_ai#4916, litellm#31466, khoj#1336)": (
        lambda body: body["response_format"]["type"] == "json_schema",
        "This response_format type is unavailable now",
        "schemas are sent in the prompt, with json_object",
    ),
    "no system role (ragflow#11021, conversations#197)": (
        lambda body: body["messages"][0]["role"] == "system",
        "Conversation roles must alternate user/assistant/user/assistant/... System role not supported",
        "the system's text is sent before the user's",
    ),
    "no seed": (
        lambda body: "seed" in body,
        '[{"type":"extra_forbidden","loc":["body","seed"],"msg":"Extra inputs are not permitted"}]',
        "seed is not sent",
    ),
    "a strict schema": (
        lambda body: "maxLength" in keywords_in(body),
        "Invalid schema for response_format 'answer': In context=('properties', 'b'), 'maxLength' is not permitted.",
        "schemas are sent without maxLength",
    ),
    "another strict schema": (
        lambda body: "maxItems" in keywords_in(body),
        "Unsupported JSON schema keyword in strict mode: maxItems",
        "schemas are sent without maxItems",
    ),
}


@check_rows("status, kind", product([400, 422], REFUSALS))
def test_what_a_server_refuses_by_name_is_written_again_and_remembered(kind, status):
    holds, message, note = REFUSALS[kind]
    first = asked(1)
    key = request_key(first)
    with FakeOpenAI(refusing(holds, message, status=status)) as server:
        replies = ask_in_turn(server, first, asked(2))
    assert [reply.note for reply in replies] == [note, note]
    assert server.n_requests == 3  # refused once, for both
    assert all(not holds(received.body) for received in server.log[1:])
    assert request_key(first) == key


def test_a_server_that_refuses_several_things_one_after_the_other():
    def script(index, body):
        for holds, message, _ in REFUSALS.values():
            if holds(body):
                return Action(400, error_body(message))
        return None

    with FakeOpenAI(script) as server:
        (reply,) = ask_in_turn(server, asked())
    assert sorted(reply.note.split("; ")) == [
        "max_tokens is sent as max_completion_tokens",
        "schemas are sent in the prompt, with json_object",
        "seed is not sent",
        "temperature is not sent",
        "the system's text is sent before the user's",
        "top_p is not sent where it is 1",
    ]
    body = server.log[-1].body
    assert body.keys() == {"model", "messages", "max_completion_tokens", "response_format", "stream"}
    assert body["response_format"] == {"type": "json_object"}
    [message] = body["messages"]
    assert message["content"].startswith("Cite.\n\nQuestion?\n\nReply with one JSON object of this JSON schema")
    assert json.loads(message["content"].rpartition("\n")[2])["properties"].keys() == SCHEMA["properties"].keys()


async def test_requests_that_were_under_way_when_it_was_learnt_are_sent_again():
    holds, message, note = REFUSALS["no seed"]
    server_script = lambda index, body: Action(400, error_body(message), delay_s=0.1) if holds(body) else None  # noqa: E731
    with FakeOpenAI(server_script) as server:
        backend = client_of(server.base_url, "fake")
        replies = await asyncio.gather(*(backend.chat(asked(seed)) for seed in range(20)))
        await backend.close()
    assert {reply.note for reply in replies} == {note}


async def test_replicas_of_a_deployment_share_what_they_learn():
    """Each has a client of its own, and one limiter: what one has learnt, another need not guess."""
    refusals = [REFUSALS["no seed"], REFUSALS["a fixed temperature"]]

    def script(index, body):
        return next((Action(400, error_body(message)) for holds, message, _ in refusals if holds(body)), None)

    limiter, notes = TokenBucket(None), []
    with FakeOpenAI(script) as server:
        for _ in range(2):
            backend = client_of(server.base_url, "fake", limiter=limiter, backoff_s=0.001)
            notes.append(((await backend.chat(asked())).note, server.n_requests))
            await backend.close()
    learnt = "seed is not sent; temperature is not sent"
    assert notes == [(learnt, 3), (learnt, 3 + 2)]


@check_rows(
    ("message", "changes"),
    [
        ("`temperature` and `top_p` cannot both be specified", {"top_p": 0.9}),  # leaving out either changes the answer
        ("your credit is used up: the temperature of our servers does not allow it", {"temperature": None}),
        ("model is not available", {}),
        ("the prompt may not hold the word maxLength", {}),
        ("temperature must be <= 0.5; larger values are not allowed", {}),
        ("invalid model. Unsupported: seed-oss-36b", {}),
        ("max_tokens cannot be greater than 4096 (max_completion_tokens)", {}),
    ],
)
def test_a_refusal_that_names_nothing_that_can_go_is_the_users(message, changes):
    with FakeOpenAI(lambda index, body: Action(400, error_body(message))) as server:
        with pytest.raises(ModelError, match=r"HTTP 400") as caught:
            ask_in_turn(server, asked(**{k: v for k, v in changes.items() if v is not None}), extra_body=changes)
        assert server.n_requests <= 2  # as it was asked, and once otherwise
    assert not isinstance(caught.value, TransientModelError)


def test_of_two_that_may_not_both_be_given_each_request_leaves_out_its_own():
    """Roles sample each their way on one deployment: none may lose what it asks for by another's refusal."""
    holds, message, _ = REFUSALS["Claude's endpoint"]
    asked_for = [(0.7, 1.0), (1.0, 0.9), (0.2, 1.0), (1.0, 1.0)]
    for order in (asked_for, asked_for[::-1]):
        with FakeOpenAI(refusing(holds, message)) as server:
            ask_in_turn(server, *(asked(temperature=t, top_p=p) for t, p in order))
            with pytest.raises(ModelError, match="cannot both be specified"):
                ask_in_turn(server, asked(temperature=0.7, top_p=0.9))
        sent = [(item.body.get("temperature"), item.body.get("top_p")) for item in server.log if not holds(item.body)]
        expected = {(0.7, 1.0): (0.7, None), (1.0, 0.9): (None, 0.9), (0.2, 1.0): (0.2, None), (1.0, 1.0): (1.0, None)}
        expected[1.0, 1.0] = (1.0, None) if order[0] == (1.0, 1.0) else (None, None)  # 1 is the server's default
        assert sent == [expected[pair] for pair in order]


def test_a_property_that_is_called_as_a_keyword_stays():
    schema = {
        "type": "object",
        "properties": {"pattern": {"type": "string", "pattern": "^a$"}, "b": {"enum": [{"pattern": 1}]}},
        "anyOf": [{"properties": {"c": {"items": {"pattern": "x"}}}}],
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    sent = {"messages": [], "response_format": form}
    dialect = Dialect().adapted(sent, "'pattern' is not permitted in strict schemas")
    assert dialect.write(sent)["response_format"]["json_schema"]["schema"] == {
        "type": "object",
        "properties": {"pattern": {"type": "string"}, "b": {"enum": [{"pattern": 1}]}},
        "anyOf": [{"properties": {"c": {"items": {}}}}],
    }
    assert dialect.notes == ("schemas are sent without pattern",)
    assert schema["properties"]["pattern"] == {"type": "string", "pattern": "^a$"}  # the request's own is untouched
    plain = {"seed": 1}
    assert dialect.write(plain) == plain


LINES = {"lines": "Read the table.\ntemperature 20 C\nseed\t3 kg"}
"""Contexts are lines, which may begin with the name of a field (attack6.md, B5)."""


@check_rows("word, quote", product(ASKED | LINES, QUOTES))
async def test_a_refusal_that_quotes_the_prompt_changes_no_later_request(word, quote):
    """attack5.md, A2. In a job: tests/engine/jobs/test_answer.py."""
    question = (ASKED | LINES)[word]
    status, told = QUOTES[quote](question)
    refused = asked(messages=(("system", "Cite."), ("user", question)))
    with FakeOpenAI(
        lambda index, body: Action(status, told) if question in body["messages"][-1]["content"] else None
    ) as server:
        backend = client_of(server.base_url, "fake", backoff_s=0.001)
        with pytest.raises(ModelError, match=f"HTTP {status}"):
            await backend.chat(refused)
        assert (await backend.chat(asked())).note == ""
        await backend.close()
    assert server.n_requests == 2
    assert {"temperature", "top_p", "seed"} < server.log[-1].body.keys()
    assert "maxLength" in keywords_in(server.log[-1].body)


async def test_a_change_is_kept_only_if_the_changed_request_succeeded():
    """The server refuses one request whatever it says, and names a parameter (attack5.md, A2)."""
    told = {"error": {"message": "seed: odd", "param": "seed"}}
    with FakeOpenAI(lambda index, body: Action(400, told) if index < 2 else None) as server:
        backend = client_of(server.base_url, "fake", backoff_s=0.001)
        with pytest.raises(ModelError, match="HTTP 400"):
            await backend.chat(asked())
        assert (await backend.chat(asked())).note == ""
        await backend.close()
    assert ["seed" in received.body for received in server.log] == [True, False, True]


def test_a_name_at_the_place_of_the_fault_counts_also_where_the_prompt_has_it():
    told = {"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]}
    request = asked(messages=(("user", "How many seed companies exist?"),))
    with FakeOpenAI(lambda index, body: Action(422, told) if "seed" in body else None) as server:
        (reply,) = ask_in_turn(server, request)
    assert reply.note == "seed is not sent"


FAILED = {"error": {"message": "Failed to generate JSON.", "code": "json_validate_failed"}}


def withheld(text):
    return Action(400, {"error": {**FAILED["error"], "failed_generation": text}})


@pytest.mark.parametrize("text", ['{"answer_value": "4.3"}', 'Here it is:\n{"answer_value": "4.3"}\nDone.'])
def test_a_text_that_a_server_withheld_since_its_own_check_failed_is_read(text):
    with FakeOpenAI(lambda index, body: withheld(text)) as server:
        (reply,) = ask_in_turn(server, asked())
    assert (reply.text, server.n_requests) == (text, 1)


@pytest.mark.parametrize("action", [withheld(""), withheld("I cannot say"), withheld(None), Action(400, FAILED)])
def test_a_check_that_failed_without_an_object_is_asked_again(action):
    good = Action(body=completion('{"answer_value": "4.3"}'))
    with FakeOpenAI(lambda index, body: action if index == 0 else good) as server:
        (reply,) = ask_in_turn(server, asked(schema=plan_schema(2)))
    assert (reply.text, server.n_requests) == ('{"answer_value": "4.3"}', 2)
