"""Figures of a whole set of predictions, beside the mean of their scores: numbers, tables and points to plot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kohaku_ray.evaluation.submissions import Submission


@dataclass(frozen=True, slots=True)
class Number:
    """A named number with its 95 % interval, where it is computed, and a few words on it."""

    name: str
    value: float
    interval: tuple[float, float] | None = None
    note: str = ""

    @property
    def text(self) -> str:
        """The number with its interval."""
        ends = "" if self.interval is None else f" ({self.interval[0]:.4f} to {self.interval[1]:.4f})"
        return f"{self.value:.4f}{ends}"


@dataclass(frozen=True, slots=True)
class FigureTable:
    """A small table of text; the first column names the rows."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Points:
    """Shares against shares, each between 0 and 1, with the predictions behind them; on the diagonal they are equal."""

    title: str
    note: str
    x_label: str
    y_label: str
    points: tuple[tuple[float, float, int], ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a set of predictions over ``n`` questions."""

    n: int
    numbers: tuple[Number, ...]
    tables: tuple[FigureTable, ...] = ()
    plots: tuple[Points, ...] = ()


FiguresOf = Callable[[Submission, Submission], Figures | None]
"""Computes the figures of a submission from a truth and the submission; None: there is nothing to count."""
