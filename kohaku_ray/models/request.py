"""The request to a model backend, and the length of its reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kohaku_ray.errors import ModelError
from kohaku_ray.models.images import PromptImage
from kohaku_ray.records import Reply


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One model call: everything that decides its reply, and three fields that do not.

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
        most_chars: Longest reply that is recorded: a longer one is an error; None: any is. Not part of the key.
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
    most_chars: int | None = None

    @property
    def n_chars(self) -> int:
        """Count the characters of all messages."""
        return sum(len(content) for _, content in self.messages)


def check_length(reply: Reply, most_chars: int | None) -> None:
    """Refuse a reply that is longer than its request allows.

    Raises:
        ModelError: It is.
    """
    if most_chars is not None and len(reply.text) > most_chars:
        raise ModelError(f"the reply has {len(reply.text):,} characters, at most {most_chars:,} are taken")
