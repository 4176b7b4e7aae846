"""Stop a job's model calls at its budget: a thread of the driver adds up once a second what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Protocol

from kohaku_ray.models.calls import dollars
from kohaku_ray.records import Reply
from kohaku_ray.store.lease import call_every

if TYPE_CHECKING:  # a ledger's shard sums what was paid, and knows no configuration
    from kohaku_ray.config.sections import BudgetConfig
    from kohaku_ray.models.backend import PriceConfig

LOOK_EVERY_S = 1.0
"""Seconds between two looks: what is asked in between, and the calls in flight then, may cost more than the budget."""


@dataclass(frozen=True, slots=True)
class Paid:
    """What the calls of a run to one application used."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    gpu_s: float = 0.0

    def __add__(self, other: Paid | Reply) -> Paid:
        """Add a reply, or another sum."""
        return Paid(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


class PaidLedger(Protocol):
    """A ledger that counts what a run's calls used, and can make no more."""

    def paid(self) -> Mapping[str, Paid]:
        """Sum what the calls made for this run used, by application."""
        ...

    def stop(self, reason: str) -> None:
        """Make no more calls for this run."""
        ...


class Spending:
    """A job's spending on one ledger.

    Attributes:
        stopped: Why no more calls are made, with both numbers; empty: they are.
    """

    def __init__(
        self, budget: BudgetConfig, ledger: PaidLedger, prices: Mapping[str, PriceConfig], before: Mapping[str, float]
    ) -> None:
        """Name the prices by application, and what was paid ``before``, by ``tokens`` and ``dollars``."""
        self._budget, self._ledger, self._prices, self._before = budget, ledger, prices, before
        self._paid: Mapping[str, float] = before
        self.stopped = ""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Look before the block, and again and again while it runs."""
        if not self._budget.is_set:
            yield
            return
        self.look()

        def look() -> None:
            with suppress(Exception):  # a shard that starts again is asked the next time
                self.look()

        with call_every(look, LOOK_EVERY_S, "budget"):
            yield

    def look(self) -> None:
        """Sum what was paid so far, and let the ledger make no more calls if that is the budget."""
        paid = Counter(self._before)
        for application, part in self._ledger.paid().items():
            cost = dollars(Reply("", **asdict(part)), self._prices[application])
            paid.update({"tokens": part.prompt_tokens + part.completion_tokens, "dollars": cost})
        self._paid = paid
        self.stopped = self.stopped or self._budget.over(self._paid)
        if self.stopped:  # told at every look: a shard that was started again has forgotten it
            self._ledger.stop(self.stopped)

    def describe(self) -> str:
        """Say what was paid of the budget, after a comma; empty without one."""
        text = self._budget.describe_paid(self._paid)
        return text and f", {text}"
