"""Compare submission files: questions that flipped, the paired tests, scores on groups of questions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

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
from kohaku_ray.evaluation.report import labels_of
from kohaku_ray.evaluation.statistics import Correlation, correlate, mean_sd, ranks
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow, read_submission
from kohaku_ray.evaluation.truth import read_truth, scored_rows

FEW_QUESTIONS = 20
"""A comparison over fewer questions says little, and is marked."""

FlipKind = Literal["right to wrong", "wrong to right", "other"]
FLIPS: tuple[FlipKind, ...] = ("right to wrong", "wrong to right", "other")
"""Kinds of change of the value; ``other``: it is as right or wrong as before, but the score differs."""

_SAME = 1e-9

BANDS = (5, 10, 20, 50)
"""Last ranks of the bands; the ranks after them are one band."""


@dataclass(frozen=True, slots=True)
class Comparing:
    """Files compared on the questions that the truth and all of them have.

    Attributes:
        truth: Path of the truth.
        files: Paths, as given.
        metric: Name of the metric.
        question_ids: The questions compared, in the truth's order.
        scores: One per file.
        pair: With two files, their comparison question by question.
        split: With ``by``, the groups.
        notes: Warnings for the reader: questions left out, odd rows, too few questions.
    """

    truth: str
    files: tuple[str, ...]
    metric: str
    question_ids: tuple[str, ...]
    scores: tuple[Score, ...]
    pair: Pair | None
    split: Split | None
    notes: tuple[str, ...]


def compare_files(
    truth_path: str | os.PathLike[str],
    files: Sequence[str | os.PathLike[str]],
    metric: str = DEFAULT_METRIC,
    by: str | None = None,
) -> Comparing:
    """Compare submission files on the questions that the truth and all of them have.

    Args:
        truth_path: CSV with the gold answers.
        files: Two or more submission CSVs; two are compared question by question.
        metric: Name of the metric, see ``find_metric``.
        by: A column of the truth, such as public/private, that splits the questions into groups.

    Raises:
        ConfigError: There are fewer than two files, or there is no such metric.
        DataError: A file cannot be read, no question is in all of them, or the truth has no column ``by``.
    """
    if len(files) < 2:
        given = ", ".join(os.fspath(file) for file in files) or "none"
        raise ConfigError(f"compare takes two or more runs, and got {len(files)} ({given}): name what to compare with.")
    found = find_metric(metric)
    truth = scored_rows(read_truth(truth_path, [found]), [found])
    submissions = [read_submission(file) for file in files]
    keys = _common(truth, submissions)
    labels = _labels(truth, by, keys) if by is not None else ()
    rows = [[found.score_question(truth.rows[key], each.rows[key]) for key in keys] for each in submissions]
    split = split_scores(by, labels, rows, found) if by is not None else None
    return Comparing(
        truth=truth.path,
        files=tuple(submission.path for submission in submissions),
        metric=found.name,
        question_ids=keys,
        scores=tuple(map(found.aggregate, rows)),
        pair=compare_pair(truth, submissions, rows, found) if len(files) == 2 else None,
        split=split,
        notes=tuple(_notes(truth, submissions, keys, split)),
    )


def _common(truth: Submission, submissions: Sequence[Submission]) -> tuple[str, ...]:
    keys = tuple(key for key in truth.rows if all(key in submission.rows for submission in submissions))
    if not keys:
        counts = ", ".join(f"{each.path} has {len(each.rows)}" for each in (truth, *submissions))
        raise DataError(f"no question is in all files ({counts}): compare runs over the same questions.")
    return keys


def _labels(truth: Submission, by: str, keys: Sequence[str]) -> tuple[str, ...]:
    label = dict(zip(truth.rows, labels_of(truth, by), strict=True))
    return tuple(label[key] for key in keys)


def _notes(
    truth: Submission, submissions: Sequence[Submission], keys: Sequence[str], split: Split | None
) -> Iterator[str]:
    if len(keys) < len(truth.rows):
        yield f"compared on {len(keys)} of the truth's {len(truth.rows)} questions: those that all files have"
    for what, files in _oddities(truth, submissions).items():
        who = f"all {len(files)} files" if len(files) == len(submissions) else ", ".join(files)
        yield f"{who}: {what}"
    groups = {f"{split.by} {name}": split.scores[name][0].n for name in split.labels} if split else {}
    for name, n in {"the comparison": len(keys), **groups}.items():
        if n < FEW_QUESTIONS:
            yield f"{name} has only {n} questions: with fewer than {FEW_QUESTIONS}, a difference may be chance"


def _oddities(truth: Submission, submissions: Sequence[Submission]) -> dict[str, list[str]]:
    """List oddities, each with the files that have it: many runs often lack the same questions."""
    found: dict[str, list[str]] = {}
    for file in submissions:
        for ids, what in (
            ([key for key in truth.rows if key not in file.rows], "missing, left out of the comparison"),
            ([key for key in file.rows if key not in truth.rows], "not in the truth, not compared"),
            (file.doubled, "doubled, the first row counts"),
            (file.ragged, "with more or fewer cells than the header (an unquoted comma?)"),
        ):
            if ids:
                found.setdefault(f"{len(ids)} {what}: {', '.join(ids)}", []).append(file.path)
        if file.n_without_id:
            found.setdefault(f"{file.n_without_id} rows without an id, left out", []).append(file.path)
    return found


@dataclass(frozen=True, slots=True)
class Flip:
    """One question on which two files have different scores.

    Attributes:
        question_id: Which question.
        question: Its text, as the truth has it.
        kind: Change of the value from the first file to the second.
        truth_value: The true value, as written.
        truth_refs: The true references, as written.
        values: Each file's value, as written.
        refs: Each file's references, as written.
        scores: Each file's score of the question.
    """

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

    Attributes:
        interval: Difference of the scores and its bootstrap interval over questions.
        permutation: Sign-flip test of the same difference.
        d_z: Its effect size; None where it is not defined.
        n_lost: Values that went from right to wrong.
        n_won: Values that went from wrong to right.
        mcnemar_p: Exact test of these two counts.
        flips: Questions whose score differs, by kind in the order of ``FLIPS``, then in the truth's order.
    """

    interval: Interval
    permutation: Permutation
    d_z: float | None
    n_lost: int
    n_won: int
    mcnemar_p: float
    flips: tuple[Flip, ...]


def compare_pair(
    truth: Submission, submissions: Sequence[Submission], rows: Sequence[Sequence[QuestionScore]], metric: Metric
) -> Pair:
    """Compare two files question by question.

    Args:
        truth: The gold answers.
        submissions: The two files.
        rows: Scores of each, over the same questions in the same order.
        metric: What they were scored by.
    """
    first, second = submissions
    difference = paired_differences(metric.shares_of(rows[1]), metric.shares_of(rows[0]))
    flips = [
        _flip(metric, truth.rows[a.question_id], first.rows[a.question_id], second.rows[a.question_id], a, b)
        for a, b in zip(*rows, strict=True)
        if abs(a.total - b.total) > _SAME or a.is_right != b.is_right
    ]
    n_lost, n_won = (sum(flip.kind == kind for flip in flips) for kind in FLIPS[:2])
    return Pair(
        interval=paired_bootstrap(difference),
        permutation=paired_permutation(difference),
        d_z=paired_effect(difference),
        n_lost=n_lost,
        n_won=n_won,
        mcnemar_p=mcnemar(n_lost, n_won),
        flips=tuple(sorted(flips, key=lambda flip: FLIPS.index(flip.kind))),
    )


def _flip(
    metric: Metric,
    truth: SubmissionRow,
    first: SubmissionRow,
    second: SubmissionRow,
    a: QuestionScore,
    b: QuestionScore,
) -> Flip:
    kind: FlipKind = "other" if a.is_right == b.is_right else "right to wrong" if a.is_right else "wrong to right"
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
    """Scores on groups of the truth's questions; a tuple has one entry per file.

    Attributes:
        by: Column of the truth that makes the groups.
        labels: The groups, in order of appearance.
        scores: By label.
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


def split_scores(by: str, labels: Sequence[str], rows: Sequence[Sequence[QuestionScore]], metric: Metric) -> Split:
    """Score files on groups of the truth's questions.

    Args:
        by: Column of the truth.
        labels: The label of each question.
        rows: Scores of each file, over the same questions in the same order.
        metric: The metric they were scored by.
    """
    each = [metric.aggregate_by(file, labels) for file in rows]
    return split_of(by, {name: tuple(file[name] for file in each) for name in each[0]})


def split_of(by: str, scores: Mapping[str, tuple[Score, ...]]) -> Split:
    """Compare the groups of a split: differences, ranks, moves and correlations.

    Args:
        by: Column of the truth.
        scores: By label, one score per file.
    """
    names = tuple(scores)
    figures = {name: [score.score for score in scores[name]] for name in names}
    places = {name: tuple(ranks(figures[name]).tolist()) for name in names}
    first = names[0]
    return Split(
        by=by,
        labels=names,
        scores=scores,
        ranks=places,
        differences={
            name: tuple(b - a for a, b in zip(figures[first], figures[name], strict=True)) for name in names[1:]
        },
        moves={name: tuple(a - b for a, b in zip(places[first], places[name], strict=True)) for name in names[1:]},
        correlations={(a, b): correlate(figures[a], figures[b]) for a, b in combinations(names, 2)},
    )


@dataclass(frozen=True, slots=True)
class RankBand:
    """Files whose ranks on the first group lie together.

    Attributes:
        name: The ranks.
        n: Number of files.
        first: Mean score on the first group.
        second: Mean score on the other group.
        difference: Mean of the second less the first.
        sd: Standard deviation of that difference; None for one file.
        moved: Mean number of ranks moved, up or down.
    """

    name: str
    n: int
    first: float
    second: float
    difference: float
    sd: float | None
    moved: float


def rank_bands(split: Split, label: str) -> tuple[RankBand, ...]:
    """Group files by their rank on the first group, and compare it with another one band by band."""
    first = split.labels[0]
    bands = []
    lowest = 1
    for highest in (*BANDS, max(len(split.ranks[first]), BANDS[-1] + 1)):
        at = [i for i, rank in enumerate(split.ranks[first]) if lowest <= rank < highest + 1]
        if at:
            difference, sd = mean_sd([split.differences[label][i] for i in at])
            last = min(highest, len(split.ranks[first]))
            bands.append(
                RankBand(
                    name=f"{lowest} to {last}" if last > lowest else f"{lowest}",
                    n=len(at),
                    first=mean_sd([split.scores[first][i].score for i in at])[0],
                    second=mean_sd([split.scores[label][i].score for i in at])[0],
                    difference=difference,
                    sd=sd,
                    moved=mean_sd([abs(split.moves[label][i]) for i in at])[0],
                )
            )
        lowest = highest + 1
    return tuple(bands)
