"""Race configurations: all answer the same questions in one random order, and one that is beaten stops early.

The random order makes every prefix a sample without replacement from the finite set of questions; the scores of a cell
on that set are fixed numbers. A cell is tested by betting (Waudby-Smith and Ramdas 2024, "Estimating means of bounded
random variables by betting", section 5) against the null hypothesis that it is the best: before each question, money is
put on the leader so far to score higher than the cell. If the cell is the best, the money has no positive expectation
on any next question, whoever leads by then, so that the chance that it ever grows 1 / error-fold is at most ``error``
(Ville). Only the best cell's test can go wrong in a way that costs the winner: no correction for the number of cells is
needed, and a person may look and end the race at any time. docs/sweeps.md says what follows for a sweep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kohaku_ray.errors import DataError
from kohaku_ray.index.arrays import F64

BETS = 1.0 - np.geomspace(0.03, 0.97, 10)
"""Shares of the largest allowed bet; money is split evenly among them, which hedges against a wrong size."""

LEAST_SHARD, MOST_SHARDS = 4, 20

_MOST_BET = 0.75  # share of the largest allowed bet, for intervals
_ROUNDING = 1e-9
_HALVINGS = 20

Left = Literal["", "beaten", "out of reach"]
"""Why a cell has left: by the evidence, or since no remaining scores could bring it back."""


def shard_size(n_questions: int) -> int:
    """Return the questions between two looks: a twentieth of all, at least ``LEAST_SHARD``."""
    return max(LEAST_SHARD, -(-n_questions // MOST_SHARDS))


Figures = tuple[int, float | None, tuple[float, float], tuple[float, float, float] | None]
"""What of a ``Racer`` is computed from its scores: questions, mean, bounds, gap."""


@dataclass(frozen=True, slots=True)
class Racer:
    """A cell's standing after the questions it has answered.

    Attributes:
        n: Questions answered, a prefix of the order.
        mean: Mean score on them; None before the first.
        bounds: Ends of the interval of its mean on all questions.
        gap: Its mean less the leader's on these questions, and the ends of the interval of that difference on all
            questions; None if the leader has not answered them. With a probability of 1 - error the intervals of all
            means hold, at any time; with the same probability those of the differences of all pairs do.
        evidence: Growth of the money put against it; at 1 / error it leaves.
        left: Why it has left; empty: it is in the race.
        is_kept: It is never dropped, whatever its scores.
    """

    name: str
    n: int
    mean: float | None
    bounds: tuple[float, float]
    gap: tuple[float, float, float] | None
    evidence: float
    left: Left
    is_kept: bool


class Race:
    """Cells on one set of questions.

    Args:
        low: Lowest possible score of each question, in the order of the race; ``high``: the highest. Shape
            ``(n_questions,)``.
        error: Greatest chance that the best cell is dropped; with 0 a cell leaves only if it is out of reach.
        tolerance: A cell leaves when it is beaten by more than this: one within it of the best stays.
    """

    def __init__(self, low: npt.ArrayLike, high: npt.ArrayLike, error: float = 0.05, tolerance: float = 0.01) -> None:
        self._low, self._high = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
        self.n_questions, self.error, self.tolerance = self._low.size, error, tolerance
        spans = self._high - self._low
        self._spans = np.maximum.accumulate(spans[::-1])[::-1]  # the widest of the questions to come, itself included
        self._rows: dict[str, int] = {}
        self._x: F64 = np.zeros((0, self.n_questions))
        self._n, self._done = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self._sum, self._peak = np.zeros(0), np.zeros(0)
        self._money: F64 = np.zeros((0, BETS.size))  # logarithms
        self._kept: set[str] = set()
        self._left: dict[str, Left] = {}
        self._figures: dict[int, Figures] = {}
        self._compared_with = -1  # the leader's row by then

    def enter(self, name: str, *, is_kept: bool = False) -> None:
        """Let a cell in before the first question; ``is_kept``: it is never dropped."""
        self._rows[name] = len(self._rows)
        self._x = np.vstack([self._x, np.full(self.n_questions, np.nan)])
        self._n, self._done = np.append(self._n, 0), np.append(self._done, 0)
        self._sum, self._peak = np.append(self._sum, 0.0), np.append(self._peak, 1.0)
        self._money = np.vstack([self._money, np.zeros(BETS.size)])
        if is_kept:
            self._kept.add(name)

    @property
    def in_play(self) -> list[str]:
        """Cells that have not left."""
        return [name for name in self._rows if name not in self._left]

    @property
    def left(self) -> Mapping[str, Left]:
        """Why cells have left."""
        return self._left

    def n_seen(self, name: str) -> int:
        """Questions that a cell has answered."""
        return int(self._n[self._rows[name]])

    def observe(self, scores: Mapping[str, npt.ArrayLike]) -> list[str]:
        """Take in the scores of each cell's next questions, and return the cells that leave now.

        Raises:
            DataError: A score is not within the ends of its question, or there are more scores than questions.
        """
        for name, given in scores.items():
            row, x = self._rows[name], np.asarray(given, dtype=np.float64)
            span = slice(self._n[row], self._n[row] + x.size)
            low, high = self._low[span], self._high[span]
            if x.size != low.size or not ((x >= low - _ROUNDING) & (x <= high + _ROUNDING)).all():
                raise DataError(
                    f"cell {name}: scores {span.start + 1} to {span.stop} of {self.n_questions} questions must lie "
                    "between the ends of what a question can score: every part of a metric is from 0 to 1"
                )
            self._x[row, span] = x
            self._n[row] += x.size
        self._bet()
        to_come = [(self._low[n:].sum(), self._high[n:].sum()) for n in self._n]
        least, most = (self._sum[:, None] + np.array(to_come).reshape(-1, 2)).T
        playing = self.in_play
        within = max((least[self._rows[name]] for name in playing), default=0.0) - self.n_questions * self.tolerance
        leaving: dict[str, Left] = {}
        for name in playing:
            row = self._rows[name]
            if name in self._kept or self._n[row] == self.n_questions:
                continue  # one that has answered everything has nothing to save
            if most[row] < within - _ROUNDING:
                leaving[name] = "out of reach"
            elif self._peak[row] * self.error >= 1.0:
                leaving[name] = "beaten"
        if len(leaving) == len(playing) and playing:  # each has been far behind another: one stays
            del leaving[min(leaving, key=lambda name: self._peak[self._rows[name]])]
        self._left |= leaving
        return list(leaving)

    def _bet(self) -> None:
        """Bet against every cell on the questions that it has answered since the last time."""
        playing = np.array([name not in self._left for name in self._rows], dtype=bool)
        front = int(self._n[playing].max(initial=0))
        for t in range(int(self._done[playing].min(initial=front)), front):
            here = playing & (self._done == t) & (self._n > t)
            rows = np.flatnonzero(here)
            if not rows.size:  # a cell that answers no more is behind all others
                continue
            first, *rest = rows[np.argsort(-self._sum[here], kind="stable")]
            rival = np.where(rows == first, rest[0] if rest else first, first)
            ahead = self._sum[rival] - self._sum[rows]
            x, span = self._x[rows, t], self._spans[t]
            # The greatest mean that the rival's lead can have on the questions left if the cell is within tolerance.
            fair = (self.n_questions * self.tolerance - ahead) / (self.n_questions - t)
            fair = np.maximum(fair, (_ROUNDING - 1.0) * span)  # below -span the cell is out of reach
            gain = (self._x[rival, t] - x - fair) / (span + fair) if span else np.zeros(len(rows))
            gain = np.where(rival != rows, gain, 0.0)
            self._money[rows] += np.log(np.maximum(1.0 + BETS * gain[:, None], 1e-300))
            self._peak[rows] = np.maximum(self._peak[rows], np.exp(np.minimum(self._money[rows], 700.0)).mean(axis=1))
            self._sum[rows] += x
            self._done[rows] += 1

    @property
    def leader(self) -> str | None:
        """The cell in play with the highest mean among those that have answered the most questions."""
        names = self.in_play
        most = max((self.n_seen(name) for name in names), default=0)
        ahead = [name for name in names if self.n_seen(name) == most] if most else []
        return max(ahead, key=lambda name: round(self._sum[self._rows[name]], 9), default=None)

    def standings(self) -> list[Racer]:
        """Every cell's standing, in the order of entering."""
        leader, n_cells = self.leader, max(len(self._rows), 2)
        lead = -1 if leader is None else self._rows[leader]
        left = {self._rows[name] for name in self._left}
        # A cell that has left keeps its figures while the leader is the same; those of the others grow.
        known = {row for row, (n, *_) in self._figures.items() if row in left and n == self._n[row]}
        known, self._compared_with = known if lead == self._compared_with else set(), lead
        stale = [row for row in self._rows.values() if row not in known]
        for n in np.unique(self._n[stale]).tolist():
            rows = [row for row in stale if self._n[row] == n]
            x, low, high = self._x[rows, :n], self._low, self._high
            ends = zip(*mean_bounds(x, low, high, self.error / (2 * n_cells)), strict=True)
            gaps = {}
            if lead >= 0 and 0 < n <= self._n[lead]:
                d = x - self._x[lead, :n]
                bounds = mean_bounds(d, low - high, high - low, self.error / (n_cells * (n_cells - 1)))
                means = zip(d.mean(axis=1), *bounds, strict=True)
                gaps = {row: (float(m), float(lo), float(hi)) for row, (m, lo, hi) in zip(rows, means, strict=True)}
                gaps |= {lead: (0.0, 0.0, 0.0)} if lead in gaps else {}
            for row, mean, between in zip(rows, x.mean(axis=1) if n else [None] * len(rows), ends, strict=True):
                score = None if mean is None else float(mean)
                self._figures[row] = (n, score, (float(between[0]), float(between[1])), gaps.get(row))
        return [
            Racer(name, *self._figures[row], float(self._peak[row]), self._left.get(name, ""), name in self._kept)
            for name, row in self._rows.items()
        ]


def mean_bounds(x: F64, low: F64, high: F64, error: float) -> tuple[F64, F64]:
    """Bounds of the means over all questions from the first ones of a random order, valid at any time.

    Betting confidence sequences for sampling without replacement (Waudby-Smith and Ramdas 2024, theorem 4), with
    predictable bets and the running intersection; no bound passes what the questions left can make of the mean.

    Args:
        x: Shape ``(n_rows, n)``: the first ``n`` scores of each row.
        low: Lowest possible score of each of the ``n_questions >= n`` questions.
        high: Highest possible score of each.
        error: Chance of each bound to fail, at any ``n``.

    Returns:
        Lower and upper bounds, shape ``(n_rows,)`` each.
    """
    lower = _lower_bound(x, low, high, error)
    return lower, -_lower_bound(-x, -high, -low, error)


def _lower_bound(x: F64, low: F64, high: F64, error: float) -> F64:
    n, n_questions = x.shape[1], low.size
    total: F64 = x.sum(axis=1)
    least: F64 = (total + low[n:].sum()) / n_questions
    most: F64 = (total + high[n:].sum()) / n_questions
    if not n or n == n_questions or not error:
        return least
    floor, span = low.min(), (high - low).max()
    t = np.arange(n)
    before = np.cumsum(x, axis=1) - x
    mean = (before + (floor + span / 2)) / (t + 1)  # a first guess counts as one question
    squares = np.cumsum((x - mean) ** 2, axis=1) - (x - mean) ** 2
    variance = np.maximum((squares + span**2 / 4) / (t + 1), 1e-12)
    bet = np.sqrt(2.0 * np.log(1.0 / error) / (variance * (t + 1) * np.log(t + 2)))
    worst, best = least.copy(), most.copy()
    for _ in range(_HALVINGS):
        middle = (worst + best) / 2.0
        fair = (n_questions * middle[:, None] - before) / (n_questions - t)  # of the questions left, were that the mean
        stake = np.minimum(bet, _MOST_BET / np.maximum(fair - floor, 1e-12))
        money = np.cumsum(np.log(np.maximum(1.0 + stake * (x - fair), 1e-300)), axis=1)
        is_out = (money.max(axis=1) >= np.log(1.0 / error)) | (fair < floor - _ROUNDING).any(axis=1)
        worst, best = np.where(is_out, middle, worst), np.where(is_out, best, middle)
    return np.asarray(np.maximum(worst, least))
