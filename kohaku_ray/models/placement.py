"""Place questions on replicas: all calls of a question on one replica, no replica above the mean load."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Sequence
from typing import Any, Generic, TypeVar

R = TypeVar("R", bound=Hashable)

N_REMEMBERED = 100_000
"""Questions whose replica is remembered after their last call, for a retry or a later wave."""


class Placement(Generic[R]):
    """Consistent hashing with bounded loads (Mirrokni, Thorup & Zadimoghaddam 2018) of whole questions.

    A question goes to the first replica in its order that has fewer questions in flight than the mean, rounded up, and
    stays there while that replica lives: its context is prefilled once. Where all of its order have as many, it goes to
    the least loaded. Questions share no context, so that their order decides no more than that a question of a later
    run finds its context again. A bound above the mean would leave replicas idle at a run's end: of 282 questions on 8
    replicas 1.25 times the mean takes 1.16 of perfect balance's time, the mean 1.07 (`benchmarks/affinity.py`).

    Attributes:
        n_placed: Questions placed so far.
        n_moved: How many of them did not go to the first replica of their order.
    """

    def __init__(self) -> None:
        """Start without questions."""
        self._replica_of: OrderedDict[str, R] = OrderedDict()
        self._calls: Counter[str] = Counter()
        self._loads: Counter[R] = Counter()
        self.n_placed = self.n_moved = 0

    def choose_replica(self, question: str, order: Sequence[R], replicas: Collection[R]) -> R:
        """Return the replica of a question's next call.

        Args:
            question: Its id.
            order: Of live replicas, those that it prefers.
            replicas: All that live.
        """
        if (placed := self.placed(question, replicas)) is not None:
            return placed
        last = self._replica_of.get(question)
        # Counts this question too: every replica of an idle cluster takes one.
        most = math.ceil((self.n_in_flight + 1) / len(replicas))
        chosen = next((replica for replica in order if self._loads[replica] < most), None)
        chosen = min(replicas, key=self._loads.__getitem__) if chosen is None else chosen
        self.n_placed += 1
        self.n_moved += chosen != order[0]
        if question in self._calls and last is not None:  # its replica died during its calls
            self._loads[last] -= 1
            self._loads[chosen] += 1
        self._replica_of[question] = chosen
        self._replica_of.move_to_end(question)
        self._count_question(question)
        return chosen

    def placed(self, question: str, replicas: Collection[R]) -> R | None:
        """Return the replica of a question that has one among ``replicas``; the question counts as in flight there."""
        last = self._replica_of.get(question)
        if last is None or last not in replicas:
            return None
        self._replica_of.move_to_end(question)
        self._count_question(question)
        return last

    def begin_call(self, question: str) -> None:
        """Record that a call of a placed question has started."""
        self._count_question(question)
        self._calls[question] += 1

    def end_call(self, question: str) -> None:
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

    def _count_question(self, question: str) -> None:
        """Count a question from its placement on: many may be placed before the first call starts."""
        if question not in self._calls:
            self._calls[question] = 0
            self._loads[self._replica_of[question]] += 1


_PLACEMENTS: dict[str, Placement[Any]] = {}


def placement_of(application: str) -> Placement[Any]:
    """Return this process's placement for an application: Serve creates the router and gives no access to it."""
    return _PLACEMENTS.setdefault(application, Placement())


def count_placements(application: str) -> tuple[int, int]:
    """Count the questions this process placed for an application, and those it moved."""
    placement = _PLACEMENTS.get(application)
    return (placement.n_placed, placement.n_moved) if placement is not None else (0, 0)
