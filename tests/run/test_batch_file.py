"""Batch files in OpenAI's format: what is read, what is refused with the field named, what is written."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest
from kit.rows import check_rows

from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.models.completion import read_completion
from kohaku_ray.records import Reply
from kohaku_ray.run.exchange import batch_file
from kohaku_ray.run.exchange.batch_file import (
    BatchModels,
    LineError,
    answer_line,
    error_line,
    errors_path,
    read_lines,
    writing,
)

SERVER = '{kind: openai, base_url: "http://127.0.0.1:1/v1", model: %s, api_key_env: null}'
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def models(*overrides: str) -> BatchModels:
    return BatchModels(load_config(None, [f"deployments.big={SERVER % 'gpt-4o-mini'}", *overrides]))


def a_line(custom_id="a", url="/v1/chat/completions", method="POST", **body) -> dict:
    body = {"model": "gpt-4o-mini", "messages": HELLO, **body}
    return {"custom_id": custom_id, "method": method, "url": url, "body": body}


def read(tmp_path: Path, *lines: dict | str, using: BatchModels | None = None) -> list:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (tmp_path / "in.jsonl").write_bytes(text.encode(errors="surrogateescape"))
    return list(read_lines(str(tmp_path / "in.jsonl"), using or models()))


def test_a_line_becomes_the_call_that_it_describes(tmp_path):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    asked = {"type": "json_schema", "json_schema": {"name": "number", "strict": True, "schema": schema}}
    given = {"temperature": 0, "top_p": 0.5, "max_completion_tokens": 7, "seed": 3, "response_format": asked}
    [line] = read(tmp_path, a_line(**given, n=1, stream=False, tools=None, user=None))
    assert line.error is None
    assert (line.number, line.custom_id, line.model, line.deployment) == (1, "a", "gpt-4o-mini", "big")
    request = line.request
    assert request.messages == (("system", "Be brief."), ("user", "Hello"))
    assert (request.temperature, request.top_p, request.max_tokens, request.seed) == (0, 0.5, 7, 3)
    assert request.schema == schema
    assert "gpt-4o-mini" in request.model


def test_what_a_line_leaves_open_is_the_apis_default_or_the_configurations(tmp_path):
    using = models("seed=11", "roles.answer.max_tokens=99", "deployments.big.reasoning_tokens=1000")
    [line] = read(tmp_path, a_line(model="big"), using=using)
    request = line.request
    assert (request.temperature, request.top_p, request.seed, request.schema) == (1, 1, 11, None)
    assert request.max_tokens == 1099
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    [line] = read(tmp_path, a_line(max_tokens=5, messages=messages), using=using)
    assert line.request.max_tokens == 5, "the API counts reasoning"
    assert line.request.messages == (("user", "Hello"),)


def test_fields_that_change_no_reply_change_no_call(tmp_path):
    books = {"metadata": {"batch": "7"}, "user": "me", "store": True, "service_tier": "flex", "safety_identifier": "x"}
    empty = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False, "stop": [], "logit_bias": {}}
    plain, full = read(tmp_path, a_line("a"), a_line("b", **books, **empty, modalities=["text"], top_logprobs=0))
    assert (plain.error, full.error) == (None, None)
    assert plain.request == full.request


@check_rows(
    ("body", "param", "code"),
    [
        ({"tools": [{"type": "function"}]}, "body.tools", "unsupported_parameter"),
        ({"tool_choice": {"type": "function"}}, "body.tool_choice", "unsupported_parameter"),
        ({"stop": ["."]}, "body.stop", "unsupported_parameter"),
        ({"logit_bias": {"50256": -100}}, "body.logit_bias", "unsupported_parameter"),
        ({"modalities": ["text", "audio"]}, "body.modalities", "unsupported_parameter"),
        ({"top_logprobs": 2}, "body.top_logprobs", "unsupported_parameter"),
        ({"stream": 0.5}, "body.stream", "unsupported_parameter"),
        ({"reasoning_effort": "low"}, "body.reasoning_effort", "unsupported_parameter"),
        ({"n": 2}, "body.n", "unsupported_parameter"),
        ({"stream": True}, "body.stream", "unsupported_parameter"),
        ({"temprature": 0.5}, "body.temprature", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "body.response_format", "invalid_value"),
        ({"temperature": "0.5"}, "body.temperature", "invalid_value"),
        ({"max_tokens": 0}, "body.max_tokens", "invalid_value"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "body.max_tokens", "unsupported_parameter"),
        ({"seed": 2**31}, "body.seed", "invalid_value"),
        ({"messages": []}, "body.messages", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "body.messages.0.role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "body.messages.0.content", "missing_required_parameter"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "body.messages.0.content",
            "invalid_value",
        ),
        ({"model": None}, "body.model", "missing_required_parameter"),
        ({"model": "gpt-4o-mimi"}, "body.model", "model_not_found"),
        ({"model": "extractive"}, "body.model", "model_not_found"),
    ],
)
def test_what_a_call_cannot_carry_is_refused_with_its_field(tmp_path, body, param, code):
    bad, good = read(tmp_path, a_line("a", **body), a_line("b"))
    assert good.error is None
    assert (bad.request, bad.custom_id) == (None, "a")
    assert bad.error.param.startswith(param)
    assert bad.error.code == code
    assert param in bad.error.message or code == "model_not_found"
    assert bad.error.message.startswith("line 1: ")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"schema": {"type": "array"}}, "must be of type object"),
        ({"schema": {"type": "object"}, "strict": False}, "strict"),
    ],
)
def test_a_schema_that_would_not_hold_is_refused(tmp_path, schema, message):
    [line] = read(tmp_path, a_line(response_format={"type": "json_schema", "json_schema": {"name": "x", **schema}}))
    assert "body.response_format.json_schema" in line.error.message
    assert message in line.error.message


def test_a_schema_is_refused_where_its_deployment_would_drop_it_and_where_it_has_no_stable_form(tmp_path):
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    [line] = read(tmp_path, a_line(response_format=asked), using=models("deployments.big.schema_mode=none"))
    assert "deployments.big.schema_mode is none" in line.error.message
    infinite = json.dumps(a_line(response_format=asked)).replace('"object"', '"object", "minimum": 1e999')
    [line] = read(tmp_path, infinite)
    assert line.error.param.startswith("body.response_format.json_schema.schema")


def test_bad_lines_say_what_they_are_and_stop_nothing(tmp_path):
    no_id, no_url = a_line(), a_line("c")
    del no_id["custom_id"], no_url["url"]
    lines = read(
        tmp_path,
        "\ufeff" + json.dumps(a_line("a")),
        a_line("a", temperature=0),
        no_id,
        "",
        "   ",
        a_line(7),
        a_line("u", url="/v1/embeddings"),
        no_url,
        a_line("m", method="GET"),
        "{",
        "[1]",
        "\udcff\udcfe",
        {**a_line("extra"), "priority": 1},
        a_line("z"),
    )
    errors = [line.error or LineError(None, "") for line in lines]
    outcomes = [
        (line.number, line.custom_id, error.code, error.param) for line, error in zip(lines, errors, strict=True)
    ]
    assert outcomes == [
        (1, "a", None, None),
        (2, "a", "duplicate_custom_id", "custom_id"),
        (3, None, "missing_required_parameter", "custom_id"),
        (6, None, "invalid_value", "custom_id"),
        (7, "u", "url_mismatch", "url"),
        (8, "c", "missing_required_parameter", "url"),
        (9, "m", "invalid_value", "method"),
        (10, None, "invalid_json_line", None),
        (11, None, "invalid_json_line", None),
        (12, None, "invalid_json_line", None),
        (13, "extra", "unsupported_parameter", "priority"),
        (14, "z", None, None),
    ]
    assert "url is '/v1/embeddings': only /v1/chat/completions is served" in lines[4].error.message


def test_a_line_of_a_hundred_megabytes_is_not_held(tmp_path):
    path = tmp_path / "in.jsonl"
    with open(path, "wb") as file:
        file.write(json.dumps(a_line("a")).encode() + b'\n{"custom_id": "big", "body": "')
        for _ in range(100):
            file.write(b"x" * 2**20)
        file.write(b'"}\n' + json.dumps(a_line("b")).encode())
    tracemalloc.start()
    try:
        lines = list(read_lines(str(path), models()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [line.error and line.error.code for line in lines] == [None, "line_too_long", None]
    assert lines[2].number == 3
    assert peak < 4 * batch_file.MOST_LINE_MIB * 2**20


def test_without_a_language_model_or_a_file_it_says_so(tmp_path):
    with pytest.raises(ConfigError, match="--with models/ollama"):
        BatchModels(load_config(None))
    with pytest.raises(DataError, match=r"none\.jsonl cannot be read"):
        list(read_lines(str(tmp_path / "none.jsonl"), models()))


def test_a_replys_line_is_what_a_client_of_the_api_reads(tmp_path):
    [line] = read(tmp_path, a_line("ä\u2028"))
    raw = answer_line(line, "k" * 32, Reply("Hi\u2028 \U0001f600", 12, 8, 3, "length"))
    assert len(raw.decode().splitlines()) == 1
    told = json.loads(raw)
    assert told.keys() == {"id", "custom_id", "response", "error"}
    assert (told["custom_id"], told["error"], told["response"]["status_code"]) == ("ä\u2028", None, 200)
    body = told["response"]["body"]
    assert read_completion(body) == Reply("Hi\u2028 \U0001f600", 12, 0, 3, "length")
    assert (body["object"], body["model"], body["usage"]["total_tokens"]) == ("chat.completion", "gpt-4o-mini", 15)
    chat = pytest.importorskip("openai.types.chat")
    parsed = chat.ChatCompletion.model_validate(body, strict=True)
    assert parsed.choices[0].message.content == "Hi\u2028 \U0001f600"


def test_an_errors_line_is_the_apis_answer_or_a_call_without_one(tmp_path):
    [line] = read(tmp_path, a_line("a", n=2))
    told = json.loads(error_line(line, line.error))
    assert (told["custom_id"], told["error"], told["response"]["status_code"]) == ("a", None, 400)
    error = told["response"]["body"]["error"]
    assert [error[key] for key in ("type", "param", "code")] == ["invalid_request_error", "body.n", line.error.code]
    told = json.loads(error_line(line, LineError("request_failed", "no reply", status=None)))
    assert (told["response"], told["error"]) == (None, {"code": "request_failed", "message": "no reply"})


def test_outputs_have_their_names_when_they_are_whole(tmp_path):
    [line] = read(tmp_path, a_line("a"))
    out = str(tmp_path / "new" / "out.jsonl")
    errors = errors_path(out)
    assert errors == str(tmp_path / "new" / "out.errors.jsonl")
    with writing(out) as files:
        files.write(line, ("k", Reply("one")))
        files.write(line, LineError("request_failed", "no reply", status=None))
        assert not os.path.exists(out)
    assert sorted(os.listdir(tmp_path / "new")) == ["out.errors.jsonl", "out.jsonl"]
    before = Path(out).read_bytes()

    def broken() -> None:
        with writing(out) as files:
            files.write(line, ("k", Reply("two")))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert Path(out).read_bytes() == before
    Path(f"{out}.part").write_bytes(b"left by a killed job")
    with writing(out) as files:
        files.write(line, ("k", Reply("two")))
    assert sorted(os.listdir(tmp_path / "new")) == ["out.jsonl"], "no line is in error any more"
    assert Path(out).read_bytes() == answer_line(line, "k", Reply("two"))


def test_two_jobs_do_not_write_one_output(tmp_path):
    out = str(tmp_path / "out.jsonl")
    [line] = read(tmp_path, a_line("a"))
    with writing(out) as files:
        refused = rf"output {out} belongs to process {os.getpid()} .*: wait for it to end, or name another output"
        with pytest.raises(DataError, match=refused), writing(out):
            pass
        files.write(line, ("k", Reply("one")))
    assert Path(out).read_bytes() == answer_line(line, "k", Reply("one"))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"), writing(str(tmp_path / "file" / "out.jsonl")):
        pass
