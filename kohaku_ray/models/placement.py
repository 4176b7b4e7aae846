"""Place questions on replicas: all calls of a question on one replica, no replica far above the mean load."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Sequence
from typing import Any, Generic, TypeVar

R = TypeVar("R", bound=Hashable)

BOUND = 1.25
"""Most questions in flight on a replica, as a multiple of the mean."""

N_REMEMBERED = 100_000
"""Questions whose replica is remembered after their last call, for a retry or a later wave."""


class Placement(Generic[R]):
    """Consistent hashing with bounded loads (Mirrokni, Thorup & Zadimoghaddam 2018) of whole questions.

    A question goes to the first replica in its ring order that has at most ``bound`` times the mean number of
    questions in flight, and stays there while that replica lives: its context is prefilled once.

    Attributes:
        n_placed: Questions placed so far.
        n_moved: How many of them did not go to the first replica of their order.
    """

    def __init__(self, bound: float = BOUND) -> None:
        """Start without questions; ``bound`` is at least 1."""
        self._bound = bound
        self._replica_of: OrderedDict[str, R] = OrderedDict()
        self._calls: Counter[str] = Counter()
        self._loads: Counter[R] = Counter()
        self.n_placed = self.n_moved = 0

    def choose_replica(self, question: str, order: Sequence[R], replicas: Collection[R]) -> R:
        """Return the replica of a question's next call; ``order`` is the ring's of all live ``replicas``."""
        last = self._replica_of.get(question)
        if last is not None and last in replicas:
            self._replica_of.move_to_end(question)
            self._open(question)
            return last
        # Counts this question too: every replica of an idle cluster takes one.
        most = math.ceil(self._bound * (self.n_in_flight + 1) / len(order))
        chosen = next((replica for replica in order if self._loads[replica] < most), order[0])
        self.n_placed += 1
        self.n_moved += chosen != order[0]
        if question in self._calls and last is not None:  # its replica died during its calls
            self._loads[last] -= 1
            self._loads[chosen] += 1
        self._replica_of[question] = chosen
        self._replica_of.move_to_end(question)
        self._open(question)
        return chosen

    def began(self, question: str) -> None:
        """Record that a call of a placed question has started."""
        self._open(question)
        self._calls[question] += 1

    def ended(self, question: str) -> None:
        """Record that a call has ended."""
        self._calls[question] -= 1
        if self._calls[question] <= 0:
            del self._calls[question]
            self._loads[self._replica_of[question]] -= 1
            while len(self._replica_of) > N_REMEMBERED and next(iter(self._replica_of)) not in self._calls:
                self._replica_of.popitem(last=False)

    @property
    def n_in_flight(self) -> int:
        """Count the questions with calls in flight."""
        return len(self._calls)

    def load(self, replica: R) -> int:
        """Count a replica's questions in flight."""
        return self._loads[replica]

    def _open(self, question: str) -> None:
        """Count a question from its placement on: many may be placed before the first call starts."""
        if question not in self._calls:
            self._calls[question] = 0
            self._loads[self._replica_of[question]] += 1


_PLACEMENTS: dict[str, Placement[Any]] = {}


def placement_of(application: str, bound: float = BOUND) -> Placement[Any]:
    """Return this process's placement for an application: Serve creates the router and gives no access to it."""
    return _PLACEMENTS.setdefault(application, Placement(bound))


def count_placements(application: str) -> tuple[int, int]:
    """Count the questions this process placed for an application, and those it moved."""
    placement = _PLACEMENTS.get(application)
    return (placement.n_placed, placement.n_moved) if placement is not None else (0, 0)
