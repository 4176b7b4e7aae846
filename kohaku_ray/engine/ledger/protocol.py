"""Messages between the ledger's clients and shards, how keys map to shards, and a ledger that asks nothing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from kohaku_ray.engine.errors import message_of
from kohaku_ray.engine.ledger.segments import Entry
from kohaku_ray.errors import ContextOverflowError, DataError, ModelError, TransientModelError
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.values.read import clean_text

IDLE_EXIT_S = 300.0
"""Seconds without a request after which a shard releases its path and exits."""

Source = Literal["ledger", "joined", "made"]
_ERRORS: dict[str, type[ModelError]] = {
    error.__name__: error for error in (ContextOverflowError, TransientModelError, ModelError)
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A reply and its source.

    Attributes:
        entry: The recorded reply.
        source: ``ledger`` (recorded before), ``joined`` (in flight: asked by another run or member) or ``made``.
        key: Its key in the ledger.
    """

    entry: Entry
    source: Source
    key: str


@dataclass(frozen=True, slots=True)
class Refused:
    """An error as a value: it crosses process boundaries without a stack trace in its text.

    Attributes:
        kind: Name of the error's class.
        message: Its text.
    """

    kind: str
    message: str

    def raise_(self) -> None:
        """Raise the error with its own class."""
        if self.kind == "DataError":
            raise DataError(self.message)
        raise _ERRORS.get(self.kind, ModelError)(self.message)

    @classmethod
    def of(cls, error: ModelError) -> Refused:
        """Build it from a backend's error."""
        kind = next(kind for kind, known in _ERRORS.items() if isinstance(error, known))
        return cls(kind, clean_text(message_of(error)))


def shard_of(key: str, n_shards: int) -> int:
    """Return the shard that owns a key."""
    return int(key[:8], 16) % n_shards


def shard_name(path: str, shard: int, n_shards: int) -> str:
    """Return a shard's actor name: shard 0 has the same name for every ``n_shards``, the others do not."""
    stem = f"ledger-{hashlib.blake2b(path.encode(), digest_size=8).hexdigest()}-{shard}"
    return stem if shard == 0 else f"{stem}-of-{n_shards}"


@dataclass(frozen=True, slots=True)
class RefusingLedger:
    """Refuses every call.

    Attributes:
        reason: Text of the error.
    """

    reason: str

    async def ask(self, request: ChatRequest, application: str, again: bool = False) -> Asked:
        """Raise ``ModelError``; nothing is recorded, so that the next start asks."""
        raise ModelError(self.reason)
