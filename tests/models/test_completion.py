"""What of a chat completion is its reply: text, finish reason and counts of tokens, of values that servers sent."""

from __future__ import annotations

import json

import pytest
from kit.refusals import NO_USAGE
from kit.rows import check_rows

from kohaku_ray.errors import ModelError, TransientModelError, UnfinishedReplyError
from kohaku_ray.models.completion import load_values, read_completion
from kohaku_ray.models.parse import parse_answer
from kohaku_ray.records import Reply

PROMPT_CHARS = 400
ESTIMATED = "token counts are estimated, as the server sent none that can be used"
WHOLE_ANSWER = '{"answer_value": "12", "ref_id": ["a"]}'


def read(message, finish_reason="stop", usage=None, *, beside=None, **choice) -> Reply:
    """Read a completion of one choice, and of what stands ``beside`` the choices."""
    choices = [{"message": message, "finish_reason": finish_reason, **choice}]
    body = json.dumps({"choices": choices, "usage": usage, **(beside or {})})
    return read_completion(load_values(body.encode()), PROMPT_CHARS)


def read_text(text, finish_reason="stop", usage=None) -> Reply:
    return read({"content": text}, finish_reason, usage)


DEEP, DEEP_OBJECT, LONG_NUMBER = b"[" * 10**5, b'{"a":' * 10**5, b'{"choices": ' + b"9" * 10**5 + b"}"


@check_rows(
    "body",
    [b"", b" \n ", b'{"choices": [{"mess', b'{"choices": [],}', b"{'a': 1}", b"{}{}", DEEP, DEEP_OBJECT, LONG_NUMBER],
)
def test_what_is_no_json_may_pass(body):
    with pytest.raises(TransientModelError, match="malformed JSON in a body of"):
        load_values(body)


NO_CHOICES = (None, [], {"0": "x"}, "x", 1, [None], ["x"])
NO_MESSAGE = ({"index": 0}, {"message": None}, {"message": "text"}, {"message": []}, {"delta": {}}, {"text": "x"})


@check_rows(
    "values",
    [
        *(None, True, 7, "text", [], {}, [{"choices": [{"message": {"content": "x"}}]}]),
        *({"choices": choices} for choices in NO_CHOICES),
        *({"choices": [choice]} for choice in NO_MESSAGE),
    ],
)
def test_what_is_no_completion_may_pass(values):
    with pytest.raises(TransientModelError, match="no choices in the reply"):
        read_completion(values)


@check_rows(
    ("message", "text"),
    [
        *(({"content": content}, "") for content in (None, "", " \n ", 7, True, {"answer_value": 7})),
        ({"role": "assistant"}, ""),
        ({"content": [{"type": "image_url"}, None, 7, "x"]}, ""),
        ({"content": None, "tool_calls": [{"function": {"arguments": "12"}}]}, ""),
        ({"content": WHOLE_ANSWER, "tool_calls": [{"function": {"arguments": '{"x": 1}'}}]}, WHOLE_ANSWER),
        ({"content": None, "reasoning_content": f"Perhaps {WHOLE_ANSWER}, no."}, ""),
        ({"content": "", "reasoning": "12"}, ""),
        ({"content": None, "refusal": "I cannot help with that."}, "I cannot help with that."),
        ({"content": WHOLE_ANSWER, "reasoning_content": '{"answer_value": "7"}', "role": "user"}, WHOLE_ANSWER),
        ({"content": [{"type": "text", "text": "a\ud800"}, {"text": "\x00b\udfff\tc\n"}]}, "ab\tc\n"),
        ({"content": "\ud83d\ude00 é"}, "😀 é"),  # a whole pair is a character
    ],
)
def test_the_text_is_the_content_without_what_no_file_can_hold(message, text):
    reply = read(message, usage={"prompt_tokens": 9, "completion_tokens": 3})
    assert (reply.text.strip(" \n") if not text else reply.text) == text
    assert reply.note == ""
    assert parse_answer(reply, ["a"]).is_blank == (text != WHOLE_ANSWER)


@check_rows(
    "message",
    [
        {"content": None, "reasoning_content": WHOLE_ANSWER},  # vllm#19222, vllm#50948
        {"content": "", "reasoning": WHOLE_ANSWER},  # chunkhound#415
        {"content": None, "parsed": json.loads(WHOLE_ANSWER)},  # rig#1656
    ],
)
def test_a_reply_in_another_field_is_read_there_and_said(message):
    reply = read(message, usage={"prompt_tokens": 9, "completion_tokens": 3})
    assert reply.text == WHOLE_ANSWER
    assert reply.note == f"replies are read from {next(reversed(message))}, as their content is empty"


def test_the_model_that_a_reply_names_is_kept_in_one_line():
    for model, kept in (("a\n\x1b[2Jb", "a [2Jb"), (None, ""), (7, ""), ("x" * 300, "x" * 200)):
        assert read({"content": "x"}, beside={"model": model}).served_model == kept


CALL = {"name": "answer", "arguments": WHOLE_ANSWER}


@check_rows(
    ("message", "finish_reasons"),
    [
        ({"tool_calls": [{"function": CALL}]}, ("tool_calls", "stop")),  # safety-tooling#113
        ({"tool_calls": [{"function": CALL | {"arguments": json.loads(WHOLE_ANSWER)}}]}, ("tool_call", "tool_calling")),
        ({"tool_calls": [{"function": CALL}] * 2}, ("tool_calls",)),  # LocalAI#9722: one call in several places
        ({"function_call": CALL, "tool_calls": None}, ("function_call", "stop")),  # functionary#243, qwen-code#6240
        ({"function_call": CALL, "tool_calls": [{"function": CALL}]}, ("tool_calls",)),  # functionary#156
    ],
)
def test_the_arguments_of_a_tool_call_are_the_reply(message, finish_reasons):
    message = {"content": None, **message}
    for finish_reason in finish_reasons:
        reply = read(message, finish_reason, usage={"prompt_tokens": 9, "completion_tokens": 3})
        assert (reply.text, reply.finish_reason) == (WHOLE_ANSWER, "stop")
        assert reply.note == "replies are read from tool_calls, as their content is empty"


@check_rows(
    "beside",
    [
        {"id": "chatcmpl-7", "object": "x", "created": "never"},
        {"error": None, "warnings": ["x"] * 1000},
        {"choices": [{"message": {"content": "x"}}, {"message": {"content": "y"}}]},
    ],
)
def test_what_stands_beside_the_first_choice_changes_nothing(beside):
    assert read({"content": "x"}, beside=beside) == read_text("x")


@check_rows(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 12, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}, (12, 9, 5)),
        # DeepSeek's field: hermes-agent#61871, langchain#39668, promptfoo#10831
        ({"prompt_tokens": 12, "completion_tokens": 5, "prompt_cache_hit_tokens": 9}, (12, 9, 5)),
        # future-agi#1122, litellm#23342: the prompt's count is without the cached tokens
        ({"prompt_tokens": 12, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 207}}, (219, 207, 5)),
        (
            {
                "prompt_tokens": 12,
                "completion_tokens": 5,
                "total_tokens": 224,
                "prompt_tokens_details": {"cached_tokens": 207},
            },
            (219, 207, 5),
        ),
        ({"prompt_tokens": "12", "completion_tokens": "5"}, (12, 0, 5)),
        ({"prompt_tokens": 12, "total_tokens": 17}, (12, 0, 5)),
        ({"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135}, (32, 0, 103)),  # 94 of thought
        ({"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": [3]}, (9, 0, 5)),
    ],
)
def test_counts_of_tokens_are_read(usage, counts):
    reply = read_text("four by four", usage=usage)
    assert (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens, reply.note) == (*counts, "")


@check_rows(
    ("usage", "prompt_tokens"),
    [
        *((usage, PROMPT_CHARS // 4) for usage in NO_USAGE),
        *((dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), bad), 100) for bad in (0, "NaN")),
        *(({"prompt_tokens": bad, "completion_tokens": bad}, 100) for bad in (float("nan"), float("-inf"))),
        ({"prompt_tokens": "5", "completion_tokens": "1e9"}, 5),
        ({"prompt_tokens": 12, "total_tokens": 3}, 12),
        ({"total_tokens": 55}, 52),  # what the reply does not have
    ],
)
def test_what_is_no_count_of_tokens_is_estimated_and_never_free(usage, prompt_tokens):
    """attack5.md, A1: a budget was never reached where the server sent no usage."""
    reply = read_text("twelve chars", usage=usage)
    assert (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens) == (prompt_tokens, 0, 3)
    assert reply.note == ESTIMATED


@check_rows("spelled", ["stop", "STOP", "eos", "eos_token", "end_turn", "stop_sequence", "", None])
def test_reasons_of_whole_replies_and_of_cut_ones_have_one_spelling(spelled):
    assert read_text("x", spelled).finish_reason == read_text("x", "st\ud800op").finish_reason == "stop"
    for cut in ("length", "MAX_TOKENS", "model_length"):
        assert read_text("x", cut).finish_reason == "length"


@check_rows(
    ("finish_reason", "more"),
    [
        ("error", {"error": {"code": 502, "message": "cut in the middle"}}),  # claudexor#144, OmniRoute#8210
        ("stop", {"error": {"message": "overloaded"}}),
        ("stop", {"beside": {"error": {"message": "but"}}}),
        *((reason, {}) for reason in ("abort", "tool_calls", 7, ["stop"], "st\nop\x00\x1b[31m", "x" * 10**5)),
    ],
)
def test_a_reply_that_says_it_failed_is_none(finish_reason, more):
    with pytest.raises(UnfinishedReplyError, match=r"^the reply ended with finish_reason") as caught:
        read({"content": WHOLE_ANSWER}, finish_reason, **more)
    assert len(str(caught.value)) < 300


def test_a_reply_without_a_token_and_one_that_a_filter_stopped_are_none():
    with pytest.raises(UnfinishedReplyError, match="the model generated no token"):
        read_text("", usage={"prompt_tokens": 9, "completion_tokens": 0})
    with pytest.raises(ModelError, match="finish_reason 'content_filter'") as caught:
        read_text(WHOLE_ANSWER, "content_filter")
    assert type(caught.value) is ModelError


def stream(*events, end="data: [DONE]\n\n") -> bytes:
    """Events as servers send them (SSE), behind a comment."""
    lines = "".join(f"event: message\ndata: {json.dumps(event)}\n\n" for event in events)
    return (": hello\n\n" + lines + end).encode()


WORDS = [{"choices": [{"delta": {"content": word}, "finish_reason": None}]} for word in ("four ", "by\u2028 four")]
FINISH = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 2}}


@check_rows(
    "body",
    [
        stream(*WORDS, FINISH, USAGE),
        stream(*WORDS, FINISH, USAGE, end=""),
        stream(*WORDS, USAGE),
        b"id: 1\n" + stream(*WORDS, FINISH, USAGE),  # lagent#358
        b"\r\n\n" + stream(*WORDS, FINISH, USAGE),
        b"retry: 100\n" + stream(*WORDS, FINISH, USAGE),
        stream({"choices": [{"message": {"content": "four by\u2028 four"}}], **{"usage": USAGE["usage"]}}),
        # inference-perf#781, hey-api#3054
        *(stream(*WORDS, FINISH, USAGE).replace(b"\n", end) for end in (b"\r\n", b"\r")),
        stream(*WORDS, FINISH, USAGE).replace(b", ", b",\ndata:"),
    ],
)
def test_a_stream_is_read_to_its_end(body):
    """9router#3492, modlens#94, unsloth#6570: gateways that stream, also where they are told not to."""
    assert read_completion(load_values(body)) == Reply("four by\u2028 four", 100, 0, 2, "stop")


def test_a_stream_names_its_model_and_calls_a_tool_in_parts():  # dynamo#8640, echokit_server#52, agentgateway#1361
    parts = [{"name": "answer"}, {"arguments": WHOLE_ANSWER[:9]}, {"arguments": WHOLE_ANSWER[9:]}]
    deltas = [{"tool_calls": [{"index": 0, "function": part}]} for part in parts]
    events = [{"model": "cheap-1b", "choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    ended = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    reply = read_completion(load_values(stream(*events, ended, USAGE)))
    assert reply == Reply(WHOLE_ANSWER, 100, 0, 2, "stop", note=reply.note)
    assert reply.note == "replies are read from tool_calls, as their content is empty"
    assert reply.served_model == "cheap-1b"
    older = [{"choices": [{"delta": {"function_call": part}}]} for part in parts]
    assert read_completion(load_values(stream(*older, ended, USAGE))).text == WHOLE_ANSWER


@check_rows("body", [stream(*WORDS, end=""), stream(*WORDS, end="data: {"), b'data: {"choices": [{"delta"'])
def test_a_stream_that_breaks_off_is_no_reply(body):
    with pytest.raises(TransientModelError, match="malformed JSON in a body of"):
        load_values(body)
