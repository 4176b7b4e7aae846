"""Scores of files on groups of the truth's questions, such as the public and the private ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from kohaku_ray.evaluation.metrics import Metric, QuestionScore, Score
from kohaku_ray.evaluation.report import signed, table, write_effect
from kohaku_ray.evaluation.statistics import Correlation, correlate, ranks


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


def split_tables(files: Sequence[str], order: Sequence[int], split: Split) -> Iterator[str]:
    """Lay out the scores on each group, and the correlations of the groups.

    Args:
        files: Paths.
        order: Indices of the files, in the order shown.
        split: Their scores.
    """
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
            files[i],
            *(f"{split.scores[name][i].score:.4f}" for name in labels),
            *(signed(split.differences[name][i]) for name in later),
            *(f"{split.ranks[name][i]:g}" for name in labels),
            *(_move(split.moves[name][i]) for name in later),
        ]
        for i in order
    ]
    counts = ["n", *(str(split.scores[name][0].n) for name in labels)]
    yield table(head, [*body, [*counts, *[""] * (len(head) - len(counts))]], n_text=1)
    if len(labels) == 1:
        yield f"every question has {split.by} {labels[0]}: there is nothing to compare it with"
    elif files[2:]:
        yield table(
            [f"{len(files)} files", "Pearson", "Spearman", "Kendall"],
            [
                [f"{a} ~ {b}", *(write_effect(figure) for figure in (found.pearson, found.spearman, found.kendall))]
                for (a, b), found in split.correlations.items()
            ],
            n_text=1,
        )
        yield from sorted({found.reason for found in split.correlations.values() if found.reason})
    else:
        yield next(found.reason for found in split.correlations.values())


def _move(move: float) -> str:
    return f"{move:+g}" if move else "0"
