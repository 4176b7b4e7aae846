"""What askers and shards tell each other, and how keys are split among shards."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from kohaku_ray.engine.errors import message_of
from kohaku_ray.engine.ledger.segments import Entry
from kohaku_ray.errors import ContextOverflowError, DataError, ModelError, TransientModelError
from kohaku_ray.values import clean_text

IDLE_EXIT_S = 300.0
"""A shard that nobody has asked for so long gives its path back and ends."""

Source = Literal["ledger", "joined", "made"]
_ERRORS: dict[str, type[ModelError]] = {
    error.__name__: error for error in (ContextOverflowError, TransientModelError, ModelError)
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A reply and where it came from.

    Attributes:
        entry: The recorded reply.
        source: ``ledger`` (recorded before), ``joined`` (another asker's call in flight) or ``made``.
        key: What it is recorded under.
    """

    entry: Entry
    source: Source
    key: str


@dataclass(frozen=True, slots=True)
class Refused:
    """An error as a value: it crosses process borders without a stack trace in its text.

    Attributes:
        kind: Name of the error's class.
        message: Its text.
    """

    kind: str
    message: str

    def raise_(self) -> None:
        """Raise it again, as what it was."""
        if self.kind == "DataError":
            raise DataError(self.message)
        raise _ERRORS.get(self.kind, ModelError)(self.message)

    @classmethod
    def of(cls, error: ModelError) -> Refused:
        """Make it of an error of a backend."""
        kind = next(kind for kind, known in _ERRORS.items() if isinstance(error, known))
        return cls(kind, clean_text(message_of(error)))


def shard_of(key: str, n_shards: int) -> int:
    """Say which shard owns a key."""
    return int(key[:8], 16) % n_shards


def shard_name(path: str, shard: int, n_shards: int) -> str:
    """Name a shard's actor: the first is found whatever the split, the others belong to one split."""
    stem = f"ledger-{hashlib.blake2b(path.encode(), digest_size=8).hexdigest()}-{shard}"
    return stem if shard == 0 else f"{stem}-of-{n_shards}"
