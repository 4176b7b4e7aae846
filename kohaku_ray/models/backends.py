"""The protocol of model backends. The engine hosts them behind Ray Serve."""

from __future__ import annotations

from typing import Protocol

from kohaku_ray.models.request import ChatRequest
from kohaku_ray.records import Reply

CHARS_PER_TOKEN = 4
"""Estimate for English text without a tokenizer."""


class Backend(Protocol):
    """A model; many requests may be in flight at once."""

    @property
    def identity(self) -> str:
        """Everything but the request that decides the replies, for ``ChatRequest.model``."""
        ...

    async def chat(self, request: ChatRequest) -> Reply:
        """Answer one request.

        Raises:
            ContextOverflowError: The prompt is longer than the model takes.
            TransientModelError: It failed temporarily, after the backend's own tries.
            ModelError: It failed for good.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
