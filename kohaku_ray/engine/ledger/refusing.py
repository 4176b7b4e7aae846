"""A ledger that asks nothing: for the rest of a run whose model has failed for good."""

from __future__ import annotations

from dataclasses import dataclass

from kohaku_ray.engine.ledger.protocol import Asked
from kohaku_ray.errors import ModelError
from kohaku_ray.models.request import ChatRequest


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
