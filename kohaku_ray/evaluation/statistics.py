"""Tests, intervals, effect sizes and ranks, as small functions over arrays.

What cannot be computed is None beside its reason, never NaN; values that are not finite are an error. Everything
random is seeded: the same scores give the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kohaku_ray.arrays import F64
from kohaku_ray.errors import DataError

CONFIDENCE = 0.95
N_RESAMPLES = 9_999
EXACT_DIFFERENCES = 32
"""Up to so many differences that are not zero, all sign flips are counted: twice 2¹⁶ sums, some milliseconds."""

STAR_LEVELS = (0.10, 0.05, 0.01, 0.001)
"""The paper's levels of significance: one star for each that p is below."""

_NOISE = (
    1e-12  # relative to the largest value: means of the same scores differ by so little when summed in other orders
)
_TIE = 1e-10  # relative to the largest sum: two sums of differences that are equal but for rounding
_BATCH = 4_000_000  # elements of a block of resamples: 32 MB


@dataclass(frozen=True, slots=True)
class Welch:
    """Two means of independent samples, compared without assuming equal variances.

    Attributes:
        difference: First mean less the second; None where a sample is empty.
        t: Welch's statistic.
        dof: Degrees of freedom by Welch and Satterthwaite.
        p: Two-sided.
        low: Lower end of the confidence interval of the difference.
        high: Its upper end.
        g: Hedges' g, the difference in pooled standard deviations.
        reason: Why fields are None; empty where none is.
    """

    difference: float | None
    t: float | None = None
    dof: float | None = None
    p: float | None = None
    low: float | None = None
    high: float | None = None
    g: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Interval:
    """Confidence interval of a mean difference.

    Attributes:
        mean: Mean difference; None where there is none.
        low: Lower end; None where it is not defined.
        high: Upper end.
        reason: Why an end is None, or the interval has no width; empty otherwise.
    """

    mean: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Permutation:
    """Result of a sign-flip test.

    Attributes:
        p: Two-sided; None where there is nothing to flip.
        is_exact: All flips were counted, not drawn.
        n_nonzero: Differences that are not zero: the others say nothing.
        reason: Why p is None; empty otherwise.
    """

    p: float | None
    is_exact: bool = True
    n_nonzero: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Correlation:
    """How far two scores of the same things agree.

    Attributes:
        n: How many things.
        pearson: Linear correlation.
        spearman: Pearson's of the ranks.
        kendall: Tau-b: concordant less discordant pairs, corrected for ties.
        reason: Why they are None; empty otherwise.
    """

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
    x = _vector(values)
    if not x.size:
        raise DataError("no values: a mean needs at least one.")
    return float(x.mean()), _sd(x) if x.size > 1 else None


def welch(a: npt.ArrayLike, b: npt.ArrayLike, confidence: float = CONFIDENCE) -> Welch:
    """Compare two means by Welch's t (Welch 1947): t = (ā − b̄) / √(s²ₐ/nₐ + s²_b/n_b).

    Degrees of freedom by Satterthwaite (1946): (vₐ + v_b)² / (vₐ²/(nₐ − 1) + v_b²/(n_b − 1)) with v = s²/n. Where
    neither sample varies t is not defined: equal runs of a deterministic backend are one observation, not proof.

    Args:
        a: Scores of one setting, one a seed.
        b: Scores of the other.
        confidence: Of the interval of the difference.

    Raises:
        DataError: A value is not finite.
    """
    x, y = _vector(a), _vector(b)
    if not x.size or not y.size:
        return Welch(None, reason=f"nothing to compare: {x.size} and {y.size} values")
    difference = float(x.mean() - y.mean())
    if min(x.size, y.size) < 2:
        return Welch(difference, reason=f"{x.size} and {y.size} seeds: a variance needs two on either side")
    sd_x, sd_y = _sd(x), _sd(y)
    if sd_x == sd_y == 0.0:
        return Welch(difference, reason="no variance over seeds on either side")
    from scipy.special import stdtr, stdtrit

    v_x, v_y = sd_x**2 / x.size, sd_y**2 / y.size
    error = math.sqrt(v_x + v_y)
    share = v_x / (v_x + v_y)
    dof = 1.0 / (share**2 / (x.size - 1) + (1.0 - share) ** 2 / (y.size - 1))
    t = difference / error
    margin = float(stdtrit(dof, (1.0 + confidence) / 2.0)) * error
    p = 2.0 * float(stdtr(dof, -abs(t)))
    return Welch(difference, t, dof, p, difference - margin, difference + margin, _hedges_g(x, y))


def _hedges_g(x: F64, y: F64) -> float:
    """Hedges (1981): Cohen's d over the pooled deviation × J(m), J(m) = Γ(m/2) / (√(m/2) Γ((m − 1)/2)), m its dof."""
    m = x.size + y.size - 2
    pooled = math.sqrt(((x.size - 1) * _sd(x) ** 2 + (y.size - 1) * _sd(y) ** 2) / m)
    correction = math.exp(math.lgamma(m / 2) - math.lgamma((m - 1) / 2)) / math.sqrt(m / 2)
    return float((x.mean() - y.mean()) / pooled * correction)


def paired_differences(a: npt.ArrayLike, b: npt.ArrayLike) -> F64:
    """Subtract score from score, question by question; what is mere rounding becomes 0.

    Args:
        a: Shape ``(n_questions,)``.
        b: The same questions in the same order.

    Raises:
        DataError: They are not as long as one another, or a value is not finite.
    """
    x, y = _vector(a), _vector(b)
    if x.shape != y.shape:
        raise DataError(f"{x.size} scores cannot be paired with {y.size}: give both over the same questions.")
    difference = x - y
    scale = max(np.abs(x).max(initial=0.0), np.abs(y).max(initial=0.0))
    return np.where(np.abs(difference) <= _NOISE * scale, 0.0, difference)


def paired_bootstrap(
    differences: npt.ArrayLike, n_resamples: int = N_RESAMPLES, confidence: float = CONFIDENCE, seed: int = 0
) -> Interval:
    """Bound the mean difference by resampling questions: the BCa interval (Efron 1987).

    BCa and not the percentile interval, because paired differences of scores are mostly 0 with a few large ones on one
    side: the percentile interval ignores that skew, BCa corrects bias and skew to second order. Its acceleration has a
    closed form for a mean, Σ(x − x̄)³ / (6 (Σ(x − x̄)²)^1.5), so it costs no jackknife.

    Args:
        differences: Shape ``(n_questions,)``.
        n_resamples: Draws of n questions with replacement.
        confidence: Of the interval.
        seed: Of the draws.

    Raises:
        DataError: A difference is not finite.
    """
    d = _vector(differences)
    if d.size < 2:
        mean = float(d[0]) if d.size else None
        return Interval(mean, reason=f"{d.size} questions: an interval needs two")
    mean, centred = float(d.mean()), d - d.mean()
    if np.ptp(d) <= _NOISE * np.abs(d).max():
        return Interval(mean, mean, mean, "every question differs by the same, so the interval has no width")
    from scipy.special import ndtr, ndtri

    means = _resampled_means(d, n_resamples, seed)
    is_tied = np.abs(means - mean) <= _TIE * np.abs(d).max()
    below = (np.count_nonzero((means < mean) & ~is_tied) + 0.5 * np.count_nonzero(is_tied)) / n_resamples
    bias = ndtri(np.clip(below, 0.5 / n_resamples, 1.0 - 0.5 / n_resamples))
    acceleration = (centred**3).sum() / (6.0 * (centred**2).sum() ** 1.5)
    z = bias + ndtri(np.array([1.0 - confidence, 1.0 + confidence]) / 2.0)
    low, high = np.quantile(means, ndtr(bias + z / (1.0 - acceleration * z)))
    return Interval(mean, float(low), float(high))


def _resampled_means(d: F64, n_resamples: int, seed: int) -> F64:
    rng = np.random.default_rng(seed)
    means = np.empty(n_resamples)
    step = max(1, _BATCH // d.size)
    for start in range(0, n_resamples, step):
        block = means[start : start + step]
        block[:] = d[rng.integers(0, d.size, (block.size, d.size))].mean(axis=1)
    return means


def paired_permutation(
    differences: npt.ArrayLike, n_resamples: int = N_RESAMPLES, seed: int = 0, exact_up_to: int = EXACT_DIFFERENCES
) -> Permutation:
    """Test a mean difference by flipping the signs of the questions' differences (Fisher 1935).

    p is the share of sign patterns whose sum is at least as far from 0 as the one observed; zeros flip to themselves
    and are left out, and where all are zero p is 1. Few differences are counted exactly; with more, patterns are drawn
    and p = (b + 1) / (n + 1) (Phipson and Smyth 2010), which never is 0.

    Args:
        differences: Shape ``(n_questions,)``.
        n_resamples: How many patterns are drawn.
        seed: Of the draws.
        exact_up_to: Count exactly up to so many differences that are not zero.

    Raises:
        DataError: A difference is not finite.
    """
    d = _vector(differences)
    if not d.size:
        return Permutation(None, reason="no questions to compare on")
    d = d[d != 0.0]
    magnitudes = np.abs(d)
    least = abs(float(d.sum())) - _TIE * float(magnitudes.sum())
    if d.size <= exact_up_to:
        return Permutation(_exact_p(magnitudes, least), True, d.size)
    n_far = _n_far(magnitudes, least, n_resamples, seed)
    return Permutation((n_far + 1) / (n_resamples + 1), False, d.size)


def _exact_p(magnitudes: F64, least: float) -> float:
    """Count all sums of ± magnitudes that are ``least`` from 0 or farther, meeting in the middle.

    Every sum is one of the left half's plus one of the right half's: sorting 2^(n/2) of them counts all 2^n pairs.
    """
    if least <= 0.0:
        return 1.0
    half = magnitudes.size // 2
    left, right = _signed_sums(magnitudes[:half]), _signed_sums(magnitudes[half:])
    n_far = int((right.size - np.searchsorted(right, least - left)).sum())
    return min(1.0, 2.0 * n_far / 2.0**magnitudes.size)  # the sums lie symmetrically about 0


def _signed_sums(magnitudes: F64) -> F64:
    """All 2^n sums of ± the n magnitudes, sorted."""
    sums = np.zeros(1)
    for magnitude in magnitudes:
        sums = np.concatenate([sums - magnitude, sums + magnitude])
    return np.sort(sums)


def _n_far(magnitudes: F64, least: float, n_resamples: int, seed: int) -> int:
    """Draw sign patterns, and count the sums that are ``least`` from 0 or farther."""
    rng = np.random.default_rng(seed)
    step = max(1, _BATCH // magnitudes.size)
    n_far = 0
    for start in range(0, n_resamples, step):
        shape = (min(step, n_resamples - start), magnitudes.size)
        sums = magnitudes.sum() - 2.0 * (rng.integers(0, 2, shape, dtype=np.int8) @ magnitudes)
        n_far += int(np.count_nonzero(np.abs(sums) >= least))
    return n_far


def paired_effect(differences: npt.ArrayLike) -> float | None:
    """Cohen's d_z: mean difference over the differences' standard deviation.

    0 where all are zero; None where there are fewer than two, or all are the same but not zero.

    Raises:
        DataError: A difference is not finite.
    """
    d = _vector(differences)
    if d.size < 2:
        return None
    if not d.any():
        return 0.0
    sd = _sd(d)
    return float(d.mean()) / sd if sd else None


def mcnemar(n_lost: int, n_won: int) -> float:
    """Exact p of McNemar (1947): are ``n_lost`` of ``n_lost + n_won`` flips what a fair coin gives? 1 without flips."""
    if not n_lost + n_won:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(n_lost, n_lost + n_won).pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p values for their number (Holm 1979): the i-th smallest of m times m − i + 1, made monotone, at most 1.

    None, a test that could not be made, stays None and is not counted.

    Raises:
        DataError: A p value lies outside 0 … 1.
    """
    there = [(p, place) for place, p in enumerate(p_values) if p is not None]
    adjusted: list[float | None] = [None] * len(p_values)
    floor = 0.0
    for rank, (p, place) in enumerate(sorted(there)):
        if not 0.0 <= p <= 1.0:
            raise DataError(f"{p} at {place} is no p value: it must lie between 0 and 1.")
        floor = max(floor, min(1.0, p * (len(there) - rank)))
        adjusted[place] = floor
    return adjusted


def ranks(scores: npt.ArrayLike) -> F64:
    """Rank scores along the last axis: the highest is 1, ties share their mean rank (``scipy.stats.rankdata``).

    Args:
        scores: Shape ``(..., n_cells)``.

    Returns:
        The same shape.

    Raises:
        DataError: A score is not finite.
    """
    from scipy.stats import rankdata

    return np.asarray(rankdata(-_settled(scores), axis=-1), dtype=np.float64)


def average_ranks(scores: npt.ArrayLike) -> F64:
    """Mean rank of every cell over blocks, 1 the best (Friedman 1937, Demšar 2006).

    Args:
        scores: Shape ``(n_blocks, n_cells)``: a row for each column of a table, seed or question.

    Returns:
        Shape ``(n_cells,)``.

    Raises:
        DataError: There are no blocks, or a score is not finite: leave incomplete blocks out.
    """
    blocks = np.asarray(scores, dtype=np.float64)
    if blocks.ndim != 2 or not blocks.shape[0]:
        raise DataError(f"scores of shape {blocks.shape} hold no blocks: give (n_blocks, n_cells), at least one block.")
    return np.asarray(ranks(blocks).mean(axis=0))


def correlate(a: npt.ArrayLike, b: npt.ArrayLike) -> Correlation:
    """Correlate two scores of the same things, such as files on a public and a private half.

    Coefficients alone: runs share models and questions, so a p value, which takes them for independent, would mislead.

    Args:
        a: Shape ``(n,)``.
        b: The same things in the same order.

    Raises:
        DataError: They are not as long as one another, or a value is not finite.
    """
    x, y = _vector(a), _vector(b)
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
    """Mark a p value as the paper does: a star for each level it is below; none where there is no p."""
    return "" if p is None else "*" * sum(p < level for level in STAR_LEVELS)


def _settled(scores: npt.ArrayLike) -> F64:
    """Round to what is no noise, so that scores that are equal tie."""
    x = _finite(np.asarray(scores, dtype=np.float64))
    return np.round(x, 12) + 0.0


def _sd(x: F64) -> float:
    """Sample standard deviation of two or more values; 0.0 where it is mere rounding."""
    sd = float(x.std(ddof=1))
    return sd if sd > _NOISE * float(np.abs(x).max()) else 0.0


def _vector(values: npt.ArrayLike) -> F64:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1:
        raise DataError(f"values of shape {x.shape} are no list of numbers: give one dimension.")
    return _finite(x)


def _finite(x: F64) -> F64:
    if not np.isfinite(x).all():
        place = ", ".join(str(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise DataError(f"the value at {place} is {x[~np.isfinite(x)][0]}: every value must be a finite number.")
    return x
