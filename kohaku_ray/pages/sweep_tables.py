"""A sweep's tables: their layout and statistics, and what they are as Markdown, CSV, LaTeX and for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from kohaku_ray.evaluation.statistics import STAR_LEVELS
from kohaku_ray.pages.race_page import describe_race
from kohaku_ray.pages.score_text import split_tables
from kohaku_ray.pages.tables import as_csv, as_latex, as_markdown, as_text, escape_latex, escape_markdown
from kohaku_ray.pages.text import cut, one_line, visible
from kohaku_ray.sweep.compare import (
    FEW_QUESTIONS,
    FEW_SEEDS,
    SCORE,
    SweepCell,
    SweepGroups,
    SweepRecord,
    write_fixed,
)
from kohaku_ray.sweep.statistics import (
    ONLY_COLUMN,
    GridPosition,
    Spread,
    TableStats,
    average_measure,
    average_score,
    compute_sweep_stats,
    describe_sweep_selection,
    describe_table_selection,
    explain_state,
    rank_settings,
)
from kohaku_ray.table import Column, MarkedText, Table, TableRow

THIN = "†"
"""Marks a figure from few questions or seeds."""


Mark = Literal["best", "second", ""]

DECIMAL = "z.6f"
_FORMATS = dict.fromkeys(("rank", "column_rank"), "g")

REASON_CHARS = 600
"""Longest reason shown; longer ones are cut, but whole in the CSV."""


def write_spread(spread: Spread, digits: int = 3) -> str:
    """Write a mean with its deviation."""
    mean = f"{spread.mean:z,.{digits}f}"
    return mean if math.isnan(spread.sd) else f"{mean} ± {spread.sd:,.{digits}f}"


def score_field(stats: TableStats, position: GridPosition, anchors: Mapping[str, str]) -> MarkedText:
    """Write a field of the score table: mean and deviation with their marks, or the state of a cell without scores."""
    cell = stats.grid.cells.get(position)
    if cell is None:
        return MarkedText("")
    reason = explain_state(cell)
    footnote = 1 + stats.reasons.index(reason) if reason else 0
    comparison = stats.comparisons.get(position)
    if cell.state == "dropped":
        return MarkedText(f"({write_spread(average_score(cell))})", footnote=footnote)
    if comparison is None:
        return MarkedText("no scores" if cell.state == "finished" else cell.state, footnote=footnote)
    is_alone = sum(column == position[1] for _, column in stats.comparisons) == 1
    mark: Mark = "" if is_alone else "best" if comparison.is_best else "second" if comparison.is_second else ""
    is_marked = cell.is_thin and not all(stats.grid.cells[other].is_thin for other in stats.comparisons)
    raised = comparison.stars + (THIN if is_marked else "")
    link = f"#{anchors[cell.cell_id]}" if cell.cell_id in anchors else ""
    return MarkedText(write_spread(average_score(cell)), mark, raised, footnote, _write_paper(cell, SCORE, 3), link)


def _write_paper(cell: SweepCell, name: str, digits: int) -> str:
    """Write the paper's figure of a cell; empty where it has none of this setting."""
    return f"paper {cell.paper[name]:,.{digits}f}" if name in cell.paper else ""


def write_measure(stats: TableStats, name: str) -> dict[GridPosition, str]:
    """Write a measure of every cell that has it, with digits by its size."""
    cells = stats.grid.cells.items()
    spreads = {
        position: spread for position, cell in cells if (spread := average_measure(stats.table, cell, name)) is not None
    }
    largest = max((abs(spread.mean) for spread in spreads.values()), default=0.0)
    digits = 0 if largest >= 1000 else 1 if largest >= 100 else 2 if largest >= 1 else 3
    paper = {position: _write_paper(stats.grid.cells[position], name, digits) for position in spreads}
    return {
        position: f"{write_spread(spread, digits)} ({paper[position]})"
        if paper[position]
        else write_spread(spread, digits)
        for position, spread in spreads.items()
    }


def score_meaning(stats: TableStats) -> str:
    """Say what a score of the table is."""
    n = max((comparison.n_seeds for comparison in stats.comparisons.values()), default=1)
    repeats = stats.table.repeats
    return f"Mean ± standard deviation over {repeats}." if n > 1 else f"Scores of one {repeats.removesuffix('s')}."


def explain_marks(stats: TableStats, *, is_marked: bool = True) -> list[str]:
    """Explain the marks in a table; ``is_marked``: the best are marked by their looks."""
    marks_of_cells = {score_field(stats, position, {}).mark for position in stats.grid.cells}
    cells = [stats.grid.cells[position] for position in stats.comparisons]
    repeats = stats.table.repeats
    lines = []
    if cells:
        lines.append(score_meaning(stats))
    if stats.table.show and stats.table.spread == "questions" and lines:
        lines.append("Measures of the context: mean ± standard deviation over questions.")
    if is_marked and "best" in marks_of_cells:
        second = "; underlined: the second" if "second" in marks_of_cells else ""
        lines[0] = f"{lines[0]} Bold: the best of its column{second}."
    if any(comparison.stars for comparison in stats.comparisons.values()):
        levels = ", ".join(f"{mark} p < {level:g}" for mark, level in reversed(STAR_LEVELS.items()))
        lines.append(
            "Stars: differs from the column's best on other questions like these, by sign flips paired by question and "
            f"corrected for the choice of the best: {levels}."
        )
    if any(cell.is_thin for cell in cells):
        few = {
            f"{FEW_QUESTIONS} questions": any(len(cell.question_ids) < FEW_QUESTIONS for cell in cells),
            f"{FEW_SEEDS} {repeats}": any(len(cell.seeds) < FEW_SEEDS and not cell.is_exact for cell in cells),
        }
        who = "Every cell is" if all(cell.is_thin for cell in cells) else THIN
        named = " or ".join(name for name, is_so in few.items() if is_so)
        lines.append(f"{who} from fewer than {named}: a difference may be chance.")
    if any(cell.paper for cell in stats.grid.cells.values()):
        lines.append("paper: the paper's own figure of the same setting, not a figure of this sweep.")
    if stats.average:
        lines.append("Average rank: over the columns in which every row has a score; 1 is best.")
    n_asked = {compared.n_questions for compared in stats.comparisons.values()}
    if len(n_asked) > 1:
        lines.append(
            f"Cells have {min(n_asked):,} to {max(n_asked):,} questions; each is compared with the best of its column "
            "on those that both have."
        )
    return lines


def selection_table(facts: Sequence[tuple[str, str]], title: str = "What these questions can tell") -> Table:
    """Lay out what a selection can tell."""
    return Table.of((Column("", align="left"), Column("", align="left")), facts, title)


def _selection_lines(facts: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{name[0].upper()}{name[1:]}: {text}." for name, text in facts]


def list_footnotes(stats: TableStats) -> list[str]:
    """List the reasons of unfinished cells, numbered."""
    return [f"[{number}] {cut(reason, REASON_CHARS)}" for number, reason in enumerate(stats.reasons, 1)]


def score_table(stats: TableStats, anchors: Mapping[str, str] | None = None) -> Table:
    """Lay out the scores, with links to the cells that have ``anchors`` on a page, and the rows' average ranks."""
    grid = stats.grid
    head = column_heads(stats)
    rows: list[TableRow] = [
        (*row, *(score_field(stats, (row, column), anchors or {}) for column in grid.columns)) for row in grid.rows
    ]
    if stats.average:
        head.append(Column("average rank", ".2f"))
        rows = [(*fields, stats.average.get(row)) for row, fields in zip(grid.rows, rows, strict=True)]
    return Table.of(head, rows, stats.table.title, len(grid.row_axes))


def measure_tables(stats: TableStats) -> Iterator[Table]:
    """Lay out the measures that a table shows beside its scores."""
    for name in stats.table.show:
        written = write_measure(stats, name)
        rows = [(*row, *(written.get((row, column)) for column in stats.grid.columns)) for row in stats.grid.rows]
        yield Table.of(column_heads(stats, name), rows, name, len(stats.grid.row_axes))


def column_heads(stats: TableStats, score: str = ONLY_COLUMN) -> list[str | Column]:
    """Name a table's columns; ``score`` is the only one of a table with one axis."""
    grid = stats.grid
    columns = [f"{grid.column_axis} = {label}" for label in grid.columns] if grid.column_axis else [score]
    return [*grid.row_axes, *columns]


_STATE = ("table", "cell_id", "state", "reason", "repeats", "n_seeds", "n_questions", "is_thin", "mean", "sd")
_STATISTICS = (
    *(
        "rank",
        "n_tied",
        "column_rank",
        "is_best",
        "n_common",
        "difference",
        "ci_low",
        "ci_high",
    ),
    *("permutation_p", "corrected_p", "stars", "welch_p", "hedges_g", "d_z", "runs"),
)


def describe_sweep(sweep: SweepRecord, stats: Sequence[TableStats] | None = None) -> str:
    """Write a sweep for a terminal: the score tables first, then its notes; ``stats`` saves computing them again."""
    parts = [one_line(f"{sweep.title} ({sweep.name})")]
    for table_stats in compute_sweep_stats(sweep) if stats is None else stats:
        tables = score_table(table_stats), *measure_tables(table_stats)
        parts += [f"{one_line(table.title)}\n\n{as_text(table)}" for table in tables]
        if lines := _list_notes(table_stats, explain_marks(table_stats, is_marked=False)):
            parts.append("\n".join(map(one_line, lines)))
    if sweep.groups is not None:
        parts.append(
            "\n\n".join(split_tables(sweep.groups.names, rank_settings(sweep.groups), sweep.groups.split, "settings"))
        )
    over_all = describe_sweep_selection(sweep)
    about = ["Over all tables:", *_selection_lines(over_all)] if over_all else []
    fixed = [f"Fixed in {name}: {write_fixed(settings)}." for name, settings in sweep.fixed.items()]
    spent = [f"{name}: {text}" for name, text in sweep.spending.items()]
    blocks = about, [*fixed, *sweep.notes], spent
    parts += ["\n".join(map(one_line, lines)) for lines in blocks if lines]
    if sweep.race is not None:
        parts.append("\n".join([sweep.race.rule, *describe_race(sweep.race)]))
    return "\n\n".join(parts)


def write_markdown(stats: TableStats) -> str:
    """Write the score table and its measures as Markdown."""
    scores, *measures = score_table(stats), *measure_tables(stats)
    parts = [f"# {escape_markdown(scores.title)}", as_markdown(scores)]
    for table in measures:
        parts += [f"## {escape_markdown(table.title)}", as_markdown(table)]
    return "\n\n".join([*parts, *map(escape_markdown, _list_notes(stats, explain_marks(stats)))]) + "\n"


def write_csv(stats: TableStats) -> str:
    """Write a line per cell with all its figures, see ``cells_table``."""
    return as_csv(cells_table(stats))


def write_latex(stats: TableStats) -> str:
    r"""Write the score table and its measures as LaTeX, for ``\input`` into a document that uses booktabs."""
    scores, *measures = score_table(stats), *measure_tables(stats)
    parts = [
        "% needs \\usepackage{booktabs}; letters beyond the Latin ones need LuaLaTeX or XeLaTeX",
        f"% {one_line(scores.title)}",
        as_latex(scores),
    ]
    for table in measures:
        parts += [f"\\par\\medskip\\noindent {escape_latex(table.title)}\\par\\noindent", as_latex(table)]
    below = (f"\\par\\noindent {escape_latex(line)}" for line in _list_notes(stats, explain_marks(stats)))
    return "\n".join([*parts, *below]) + "\n"


def _list_notes(stats: TableStats, explained: Sequence[str]) -> list[str]:
    return [*list_footnotes(stats), *explained, *_selection_lines(describe_table_selection(stats)), *stats.table.notes]


def group_scores_table(groups: SweepGroups) -> Table:
    """Lay out a row per setting: its score on every group, its ranks, and what both change from the first group."""
    split, later = groups.split, groups.split.labels[1:]
    columns = [
        Column("setting", align="left"),
        *(Column(label, DECIMAL) for label in split.labels),
        *(Column(f"rank {label}", "g") for label in split.labels),
        *(Column(f"difference {label}", DECIMAL) for label in later),
        *(Column(f"move {label}", "g") for label in later),
    ]
    rows: list[TableRow] = [
        (
            groups.names[number],
            *(split.scores[label][number].score for label in split.labels),
            *(split.ranks[label][number] for label in split.labels),
            *(split.differences[label][number] for label in later),
            *(split.moves[label][number] for label in later),
        )
        for number in rank_settings(groups)
    ]
    return Table.of(columns, rows)


def cells_table(stats: TableStats) -> Table:
    """Lay out a row per cell with all its figures; an unknown figure is None.

    Where cells have the setting of a paper, its figures are in columns ``paper score`` and ``paper MEASURE``.

    A part of the score, an axis or a measure with the name of a figure is written with ``part``, ``axis`` or
    ``measure`` before its name.
    """
    cells = stats.grid.cells
    parts = {name: _name_column("part", name, [*_STATE, *_STATISTICS]) for name in stats.parts}
    figures = [*_STATE, *parts.values(), *_STATISTICS]
    axes = {axis.name: _name_column("axis", axis.name, figures) for axis in stats.table.axes}
    names = dict.fromkeys(name for cell in cells.values() for name in cell.measures)
    measures = {name: _name_column("measure", name, [*figures, *axes.values()]) for name in names}
    is_spread = stats.table.spread == "questions"
    spreads = {name: f"{column} sd" for name, column in measures.items() if is_spread and name in stats.table.show}
    papers = {name: f"paper {name}" for cell in cells.values() for name in cell.paper}
    labels = [*axes.values(), *figures, *measures.values(), *spreads.values(), *papers.values()]
    rows = []
    for position, cell in cells.items():
        record: dict[str, object] = {column: cell.labels[name] for name, column in axes.items()}
        record |= _cell_figures(stats, position, cell)
        if cell.is_scored:
            record |= {column: float(cell.parts[name].mean()) for name, column in parts.items()}
        means = {name: Spread.of(values).mean for name, values in cell.measures.items() if values.size}
        record |= {column: means.get(name) for name, column in measures.items()}
        deviations = {name: average_measure(stats.table, cell, name) for name in spreads}
        record |= {spreads[name]: spread.sd for name, spread in deviations.items() if spread is not None}
        record |= {column: cell.paper.get(name) for name, column in papers.items()}
        rows.append([None if value != value else value for value in map(record.get, labels)])
    return Table.of([Column(label, _FORMATS.get(label, DECIMAL)) for label in labels], rows)


def _cell_figures(stats: TableStats, position: GridPosition, cell: SweepCell) -> dict[str, object]:
    record: dict[str, object] = {
        "table": stats.table.name,
        "cell_id": cell.cell_id,
        "state": cell.state,
        "reason": cell.reason,
        "repeats": stats.table.repeats,
        "n_seeds": len(cell.seeds),
        "n_questions": len(cell.question_ids),
        "runs": " ".join(cell.run_ids),
    }
    comparison = stats.comparisons.get(position)
    if comparison is None:
        return record | ({"mean": average_score(cell).mean} if cell.total.size else {})
    chosen = stats.selection
    if chosen is not None and cell.cell_id in chosen.ranks:
        record |= {"rank": chosen.ranks[cell.cell_id], "n_tied": chosen.n_tied[cell.cell_id]}
    return record | {
        "is_thin": str(cell.is_thin).lower(),
        "mean": comparison.mean,
        "sd": comparison.sd,
        "column_rank": stats.ranks[position],
        "is_best": str(comparison.is_best).lower(),
        "n_common": comparison.n_common,
        "difference": comparison.interval.mean,
        "ci_low": comparison.interval.low,
        "ci_high": comparison.interval.high,
        "permutation_p": comparison.permutation.p,
        "corrected_p": comparison.corrected_p,
        "stars": comparison.stars,
        "welch_p": comparison.welch.p,
        "hedges_g": comparison.welch.g,
        "d_z": comparison.d_z,
    }


def _name_column(kind: str, name: str, taken: Sequence[str]) -> str:
    name = visible(name)
    return f"{kind} {name}" if name in taken else name
