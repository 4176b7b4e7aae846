"""The plots of a run's page, with their titles and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from kohaku_ray.evaluation.metrics import Metric
from kohaku_ray.evaluation.report import ScoreReport
from kohaku_ray.pages.plots import Chart, grouped_bars, ranges, share_points, stacked_bars
from kohaku_ray.pages.questions import ABSTAINED, ANSWERED, IN_PART, OUTCOMES, RIGHT, WRONG, QuestionView

OUTCOME_COLOURS = {
    RIGHT: "#009e73",
    IN_PART: "#56b4e9",
    WRONG: "#d55e00",
    ABSTAINED: "#999999",
    ANSWERED: "#e69f00",
}
"""Okabe and Ito's colours for the outcomes of a question."""


def run_charts(report: ScoreReport | None, views: Sequence[QuestionView]) -> list[Chart]:
    """Draw a run: score parts where it was scored, agreement, tokens and retrieval depth where it answered at all."""
    drawn = [score_parts(report), *figure_plots(report)] if report is not None else []
    if views:
        drawn.append(agreement(views))
    if any(view.members for view in views):
        drawn += [tokens(views), attempts_used(views)]
    return drawn


def score_parts(report: ScoreReport) -> Chart:
    """Draw the parts of the score that all metrics have, under each."""
    first, *others = report.metrics
    parts = {name: part for name, part in first.parts.items() if all(name in metric.parts for metric in others)}
    series = {str(record["metric"]): [record[name] for name in (*parts, "score")] for record in report.records}
    said = "; ".join(f"{name}: score {values[-1]:.3f}" for name, values in series.items())
    svg = grouped_bars(
        [*(f"{first.label(name)}\n({part.weight:.2f})" for name, part in parts.items()), "score"],
        series,
        x_label="part of the score (its weight)",
        y_label="mean over questions (0 to 1)",
        label=f"Score parts. {said}",
    )
    return Chart("Score parts", formulas(report.metrics), svg)


def figure_plots(report: ScoreReport) -> list[Chart]:
    """Draw the points of the metrics' figures."""
    return [
        Chart(plot.title, plot.note, share_points(plot.points, x_label=plot.x_label, y_label=plot.y_label))
        for figures in report.files[0].figures.values()
        for plot in figures.plots
    ]


def formulas(metrics: Sequence[Metric]) -> str:
    """Write the metrics' formulas; once where all are equal."""
    found = {metric.formula for metric in metrics}
    if len(found) == 1:
        return f"Score = {found.pop()}."
    return "; ".join(f"{metric.name}: {metric.formula}" for metric in metrics) + "."


def agreement(views: Sequence[QuestionView]) -> Chart:
    """Draw how many members gave each written answer."""
    m = max(len(view.members) for view in views)
    svg = _outcome_bars(
        [(view.n_winners, view.outcome) for view in views],
        range(min(view.n_winners for view in views), m + 1),
        f"members that gave the written answer (of {m})",
        "questions",
        f"Answer agreement: {sum(view.n_winners == m for view in views)} of {len(views)} questions unanimous",
    )
    return Chart("Answer agreement", "Size of the winning group of each question.", svg)


def tokens(views: Sequence[QuestionView]) -> Chart:
    """Draw the tokens per answer."""
    members = [member for view in views for member in view.members]
    series: dict[str, list[float]] = {
        "prompts, all attempts": [member.prompt_tokens for member in members],
        "generated, all attempts": [member.completion_tokens for member in members],
    }
    for name in dict.fromkeys(name for member in members for name in member.row["measures"] if name.endswith("tokens")):
        measured = [member.row["measures"][name] for member in members if name in member.row["measures"]]
        series[f"{name.replace('_', ' ')}, as measured"] = measured
    medians = ", ".join(f"{name} {np.median(values):,.0f}" for name, values in series.items())
    svg = ranges(series, x_label="tokens per member answer (log scale)", label=f"Median tokens per answer: {medians}")
    note = "Line: 5th to 95th percentile; box: the middle half; bar: the median."
    return Chart("Tokens per answer", note, svg)


def attempts_used(views: Sequence[QuestionView]) -> Chart:
    """Draw at which attempt the answers were given."""
    given = [(member.row["attempt"], member.outcome) for view in views for member in view.members]
    n_first = sum(attempt == 0 for attempt, _ in given)
    svg = _outcome_bars(
        given,
        range(max(attempt for attempt, _ in given) + 1),
        "last attempt, from 0",
        "member answers",
        f"Attempts used: {n_first} of {len(given)} answers came at the first attempt",
    )
    note = "The attempt that gave each member's answer: a system may retry, such as after a blank reply."
    return Chart("Attempts used", note, svg)


def _outcome_bars(given: Sequence[tuple[int, str]], bars: range, x_label: str, y_label: str, label: str) -> Markup:
    counts = Counter(given)
    series = {name: [counts[number, name] for number in bars] for name in OUTCOMES}
    names = [str(number) for number in bars]
    return stacked_bars(names, series, OUTCOME_COLOURS, x_label=x_label, y_label=y_label, label=label)
