"""Runs on the same questions: differences, their bootstrap interval, sign flips of two runs or many, effect size.

All random draws are seeded: the same scores give the same figures. Values that are not finite are a ``DataError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.metrics import Metric, QuestionScore
from kohaku_ray.evaluation.statistics import CONFIDENCE, NOISE, as_vector, sample_sd
from kohaku_ray.index.arrays import F64
from kohaku_ray.records import pluralize

N_RESAMPLES = 9_999
EXACT_DIFFERENCES = 32
"""Most non-zero differences for which all sign flips are counted: twice 2¹⁶ sums, some milliseconds."""

_EXACT_CLUSTERS = 14  # most clusters of which all sign patterns are counted for many runs
_TIE = 1e-10  # relative to the largest sum: sums this close differ only by rounding
_BATCH = 1_000_000  # elements per block of resamples: 8 MB


@dataclass(frozen=True, slots=True)
class Interval:
    """Confidence interval of a mean difference; ``reason`` says why an end is None, or the interval has no width."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Permutation:
    """Result of a sign-flip test: two-sided p, or None for the ``reason`` given.

    ``is_exact``: all flips of the ``n_nonzero`` differences were counted, not drawn; zeros carry no information.
    """

    p: float | None
    is_exact: bool = True
    n_nonzero: int = 0
    reason: str = ""


def paired_differences(a: npt.ArrayLike, b: npt.ArrayLike) -> F64:
    """Subtract scores of the same questions in the same order; differences due to rounding become 0.

    Raises:
        DataError: Their lengths differ, or a value is not finite.
    """
    x, y = as_vector(a), as_vector(b)
    if x.shape != y.shape:
        raise DataError(f"{x.size} scores cannot be paired with {y.size}: give both over the same questions.")
    difference = x - y
    scale = max(np.abs(x).max(initial=0.0), np.abs(y).max(initial=0.0))
    return np.where(np.abs(difference) <= NOISE * scale, 0.0, difference)


def score_interval(metric: Metric, rows: Sequence[QuestionScore], clusters: Sequence[str] | None = None) -> Interval:
    """Estimate a confidence interval of a score by resampling questions, within the scores that the metric can give.

    ``clusters``: see ``paired_bootstrap``.

    The part of unanswerable questions alone is resampled as a mean of shares, which can pass its ends.
    """
    return bounded_interval(metric, metric.shares_of(rows), clusters)


def bounded_interval(metric: Metric, shares: F64, clusters: Sequence[str] | None = None) -> Interval:
    """Estimate the interval of a score from its share of each question; ``clusters``: see ``paired_bootstrap``.

    No resample of a score at an end of the metric, or the same on every question, can differ from it. As all m
    questions have it, at least a share s of all questions does, by Clopper and Pearson (1934) s = 0.025^(1/m); the
    interval has the mean that others could have at most and at least beside these.
    """
    interval = paired_bootstrap(shares, clusters=clusters)
    low, high = metric.ends
    if interval.mean is None or interval.low is None or interval.high is None:
        return interval
    mean = interval.mean
    if interval.low < interval.high and min(mean - low, high - mean) > NOISE * (high - low):
        return replace(interval, low=max(interval.low, low), high=min(interval.high, high))
    n, what = (len(shares), "question") if clusters is None else (len({*clusters}), "cluster")
    share = ((1.0 - CONFIDENCE) / 2.0) ** (1.0 / n)
    reason = f"all {pluralize(n, what)} score {mean:.3f}, so the interval is that of Clopper and Pearson"
    return Interval(mean, low + share * (mean - low), high - share * (high - mean), reason)


def paired_bootstrap(
    differences: npt.ArrayLike, n_resamples: int = N_RESAMPLES, clusters: Sequence[str] | None = None
) -> Interval:
    """Estimate a confidence interval of the mean difference by resampling questions: BCa (Efron 1987).

    With ``clusters``, a name per question, whole clusters are resampled (Field and Welsh 2007): questions about one
    document are not independent, and an interval that takes them for such is too narrow.

    BCa and not the percentile interval, because paired differences of scores are mostly 0 with a few large ones on one
    side: the percentile interval ignores that skew, BCa corrects bias and skew to second order. Its acceleration has a
    closed form for a mean, Σ(x − x̄)³ / (6 (Σ(x − x̄)²)^1.5), so no jackknife is needed; of a cluster, x − x̄ is the sum
    over its questions. A resample of n varies less than a sample of n by √((n − 1) / n), and its interval knows nothing
    of t: the levels are those of √(n / (n − 1)) t with n − 1 degrees of freedom (Hesterberg 2015). With 24 clusters the
    true difference is missed by 5 instead of 9 of 100 intervals (``benchmarks/best_cell.py``).
    """
    d = as_vector(differences)
    sums, counts = cluster_sums(d, clusters)
    what = "cluster" if clusters else "question"
    if sums.size < 2:
        mean = float(d.mean()) if d.size else None
        return Interval(mean, reason=f"{pluralize(sums.size, what)}: an interval needs two")
    mean, centred = float(d.mean()), sums - counts * d.mean()
    if np.ptp(sums / counts) <= NOISE * np.abs(d).max():
        return Interval(mean, mean, mean, f"every {what} differs by the same, so the interval has no width")
    from scipy.special import ndtr, ndtri, stdtrit

    rng = np.random.default_rng(0)
    means = np.empty(n_resamples)
    step = max(1, _BATCH // sums.size)
    for start in range(0, n_resamples, step):
        block = means[start : start + step]
        drawn = rng.integers(0, sums.size, (block.size, sums.size))
        block[:] = sums[drawn].mean(axis=1) if clusters is None else sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    is_tied = np.abs(means - mean) <= _TIE * np.abs(d).max()
    below = (np.count_nonzero((means < mean) & ~is_tied) + 0.5 * np.count_nonzero(is_tied)) / n_resamples
    bias = ndtri(np.clip(below, 0.5 / n_resamples, 1.0 - 0.5 / n_resamples))
    acceleration = (centred**3).sum() / (6.0 * (centred**2).sum() ** 1.5)
    n = sums.size
    z = bias + np.sqrt(n / (n - 1)) * stdtrit(n - 1, np.array([1.0 - CONFIDENCE, 1.0 + CONFIDENCE]) / 2.0)
    low, high = np.quantile(means, ndtr(bias + z / (1.0 - acceleration * z)))
    return Interval(mean, float(low), float(high))


def cluster_sums(d: F64, clusters: Sequence[str] | None) -> tuple[F64, F64]:
    """Sum the values of shape ``(..., n_questions)`` by cluster, and count them; without clusters each is its own.

    Raises:
        DataError: There is not one name per question.
    """
    n = d.shape[-1]
    if clusters is None or not n:
        return d, np.ones(n)
    if len(clusters) != n:
        raise DataError(f"{len(clusters)} clusters are named for {n} questions: name one per question.")
    names = {name: number for number, name in enumerate(dict.fromkeys(clusters))}
    of = np.array([names[name] for name in clusters], dtype=np.int64)
    counts = np.bincount(of)
    starts = np.cumsum(counts) - counts
    return np.add.reduceat(d[..., np.argsort(of, kind="stable")], starts, axis=-1), counts.astype(np.float64)


def paired_permutation(
    differences: npt.ArrayLike, n_resamples: int = N_RESAMPLES, clusters: Sequence[str] | None = None
) -> Permutation:
    """Test a mean difference by flipping the signs of the questions' differences (Fisher 1935), or of whole clusters'.

    p is the share of sign patterns whose sum is at least as far from 0 as the one observed; zeros flip to themselves
    and are left out, and where all are zero p is 1. Few differences are counted exactly; with more, patterns are drawn
    and p = (b + 1) / (n + 1) (Phipson and Smyth 2010), which is never 0.
    """
    x = as_vector(differences)
    if not x.size:
        return Permutation(None, reason="no questions to compare on")
    d, _ = cluster_sums(x, clusters)
    d = d[np.abs(d) > NOISE * np.abs(x).max()]
    magnitudes = np.abs(d)
    least = abs(float(d.sum())) - _TIE * float(magnitudes.sum())
    if d.size <= EXACT_DIFFERENCES:
        if least <= 0.0:
            return Permutation(1.0, True, d.size)
        # Every sum is one of the left half's plus one of the right half's: 2^(n/2) of them, sorted, count all pairs.
        half = magnitudes.size // 2
        left, right = _signed_sums(magnitudes[:half]), _signed_sums(magnitudes[half:])
        n_far = int((right.size - np.searchsorted(right, least - left)).sum())
        return Permutation(min(1.0, 2.0 * n_far / 2.0**magnitudes.size), True, d.size)  # sums are symmetric about 0
    rng = np.random.default_rng(0)
    step = max(1, _BATCH // magnitudes.size)
    n_far = 0  # sums of drawn sign patterns that are as far from 0
    for start in range(0, n_resamples, step):
        shape = (min(step, n_resamples - start), magnitudes.size)
        sums = magnitudes.sum() - 2.0 * (rng.integers(0, 2, shape, dtype=np.int8) @ magnitudes)
        n_far += int(np.count_nonzero(np.abs(sums) >= least))
    return Permutation((n_far + 1) / (n_resamples + 1), False, d.size)


def permute_against_best(
    scores: npt.ArrayLike, best: int, clusters: Sequence[str] | None = None, n_resamples: int = N_RESAMPLES
) -> list[float | None]:
    """Test the mean difference of every row from the best, which was chosen by these scores: p corrected for that.

    The highest of k equal rows is far from the others by its choice: tests that take it for fixed, corrected for k − 1
    comparisons, find a difference in one of six such sets (``benchmarks/best_cell.py``). Here |t| is held against the
    largest |t| of all k (k − 1) / 2 pairs when the signs of the questions' differences, or of whole clusters', are
    flipped in all pairs alike (max-T, Westfall and Young 1993); so of equal rows none is told apart with a probability
    of 95 %. t is a sum over the root of its squares: pairs that seldom differ count as much as others. Where 2¹³
    patterns are all, they are counted; of more, ``n_resamples`` are drawn.

    Args:
        scores: Shape ``(n_rows, n_questions)``; NaN where a row lacks a question. A pair's t is over those that both
            have; for the flips, a question that a row lacks has the mean of the others.
        best: The row that was chosen.
        clusters: See ``paired_bootstrap``.
        n_resamples: Sign patterns drawn.

    Returns:
        By row, its p, not below that of ``paired_permutation``: 1 for the best itself, None without a common question.
    """
    x = np.asarray(scores, dtype=np.float64)
    lacks = np.isnan(x)
    apart = np.where(lacks | lacks[best], 0.0, x - x[best])
    apart = np.where(np.abs(apart) <= NOISE * np.nanmax(np.abs(x), initial=0.0), 0.0, apart)
    alone = [paired_permutation(row, n_resamples, clusters).p for row in apart]
    is_compared = ~(lacks | lacks[best]).all(axis=1)
    if len(x) > 2:  # of two, the test of their one difference is the corrected one
        filled = np.where(lacks, np.nan_to_num(x).sum(axis=0) / np.maximum((~lacks).sum(axis=0), 1), x)
        sums, difference = (cluster_sums(rows, clusters)[0] for rows in (filled, apart))
        size = np.sqrt((difference**2).sum(axis=1))
        t = np.abs(difference.sum(axis=1)) / np.where(size > 0.0, size, 1.0)
        largest, is_exact = _largest_flipped(sums, n_resamples)
        n_more = 0 if is_exact else 1  # the observed pattern, beside those drawn
        p = ((largest >= t[:, None] - _TIE).sum(axis=1) + n_more) / (largest.size + n_more)
        alone = [None if own is None else max(own, float(of_row)) for own, of_row in zip(alone, p, strict=True)]
    return [own if compared else None for own, compared in zip(alone, is_compared, strict=True)]


def _largest_flipped(sums: F64, n_resamples: int) -> tuple[F64, bool]:
    """Largest |t| of all pairs of rows under each sign pattern, and whether these are all patterns."""
    n_rows, n = sums.shape
    is_exact = n <= _EXACT_CLUSTERS
    rng = np.random.default_rng(0)
    squares = sums @ sums.T
    size = np.diag(squares)[:, None] + np.diag(squares) - 2.0 * squares
    is_equal = size <= NOISE * max(float(squares.max(initial=0.0)), NOISE)
    scale = np.where(is_equal, 0.0, 1.0 / np.sqrt(np.where(is_equal, 1.0, size)))
    n_patterns = 2 ** max(n - 1, 0) if is_exact else n_resamples  # a pattern and its opposite have one |t|
    largest = np.zeros(n_patterns)
    step = max(1, _BATCH // max(n, n_rows))
    for start in range(0, n_patterns, step):
        rows = slice(start, min(start + step, n_patterns))
        bits = np.arange(n_patterns)[rows, None] >> np.arange(n) & 1 if is_exact else None
        signs = 1.0 - 2.0 * (rng.integers(0, 2, (rows.stop - start, n), dtype=np.int8) if bits is None else bits)
        flipped = signs @ sums.T
        for row in range(n_rows - 1):
            t = np.abs(flipped[:, row + 1 :] - flipped[:, row, None]) * scale[row, row + 1 :]
            np.maximum(largest[rows], t.max(axis=1), out=largest[rows])
    return largest, is_exact


def _signed_sums(magnitudes: F64) -> F64:
    """All 2^n sums of ± the n magnitudes, sorted."""
    sums = np.zeros(1)
    for magnitude in magnitudes:
        sums = np.concatenate([sums - magnitude, sums + magnitude])
    return np.sort(sums)


def paired_effect(differences: npt.ArrayLike) -> float | None:
    """Cohen's d_z: mean difference over the differences' standard deviation.

    0 where all are zero; None where there are fewer than two, or all are the same but not zero.
    """
    d = as_vector(differences)
    if d.size < 2:
        return None
    if not d.any():
        return 0.0
    sd = sample_sd(d)
    return float(d.mean()) / sd if sd else None


def mcnemar(n_lost: int, n_won: int) -> float:
    """Exact p of McNemar (1947): ``n_lost`` of ``n_lost + n_won`` flips against a fair coin; 1 without flips."""
    if not n_lost + n_won:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(n_lost, n_lost + n_won).pvalue)
