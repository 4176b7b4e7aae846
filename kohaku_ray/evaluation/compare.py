"""Compare submission files: questions that flipped, the paired tests, scores on groups of questions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np

from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.evaluation.metrics import DEFAULT_METRIC, Metric, QuestionScore, Score, find_metric
from kohaku_ray.evaluation.paired import (
    Interval,
    Permutation,
    mcnemar,
    paired_bootstrap,
    paired_differences,
    paired_effect,
    paired_permutation,
)
from kohaku_ray.evaluation.report import clusters_of, file_report, labels_of, public_first
from kohaku_ray.evaluation.statistics import Correlation, correlate, mean_sd, ranks
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow, read_submission
from kohaku_ray.evaluation.truth import read_truth, scored_rows
from kohaku_ray.records import pluralize

FEW_QUESTIONS = 20
"""A comparison over fewer questions says little, and is marked."""

FlipKind = Literal["right to wrong", "wrong to right", "other"]
FLIPS: tuple[FlipKind, ...] = ("right to wrong", "wrong to right", "other")
"""Kinds of change of the value; ``other``: it is as right or wrong as before, but the score differs."""

_SAME = 1e-9

BANDS = (10, 20, 30, 50, 100)
"""Last ranks of the bands, as in KohakuRAG's Table 15; the ranks after them are one band."""

N_MOVES = 5
"""Most rises of rank that are listed, and most falls."""


@dataclass(frozen=True, slots=True)
class Comparing:
    """Files compared on the questions that the truth and all of them have, in the truth's order.

    A tuple of files or scores has one entry per file; two files have a ``pair``, and ``by`` makes a ``split``.
    ``cluster`` is the column whose equal values were resampled and flipped together.
    """

    truth: str
    files: tuple[str, ...]
    metric: str
    question_ids: tuple[str, ...]
    scores: tuple[Score, ...]
    pair: Pair | None
    split: Split | None
    notes: tuple[str, ...]
    cluster: str | None = None


def compare_files(
    truth_path: str | os.PathLike[str],
    files: Sequence[str | os.PathLike[str]],
    metric: str = DEFAULT_METRIC,
    by: str | None = None,
    cluster: str | None = None,
) -> Comparing:
    """Compare submission files on the questions that the truth and all of them have.

    Args:
        truth_path: CSV with the gold answers.
        files: Two or more submission CSVs; two are compared question by question.
        metric: Name of the metric, see ``find_metric``.
        by: A column of the truth, such as public/private, that splits the questions into groups.
        cluster: A column of the truth, such as ``ref_id``, whose questions of one value are not independent.

    Raises:
        ConfigError: There are fewer than two files, or there is no such metric.
        DataError: A file cannot be read, no question is in all of them, or the truth lacks a named column.
    """
    if len(files) < 2:
        given = ", ".join(os.fspath(file) for file in files) or "none"
        raise ConfigError(f"compare takes two or more runs, and got {len(files)} ({given}): name what to compare with.")
    scorer = find_metric(metric)
    truth = scored_rows(read_truth(truth_path, [scorer]), [scorer])
    submissions = [read_submission(file) for file in files]
    keys = tuple(key for key in truth.rows if all(key in submission.rows for submission in submissions))
    if not keys:
        counts = ", ".join(f"{each.path} has {len(each.rows)}" for each in (truth, *submissions))
        raise DataError(f"no question is in all files ({counts}): compare runs over the same questions.")
    rows = [[scorer.score_question(truth.rows[key], each.rows[key]) for key in keys] for each in submissions]
    split, clusters = None, None
    if cluster is not None:
        of_question = clusters_of(truth, cluster)
        clusters = [of_question[key] for key in keys]
    if by is not None:
        label = labels_of(truth, by)
        each = [scorer.aggregate_by(file, [label[key] for key in keys]) for file in rows]
        split = split_of(by, {name: tuple(file[name] for file in each) for name in each[0]})
    return Comparing(
        truth=truth.path,
        files=tuple(submission.path for submission in submissions),
        metric=scorer.name,
        question_ids=keys,
        scores=tuple(map(scorer.aggregate, rows)),
        pair=_compare_pair(truth, submissions, rows, scorer, clusters) if len(files) == 2 else None,
        split=split,
        notes=tuple(_notes(truth, submissions, keys, split)),
        cluster=cluster,
    )


def _notes(
    truth: Submission, submissions: Sequence[Submission], keys: Sequence[str], split: Split | None
) -> Iterator[str]:
    if len(keys) < len(truth.rows):
        yield f"compared on {len(keys)} of the truth's {len(truth.rows)} questions: those that all files have"
    for note in file_report(truth, truth).notes:
        yield f"{truth.path}: {note}"
    odd: dict[str, list[str]] = {}
    for submission in submissions:  # many runs often lack the same questions
        for note in file_report(truth, submission).notes:
            odd.setdefault(note, []).append(submission.path)
    for what, files in odd.items():
        who = f"all {len(files)} files" if len(files) == len(submissions) else ", ".join(files)
        yield f"{who}: {what}"
    groups = {f"{split.by} {name}": split.scores[name][0].n for name in split.labels} if split else {}
    chance = f"with fewer than {FEW_QUESTIONS}, a difference may be chance"
    few = [name for name, n in groups.items() if n < FEW_QUESTIONS]
    if split is not None and len(few) > 1:
        yield f"{len(few)} of the {len(groups)} groups of {split.by} have few questions: {chance}"
        few = []
    for name, n in {"the comparison": len(keys), **{name: groups[name] for name in few}}.items():
        if n < FEW_QUESTIONS:
            yield f"{name} has only {pluralize(n, 'question')}: {chance}"


@dataclass(frozen=True, slots=True)
class Flip:
    """One question on which two files have different scores; values and references are as written."""

    question_id: str
    question: str
    kind: FlipKind
    truth_value: str
    truth_refs: str
    values: tuple[str, str]
    refs: tuple[str, str]
    scores: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two files compared question by question: the second less the first.

    ``n_lost`` values went from right to wrong and ``n_won`` from wrong to right, tested by McNemar. Flips are the
    questions whose score differs, by kind in the order of ``FLIPS``, then in the truth's order.
    """

    interval: Interval
    permutation: Permutation
    d_z: float | None
    n_lost: int
    n_won: int
    mcnemar_p: float
    flips: tuple[Flip, ...]
    n_clusters: int | None = None  # of questions that were resampled and flipped together


def _compare_pair(
    truth: Submission,
    submissions: Sequence[Submission],
    rows: Sequence[Sequence[QuestionScore]],
    metric: Metric,
    clusters: Sequence[str] | None,
) -> Pair:
    first, second = submissions
    difference = paired_differences(metric.shares_of(rows[1]), metric.shares_of(rows[0]))
    flips = []
    for a, b in zip(*rows, strict=True):
        if abs(a.total - b.total) > _SAME or a.is_right != b.is_right:
            key = a.question_id
            flips.append(_flip(metric, truth.rows[key], (first.rows[key], second.rows[key]), (a, b)))
    n_lost, n_won = (sum(flip.kind == kind for flip in flips) for kind in FLIPS[:2])
    return Pair(
        interval=paired_bootstrap(difference, clusters=clusters),
        permutation=paired_permutation(difference, clusters=clusters),
        d_z=paired_effect(difference),
        n_lost=n_lost,
        n_won=n_won,
        mcnemar_p=mcnemar(n_lost, n_won),
        flips=tuple(sorted(flips, key=lambda flip: FLIPS.index(flip.kind))),
        n_clusters=None if clusters is None else len({*clusters}),
    )


def _flip(
    metric: Metric,
    truth: SubmissionRow,
    given: tuple[SubmissionRow, SubmissionRow],
    scores: tuple[QuestionScore, QuestionScore],
) -> Flip:
    (first, second), (a, b) = given, scores
    kind: FlipKind = "other"
    if a.is_right != b.is_right:
        kind = "right to wrong" if a.is_right else "wrong to right"
    return Flip(
        question_id=truth.question_id,
        question=truth.question or first.question,
        kind=kind,
        truth_value=metric.gold(truth),
        truth_refs=truth.refs_raw,
        values=(first.answer_value, second.answer_value),
        refs=(first.refs_raw, second.refs_raw),
        scores=(a.total, b.total),
    )


@dataclass(frozen=True, slots=True)
class Split:
    """Scores on groups of the truth's questions, ``public`` first; a tuple has one entry per file.

    Attributes:
        by: Column of the truth that makes the groups.
        ranks: By label: rank among the files, 1 is best, ties share their mean rank.
        differences: By label except the first: score on this group less score on the first.
        moves: By label except the first: rank on the first group less rank on this one; above 0 the file climbs.
        correlations: By pair of labels: correlation of the files' scores.
    """

    by: str
    labels: tuple[str, ...]
    scores: Mapping[str, tuple[Score, ...]]
    ranks: Mapping[str, tuple[float, ...]]
    differences: Mapping[str, tuple[float, ...]]
    moves: Mapping[str, tuple[float, ...]]
    correlations: Mapping[tuple[str, str], Correlation]

    def record(self) -> dict[str, Any]:
        """Write all figures with plain keys, for JSON; ranks, scores and moves have one entry per file."""
        later = self.labels[1:]
        return {
            "by": self.by,
            "scores": {name: [score.score for score in scores] for name, scores in self.scores.items()},
            "ranks": self.ranks,
            "differences": {name: shift_of(self, name) for name in later},
            "bands": {name: rank_bands(self, name) for name in later},
            "moves": self.moves,
            "correlations": [{"between": pair, "of": correlation} for pair, correlation in self.correlations.items()],
        }


def split_of(by: str, scores: Mapping[str, tuple[Score, ...]]) -> Split:
    """Compare the groups that a column of the truth makes; ``scores`` holds, by label, one score per file.

    The first group is ``public``, if there is one, whatever the order of the truth's rows.
    """
    labels = tuple(public_first(scores))
    figures = {name: np.array([score.score for score in scores[name]]) for name in labels}
    ranks_of = {name: ranks(figures[name]) for name in labels}
    first, later = labels[0], labels[1:]
    return Split(
        by=by,
        labels=labels,
        scores={name: scores[name] for name in labels},
        ranks={name: tuple(file_ranks.tolist()) for name, file_ranks in ranks_of.items()},
        differences={name: tuple((figures[name] - figures[first]).tolist()) for name in later},
        moves={name: tuple((ranks_of[first] - ranks_of[name]).tolist()) for name in later},
        correlations={(a, b): correlate(figures[a], figures[b]) for a, b in combinations(labels, 2)},
    )


@dataclass(frozen=True, slots=True)
class Shift:
    """How the scores of ``n`` files differ from the first group to another one: the second less the first.

    Attributes:
        mean, sd, median, least, greatest: Of the differences; the standard deviation is None for one file.
        n_down, n_up: Files that score less on the second group, and more; the others score the same.
        correlation: Of the score on the first group and the difference.
    """

    n: int
    mean: float
    sd: float | None
    median: float
    least: float
    greatest: float
    n_down: int
    n_up: int
    correlation: Correlation


def shift_of(split: Split, label: str) -> Shift:
    """Describe the differences between the first group and another one (KohakuRAG, Table 13)."""
    difference = np.array(split.differences[label])
    mean, sd = mean_sd(difference)
    return Shift(
        n=len(difference),
        mean=mean,
        sd=sd,
        median=float(np.median(difference)),
        least=float(difference.min()),
        greatest=float(difference.max()),
        n_down=int((difference < -_SAME).sum()),
        n_up=int((difference > _SAME).sum()),
        correlation=correlate([score.score for score in split.scores[split.labels[0]]], difference),
    )


def greatest_moves(split: Split, label: str, n: int = N_MOVES) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Find the files that climb most from the first group to another one, and those that fall most.

    Returns:
        Indices of at most ``n`` files each, the greatest move first, of equal moves the better rank on the first group.
    """
    moves, first_ranks = split.moves[label], split.ranks[split.labels[0]]
    order = sorted(range(len(moves)), key=lambda i: (-abs(moves[i]), first_ranks[i]))
    rises, falls = ([i for i in order if moves[i] * sign > 0] for sign in (1, -1))
    return tuple(rises[:n]), tuple(falls[:n])


@dataclass(frozen=True, slots=True)
class RankBand:
    """Files whose ranks on the first group lie together: mean scores on the two groups, and mean ranks moved.

    ``difference``, ``sd`` and ``median`` are those of the second score less the first; the standard deviation is None
    for one file.
    """

    name: str
    n: int
    first: float
    second: float
    difference: float
    sd: float | None
    median: float
    moved: float


def rank_bands(split: Split, label: str) -> tuple[RankBand, ...]:
    """Group files by their rank on the first group, and compare it with another one band by band."""
    first_ranks = np.array(split.ranks[split.labels[0]])
    first, second = (np.array([score.score for score in split.scores[name]]) for name in (split.labels[0], label))
    difference, moved = np.array(split.differences[label]), np.abs(split.moves[label])
    bands = []
    lowest = 1
    for highest in (*BANDS, max(len(first_ranks), BANDS[-1] + 1)):
        in_band = (lowest <= first_ranks) & (first_ranks < highest + 1)
        if in_band.any():
            last = min(highest, len(first_ranks))
            mean, sd = mean_sd(difference[in_band])
            bands.append(
                RankBand(
                    name=f"{lowest} to {last}" if last > lowest else f"{lowest}",
                    n=int(in_band.sum()),
                    first=float(first[in_band].mean()),
                    second=float(second[in_band].mean()),
                    difference=mean,
                    sd=sd,
                    median=float(np.median(difference[in_band])),
                    moved=float(moved[in_band].mean()),
                )
            )
        lowest = highest + 1
    return tuple(bands)
