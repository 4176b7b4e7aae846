"""Tell how far a ranking on shared questions can be trusted: power, ranks with intervals, the winner's true score.

With ``clusters``, a name per question, whole clusters are resampled, as in ``paired``. All random draws are seeded: the
same scores give the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kohaku_ray.evaluation.paired import cluster_sums, permute_against_best
from kohaku_ray.evaluation.statistics import CONFIDENCE, NOISE, ranks
from kohaku_ray.index.arrays import F64

POWER = 0.8
EFFECT = 0.02
"""Difference for which the number of questions is given."""

N_RESAMPLES = 1_000
_HELD_OUT = 6  # one question in six is held out
_BEST = 5  # "among the best" is the best fifth of the cells, but at least five


@dataclass(frozen=True, slots=True)
class Selection:
    """The best of several cells on the same questions. Figures that cannot be computed are None.

    Attributes:
        n_left_out: Scored cells that have other questions and are left out.
        best: The cell with the highest mean, the first on a tie.
        score: Its mean score, too high because it was selected on the same questions.
        expected: Expected score of a cell selected in this way on other questions like these.
        low: Lower end of the 95 % prediction interval of its score on as many other questions; ``high``: its upper end.
        detectable: Smallest difference shown at 80 % power: median over all pairs of cells that differ.
        detectable_best: The same among the best fifth of the cells, at least five.
        n_needed: Questions needed for a difference of ``EFFECT``, for the pairs of ``detectable_best``.
        ranks: By cell, its rank; 1 is the best, ties share the best rank of theirs.
        n_tied: By cell, how many others have the same mean.
        corrected_p: By cell, p of its difference from the best, corrected for the choice of the best.
        n_clusters: Clusters that the questions make; None: they were taken as independent.
    """

    n_cells: int
    n_questions: int
    n_left_out: int
    best: str
    score: float
    expected: float | None
    low: float | None
    high: float | None
    detectable: float | None
    detectable_best: float | None
    n_needed: int | None
    ranks: Mapping[str, float]
    n_tied: Mapping[str, int]
    corrected_p: Mapping[str, float]
    n_clusters: int | None = None

    @property
    def contenders(self) -> list[str]:
        """Cells that are not told from the best, which is one of them."""
        return [name for name, p in self.corrected_p.items() if p >= 1.0 - CONFIDENCE]


def select(
    scores: Mapping[str, npt.ArrayLike],
    ends: tuple[float, float] = (0.0, 1.0),
    n_left_out: int = 0,
    clusters: Sequence[str] | None = None,
) -> Selection:
    """Describe the selection of the best of two or more cells.

    By cell, scores of shape ``(n_questions,)``, the same questions in the same order; ``ends`` of what a score can be
    bound the interval; ``n_left_out`` cells have other questions.
    """
    names = list(scores)
    x = np.array([np.asarray(row, dtype=np.float64) for row in scores.values()])
    n, means = x.shape[1], np.round(x.mean(axis=1), 12)
    best = int(means.argmax())
    n_units = n if clusters is None else len({*clusters})
    deviations = pair_deviations(x, clusters) if n_units > 1 else np.zeros((len(x), len(x)))
    kept = np.argsort(-means, kind="stable")[: max(_BEST, len(x) // _BEST)]
    typical, among_best = _median(deviations), _median(deviations[np.ix_(kept, kept)])
    expected, low, high = corrected_score(x, clusters)
    p = (1.0 if of_cell is None else of_cell for of_cell in permute_against_best(x, best, clusters))
    return Selection(
        n_cells=len(x),
        n_questions=n,
        n_left_out=n_left_out,
        best=names[best],
        score=float(means[best]),
        expected=expected,
        low=None if low is None else max(low, ends[0]),
        high=None if high is None else min(high, ends[1]),
        detectable=None if typical is None else detectable_difference(typical, n, n_units),
        detectable_best=None if among_best is None else detectable_difference(among_best, n, n_units),
        n_needed=None if among_best is None else questions_needed(among_best),
        ranks=dict(zip(names, ranks(means, ties="min").tolist(), strict=True)),
        n_tied={name: int((means == mean).sum()) - 1 for name, mean in zip(names, means, strict=True)},
        corrected_p=dict(zip(names, p, strict=True)),
        n_clusters=None if clusters is None else n_units,
    )


def pair_deviations(scores: F64, clusters: Sequence[str] | None = None) -> F64:
    """Standard deviation of the differences by question of every pair of cells, √(s²ᵢ + s²ⱼ − 2 sᵢⱼ); 0 if only noise.

    With clusters it is √n times the standard error of the mean difference: larger, where questions of one are alike.

    Args:
        scores: Shape ``(n_cells, n_questions)``, two questions or more; two clusters or more.
        clusters: A name per question.
    """
    sums, counts = cluster_sums(scores, clusters)
    centred = sums - counts * scores.mean(axis=1, keepdims=True)
    covariance = centred @ centred.T / (scores.shape[1] * (1.0 - 1.0 / counts.size))
    variance = np.diag(covariance)
    pair_variance = np.maximum(variance[:, None] + variance - 2.0 * covariance, 0.0)
    return np.where(pair_variance > NOISE * max(float(variance.max()), NOISE), np.sqrt(pair_variance), 0.0)


def _median(deviations: F64) -> float | None:
    """Median over the pairs that differ; None where none does."""
    pairs = deviations[np.triu_indices(len(deviations), 1)]
    return float(np.median(pairs[pairs > 0.0])) if pairs.any() else None


def detectable_difference(deviation: float, n_questions: int, n_units: int | None = None) -> float:
    """Smallest true difference that a two-sided paired t test at 5 % shows with a probability of 80 %.

    (t₀.₉₇₅ + t₀.₈) s / √n, s the standard deviation of the paired differences (Cohen 1988, chapter 2; for language
    models Card et al. 2020, Miller 2024). Degrees of freedom: independent units, questions or clusters, less one.
    """
    from scipy.special import stdtrit

    quantiles = stdtrit((n_units or n_questions) - 1, [(1.0 + CONFIDENCE) / 2.0, POWER])
    return float(quantiles.sum() * deviation / math.sqrt(n_questions))


def questions_needed(deviation: float) -> int:
    """Questions for which ``EFFECT`` is shown at 80 % power: ((z₀.₉₇₅ + z₀.₈) s / δ)², the formula for large n."""
    from scipy.special import ndtri

    return math.ceil((float(ndtri((1.0 + CONFIDENCE) / 2.0) + ndtri(POWER)) * deviation / EFFECT) ** 2)


def corrected_score(
    scores: F64, clusters: Sequence[str] | None = None
) -> tuple[float | None, float | None, float | None]:
    """Expected score of the best cell on as many other questions, and the ends of its interval.

    Each of ``N_RESAMPLES`` draws holds a sixth of the questions, or of the clusters, out, selects the best cell on the
    rest and scores it on those held out. Their mean has no optimism but for the sixth that a selection lacks: it is
    slightly too low rather than too high. Its variance is σ² / n_kept (Nadeau and Bengio 2003: draws overlap, so more
    of them do not help); with the variance σ² / n of the new questions' mean that gives a prediction interval by
    Student's t. None below three questions or clusters.
    """
    sums, counts = cluster_sums(scores, clusters)
    n = counts.size
    if n < 3:
        return None, None, None
    from scipy.special import stdtrit

    n_held = max(1, n // _HELD_OUT)
    is_held = np.random.default_rng(0).random((N_RESAMPLES, n)).argsort(axis=1) < n_held
    best = np.round(sums @ ~is_held.T / (~is_held @ counts), 12).argmax(axis=0)
    held, sizes = sums[best][is_held], np.broadcast_to(counts, is_held.shape)[is_held]
    mean = float(held.sum() / sizes.sum())
    variance = float(((held - mean * sizes) ** 2).sum() / sizes.sum()) * n / (n - 1)
    margin = float(stdtrit(n - 1, (1.0 + CONFIDENCE) / 2.0)) * math.sqrt(
        variance * (n / (n - n_held) + 1.0) / scores.shape[1]
    )
    return mean, mean - margin, mean + margin


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The best that votes over recorded members can reach: questions that none answers right, and their share."""

    n_questions: int
    n_never: int
    share: float
    low: float
    high: float


def ceiling(is_right: npt.ArrayLike) -> Ceiling:
    """Count the questions that no member answers right; exact interval by Clopper and Pearson (1934).

    Args:
        is_right: Shape ``(n_questions, n_members)``, one question or more.
    """
    from scipy.stats import binomtest

    never = ~np.asarray(is_right, dtype=bool).any(axis=1)
    interval = binomtest(int(never.sum()), never.size).proportion_ci(CONFIDENCE, method="exact")
    return Ceiling(never.size, int(never.sum()), float(never.mean()), float(interval.low), float(interval.high))
