"""Submission files against one another: which questions flipped, the paired test, and scores on parts of the truth."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.evaluation.grid import FEW_QUESTIONS
from kohaku_ray.evaluation.report import labels_of, table
from kohaku_ray.evaluation.scores import Metric, QuestionScore, Score, aggregate, aggregate_by, score_question, weigh
from kohaku_ray.evaluation.statistics import (
    CONFIDENCE,
    Correlation,
    Interval,
    Permutation,
    correlate,
    mcnemar,
    paired_bootstrap,
    paired_differences,
    paired_effect,
    paired_permutation,
    ranks,
    stars,
)
from kohaku_ray.submissions import Submission, SubmissionRow, read_refs, read_submission

FlipKind = Literal["right to wrong", "wrong to right", "other"]
FLIPS: tuple[FlipKind, ...] = ("right to wrong", "wrong to right", "other")
"""Of the value; ``other``: the value is as right or wrong as before, and the score is not the same."""

_EMPTY = "(empty)"
_WIDTH = 32
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Flip:
    """One question that two files do not score alike on.

    Attributes:
        question_id: Which question.
        question: Its text, as the truth has it.
        kind: What became of the value from the first file to the second.
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
        flips: Questions whose score is not the same, by kind in the order of ``FLIPS``, then in the truth's order.
    """

    interval: Interval
    permutation: Permutation
    d_z: float | None
    n_lost: int
    n_won: int
    mcnemar_p: float
    flips: tuple[Flip, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """Scores on each part of the truth; a tuple has one entry a file.

    Attributes:
        by: Column of the truth that makes the parts.
        labels: The parts, in order of appearance.
        scores: By label.
        ranks: By label: rank among the files, 1 the best, ties share their mean rank.
        differences: By label but the first: score on this part less score on the first.
        moves: By label but the first: rank on the first part less rank on this one; above 0 the file climbs.
        correlations: By two labels: how far they agree on the files.
    """

    by: str
    labels: tuple[str, ...]
    scores: Mapping[str, tuple[Score, ...]]
    ranks: Mapping[str, tuple[float, ...]]
    differences: Mapping[str, tuple[float, ...]]
    moves: Mapping[str, tuple[float, ...]]
    correlations: Mapping[tuple[str, str], Correlation]


@dataclass(frozen=True, slots=True)
class Comparing:
    """Files compared on the questions that the truth and all of them have.

    Attributes:
        truth: Path of the truth.
        files: Paths, as given.
        metric: Under which metric.
        question_ids: What they are compared on, in the truth's order.
        scores: One a file.
        pair: With two files, the one against the other.
        split: With ``by``, the parts.
        notes: What the reader has to know: questions left out, odd rows, too few questions.
    """

    truth: str
    files: tuple[str, ...]
    metric: Metric
    question_ids: tuple[str, ...]
    scores: tuple[Score, ...]
    pair: Pair | None
    split: Split | None
    notes: tuple[str, ...]


def compare_files(
    truth_path: str | os.PathLike[str],
    files: Sequence[str | os.PathLike[str]],
    metric: Metric = "wattbot",
    by: str | None = None,
) -> Comparing:
    """Compare submission files on the questions that the truth and all of them have.

    Args:
        truth_path: CSV with the gold answers.
        files: Two or more submission CSVs; two are compared question by question.
        metric: Under which metric.
        by: A column of the truth, such as public/private, to compare the scores between.

    Raises:
        ConfigError: There are fewer than two files.
        DataError: A file cannot be read, no question is in all of them, or the truth has no column ``by``.
    """
    if len(files) < 2:
        given = ", ".join(os.fspath(file) for file in files) or "none"
        raise ConfigError(f"compare takes two or more runs, and got {len(files)} ({given}): name what to compare with.")
    truth = read_submission(truth_path)
    submissions = [read_submission(file) for file in files]
    keys = _common(truth, submissions)
    labels = _labels(truth, by, keys) if by is not None else ()
    rows = [[score_question(truth.rows[key], each.rows[key], metric) for key in keys] for each in submissions]
    split = _split(by, labels, rows, metric) if by is not None else None
    return Comparing(
        truth=truth.path,
        files=tuple(submission.path for submission in submissions),
        metric=metric,
        question_ids=keys,
        scores=tuple(aggregate(each, metric) for each in rows),
        pair=_pair(truth, submissions, rows, metric) if len(files) == 2 else None,
        split=split,
        notes=tuple(_notes(truth, submissions, keys, split)),
    )


def shares(rows: Sequence[QuestionScore], metric: Metric) -> list[float]:
    """What each question gives to the score: their mean is the score of ``aggregate``.

    ``wattbot``: the questions' totals. ``kaggle`` takes abstention over the unanswerable questions alone: one of u
    among n counts n / u there, an answerable one 0; where there is none, everyone has the 1.0 that the metric gives.
    """
    if metric == "wattbot":
        return [row.total for row in rows]
    n_unanswerable = sum(row.unanswerable for row in rows)
    weight = len(rows) / n_unanswerable if n_unanswerable else 0.0
    return [
        weigh(row.value, row.ref, (row.abstain * weight if row.unanswerable else 0.0) if n_unanswerable else 1.0)
        for row in rows
    ]


def _common(truth: Submission, submissions: Sequence[Submission]) -> tuple[str, ...]:
    keys = tuple(key for key in truth.rows if all(key in submission.rows for submission in submissions))
    if not keys:
        counts = ", ".join(f"{each.path} has {len(each.rows)}" for each in (truth, *submissions))
        raise DataError(f"no question is in all files ({counts}): compare runs over the same questions.")
    return keys


def _labels(truth: Submission, by: str, keys: Sequence[str]) -> tuple[str, ...]:
    label = dict(zip(truth.rows, labels_of(truth, by), strict=True))
    return tuple(label[key] for key in keys)


def _pair(
    truth: Submission, submissions: Sequence[Submission], rows: Sequence[Sequence[QuestionScore]], metric: Metric
) -> Pair:
    first, second = submissions
    difference = paired_differences(shares(rows[1], metric), shares(rows[0], metric))
    flips = [
        _flip(truth.rows[a.question_id], first.rows[a.question_id], second.rows[a.question_id], a, b)
        for a, b in zip(*rows, strict=True)
        if abs(a.total - b.total) > _SAME or a.value != b.value
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
    truth: SubmissionRow, first: SubmissionRow, second: SubmissionRow, a: QuestionScore, b: QuestionScore
) -> Flip:
    kind: FlipKind = "other" if a.value == b.value else "right to wrong" if a.value > b.value else "wrong to right"
    return Flip(
        question_id=truth.question_id,
        question=truth.question,
        kind=kind,
        truth_value=truth.answer_value,
        truth_refs=truth.refs_raw,
        values=(first.answer_value, second.answer_value),
        refs=(first.refs_raw, second.refs_raw),
        scores=(a.total, b.total),
    )


def _split(by: str, labels: Sequence[str], rows: Sequence[Sequence[QuestionScore]], metric: Metric) -> Split:
    each = [aggregate_by(file, labels, metric) for file in rows]
    names = tuple(each[0])
    scores = {name: tuple(file[name] for file in each) for name in names}
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


def _notes(
    truth: Submission, submissions: Sequence[Submission], keys: Sequence[str], split: Split | None
) -> Iterator[str]:
    if len(keys) < len(truth.rows):
        yield f"compared on {len(keys)} of the truth's {len(truth.rows)} questions: those that all files have"
    for what, files in _oddities(truth, submissions).items():
        who = f"all {len(files)} files" if len(files) == len(submissions) else ", ".join(files)
        yield f"{who}: {what}"
    parts = {f"{split.by} {name}": split.scores[name][0].n for name in split.labels} if split else {}
    for name, n in {"the comparison": len(keys), **parts}.items():
        if n < FEW_QUESTIONS:
            yield f"{name} stands on {n} questions: fewer than {FEW_QUESTIONS} say little"


def _oddities(truth: Submission, submissions: Sequence[Submission]) -> dict[str, list[str]]:
    """List what is odd, and the files it is odd in: many runs often lack the same questions."""
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


def render(comparing: Comparing) -> str:
    """Lay a comparison out as plain text: scores, the two files question by question, the parts, and what is odd."""
    parts = [_score_table(comparing)]
    if comparing.pair is not None:
        parts += [_pair_text(comparing, comparing.pair), *_flip_tables(comparing.pair)]
    if comparing.split is not None:
        parts += _split_tables(comparing, comparing.split)
    return "\n\n".join([*parts, *(["\n".join(comparing.notes)] if comparing.notes else [])])


def _order(comparing: Comparing) -> list[int]:
    """Two files stand as given, more by score, the best first."""
    places = list(range(len(comparing.files)))
    return places if comparing.pair is not None else sorted(places, key=lambda i: -comparing.scores[i].score)


def _score_table(comparing: Comparing) -> str:
    body = []
    for i in _order(comparing):
        score = comparing.scores[i]
        figures = (score.score, score.value, score.ref, score.abstain)
        body.append([comparing.files[i], *(f"{figure:.4f}" for figure in figures), str(score.n)])
    return table([comparing.metric, "score", "value", "ref", "abstain", "n"], body, n_text=1)


def _pair_text(comparing: Comparing, pair: Pair) -> str:
    interval, permutation = pair.interval, pair.permutation
    lines = [f"A = {comparing.files[0]}", f"B = {comparing.files[1]}", f"B − A: {_signed(interval.mean)}"]
    if interval.low is not None and interval.high is not None:
        ends = f"{_signed(interval.low)} … {_signed(interval.high)}"
        lines[-1] += f", {CONFIDENCE:.0%} interval {ends} (BCa bootstrap over questions)"
    if interval.reason:
        lines.append(f"       {interval.reason}")
    how = "exact" if permutation.is_exact else "drawn"
    mark = stars(permutation.p)
    lines += [
        f"paired permutation test: p = {_p(permutation.p)}{' ' + mark if mark else ''} ({how}, "
        f"{permutation.n_nonzero} questions differ); effect size d_z = {_figure(pair.d_z)}",
        f"values: {pair.n_lost} right to wrong, {pair.n_won} wrong to right; McNemar exact p = {_p(pair.mcnemar_p)}",
    ]
    return "\n".join(lines)


def _flip_tables(pair: Pair) -> Iterator[str]:
    for kind in FLIPS:
        flips = [flip for flip in pair.flips if flip.kind == kind]
        if flips:
            head = [kind, "truth", "A", "B", "truth refs", "A refs", "B refs", "score A", "score B"]
            yield table(head, [_flip_line(flip) for flip in flips], n_text=7)


def _flip_line(flip: Flip) -> list[str]:
    refs = [", ".join(read_refs(text)) for text in (flip.truth_refs, *flip.refs)]
    texts = [_clip(text) for text in (flip.question_id, flip.truth_value, *flip.values, *refs)]
    return [*texts, *(f"{score:.4f}" for score in flip.scores)]


def _split_tables(comparing: Comparing, split: Split) -> Iterator[str]:
    labels, later = split.labels, split.labels[1:]
    head = [
        split.by,
        *labels,
        *(f"{name} − {labels[0]}" for name in later),
        *(f"rank {name}" for name in labels),
        *(f"move to {name}" for name in later),
    ]
    body = [
        [
            comparing.files[i],
            *(f"{split.scores[name][i].score:.4f}" for name in labels),
            *(_signed(split.differences[name][i]) for name in later),
            *(f"{split.ranks[name][i]:g}" for name in labels),
            *(_move(split.moves[name][i]) for name in later),
        ]
        for i in _order(comparing)
    ]
    counts = ["n", *(str(split.scores[name][0].n) for name in labels)]
    yield table(head, [*body, [*counts, *[""] * (len(head) - len(counts))]], n_text=1)
    if len(labels) == 1:
        yield f"every question has {split.by} {labels[0]}: there is nothing to compare it with"
    elif comparing.files[2:]:
        yield table(
            [f"{len(comparing.files)} files", "Pearson", "Spearman", "Kendall"],
            [
                [f"{a} ~ {b}", *(_figure(figure) for figure in (found.pearson, found.spearman, found.kendall))]
                for (a, b), found in split.correlations.items()
            ],
            n_text=1,
        )
        yield from sorted({found.reason for found in split.correlations.values() if found.reason})
    else:
        yield next(found.reason for found in split.correlations.values())


def _move(move: float) -> str:
    return f"{move:+g}" if move else "0"


def _signed(difference: float | None) -> str:
    return "n/a" if difference is None else f"{round(difference, 4) + 0.0:+.4f}"  # + 0.0: no negative zero


def _p(p: float | None) -> str:
    if p is None:
        return "n/a"
    return f"{p:.4f}" if p >= 0.0001 else f"{p:.1e}"


def _figure(figure: float | None) -> str:
    return "n/a" if figure is None else f"{figure:+.3f}"


def _clip(text: str) -> str:
    """Bring a cell to one short printable line: it is a model's text."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"
