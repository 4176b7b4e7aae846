"""The request to a model backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kohaku_ray.generation.images import PromptImage


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One model call: everything that decides its reply, and two fields that do not.

    Attributes:
        model: Identity of the model in the ledger's keys.
        messages: ``(role, content)`` pairs in order.
        temperature: Sampling temperature; 0 is greedy.
        top_p: Nucleus sampling.
        max_tokens: Longest reply, in tokens.
        seed: Sampling seed.
        schema: JSON schema of the reply; None: free text.
        session_id: Requests with equal ids go to one replica; not part of the key.
        variables: The prompt's variables and ``role``, for backends that do not read the prompt's text; not part of
            the key.
        images: Stand before the text of the last message; the key holds their hashes.
    """

    model: str
    messages: tuple[tuple[str, str], ...]
    temperature: float
    top_p: float
    max_tokens: int
    seed: int
    schema: dict[str, Any] | None = None
    session_id: str = ""
    variables: Mapping[str, Any] | None = None
    images: tuple[PromptImage, ...] = ()

    @property
    def n_chars(self) -> int:
        """Count the characters of all messages."""
        return sum(len(content) for _, content in self.messages)
