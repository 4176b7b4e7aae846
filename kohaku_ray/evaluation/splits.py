"""Scores of files on groups of the truth's questions, such as the public and the private ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from kohaku_ray.evaluation.metrics import Metric, QuestionScore, Score
from kohaku_ray.evaluation.report import signed, table, write_effect
from kohaku_ray.evaluation.statistics import Correlation, correlate, mean_sd, ranks

BANDS = (5, 10, 20, 50)
"""Last ranks of the bands; the ranks after them are one band."""


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


def band_table(split: Split, label: str) -> tuple[list[str], list[list[str]]]:
    """Lay out the rank bands: head and rows."""
    first = split.labels[0]
    head = [f"rank {first}", "n", first, label, f"{label} − {first}", "ranks moved"]
    return head, [
        [
            band.name,
            str(band.n),
            f"{band.first:.4f}",
            f"{band.second:.4f}",
            signed(band.difference) + ("" if band.sd is None else f" ± {band.sd:.4f}"),
            f"{band.moved:.1f}",
        ]
        for band in rank_bands(split, label)
    ]


def group_table(files: Sequence[str], order: Sequence[int], split: Split) -> tuple[list[str], list[list[str]]]:
    """Lay out scores, differences, ranks and moves: head and rows; arguments as in ``split_tables``."""
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
    return head, body


def split_tables(files: Sequence[str], order: Sequence[int], split: Split) -> Iterator[str]:
    """Lay out the scores on each group, and the correlations of the groups.

    Args:
        files: Paths.
        order: Indices of the files, in the order shown.
        split: Their scores.
    """
    labels, later = split.labels, split.labels[1:]
    head, body = group_table(files, order, split)
    counts = ["n", *(str(split.scores[name][0].n) for name in labels)]
    yield table(head, [*body, [*counts, *[""] * (len(head) - len(counts))]], n_text=1)
    if len(files) > BANDS[0]:
        yield from (table(*band_table(split, label), n_text=1) for label in later)
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
