"""What every model backend offers. The engine hosts it behind Ray Serve."""

from __future__ import annotations

from typing import Protocol

from kohaku_ray.generation.request import ChatRequest
from kohaku_ray.records import Reply

CHARS_PER_TOKEN = 4
"""Rule of thumb for English, where no tokenizer is at hand."""


class Backend(Protocol):
    """A model that can be asked; many requests may be in flight at once."""

    @property
    def identity(self) -> str:
        """Name whatever decides the replies beside the request itself, for ``ChatRequest.model``."""
        ...

    async def chat(self, request: ChatRequest) -> Reply:
        """Answer one request.

        Raises:
            ContextOverflowError: The prompt is longer than the model takes.
            TransientModelError: It failed in a way that may pass, after the backend's own tries.
            ModelError: It failed for good.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
