"""Means, ranks and correlations of scores, and tests over seeds, as small functions over arrays.

A figure that cannot be computed is None with a reason, never NaN; values that are not finite are an error.
Paired tests over questions are in ``paired``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kohaku_ray.errors import DataError
from kohaku_ray.index.arrays import F64

CONFIDENCE = 0.95

STAR_LEVELS = {"***": 0.001, "**": 0.01, "*": 0.05}
"""Marks by the level of significance that p is below."""

NOISE = 1e-12
"""Relative to the largest value: means of the same scores differ by less when summed in another order."""


@dataclass(frozen=True, slots=True)
class Welch:
    """Two means of independent samples, compared without assuming equal variances.

    Two-sided p of Welch's t, and Hedges' g of the first mean less the second. ``reason`` says why they are None.
    """

    p: float | None = None
    g: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Correlation:
    """Correlation of two scores of ``n`` things: linear, of ranks, tau-b; ``reason`` says why they are None."""

    n: int
    pearson: float | None = None
    spearman: float | None = None
    kendall: float | None = None
    reason: str = ""


def mean_sd(values: npt.ArrayLike) -> tuple[float, float | None]:
    """Mean and sample standard deviation, √(Σ(x − x̄)² / (n − 1)); None for the latter where n is 1.

    Raises:
        DataError: There are no values, or one is not finite.
    """
    x = as_vector(values)
    if not x.size:
        raise DataError("no values: a mean needs at least one.")
    return float(x.mean()), sample_sd(x) if x.size > 1 else None


def welch(a: npt.ArrayLike, b: npt.ArrayLike) -> Welch:
    """Compare two means, one score per seed on either side, by Welch's t (Welch 1947).

    t = (ā − b̄) / √(s²ₐ/nₐ + s²_b/n_b), with degrees of freedom by Satterthwaite (1946). Where neither sample varies,
    t is undefined: equal runs of a deterministic backend are one observation, not several.
    """
    x, y = as_vector(a), as_vector(b)
    if not x.size or not y.size:
        return Welch(reason=f"nothing to compare: {x.size} and {y.size} values")
    if min(x.size, y.size) < 2:
        return Welch(reason=f"{x.size} and {y.size} seeds: a variance needs two on either side")
    sd_x, sd_y = sample_sd(x), sample_sd(y)
    if sd_x == sd_y == 0.0:
        return Welch(reason="no variance over seeds on either side")
    from scipy.special import stdtr

    v_x, v_y = sd_x**2 / x.size, sd_y**2 / y.size
    error = math.sqrt(v_x + v_y)
    share = v_x / (v_x + v_y)
    dof = 1.0 / (share**2 / (x.size - 1) + (1.0 - share) ** 2 / (y.size - 1))
    difference = float(x.mean() - y.mean())
    p = 2.0 * float(stdtr(dof, -abs(difference / error)))
    # Hedges (1981): Cohen's d over the pooled deviation × J(m), J(m) = Γ(m/2) / (√(m/2) Γ((m − 1)/2)), m its dof.
    m = x.size + y.size - 2
    pooled = math.sqrt(((x.size - 1) * sample_sd(x) ** 2 + (y.size - 1) * sample_sd(y) ** 2) / m)
    correction = math.exp(math.lgamma(m / 2) - math.lgamma((m - 1) / 2)) / math.sqrt(m / 2)
    return Welch(p, difference / pooled * correction)


def ranks(scores: npt.ArrayLike, ties: Literal["average", "min"] = "average") -> F64:
    """Rank scores of shape ``(..., n_cells)``: the highest is 1; ties share their mean rank, or the best (``min``)."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(-_settled(scores), method=ties, axis=-1), dtype=np.float64)


def average_ranks(scores: npt.ArrayLike) -> F64:
    """Mean rank of every cell over blocks (table columns, seeds or questions), 1 the best (Friedman 1937, Demšar 2006).

    Args:
        scores: Shape ``(n_blocks, n_cells)``, at least one block; all finite.
    """
    return np.asarray(ranks(scores).mean(axis=0))


def correlate(a: npt.ArrayLike, b: npt.ArrayLike) -> Correlation:
    """Correlate two scores of the same things, such as files on a public and a private half.

    No p value: it assumes independent runs, but runs share models and questions.

    Raises:
        DataError: Their lengths differ, or a value is not finite.
    """
    x, y = as_vector(a), as_vector(b)
    if x.shape != y.shape:
        raise DataError(f"{x.size} scores cannot be paired with {y.size}: give both over the same things.")
    if x.size < 3:
        return Correlation(x.size, reason=f"a correlation needs three, and there are {x.size}")
    x, y = _settled(x), _settled(y)
    if not np.ptp(x) or not np.ptp(y):
        return Correlation(x.size, reason="all scores are the same on one side")
    from scipy.stats import kendalltau, pearsonr, spearmanr

    pearson, spearman, kendall = pearsonr(x, y), spearmanr(x, y), kendalltau(x, y)
    return Correlation(x.size, float(pearson.statistic), float(spearman.statistic), float(kendall.statistic))


def stars(p: float | None) -> str:
    """Mark a p value by ``STAR_LEVELS``; no mark where there is no p."""
    return "" if p is None else next((mark for mark, level in STAR_LEVELS.items() if p < level), "")


def _settled(scores: npt.ArrayLike) -> F64:
    """Round away the noise of summation, so that equal scores tie."""
    x = _finite(np.asarray(scores, dtype=np.float64))
    return np.round(x, 12) + 0.0


def sample_sd(x: F64) -> float:
    """Sample standard deviation of two or more values; 0.0 where it is only rounding."""
    sd = float(x.std(ddof=1))
    return sd if sd > NOISE * float(np.abs(x).max()) else 0.0


def as_vector(values: npt.ArrayLike) -> F64:
    """Convert to a vector; a ``DataError`` names a value that is not finite."""
    return _finite(np.asarray(values, dtype=np.float64))


def _finite(x: F64) -> F64:
    if not np.isfinite(x).all():
        position = ", ".join(str(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise DataError(f"the value at {position} is {x[~np.isfinite(x)][0]}: every value must be a finite number.")
    return x
