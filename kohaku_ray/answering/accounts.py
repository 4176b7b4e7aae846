"""What runs paid at a shard, and those whose calls are not made any more."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace

from kohaku_ray.answering.spending import Paid
from kohaku_ray.errors import RefusedAccessError
from kohaku_ray.models.replica import Refused
from kohaku_ray.models.target import Target
from kohaku_ray.records import Reply


class Accounts:
    """The accounts of runs, since the shard's process started.

    Attributes:
        start: Name of this start: a shard that starts again has forgotten what was paid before.
        totals: Calls made, and the tokens that they read and wrote.
    """

    def __init__(self) -> None:
        self.start = uuid.uuid4().hex
        self.totals = (0, 0, 0)
        self._paid: dict[str, dict[str, Paid]] = {}  # by run and target's name
        self._stopped: dict[str, str] = {}  # runs that make no more calls, each with the reason
        self._shut_out: dict[tuple[str, str], Refused] = {}  # runs whose target's server refuses every call

    def pay(self, run: str, target: Target, reply: Reply) -> None:
        """Charge a run with a call that was made for it."""
        paid = self._paid.setdefault(run, {})
        paid[target.name] = paid.get(target.name, Paid()) + reply
        n_made, n_read, n_written = self.totals
        self.totals = n_made + 1, n_read + reply.prompt_tokens, n_written + reply.completion_tokens

    def paid(self, run: str) -> Mapping[str, Paid]:
        """Sum what the calls made for a run used, by their target's name."""
        return self._paid.get(run, {})

    def stop(self, run: str, reason: str) -> None:
        """Make no more calls for a run."""
        self._stopped[run] = reason

    def note_refusal(self, run: str, target: Target, refused: Refused) -> None:
        """Make no more calls of a run to a server that refuses it access."""
        if refused.kind == RefusedAccessError.__name__:
            self._shut_out[run, target.name] = replace(refused, message=f"not asked: {refused.message}")

    def find_refusal(self, run: str, target: Target) -> Refused | None:
        """Return why a run's call to a target is not made; None: it is."""
        if (reason := self._stopped.get(run)) is not None:
            return Refused("ModelError", f"not asked: {reason}")
        return self._shut_out.get((run, target.name))
