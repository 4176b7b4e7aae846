"""Scores on groups of questions as tables and plots: KohakuRAG's Tables 13 to 16 and Figures 24 to 26."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from kohaku_ray.evaluation.compare import BANDS, Comparing, rank_bands, shift_of
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.pages.difference_plots import difference_points, histogram
from kohaku_ray.pages.page import Packed, page_environment
from kohaku_ray.pages.plots import Chart, error_bars, scatter, slopes
from kohaku_ray.pages.score_text import (
    band_table,
    correlation_table,
    group_table,
    move_tables,
    shift_table,
    write_effect,
)
from kohaku_ray.pages.sweep_tables import DECIMAL
from kohaku_ray.pages.text import cut
from kohaku_ray.store.storage import publish
from kohaku_ray.sweep.compare import SweepGroups
from kohaku_ray.sweep.statistics import rank_settings
from kohaku_ray.table import Column, Table

MOST_DRAWN = 30
"""Most names in a plot of differences: the best on the first group."""

N_SLOPES = 20
"""Most names in a plot of ranks, as in KohakuRAG's Figure 26: the best on the first group."""

_SAID_CHARS = 1500


def write_groups(comparing: Comparing, output: str) -> str:
    """Write the page of files that are compared on groups of the questions, and return its path.

    Raises:
        DataError: The page cannot be written.
    """
    assert comparing.split is not None
    # Files are named by what their paths do not share, runs by their directories.
    parts = [file.removesuffix("/submission.csv").removesuffix(".csv").split("/") for file in comparing.files]
    n_shared = next((number for number, names in enumerate(zip(*parts, strict=False)) if len({*names}) > 1), 0)
    groups = SweepGroups(tuple("/".join(names[n_shared:]) for names in parts), comparing.split)
    metric = find_metric(comparing.metric)
    page = (
        page_environment()
        .get_template("groups_page.html.j2")
        .render(
            comparing=comparing,
            metric=metric,
            groups=group_block(groups, "files", f"Scores by {metric.name} on the questions that all files have."),
            packed=Packed(),
        )
    )
    publish(output, page.encode())
    return output


def group_block(groups: SweepGroups, of: str, about: str) -> dict[str, Any]:
    """Lay the groups out for ``groups.html.j2``.

    Args:
        groups: The scores.
        of: What has the scores, in the plural, such as ``settings``.
        about: A sentence on the scores.
    """
    split = groups.split
    n = {label: split.scores[label][0].n for label in split.labels}
    charts = list(group_charts(groups, of)) if split.labels[1:] else []
    return {"by": split.by, "n": n, "about": about, "tables": list(group_tables(groups, of)), "charts": charts}


def group_tables(groups: SweepGroups, of: str) -> Iterator[Table]:
    """Lay out every table of the groups."""
    split, names = groups.split, groups.names
    yield group_table(names, rank_settings(groups), split)
    for label in split.labels[1:]:
        yield shift_table(split, label, of)
        if len(names) > BANDS[0]:
            yield band_table(split, label)
        yield from move_tables(names, split, label)
    if split.correlations:
        yield correlation_table(split, f"{len(names)} {of}", between="and")


def group_charts(groups: SweepGroups, of: str) -> Iterator[Chart]:
    """Draw the first two groups: scores against each other, differences, ranks and rank bands."""
    split, order = groups.split, rank_settings(groups)
    first, second = split.labels[:2]
    a, b = ([score.score for score in split.scores[label]] for label in (first, second))
    differences, shift = split.differences[second], shift_of(split, second)
    scores = cut(
        "; ".join(f"{groups.names[number]}: {a[number]:.3f}, {b[number]:.3f}" for number in order), _SAID_CHARS
    )
    heads = *(f"score {label}" for label in (first, second)), "difference"
    ranks = [split.ranks[label] for label in (first, second)]
    data = Table.of(
        [of, *(Column(head, DECIMAL) for head in heads), *(Column(f"rank {label}", "g") for label in (first, second))],
        [(groups.names[i], a[i], b[i], differences[i], *(rank[i] for rank in ranks)) for i in order],
    )
    yield Chart(
        f"Score on {second} against {first}",
        f"A point for each of {shift.n} {of}; above the dashed line it scores more on the second group.",
        scatter(a, b, x_label=f"score, {first}", y_label=f"score, {second}", label=f"{first}, {second}: {scores}"),
        data,
    )
    pearson = shift.correlation.pearson
    yield Chart(
        f"Difference against the score on {first}",
        f"Green rises, orange falls; dashed: least squares, Pearson {write_effect(pearson)}."
        if pearson is not None
        else f"Green rises, orange falls. No correlation: {shift.correlation.reason}.",
        difference_points(
            a,
            differences,
            x_label=f"score, {first}",
            y_label=f"{second} less {first}",
            label=f"Difference by the score on {first}, Pearson {write_effect(pearson)}. {first}, {second}: {scores}",
        ),
        data,
    )
    yield Chart(
        f"Distribution of the differences, {second} less {first}",
        f"Green rises, orange falls; dashed: the mean, {shift.mean:+.4f}.",
        histogram(
            differences,
            x_label=f"{second} less {first}",
            y_label=of,
            label=f"Differences from {shift.least:+.3f} to {shift.greatest:+.3f}, median {shift.median:+.3f}: "
            f"{shift.n_down} of {shift.n} below 0, {shift.n_up} above",
        ),
        data,
    )
    drawn = order[:MOST_DRAWN]
    yield Chart(
        f"Difference, {second} less {first}",
        f"By rank on {first}.{_left_out(drawn, order, of)}",
        error_bars(
            [groups.names[number] for number in drawn],
            [differences[number] for number in drawn],
            [math.nan] * len(drawn),
            x_label=f"{second} less {first}",
            y_label=of,
            label=f"Differences of {first}, {second}: {scores}",
        ),
        data,
    )
    drawn = order[:N_SLOPES]
    before, after = ([split.ranks[label][number] for number in drawn] for label in (first, second))
    yield Chart(
        f"Ranks, {first} to {second}",
        f"Green climbs, orange falls, grey stays; rank 1 is best.{_left_out(drawn, order, of)}",
        slopes(
            [groups.names[number] for number in drawn],
            before,
            after,
            heads=(first, second),
            label=f"Ranks by {first}, {second}: {scores}",
        ),
        data,
    )
    bands = rank_bands(split, second)
    yield Chart(
        f"Difference by rank on {first}",
        f"Point: mean over the {of} of a band; bar: ± one standard deviation.",
        error_bars(
            [f"{band.name} (n = {band.n})" for band in bands],
            [band.difference for band in bands],
            [math.nan if band.sd is None else band.sd for band in bands],
            x_label=f"{second} less {first}",
            y_label="rank",
            label="; ".join(f"ranks {band.name}: {band.difference:+.3f}" for band in bands),
        ),
        Table.of(
            ["rank", of, *(Column(head, DECIMAL) for head in ("difference", "sd"))],
            [(band.name, band.n, band.difference, band.sd) for band in bands],
        ),
    )


def _left_out(drawn: list[int], order: list[int], of: str) -> str:
    return f" The {len(drawn)} best of {len(order)} {of}." if len(drawn) < len(order) else ""
