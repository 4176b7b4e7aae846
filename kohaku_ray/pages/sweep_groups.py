"""A sweep's scores on groups of the questions: tables for the terminal, the page and a CSV, and plots."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kohaku_ray.evaluation.grid import SweepGroups
from kohaku_ray.evaluation.report import write_effect
from kohaku_ray.evaluation.splits import BANDS, band_table, group_table, rank_bands, split_tables
from kohaku_ray.pages.charts import Chart
from kohaku_ray.pages.sweep_plots import error_bars, scatter, slopes
from kohaku_ray.pages.text import cut, visible

MOST_DRAWN = 30
"""Most settings in a plot with a line each: the best on the first group."""

_SAID_CHARS = 1500


@dataclass(frozen=True, slots=True)
class GroupBlock:
    """Scores by group on the page.

    Attributes:
        by: Column that makes the groups.
        n: Number of questions of each group, by its name.
        tables: Title, head and rows of each table.
        charts: Its plots.
    """

    by: str
    n: dict[str, int]
    tables: list[tuple[str, list[str], list[list[str]]]]
    charts: list[Chart]


def describe_groups(groups: SweepGroups) -> str:
    """Write the scores by group for a terminal."""
    names = [" ".join(visible(name).split()) for name in groups.names]
    return "\n\n".join(split_tables(names, order_of(groups), groups.split))


def groups_csv(groups: SweepGroups) -> str:
    """Write one line per setting: its score on every group, and its ranks."""
    split = groups.split
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["setting", *split.labels, *(f"rank {label}" for label in split.labels)])
    for at in order_of(groups):
        scores = [f"{split.scores[label][at].score:.6f}" for label in split.labels]
        ranks = [f"{split.ranks[label][at]:g}" for label in split.labels]
        writer.writerow([visible(groups.names[at]), *scores, *ranks])
    return buffer.getvalue()


def group_block(groups: SweepGroups) -> GroupBlock:
    """Lay the scores by group out for the page."""
    split, order = groups.split, order_of(groups)
    later = split.labels[1:]
    tables = [("Scores and ranks", *group_table(groups.names, order, split))]
    if len(groups.names) > BANDS[0]:
        tables += [(f"Rank bands, {split.labels[0]} to {label}", *band_table(split, label)) for label in later]
    if split.correlations:
        head = [f"{len(groups.names)} settings", "Pearson", "Spearman", "Kendall"]
        rows = [
            [f"{a} and {b}", *(write_effect(one) for one in (found.pearson, found.spearman, found.kendall))]
            for (a, b), found in split.correlations.items()
        ]
        tables.append(("Correlation of the scores", head, rows))
    n = {label: split.scores[label][0].n for label in split.labels}
    return GroupBlock(split.by, n, tables, list(_charts(groups, order)) if later else [])


def order_of(groups: SweepGroups) -> list[int]:
    """Order the settings by their rank on the first group."""
    ranks = groups.split.ranks[groups.split.labels[0]]
    return sorted(range(len(ranks)), key=lambda at: (ranks[at], at))


def _charts(groups: SweepGroups, order: Sequence[int]) -> Iterator[Chart]:
    """Draw the first two groups: scores against each other, differences, ranks and rank bands."""
    split = groups.split
    first, second = split.labels[:2]
    a, b = ([score.score for score in split.scores[label]] for label in (first, second))
    drawn = order[:MOST_DRAWN]
    names = [groups.names[at] for at in drawn]
    left_out = f" The {len(drawn)} best of {len(order)} settings." if len(drawn) < len(order) else ""
    said = cut("; ".join(f"{groups.names[at]}: {a[at]:.3f}, {b[at]:.3f}" for at in order), _SAID_CHARS)
    yield _chart(
        f"Score on {second} against {first}",
        "One point per setting; above the dashed line it scores more on the second group.",
        scatter(a, b, x_label=f"score, {first}", y_label=f"score, {second}", label=f"{first}, {second}: {said}"),
    )
    yield _chart(
        f"Difference, {second} less {first}",
        f"Settings by their rank on {first}.{left_out}",
        error_bars(
            names,
            [split.differences[second][at] for at in drawn],
            [math.nan] * len(drawn),
            x_label=f"{second} less {first}",
            y_label="setting",
            label=f"Differences of {first}, {second}: {said}",
        ),
    )
    ranks = [[split.ranks[label][at] for at in drawn] for label in (first, second)]
    yield _chart(
        f"Ranks, {first} to {second}",
        f"Green climbs, orange falls, grey stays; rank 1 is best.{left_out}",
        slopes(names, ranks[0], ranks[1], heads=(first, second), label=f"Ranks by {first}, {second}: {said}"),
    )
    bands = rank_bands(split, second)
    yield _chart(
        f"Difference by rank on {first}",
        "Point: mean over the settings of a band; bar: ± one standard deviation.",
        error_bars(
            [f"{band.name} (n = {band.n})" for band in bands],
            [band.difference for band in bands],
            [math.nan if band.sd is None else band.sd for band in bands],
            x_label=f"{second} less {first}",
            y_label=f"rank on {first}",
            label="; ".join(f"ranks {band.name}: {band.difference:+.3f}" for band in bands),
        ),
    )


def _chart(title: str, note: str, svg: str) -> Chart:
    return Chart(title, note, Markup(svg))  # noqa: S704 - drawn by our plots, which escape every name
