"""OpenAI's chat completions format, which servers and engines share: request bodies and replies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from kohaku_ray.models.images import data_uris
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.records import Reply
from kohaku_ray.values.read import clean_text

MOST_TOKENS = 2**40
"""Largest token count accepted; a larger one is an error of the server."""

SchemaMode = Literal["json_schema", "json_object", "none"]

_OVERFLOW_STATUS = frozenset({400, 413, 422})
_OVERFLOW_WORDS = (
    "context_length_exceeded",
    "maximum context length",
    "context window",
    "context size",
    "too long",
    "reduce the length",
    "longer than the maximum model length",
)


async def completion_body(
    request: ChatRequest, model: str, schema_mode: SchemaMode, *, any_root: bool = False
) -> dict[str, Any]:
    """Write a request as JSON values; its images are read and encoded in a thread.

    Args:
        request: The request.
        model: The model's name on the server.
        schema_mode: How the schema is sent.
        any_root: Also send schemas of arrays (a plan's); OpenAI's API accepts objects only.

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
    }
    if request.schema is not None and (any_root or request.schema.get("type") == "object"):
        body |= _response_format(schema_mode, request.schema)
    return body


def read_completion(body: Any) -> Reply | None:
    """Read a response of JSON values; None if it is no chat completion.

    Characters that no file can hold are removed, and invalid token counts become 0: servers send both.
    """
    choices = body.get("choices") if isinstance(body, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if choice is None or not isinstance(message, dict):
        return None
    usage = _object(body.get("usage"))
    prompt_tokens = _count(usage.get("prompt_tokens"))
    return Reply(
        text=_content_text(message.get("content")) or _content_text(message.get("refusal")),
        prompt_tokens=prompt_tokens,
        cached_tokens=min(_count(_object(usage.get("prompt_tokens_details")).get("cached_tokens")), prompt_tokens),
        completion_tokens=_count(usage.get("completion_tokens")),
        finish_reason=clean_text(str(choice.get("finish_reason") or "stop")),
    )


def refuses_length(status: int, text: str) -> bool:
    """Return whether a server refused a request for the prompt's length."""
    return status == 413 or (status in _OVERFLOW_STATUS and any(word in text.lower() for word in _OVERFLOW_WORDS))


def _response_format(mode: SchemaMode, schema: Mapping[str, Any]) -> dict[str, Any]:
    if mode == "json_schema":
        named = {"name": "answer", "schema": schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    if mode == "json_object":
        return {"response_format": {"type": "json_object"}}
    return {}


def _content_text(content: Any) -> str:
    """Join the text of a message: a string, or a list of parts; null if the model only reasoned."""
    parts = [_object(part).get("text") for part in content] if isinstance(content, list) else [content]
    return clean_text("".join(part for part in parts if isinstance(part, str)))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else 0
