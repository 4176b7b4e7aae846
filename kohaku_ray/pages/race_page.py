"""A race as it stands: the page that is written after each shard, and ten lines for the terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence

from markupsafe import Markup

from kohaku_ray.pages.page import Packed, page_environment
from kohaku_ray.pages.tables import as_html, as_text
from kohaku_ray.pages.text import write_duration
from kohaku_ray.records import pluralize
from kohaku_ray.storage import publish
from kohaku_ray.sweep.compare import CellView, RaceView
from kohaku_ray.table import Column, Table

RELOAD_S = 5
"""Seconds after which a browser reads the page of a running sweep again."""

_WIDTH, _HEIGHT, _MARGIN = 720, 260, 40
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito
_TOP, _BANDS = 4, 3


def write_race(view: RaceView, directory: str) -> str:
    """Write ``sweep.html`` of a race that goes on, in one step; returns its path."""
    path = os.path.join(directory, "sweep.html")
    render = page_environment().get_template("race.html.j2").render
    publish(path, render(packed=Packed(), reload_s=RELOAD_S, **race_block(view)).encode())
    return path


def race_block(view: RaceView) -> dict[str, object]:
    """Lay a race out for a template."""
    tables = [(title, race_chart(cells, view.n_questions), cell_table(cells)) for title, cells in view.tables.items()]
    return {"view": view, "counts": _counts(view), "race_tables": [(t, c, as_html(rows)) for t, c, rows in tables]}


def describe_race(view: RaceView) -> list[str]:
    """Describe a race in ten lines or fewer: counts, then the best cells of its first tables."""
    lines = [f"{view.n_seen:,} of {view.n_questions:,} questions: {', '.join(_counts(view))}"]
    for title, cells in list(view.tables.items())[:1]:
        table = cell_table([cell for cell in cells if not cell.racer.left][:_TOP])
        lines += [title, *as_text(table).splitlines()] if len(view.tables) > 1 else as_text(table).splitlines()
    return [*lines, *(f"last: {act}" for act in view.acts[:1])]


def _counts(view: RaceView) -> list[str]:
    racers = {cell.name: cell.racer for cells in view.tables.values() for cell in cells}
    n_left = sum(bool(racer.left) for racer in racers.values())
    total = max(view.n_asked + view.n_saved, 1)
    counts = [
        f"{len(racers) - n_left:,} of {pluralize(len(racers), 'cell')} in the race",
        f"{view.n_asked:,} {view.unit} asked for, about {view.n_saved:,} saved ({view.n_saved / total:.0%})",
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
        to_leader = f"{ends[0]:+z.3f} … {ends[1]:+z.3f}" if ends else ""
        return (
            cell.name,
            racer.n,
            racer.mean,
            f"{racer.bounds[0]:.3f} … {racer.bounds[1]:.3f}",
            gap,
            to_leader,
            cell.state,
        )

    return Table.of(columns, map(row, cells))


def race_chart(cells: Sequence[CellView], n_questions: int) -> Markup:
    """Draw every cell's mean over the questions so far; the best ones in colour with their intervals as bands."""
    drawn = [cell for cell in cells if cell.curve]
    means = [mean for cell in drawn for _, mean, _, _ in cell.curve] or [0.0, 1.0]
    low, high = min(means) - 0.02, max(means) + 0.02

    def coordinates(n: float, value: float) -> str:
        x = _MARGIN + (_WIDTH - _MARGIN - 10) * n / max(n_questions, 1)
        y = 10 + (_HEIGHT - 50) * (high - min(max(value, low), high)) / (high - low)
        return f"{x:.1f},{y:.1f}"

    def line(points: Sequence[tuple[float, float]]) -> str:
        return " ".join(coordinates(*point) for point in points)

    parts, best = [], [cell for cell in drawn if not cell.racer.left][: len(_COLOURS)]
    for cell in reversed(drawn):
        shown = line([(n, mean) for n, mean, _, _ in cell.curve])
        colour = _COLOURS[best.index(cell)] if cell in best else ""
        style = f'stroke="{colour}" stroke-width="2"' if colour else 'stroke="currentColor" opacity=".25"'
        if cell in best[:_BANDS]:
            edge = [(n, upper) for n, _, _, upper in cell.curve] + [(n, lower) for n, _, lower, _ in cell.curve[::-1]]
            parts.append(f'<polygon points="{line(edge)}" fill="{colour}" opacity=".1"/>')
        x, y = coordinates(cell.curve[-1][0], cell.curve[-1][1]).split(",")
        title = Markup("<title>{}</title>").format(cell.name)
        parts.append(f'<polyline points="{shown}" fill="none" {style}>{title}</polyline>')
        fill = colour or "currentColor"
        parts.append(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{fill}" opacity="{1 if colour else 0.25}"/>')
    for value in (low, (low + high) / 2, high):
        y = coordinates(0, value).split(",")[1]
        parts.append(f'<text x="{_MARGIN - 5}" y="{y}" text-anchor="end">{value:.2f}</text>')
    for n, anchor in ((0, "start"), (n_questions // 2, "middle"), (n_questions, "end")):
        x = coordinates(n, low).split(",")[0]
        parts.append(f'<text x="{x}" y="{_HEIGHT - 22}" text-anchor="{anchor}">{n:,}</text>')
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 4}" text-anchor="middle">questions asked</text>')
    names = [
        Markup('<span style="color:{}">■</span> {}').format(colour, cell.name)
        for cell, colour in zip(best, _COLOURS, strict=False)
    ]
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" style="width:100%;max-width:{_WIDTH}px" font-size="11" fill="currentColor"'
    svg = f'<svg role="img" aria-label="Mean score by questions asked" {box}>{"".join(parts)}</svg>'
    return Markup(svg) + Markup('<p class="small">{}</p>').format(Markup(" &nbsp; ").join(names))  # noqa: S704
