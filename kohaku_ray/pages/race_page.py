"""A race as it stands: the page that is written after each shard, and ten lines for the terminal."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kohaku_ray.pages.page import Packed, page_environment
from kohaku_ray.pages.plots import nice_step
from kohaku_ray.pages.tables import as_html, as_text
from kohaku_ray.pages.text import cut, visible, write_duration
from kohaku_ray.records import pluralize
from kohaku_ray.store.storage import publish
from kohaku_ray.sweep.compare import CellView, RaceView
from kohaku_ray.table import Column, Table

RELOAD_S = 5
"""Seconds after which a browser reads the page of a running sweep again."""

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito
_TOP = 4
_SIZE = 1000
"""Units of a chart's width and height: its box stretches to the card, its text does not."""

_DATA_END = 960
"""Where the last question is drawn; on to the edge run the leaders to the names."""

_MOST_LABELS = 12
"""Most lines with a name: more names do not fit below each other (``.race`` in sweep.css)."""


@dataclass(frozen=True, slots=True)
class _Line:
    """Cells that had the same score all along: one line."""

    cells: tuple[CellView, ...]

    @property
    def label(self) -> str:
        """The cell, or how many and what they share."""
        first, *others = (cell.name.split(", ") for cell in self.cells)
        if not others:
            return self.cells[0].name
        shared = [part for part in first if all(part in name for name in others)]
        return ", ".join([*shared, pluralize(len(self.cells), "cell")])


def write_race(view: RaceView, directory: str) -> str:
    """Write ``sweep.html`` of a race that goes on, in one step; returns its path."""
    path = os.path.join(directory, "sweep.html")
    render = page_environment().get_template("race.html.j2").render
    publish(path, render(packed=Packed(), reload_s=RELOAD_S, **race_block(view)).encode())
    return path


def race_block(view: RaceView) -> dict[str, object]:
    """Lay a race out for a template."""
    tables = [(title, race_chart(cells, view.n_questions), cell_table(cells)) for title, cells in view.tables.items()]
    return {
        "view": view,
        "counts": _describe_counts(view),
        "race_tables": [(t, c, as_html(rows)) for t, c, rows in tables],
    }


def describe_race(view: RaceView) -> list[str]:
    """Describe a race in ten lines or fewer: counts, then the best cells of its first tables."""
    lines = [f"{view.n_seen:,} of {view.n_questions:,} questions: {', '.join(_describe_counts(view))}"]
    for title, cells in list(view.tables.items())[:1]:
        playing = [cell for cell in cells if not cell.racer.left]
        table = cell_table(playing[:_TOP])
        lines += [title, *as_text(table).splitlines()] if len(view.tables) > 1 else as_text(table).splitlines()
        n_more, n_left, n_tables = len(playing) - _TOP, len(cells) - len(playing), len(view.tables) - 1
        names = [pluralize(n, f"further {what}") for n, what in ((n_more, "cell"), (n_tables, "table")) if n > 0]
        names += [f"{pluralize(n_left, 'cell')} that left"] if n_left else []
        lines += [f"not shown here: {', '.join(names)}"] if names else []
    return [*lines, *(f"last: {drop}" for drop in view.drops[:1])]


def _describe_counts(view: RaceView) -> list[str]:
    racers = {cell.name: cell.racer for cells in view.tables.values() for cell in cells}
    n_left, cells = sum(bool(racer.left) for racer in racers.values()), pluralize(len(racers), "cell")
    standing = f"{len(racers) - n_left:,} of {cells} in the race"
    total = max(view.n_asked + view.n_saved, 1)
    counts = [
        standing if view.is_running else f"{n_left:,} of {cells} left the race",
        f"{view.n_asked:,} {view.unit} asked for by all {cells}, about {view.n_saved:,} saved "
        f"({view.n_saved / total:.0%})",
    ]
    if view.seconds_left is not None:
        counts.append(f"at most {write_duration(view.seconds_left)} left")
    return counts


def cell_table(cells: Sequence[CellView]) -> Table:
    """Tabulate cells: score, difference to the leader, both with their intervals, and state."""
    columns = (
        Column("cell", align="left"),
        Column("questions"),
        Column("score", ".3f"),
        Column("interval"),
        Column("to the leader", "+z.3f"),
        Column("interval"),
        Column("state", align="left"),
    )

    def row(cell: CellView) -> tuple[object, ...]:
        racer, (gap, *ends) = cell.racer, cell.racer.gap or (None,)
        to_leader = f"{ends[0]:+z.3f} … {ends[1]:+z.3f}" if ends and ends[0] < ends[1] else ""
        low, high = racer.bounds
        return (
            cell.name,
            racer.n,
            racer.mean,
            f"{low:.3f} … {high:.3f}" if high - low > 1e-9 else "",  # all questions are answered: nothing is open
            gap,
            to_leader,
            cell.state,
        )

    return Table.of(columns, map(row, cells))


def race_chart(cells: Sequence[CellView], n_questions: int) -> Markup:
    """Draw every cell's mean over the questions so far, named where it ends; the leader with its interval as a band.

    Cells of the same means are one line. The best are in colour; those that have left the race are grey.
    """
    lines = _join_equal([cell for cell in cells if cell.curve])
    means = [mean for line in lines for _, mean, _, _ in line.cells[0].curve] or [0.0, 1.0]
    ticks = nice_ticks(min(means), max(means))
    low, high = min(ticks[0], *means), max(ticks[-1], *means)

    def x(n: float) -> float:
        return _DATA_END * n / max(n_questions, 1)

    def y(value: float) -> float:
        return _SIZE * (high - min(max(value, low), high)) / ((high - low) or 1.0)

    def path(points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x(n):.1f},{y(value):.1f}" for n, value in points)

    playing = [line for line in lines if not line.cells[0].racer.left]
    named = [*playing, *(line for line in lines if line not in playing)][:_MOST_LABELS]
    places = dict(zip(map(id, named), _spread([y(line.cells[0].curve[-1][1]) for line in named]), strict=True))
    parts = [f'<path d="M0,{y(tick):.1f}H{_DATA_END}" class="grid"/>' for tick in ticks]
    labels = []
    for line in reversed(lines):
        curve = line.cells[0].curve
        rank = playing.index(line) if line in playing else len(_COLOURS)
        colour = _COLOURS[rank] if rank < len(_COLOURS) else "var(--plain)"
        if rank == 0:
            edge = [(n, upper) for n, _, _, upper in curve] + [(n, lower) for n, _, lower, _ in curve[::-1]]
            parts.append(f'<polygon points="{path(edge)}" fill="{colour}" opacity=".12"/>')
        points = [(n, mean) for n, mean, _, _ in curve]
        style = f'fill="none" stroke="{colour}"'
        parts.append(f'<polyline points="{path(points)}" {style} class="run"/>')
        end = path(points[-1:])
        parts.append(f'<path d="M{end}h0" stroke="{colour}" class="end"/>')
        if (place := places.get(id(line))) is not None:
            parts.append(f'<path d="M{end}L{_SIZE},{place:.1f}" {style} class="lead"/>')
            left = " left" if line.cells[0].racer.left else ""
            names = "; ".join(cell.name for cell in line.cells)
            labels.append(
                Markup('<span class="name{}" style="top:{}%;--c:{}" title="{}">{}</span>').format(
                    left, f"{place / _SIZE:.1%}".rstrip("%"), colour, visible(names), visible(line.label)
                )
            )
    heights = (f'<span style="top:{100 * y(tick) / _SIZE:.1f}%">{tick:g}</span>' for tick in ticks)
    numbers = (n for n in nice_ticks(0, n_questions) if n <= n_questions)
    asked = (f'<span style="left:{100 * x(n) / _SIZE:.1f}%">{n:,g}</span>' for n in numbers)
    told = "; ".join(f"{line.label} {line.cells[0].curve[-1][1]:.3f}" for line in named)
    n_more = len(lines) - len(named)
    more = f'<p class="dim small">Without a name: {pluralize(n_more, "further line")}.</p>' if n_more else ""
    aria = Markup('aria-label="Mean score by questions asked. {}"').format(visible(cut(told, 1500)))
    columns = f"3rem minmax(0, 1fr) min(45%, {max(len(line.label) for line in named) + 4}ch)" if named else ""
    box = f'viewBox="0 0 {_SIZE} {_SIZE}" preserveAspectRatio="none"'
    return Markup(  # noqa: S704 - names are escaped above
        f'<div class="race" style="grid-template-columns: {columns}">'
        '<div class="of dim small">mean score of the questions so far</div>'
        f'<div class="y">{"".join(heights)}</div><svg role="img" {aria} {box}>{"".join(parts)}</svg>'
        f'<div class="names">{"".join(reversed(labels))}</div><div class="x">{"".join(asked)}</div>'
        f'<div class="of-x dim small">questions asked</div></div>{more}'
    )


def _join_equal(cells: Sequence[CellView]) -> list[_Line]:
    """Join the cells of one curve, in the order of the best of each."""
    joined: dict[tuple[object, ...], list[CellView]] = {}
    for cell in cells:
        key = (bool(cell.racer.left), *((n, round(mean, 9)) for n, mean, _, _ in cell.curve))
        joined.setdefault(key, []).append(cell)
    return [_Line(tuple(of_line)) for of_line in joined.values()]


def _spread(heights: Sequence[float]) -> list[float]:
    """Move the names of lines apart, in the order of their lines' ends, as little as that takes."""
    least = _SIZE / _MOST_LABELS
    order = sorted(range(len(heights)), key=lambda number: heights[number])
    spread = [0.0] * len(heights)
    top = 0.0
    for position, number in enumerate(order):
        latest = _SIZE - least * (len(order) - 1 - position)  # room for those below
        spread[number] = min(max(heights[number], top), latest)
        top = spread[number] + least
    return spread


def nice_ticks(low: float, high: float) -> list[float]:
    """List multiples of 1, 2 or 5 times a power of ten around an interval, at most about six."""
    step = nice_step(max(high - low, 1e-3) / 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * number, 10) for number in range(first, max(last, first + 1) + 1)]
