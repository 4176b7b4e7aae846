"""Compare two submission files question by question: which values flipped, and the paired tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from kohaku_ray.evaluation.metrics import Metric, QuestionScore
from kohaku_ray.evaluation.paired import (
    Interval,
    Permutation,
    mcnemar,
    paired_bootstrap,
    paired_differences,
    paired_effect,
    paired_permutation,
)
from kohaku_ray.evaluation.report import signed, table, write_effect, write_p
from kohaku_ray.evaluation.statistics import CONFIDENCE, stars
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow, read_refs

FlipKind = Literal["right to wrong", "wrong to right", "other"]
FLIPS: tuple[FlipKind, ...] = ("right to wrong", "wrong to right", "other")
"""Kinds of change of the value; ``other``: it is as right or wrong as before, but the score differs."""

_WIDTH = 32
_SAME = 1e-9


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


def pair_text(files: Sequence[str], pair: Pair) -> str:
    """Say in words how the second of two files differs from the first."""
    interval, permutation = pair.interval, pair.permutation
    lines = [f"A = {files[0]}", f"B = {files[1]}", f"B − A: {signed(interval.mean)}"]
    if interval.low is not None and interval.high is not None:
        ends = f"{signed(interval.low)} … {signed(interval.high)}"
        lines[-1] += f", {CONFIDENCE:.0%} interval {ends} (BCa bootstrap over questions)"
    if interval.reason:
        lines.append(f"       {interval.reason}")
    how = "exact" if permutation.is_exact else "drawn"
    mark = stars(permutation.p)
    lines += [
        f"paired permutation test: p = {write_p(permutation.p)}{' ' + mark if mark else ''} ({how}, "
        f"{permutation.n_nonzero} questions differ); effect size d_z = {write_effect(pair.d_z)}",
        f"values: {pair.n_lost} right to wrong, {pair.n_won} wrong to right; "
        f"McNemar exact p = {write_p(pair.mcnemar_p)}",
    ]
    return "\n".join(lines)


def flip_tables(pair: Pair) -> Iterator[str]:
    """Lay out a table per kind of flip."""
    for kind in FLIPS:
        flips = [flip for flip in pair.flips if flip.kind == kind]
        if flips:
            head = [kind, "truth", "A", "B", "truth refs", "A refs", "B refs", "score A", "score B"]
            yield table(head, [_flip_line(flip) for flip in flips], n_text=7)


def _flip_line(flip: Flip) -> list[str]:
    refs = [", ".join(read_refs(text)) for text in (flip.truth_refs, *flip.refs)]
    texts = [_clip(text) for text in (flip.question_id, flip.truth_value, *flip.values, *refs)]
    return [*texts, *(f"{score:.4f}" for score in flip.scores)]


def _clip(text: str) -> str:
    """Make a cell one short printable line: it is a model's text."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"
