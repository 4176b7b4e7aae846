"""A sweep's errors as rates: KohakuRAG's Table 12 and Figures 19 to 22."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kohaku_ray.evaluation.metrics import Metric
from kohaku_ray.pages.difference_plots import named_points, row_bars
from kohaku_ray.pages.plots import PALETTE, Chart
from kohaku_ray.pages.text import cut
from kohaku_ray.sweep.compare import ErrorRate, Sweep, error_rates
from kohaku_ray.values.read import parse_number

MOST_ROWS = 30
"""Most labels in a plot of error rates, of each of two facts that vary, the second at most as many as colours."""

MOST_POINTS = 16
"""Most points in a plot with a legend."""

_SAID_CHARS = 1500


class ErrorClass(NamedTuple):
    """A class of errors in all runs."""

    name: str
    n: int
    share: float  # of all errors
    note: str  # what the class means


def list_classes(sweep: Sweep) -> tuple[ErrorClass, ...]:
    """Count the classes over all runs, the most frequent first; classes without an error are left out."""
    given = [answer.error for run in sweep.runs for answer in run.predictions.values()]
    counts = {name: given.count(name) for name in sweep.metric.classes}
    n = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    return tuple(
        ErrorClass(name, count, count / n, sweep.metric.class_notes.get(name, "")) for name, count in ordered if count
    )


def class_chart(classes: Sequence[ErrorClass]) -> Chart:
    """Draw each class's share of all errors, of at least one."""
    said = "; ".join(f"{one.name}: {one.share:.1%}" for one in classes)
    svg = row_bars(
        [one.name for one in classes],
        {"": [one.share for one in classes]},
        x_label="share of all errors",
        label=f"Classes of errors. {said}",
    )
    return Chart("Classes of errors", "Over the predictions of all runs.", svg)


def rate_charts(sweep: Sweep) -> Iterator[Chart]:
    """Draw error rates by the facts that differ among the runs, and wrong values against wrong references by each."""
    facts = dict.fromkeys(fact for run in sweep.runs for fact in run.facts)
    rates = {fact: found for fact in facts if len(found := error_rates(sweep, fact)) > 1}
    if rates:
        yield _bars(sweep, list(rates))
    both = scored_parts(sweep.metric)[:2]
    if len(both) == 2:
        for fact, found in rates.items():
            yield _points(sweep.metric, fact, found, both)


def scored_parts(metric: Metric) -> list[str]:
    """Name the parts of a score that count, those with the greatest weight first."""
    weighed = [name for name, part in metric.parts.items() if part.weight]
    return sorted(weighed, key=lambda name: -metric.parts[name].weight)


def _bars(sweep: Sweep, facts: Sequence[str]) -> Chart:
    first, *more = facts
    second = next((fact for fact in more if len(error_rates(sweep, fact)) <= len(PALETTE)), None)
    shown = (first,) if second is None else (first, second)
    found = {rate.labels: rate.score for rate in error_rates(sweep, *shown)}
    rows = [rate.labels[0] for rate in error_rates(sweep, first)][:MOST_ROWS]
    columns = [rate.labels for rate in error_rates(sweep, second)] if second else [()]
    series = {
        f"{second} = {column[0]}" if column else "": [found.get((row, *column), math.nan) for row in rows]
        for column in columns
    }
    said = "; ".join(f"{', '.join(labels)}: {rate:.1%}" for labels, rate in found.items())
    names = " and ".join(shown)
    label = cut(f"Error rate by {names}. {said}", _SAID_CHARS)
    svg = row_bars(rows, series, x_label="error rate (1 − score)", y_label=first, label=label)
    return Chart(f"Error rate by {names}", "1 − score, mean over the runs.", svg)


def _points(metric: Metric, fact: str, rates: Sequence[ErrorRate], parts: Sequence[str]) -> Chart:
    value, refs = (metric.label(name) for name in parts)
    shown = sorted(rates, key=lambda rate: rate.score)[:MOST_POINTS]
    points = {}
    for rate in (rate for rate in rates if rate in shown):
        [label] = rate.labels
        name = label if parse_number(label) is None else f"{fact} = {label}"
        points[name] = rate.parts[parts[1]], rate.parts[parts[0]]
    said = "; ".join(f"{name}: {value} {y:.1%}, {refs} {x:.1%}" for name, (x, y) in points.items())
    svg = named_points(
        points,
        x_label=f"{refs} wrong (1 − mean)",
        y_label=f"{value} wrong (1 − mean)",
        label=cut(f"Errors of {value} against {refs} by {fact}. {said}", _SAID_CHARS),
    )
    left_out = f" The {len(points)} best of {len(rates)}." if len(points) < len(rates) else ""
    return Chart(f"Errors of {value} against {refs} by {fact}", f"Mean over the runs.{left_out}", svg)
