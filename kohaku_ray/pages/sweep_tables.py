"""A sweep's tables with their statistics, written as Markdown, CSV and LaTeX and for the terminal."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Sequence

from kohaku_ray.pages.score_text import split_tables
from kohaku_ray.pages.score_text import table as aligned
from kohaku_ray.pages.sweep_stats import (
    Place,
    Shown,
    Spread,
    TableStats,
    compute_sweep_stats,
    footnotes,
    head,
    legend,
    measured,
    shown,
    sweep_verdict,
    table_verdict,
    write_measure,
    write_rank,
)
from kohaku_ray.pages.text import one_line, visible
from kohaku_ray.sweep.compare import Sweep, SweepGroups, TableCell

_STATE = ("table", "cell_id", "state", "reason", "repeats", "n_seeds", "n_questions", "is_thin", "mean", "sd")
_STATISTICS = (
    *("rank", "rank_low", "rank_high", "is_best", "n_common", "difference", "ci_low", "ci_high"),
    *("welch_p", "welch_p_holm", "stars", "permutation_p", "permutation_p_holm", "hedges_g", "d_z", "runs"),
)

Lines = list[list[str]]
"""A table as texts; its head comes first."""


def describe_sweep(sweep: Sweep, stats: Sequence[TableStats] | None = None) -> str:
    """Write a sweep for a terminal: the score tables first, then its notes; ``stats`` saves computing them again."""
    tables = compute_sweep_stats(sweep) if stats is None else stats
    parts = [one_line(f"{sweep.title} ({sweep.name})")]
    for one in tables:
        n_text = len(one.grid.row_axes)
        suffix = max([len(_suffix(shown(one, place))) for place in one.grid.cells], default=0)
        head, *rows = _scores(one, one_line, _terminal(suffix))
        parts.append(f"{one_line(one.table.title)}\n\n{aligned(head, rows, n_text)}")
        for name in one.table.show:
            head, *rows = _measures(one, name, one_line)
            parts.append(f"{one_line(name)}\n\n{aligned(head, rows, n_text)}")
        if lines := _below(one, legend(one, marks="")):
            parts.append("\n".join(map(one_line, lines)))
    if sweep.groups is not None:
        names = [one_line(name) for name in sweep.groups.names]
        parts.append("\n\n".join(split_tables(names, order_of(sweep.groups), sweep.groups.split, "settings")))
    about = sweep_verdict(sweep)
    spent = [f"{name}: {text}" for name, text in sweep.spending.items()]
    return "\n\n".join(parts + ["\n".join(map(one_line, lines)) for lines in (about, sweep.notes, spent) if lines])


def order_of(groups: SweepGroups) -> list[int]:
    """Order the settings by their rank on the first group."""
    ranks = groups.split.ranks[groups.split.labels[0]]
    return sorted(range(len(ranks)), key=lambda at: (ranks[at], at))


def groups_csv(groups: SweepGroups) -> str:
    """Write one line per setting: its score on every group, its ranks, and what both change from the first group."""
    split, later = groups.split, groups.split.labels[1:]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    changes = [f"{change} {label}" for change in ("difference", "move") for label in later]
    writer.writerow(["setting", *split.labels, *(f"rank {label}" for label in split.labels), *changes])
    for at in order_of(groups):
        scores = [f"{split.scores[label][at].score:.6f}" for label in split.labels]
        ranks = [f"{split.ranks[label][at]:g}" for label in split.labels]
        differences = [_decimal(split.differences[label][at]) for label in later]
        moves = [f"{split.moves[label][at]:g}" for label in later]
        writer.writerow([visible(groups.names[at]), *scores, *ranks, *differences, *moves])
    return buffer.getvalue()


def as_markdown(stats: TableStats) -> str:
    """Write the score table and its measures as Markdown."""
    parts = [
        f"# {_markdown(stats.table.title)}",
        _markdown_table(stats, _scores(stats, _markdown, _markdown_field)),
    ]
    for name in stats.table.show:
        parts += [f"## {_markdown(name)}", _markdown_table(stats, _measures(stats, name, _markdown))]
    return "\n\n".join([*parts, *map(_markdown, _below(stats, legend(stats)))]) + "\n"


def as_latex(stats: TableStats) -> str:
    r"""Write the score table and its measures as LaTeX, for ``\input`` into a document that uses booktabs."""
    parts = [
        "% needs \\usepackage{booktabs}; letters beyond the Latin ones need LuaLaTeX or XeLaTeX",
        f"% {one_line(stats.table.title)}",
        _latex_table(stats, _scores(stats, _latex, _latex_field)),
    ]
    for name in stats.table.show:
        heading = f"\\par\\medskip\\noindent {_latex(name)}\\par\\noindent"
        parts += [heading, _latex_table(stats, _measures(stats, name, _latex))]
    return "\n".join([*parts, *(f"\\par\\noindent {_latex(line)}" for line in _below(stats, legend(stats)))]) + "\n"


def as_csv(stats: TableStats) -> str:
    """Write one line per cell with all its figures; an unknown figure is empty.

    Where cells have the setting of a paper, its figures are in columns ``paper score`` and ``paper MEASURE``.

    A part of the score, an axis or a measure with the name of a figure is written with ``part``, ``axis`` or
    ``measure`` before its name.
    """
    cells = stats.grid.cells
    parts = {name: _column("part", name, [*_STATE, *_STATISTICS]) for name in stats.parts}
    figures = [*_STATE, *parts.values(), *_STATISTICS]
    axes = {axis.name: _column("axis", axis.name, figures) for axis in stats.table.axes}
    names = dict.fromkeys(name for cell in cells.values() for name in cell.measures)
    measures = {name: _column("measure", name, [*figures, *axes.values()]) for name in names}
    is_spread = stats.table.spread == "questions"
    spreads = {name: f"{column} sd" for name, column in measures.items() if is_spread and name in stats.table.show}
    buffer = io.StringIO()
    papers = {name: f"paper {visible(name)}" for cell in cells.values() for name in cell.paper}
    columns = [*axes.values(), *figures, *measures.values(), *spreads.values(), *papers.values()]
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for place, cell in cells.items():
        labels = {column: visible(cell.at[name]) for name, column in axes.items()}
        spread = {name: Spread.of(values) for name, values in cell.measures.items() if values.size}
        means = {column: _decimal(spread[name].mean) for name, column in measures.items() if name in spread}
        for name, column in spreads.items():
            one = measured(stats.table, cell, name)
            means[column] = _decimal(one.sd if one else None)
        scored = {column: _decimal(float(cell.parts[name].mean())) for name, column in parts.items() if cell.is_scored}
        paper = {column: _decimal(cell.paper.get(name)) for name, column in papers.items()}
        writer.writerow(labels | _record(stats, place, cell) | scored | means | paper)
    return buffer.getvalue()


def _record(stats: TableStats, place: Place, cell: TableCell) -> dict[str, str]:
    record = {
        "table": visible(stats.table.name),
        "cell_id": visible(cell.cell_id),
        "state": cell.state,
        "reason": visible(cell.reason),
        "repeats": stats.table.repeats,
        "n_seeds": str(len(cell.seeds)),
        "n_questions": str(len(cell.question_ids)),
        "runs": " ".join(map(visible, cell.run_ids)),
    }
    one = stats.comparisons.get(place)
    if one is None:
        return record
    between = stats.selection.rank_intervals.get(cell.cell_id) if stats.selection else None
    low, high = (f"{end:g}" for end in between) if between else ("", "")
    return record | {
        "rank_low": low,
        "rank_high": high,
        "is_thin": str(cell.is_thin).lower(),
        "mean": _decimal(one.mean),
        "sd": _decimal(one.sd),
        "rank": f"{stats.ranks[place]:g}",
        "is_best": str(one.is_best).lower(),
        "n_common": str(one.n_common),
        "difference": _decimal(one.interval.mean),
        "ci_low": _decimal(one.interval.low),
        "ci_high": _decimal(one.interval.high),
        "welch_p": _decimal(one.welch.p),
        "welch_p_holm": _decimal(one.welch_holm),
        "stars": one.stars,
        "permutation_p": _decimal(one.permutation.p),
        "permutation_p_holm": _decimal(one.permutation_holm),
        "hedges_g": _decimal(one.welch.g),
        "d_z": _decimal(one.d_z),
    }


def _column(kind: str, name: str, taken: Sequence[str]) -> str:
    name = visible(name)
    return f"{kind} {name}" if name in taken else name


def _decimal(number: float | None) -> str:
    return "" if number is None or math.isnan(number) else f"{number:z.6f}"


def _below(stats: TableStats, explained: Sequence[str]) -> list[str]:
    return [*footnotes(stats), *explained, *table_verdict(stats), *stats.table.notes]


def _scores(stats: TableStats, escape: Callable[[str], str], field: Callable[[Shown], str]) -> Lines:
    grid = stats.grid
    first = [*map(escape, head(stats)), *(["average rank"] if stats.average else [])]
    rows = [
        [*map(escape, row), *(field(shown(stats, (row, column))) for column in grid.columns)]
        + ([write_rank(stats.average.get(row))] if stats.average else [])
        for row in grid.rows
    ]
    return [first, *rows]


def _measures(stats: TableStats, name: str, escape: Callable[[str], str]) -> Lines:
    grid, found = stats.grid, write_measure(stats, name)
    rows = [
        [*map(escape, row), *(escape(found.get((row, column), "")) for column in grid.columns)] for row in grid.rows
    ]
    return [[*map(escape, head(stats, name))], *rows]


def _suffix(field: Shown) -> str:
    return f" {field.raised}".rstrip() + (f" ({field.paper})" if field.paper else "")


def _terminal(width: int) -> Callable[[Shown], str]:
    names = {"best": "best ", "second": "2nd ", "": ""}

    def field(field: Shown) -> str:
        return f"{names[field.mark]}{field.text}{_suffix(field):<{width}}"

    return field


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|~&$#])", r"\\\1", one_line(text))


def _markdown_field(field: Shown) -> str:
    text = {"best": f"**{field.text}**", "second": f"<ins>{field.text}</ins>", "": field.text}[field.mark]
    return text + _markdown(_suffix(field)).replace("\\[", " \\[")


def _markdown_table(stats: TableStats, lines: Lines) -> str:
    n_text = len(stats.grid.row_axes)
    rule = ["---" if at < n_text else "---:" for at in range(len(lines[0]))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "·": r"$\cdot$",
    "–": r"\textendash{}",
    "…": r"\dots{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{letter: f"{{{letter}}}" for letter in '[]*"'},  # no optional argument, no starred command
    **{chr(0x2400 + code): f"{{[}}U+{code:04X}{{]}}" for code in range(0x20)},  # symbols that few fonts have
}


def _latex(text: str) -> str:
    escaped = "".join(_LATEX.get(letter, letter) for letter in one_line(text))
    return re.sub(r"([-',])(?=\1)", r"\1{}", escaped)  # no ligature


def _latex_field(field: Shown) -> str:
    command = {"best": r"\textbf", "second": r"\underline", "": ""}[field.mark]
    text = f"{command}{{{_latex(field.text)}}}" if command else _latex(field.text)
    raised = field.stars + (r"\dagger" if field.is_thin else "")
    text += f"$^{{{raised}}}$" if raised else ""
    return (
        text + (f" {{[}}{field.footnote}{{]}}" if field.footnote else "") + (f" ({field.paper})" if field.paper else "")
    )


def _latex_table(stats: TableStats, lines: Lines) -> str:
    n_text = len(stats.grid.row_axes)
    first, *rows = (f"{' & '.join(line)} \\\\" for line in lines)
    columns = "l" * n_text + "r" * (len(lines[0]) - n_text)
    body = ["\\toprule", first, "\\midrule", *rows, "\\bottomrule"]
    return "\n".join([f"\\begin{{tabular}}{{{columns}}}", *body, "\\end{tabular}"])
