"""Chat completions as JSON values: the body of a request, and what of a response is its reply."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from kohaku_ray.errors import TransientModelError
from kohaku_ray.models.json_text import loads
from kohaku_ray.models.request import CHARS_PER_TOKEN, FINISH_REASONS, ChatRequest, check_finished, data_uris
from kohaku_ray.records import CUT, WHOLE, Reply
from kohaku_ray.values.read import clean_text

MOST_TOKENS = 2**24
"""Largest token count accepted: no model reads or writes as many; a larger one is an error of the server."""

_NAME_CHARS = 200  # of a model that a reply names: file names have up to 255

SchemaMode = Literal["json_schema", "json_object", "none"]

_OTHER_FIELDS = ("reasoning_content", "reasoning", "parsed")
"""Where a server puts a reply whose content it leaves empty (vllm#19222, chunkhound#415, rig#1656)."""

_CALLED = re.compile(r"(?:tool|function)_call(?:s|ing)?")
"""Finish reasons of a reply that calls a tool: with the answer, where a server asks for the schema so.

safety-tooling#113, functionary#243, mlx-lm#782, FastFlowLM#497.
"""

_LAST_MARK = "[DONE]"
_DECODER = json.JSONDecoder()
_NO_SPACE = re.compile(r"\S")

ESTIMATED = "token counts are estimated, as the server sent none that can be used"


async def completion_body(
    request: ChatRequest, model: str, schema_mode: SchemaMode, *, any_root: bool = False
) -> dict[str, Any]:
    """Write a request as JSON values; its images are read and encoded in a thread.

    Args:
        request: The request.
        model: The model's name on the server.
        schema_mode: How the schema is sent.
        any_root: Also send schemas of other roots than objects, which alone OpenAI's API accepts.

    Raises:
        ModelError: An image cannot be read.
    """
    messages: list[dict[str, Any]] = [{"role": role, "content": content} for role, content in request.messages]
    if request.images:
        uris = await asyncio.to_thread(data_uris, request.images)
        shown = [{"type": "image_url", "image_url": {"url": uri}} for uri in uris]
        messages[-1]["content"] = [*shown, {"type": "text", "text": messages[-1]["content"]}]
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "stream": False,  # some gateways stream unless they are told not to (9router#3492, modlens#94)
    }
    if request.schema is not None and (any_root or request.schema.get("type") == "object"):
        if schema_mode == "json_schema":
            named = {"name": "answer", "schema": request.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        elif schema_mode == "json_object":
            body["response_format"] = {"type": "json_object"}
    return body


def load_values(body: bytes | bytearray) -> Any:
    """Parse the body of a response: JSON, or the events of a stream (SSE), put together as one completion.

    Raises:
        TransientModelError: It is neither, or the stream breaks off.
    """
    try:
        # data:, event:, id:, retry: or a comment, as no JSON begins (lagent#358)
        is_stream = body.lstrip()[:1] in (b"d", b"e", b"i", b"r", b":")
        return _merge_events(body.decode()) if is_stream else json.loads(body)
    except (ValueError, RecursionError):
        raise TransientModelError(f"malformed JSON in a body of {len(body)} bytes") from None


def read_completion(values: Any, prompt_chars: int = 0) -> Reply:
    """Read a response of JSON values.

    Characters that no file can hold are removed. Counts of tokens that are missing or no counts are estimated.

    Args:
        values: The parsed body.
        prompt_chars: Characters of the prompt.

    Raises:
        TransientModelError: It is no chat completion.
        UnfinishedReplyError: It says of its reply that it failed, or the reply has no token.
        ModelError: A filter stopped the reply.
    """
    body = as_object(values)
    choice = _first_choice(body)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise TransientModelError("no choices in the reply")
    text, notes = _content_text(message.get("content")) or _content_text(message.get("refusal")), list[str]()
    if not text.strip():
        for field in _OTHER_FIELDS:
            if other := _object_text(message.get(field)):
                text, notes = other, [f"replies are read from {field}, as their content is empty"]
                break
    called = "" if text.strip() else _called_with(message)
    if called:
        text, notes = called, ["replies are read from tool_calls, as their content is empty"]
    usage = as_object(body.get("usage"))
    prompt_tokens, cached_tokens, completion_tokens, is_estimated = _read_counts(usage, prompt_chars, text, message)
    notes += [ESTIMATED] if is_estimated else []
    error = choice.get("error") or body.get("error")
    reason = choice.get("finish_reason")
    reason = WHOLE if called and _CALLED.fullmatch(str(reason)) else reason
    if reason not in (WHOLE, CUT):
        reason = clean_text(str(reason or "")).strip()
        reason = FINISH_REASONS.get(reason.casefold(), reason)
    reply = Reply(
        text=text,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        completion_tokens=completion_tokens,
        finish_reason="error" if error else reason,
        note="; ".join(notes),
        served_model=_named_model(body.get("model")),
    )
    check_finished(reply, json.dumps(error) if error else "")
    return reply


def _named_model(name: Any) -> str:
    return " ".join(clean_text(name).split())[:_NAME_CHARS] if isinstance(name, str) else ""


def error_status(values: Any) -> int | None:
    """Return the status of an error that a successful response bears, as gateways answer for a server that refused."""
    body = as_object(values)
    code = as_object(body.get("error")).get("code")
    return code if type(code) is int and 400 <= code < 600 else None


def as_object(value: Any) -> dict[str, Any]:
    """Return a JSON object, empty in place of anything else."""
    return value if isinstance(value, dict) else {}


def _first_choice(body: Mapping[str, Any]) -> dict[str, Any]:
    choices = body.get("choices")
    return as_object(choices[0]) if isinstance(choices, list) and choices else {}


def _merge_events(text: str) -> dict[str, Any]:
    """Put a stream's events together; a ``ValueError`` where it ends without a finish reason or its last mark.

    Lines end in any of three ways, and an event's value may take several (inference-perf#781).
    """
    merged: dict[str, Any] = {}
    message: dict[str, str] = {}
    choice: dict[str, Any] = {"message": message}
    arguments: dict[str, str] = {}  # of the calls of tools, by their place
    fields = [line.strip().partition(":") for line in re.split(r"\r\n?|\n", text)]
    data = [value.strip() for name, _, value in fields if name == "data"]
    for event in map(as_object, _decode_each("\n".join(value for value in data if value != _LAST_MARK))):
        merged |= {name: event[name] for name in ("usage", "error", "model") if event.get(name)}
        part = _first_choice(event)
        choice |= {name: part[name] for name in ("finish_reason", "error") if part.get(name)}
        delta = as_object(part.get("delta") or part.get("message"))
        for name in ("content", "refusal", "reasoning_content", "reasoning"):
            if added := _content_text(delta.get(name)):
                message[name] = message.get(name, "") + added
        for place, function in _calls_in(delta):  # dynamo#8640: begun in one event, gone on with in others
            added = function.get("arguments") or ""
            arguments[place] = arguments.get(place, "") + (added if isinstance(added, str) else json.dumps(added))
    if not (_LAST_MARK in data or choice.keys() - {"message"} or merged.get("error")):
        raise ValueError("the stream breaks off")
    calls = [{"function": {"arguments": text}} for text in arguments.values()]
    return {**merged, "choices": [{**choice, "message": {**message, "tool_calls": calls}}]}


def _decode_each(text: str) -> Iterator[Any]:
    """Yield the JSON values of a text that holds nothing else."""
    position = 0
    while (start := _NO_SPACE.search(text, position)) is not None:
        value, position = _DECODER.raw_decode(text, start.start())
        yield value


def _content_text(content: Any) -> str:
    """Join the text of a message: a string, or a list of parts; null if the model only reasoned."""
    parts = [as_object(part).get("text") for part in content] if isinstance(content, list) else [content]
    return clean_text("".join(part for part in parts if isinstance(part, str)))


def _called_with(message: Mapping[str, Any]) -> str:
    """Return the different arguments of calls of tools that are JSON objects, each in a line (LocalAI#9722)."""
    texts = (_object_text(function.get("arguments")) for _, function in _calls_in(message))
    return "\n".join(dict.fromkeys(filter(None, texts)))


def _calls_in(message: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the place and the function of each call of a tool, of the older field too (qwen-code#6240)."""
    calls = message.get("tool_calls")
    items = map(as_object, calls if isinstance(calls, list) else ())
    called = [(str(item.get("index")), item.get("function")) for item in items]
    return [
        (place, as_object(function)) for place, function in [*called, ("", message.get("function_call"))] if function
    ]


def _object_text(value: Any) -> str:
    """Return the text of a JSON object, as itself or written; empty in place of anything else, such as thoughts."""
    if isinstance(value, dict):
        return clean_text(json.dumps(value)) if value else ""
    return value.strip() if isinstance(value, str) and as_object(loads(value)) else ""


def _read_counts(
    usage: Mapping[str, Any], prompt_chars: int, text: str, message: Mapping[str, Any]
) -> tuple[int, int, int, bool]:
    """Return the tokens of the prompt, of its cached part and of the reply, and whether one count is an estimate.

    More cached tokens than the prompt has are not among its count (future-agi#1122, litellm#23342).
    """
    prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    total = _count(usage.get("total_tokens"))
    cached = _count(as_object(usage.get("prompt_tokens_details")).get("cached_tokens"))
    cached = cached or _count(usage.get("prompt_cache_hit_tokens"))  # DeepSeek's: hermes-agent#61871, pi#3880
    if 0 < prompt < cached:
        prompt += cached
    if prompt and completion:  # xAI's and Gemini's completion is without its reasoning (inspect_ai#5528)
        return prompt, cached, max(completion, total - prompt), False
    reply_chars = len(text) + len(_content_text(message.get("reasoning_content") or message.get("reasoning")))
    if total > prompt > 0:
        completion = completion or total - prompt
    is_estimated = bool((not completion and reply_chars) or (not prompt and prompt_chars))
    completion = completion or math.ceil(reply_chars / CHARS_PER_TOKEN)
    prompt = prompt or (total - completion if total > completion else math.ceil(prompt_chars / CHARS_PER_TOKEN))
    return prompt, min(cached, prompt), completion, is_estimated


def _count(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    return value if type(value) is int and 0 < value <= MOST_TOKENS else 0
