"""A sweep's tables with their statistics: laid out once, written as Markdown, CSV and LaTeX and for the terminal."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy.typing as npt

from kohaku_ray.arrays import F64
from kohaku_ray.evaluation.comparing import Comparison, average_rank, compare_column
from kohaku_ray.evaluation.grid import FEW_QUESTIONS, FEW_SEEDS, Cell, Sweep, Table
from kohaku_ray.evaluation.report import table as aligned
from kohaku_ray.evaluation.statistics import STAR_LEVELS, mean_sd, ranks
from kohaku_ray.reporting.text import cut, visible
from kohaku_ray.values import parse_number

THIN = "†"
"""Marks a figure that stands on few questions or seeds."""

ONLY_COLUMN = "score"
"""Head of the column of a table that has one axis: its labels become the rows, to be compared with one another."""

Row = tuple[str, ...]
Place = tuple[Row, str]
Mark = Literal["best", "second", ""]

REASON_CHARS = 600
"""A reason longer than this is cut where it is shown; the CSV has all of it."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean with its standard deviation.

    Attributes:
        mean: Over seeds or subsamples.
        sd: NaN where there is one alone.
    """

    mean: float
    sd: float


@dataclass(frozen=True, slots=True)
class Grid:
    """A table as it is shown.

    Attributes:
        table: The table.
        row_axes: Names of the axes of the rows.
        column_axis: Name of the axis of the columns; empty where there is none.
        rows: Labels of each row.
        columns: Labels of the columns.
        cells: By row and column.
    """

    table: Table
    row_axes: Row
    column_axis: str
    rows: tuple[Row, ...]
    columns: Row
    cells: Mapping[Place, Cell]

    @property
    def row_axis(self) -> str:
        """What the rows are, in a line."""
        return " · ".join(self.row_axes)

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """The columns as numbers, where all of them are."""
        numbers = [parse_number(label) for label in self.columns]
        found = tuple(number for number in numbers if number is not None)
        return found if len(found) == len(numbers) else None

    def row_name(self, row: Row) -> str:
        """Name a row in a line."""
        return " · ".join(row)

    def turned(self) -> Grid:
        """Exchange rows and columns."""
        cells: dict[Place, Cell] = {((column,), self.row_name(row)): cell for (row, column), cell in self.cells.items()}
        rows = tuple((column,) for column in self.columns)
        columns = tuple(map(self.row_name, self.rows))
        return Grid(self.table, (self.column_axis,), self.row_axis, rows, columns, cells)


@dataclass(frozen=True, slots=True)
class Judged:
    """A table with its statistics.

    Attributes:
        grid: As it is shown.
        comparisons: Of the scored cells, by place.
        ranks: Rank of each of them in its column.
        average: Average rank of the rows over the columns; empty where there are not two of each, or no column is
            complete.
        reasons: Why cells are not finished, each once; they are numbered from 1.
    """

    grid: Grid
    comparisons: Mapping[Place, Comparison]
    ranks: Mapping[Place, float]
    average: Mapping[Row, float]
    reasons: tuple[str, ...]

    @property
    def table(self) -> Table:
        """The table."""
        return self.grid.table


@dataclass(frozen=True, slots=True)
class Shown:
    """What stands in a field of a score table.

    Attributes:
        text: Mean and deviation, or the state of a cell without scores.
        stars: The paper's.
        mark: Whether it is the column's best or second.
        is_thin: It stands on little.
        footnote: Number of its reason; 0 for none.
        is_scored: The text is a figure.
    """

    text: str
    stars: str = ""
    mark: Mark = ""
    is_thin: bool = False
    footnote: int = 0
    is_scored: bool = False


def judge(table: Table) -> Judged:
    """Lay a table out, and compare its cells."""
    grid = lay_out(table)
    comparisons: dict[Place, Comparison] = {}
    ranked: dict[Place, float] = {}
    for column in grid.columns:
        places = [(row, column) for row in grid.rows if (row, column) in grid.cells]
        scored = [place for place in places if grid.cells[place].is_scored]
        found = compare_column([grid.cells[place] for place in scored])
        comparisons |= dict(zip(scored, found, strict=True))
        if found:
            ranked |= dict(zip(scored, ranks([one.mean for one in found]).tolist(), strict=True))
    is_grid = len(grid.rows) > 1 and len(grid.columns) > 1
    reasons = dict.fromkeys(_reason(cell) for cell in grid.cells.values() if _reason(cell))
    return Judged(grid, comparisons, ranked, average_rank(table) if is_grid else {}, tuple(reasons))


def judge_sweep(sweep: Sweep) -> list[Judged]:
    """Judge all tables of a sweep, which takes a while where there are many questions."""
    return [judge(table) for table in sweep.tables]


def lay_out(table: Table) -> Grid:
    """Say what stands where; the labels of an only axis are rows."""
    if len(table.axes) == 1:
        rows = tuple((label,) for label in table.columns)
        cells: dict[Place, Cell] = {((table.column_of(cell),), ONLY_COLUMN): cell for cell in table.cells}
        return Grid(table, axis_names(table), "", rows, (ONLY_COLUMN,), cells)
    places = {(table.row_of(cell), table.column_of(cell)): cell for cell in table.cells}
    names = axis_names(table)
    return Grid(table, names[:-1], names[-1], table.rows, table.columns, places)


def name_cell(table: Table, cell: Cell) -> str:
    """Name a cell by its labels in a line."""
    names = zip(axis_names(table), table.axes, strict=True)
    return ", ".join(f"{name} = {cell.at[axis.name]}" for name, axis in names)


def axis_names(table: Table) -> tuple[str, ...]:
    """Name a table's axes by as many of the last parts of their keys as tell them apart."""
    keys = [axis.name.split(".") for axis in table.axes]
    for n_parts in range(1, max(map(len, keys), default=0) + 1):
        names = tuple(".".join(key[-n_parts:]) for key in keys)
        if len(set(names)) == len(names) and all(names):
            return names
    return tuple(axis.name for axis in table.axes)


def score_of(cell: Cell) -> Spread:
    """Average a scored cell."""
    return spread(cell.scores)


def spread(values: npt.ArrayLike) -> Spread:
    """Average at least one value."""
    mean, sd = mean_sd(values)
    return Spread(mean, math.nan if sd is None else sd)


def figure(score: Spread, digits: int = 3) -> str:
    """Write a mean with its deviation."""
    mean = f"{score.mean:z,.{digits}f}"
    return mean if math.isnan(score.sd) else f"{mean} ± {score.sd:,.{digits}f}"


def shown(judged: Judged, place: Place) -> Shown:
    """Say what stands in a field of the score table."""
    cell = judged.grid.cells.get(place)
    if cell is None:
        return Shown("")
    reason = _reason(cell)
    footnote = 1 + judged.reasons.index(reason) if reason else 0
    comparison = judged.comparisons.get(place)
    if comparison is None:
        return Shown("no scores" if cell.state == "finished" else cell.state, footnote=footnote)
    is_alone = sum(column == place[1] for _, column in judged.comparisons) == 1
    mark: Mark = "" if is_alone else "best" if comparison.is_best else "second" if comparison.is_second else ""
    text = figure(score_of(cell))
    return Shown(text, comparison.stars, mark, cell.is_thin, footnote, is_scored=True)


def write_measure(judged: Judged, name: str) -> dict[Place, str]:
    """Write a measure of every cell that has it, with as many digits as its size asks for."""
    found = {
        place: spread(cell.measures[name])
        for place, cell in judged.grid.cells.items()
        if name in cell.measures and cell.measures[name].size
    }
    largest = max((abs(one.mean) for one in found.values()), default=0.0)
    digits = 0 if largest >= 1000 else 1 if largest >= 100 else 2 if largest >= 1 else 3
    return {place: figure(one, digits) for place, one in found.items()}


def legend(judged: Judged, marks: str = "Bold: the best of its column; underlined: the second.") -> list[str]:
    """Explain what a table has beside its figures.

    Args:
        judged: The table.
        marks: How the best are marked.
    """
    fields = [shown(judged, place) for place in judged.grid.cells]
    repeats = judged.table.repeats
    lines = []
    if any(field.is_scored for field in fields):
        lines.append(f"Mean ± standard deviation over {repeats}.")
    if any(field.mark for field in fields):
        lines[-1] = f"{lines[-1]} {marks}".rstrip()
    if any(field.stars for field in fields):
        levels = ", ".join(f"{'*' * n} p < {level:g}" for n, level in enumerate(STAR_LEVELS, 1))
        lines.append(f"Stars: differs from the column's best by Welch's t over {repeats}, not corrected: {levels}.")
        if repeats == "subsamples":
            lines.append("Subsamples of one pool share members, so these stars claim more than those over seeds.")
    if any(field.is_thin for field in fields):
        lines.append(f"{THIN} fewer than {FEW_QUESTIONS} questions or {FEW_SEEDS} {repeats}: says little.")
    if judged.average:
        lines.append("Average rank: over the columns in which every row has a score; 1 is best.")
    n_asked = {one.n_questions for one in judged.comparisons.values()}
    if len(n_asked) > 1:
        lines.append(
            f"Cells stand on {min(n_asked):,} to {max(n_asked):,} questions; each is compared with the best of its "
            "column on those that both have."
        )
    return lines


def footnotes(judged: Judged) -> list[str]:
    """Number the reasons of what is not finished."""
    return [f"[{at}] {cut(reason, REASON_CHARS)}" for at, reason in enumerate(judged.reasons, 1)]


def below(judged: Judged, marks: str | None = None) -> list[str]:
    """List all that stands below a table."""
    explained = legend(judged) if marks is None else legend(judged, marks)
    return [*footnotes(judged), *explained, *judged.table.notes]


def head(judged: Judged, score: str = ONLY_COLUMN) -> list[str]:
    """Name a table's columns.

    Args:
        judged: The table.
        score: Name of the only column of a table with one axis.
    """
    grid = judged.grid
    columns = [f"{grid.column_axis} = {label}" for label in grid.columns] if grid.column_axis else [score]
    return [*grid.row_axes, *columns]


def write_rank(rank: float | None) -> str:
    """Write an average rank."""
    return "" if rank is None else f"{rank:.2f}"


def describe_sweep(sweep: Sweep, judged: Sequence[Judged] | None = None) -> str:
    """Lay a sweep out for a terminal: the score tables first, then what has to be known of it.

    Args:
        sweep: What was measured.
        judged: Its tables by ``judge_sweep``, where they are at hand already.
    """
    tables = judge_sweep(sweep) if judged is None else judged
    parts = [_line(f"{sweep.title} ({sweep.name})")]
    for one in tables:
        n_text = len(one.grid.row_axes)
        suffix = max([len(_suffix(shown(one, place))) for place in one.grid.cells], default=0)
        parts.append(f"{_line(one.table.title)}\n\n{aligned(*_scores(one, _line, _terminal(suffix)), n_text)}")
        parts += [f"{_line(name)}\n\n{aligned(*_measures(one, name, _line), n_text)}" for name in one.table.show]
        if lines := below(one, marks=""):
            parts.append("\n".join(map(_line, lines)))
    spent = [f"{name}: {text}" for name, text in sweep.spending.items()]
    return "\n\n".join(parts + ["\n".join(map(_line, lines)) for lines in (sweep.notes, spent) if lines])


def as_markdown(judged: Judged) -> str:
    """Write the score table and its measures as Markdown."""
    parts = [
        f"# {_markdown(judged.table.title)}",
        _markdown_table(judged, *_scores(judged, _markdown, _markdown_field)),
    ]
    for name in judged.table.show:
        parts += [f"## {_markdown(name)}", _markdown_table(judged, *_measures(judged, name, _markdown))]
    return "\n\n".join([*parts, *map(_markdown, below(judged))]) + "\n"


def as_latex(judged: Judged) -> str:
    r"""Write the score table and its measures as LaTeX, for ``\input`` into a document that uses booktabs."""
    parts = [
        "% needs \\usepackage{booktabs}; letters beyond the Latin ones need LuaLaTeX or XeLaTeX",
        f"% {_line(judged.table.title)}",
        _latex_table(judged, *_scores(judged, _latex, _latex_field)),
    ]
    for name in judged.table.show:
        heading = f"\\par\\medskip\\noindent {_latex(name)}\\par\\noindent"
        parts += [heading, _latex_table(judged, *_measures(judged, name, _latex))]
    return "\n".join([*parts, *(f"\\par\\noindent {_latex(line)}" for line in below(judged))]) + "\n"


def as_csv(judged: Judged) -> str:
    """Write a line a cell with all that is known of it; what is not known is empty.

    An axis or a measure that is called like a figure is written with ``axis`` or ``measure`` before its name.
    """
    cells = judged.grid.cells
    axes = {axis.name: _column("axis", axis.name, _FIGURES) for axis in judged.table.axes}
    measured = dict.fromkeys(name for cell in cells.values() for name in cell.measures)
    measures = {name: _column("measure", name, [*_FIGURES, *axes.values()]) for name in measured}
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [*axes.values(), *_FIGURES, *measures.values()], restval="", lineterminator="\n")
    writer.writeheader()
    for place, cell in cells.items():
        labels = {column: visible(cell.at[name]) for name, column in axes.items()}
        means = {
            column: _decimal(spread(cell.measures[name]).mean)
            for name, column in measures.items()
            if name in cell.measures and cell.measures[name].size
        }
        writer.writerow(labels | _record(judged, place, cell) | means)
    return buffer.getvalue()


_FIGURES = (
    *("table", "cell_id", "state", "reason", "repeats", "n_seeds", "n_questions", "is_thin", "mean", "sd"),
    *("value", "ref", "abstain", "rank", "is_best", "n_common", "difference", "ci_low", "ci_high"),
    *("welch_p", "welch_p_holm", "stars", "permutation_p", "permutation_p_holm", "hedges_g", "d_z", "runs"),
)


def _record(judged: Judged, place: Place, cell: Cell) -> dict[str, str]:
    record = {
        "table": visible(judged.table.name),
        "cell_id": visible(cell.cell_id),
        "state": cell.state,
        "reason": visible(cell.reason),
        "repeats": judged.table.repeats,
        "n_seeds": str(len(cell.seeds)),
        "n_questions": str(len(cell.question_ids)),
        "runs": " ".join(map(visible, cell.run_ids)),
    }
    one = judged.comparisons.get(place)
    if one is None:
        return record
    return record | {
        "is_thin": str(cell.is_thin).lower(),
        "mean": _decimal(one.mean),
        "sd": _decimal(one.sd),
        **{name: _decimal(float(part.mean())) for name, part in parts_of(cell).items()},
        "rank": f"{judged.ranks[place]:g}",
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


def parts_of(cell: Cell) -> dict[str, F64]:
    """The three parts of a score, by name."""
    return {"value": cell.value, "ref": cell.ref, "abstain": cell.abstain}


def _reason(cell: Cell) -> str:
    if cell.state == "finished":
        return ""
    return f"{cell.state}: {cell.reason or 'no reason is known'}"


def _column(kind: str, name: str, taken: Sequence[str]) -> str:
    name = visible(name)
    return f"{kind} {name}" if name in taken else name


def _decimal(number: float | None) -> str:
    return "" if number is None or math.isnan(number) else f"{number:z.6f}"


def _line(text: str) -> str:
    """Bring a text into one line."""
    return " ".join(visible(text).split())


def _scores(
    judged: Judged, escape: Callable[[str], str], field: Callable[[Shown], str]
) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the score table."""
    grid = judged.grid
    rows = [
        [*map(escape, row), *(field(shown(judged, (row, column))) for column in grid.columns)]
        + ([write_rank(judged.average.get(row))] if judged.average else [])
        for row in grid.rows
    ]
    return [*map(escape, head(judged)), *(["average rank"] if judged.average else [])], rows


def _measures(judged: Judged, name: str, escape: Callable[[str], str]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table of a measure."""
    grid, found = judged.grid, write_measure(judged, name)
    rows = [
        [*map(escape, row), *(escape(found.get((row, column), "")) for column in grid.columns)] for row in grid.rows
    ]
    return [*map(escape, head(judged, name))], rows


def _suffix(field: Shown) -> str:
    return f" {field.stars}{THIN if field.is_thin else ''}{f'[{field.footnote}]' if field.footnote else ''}".rstrip()


def _terminal(width: int) -> Callable[[Shown], str]:
    """Write fields whose figures stand below one another."""
    names = {"best": "best ", "second": "2nd ", "": ""}

    def field(field: Shown) -> str:
        return f"{names[field.mark]}{field.text}{_suffix(field):<{width}}"

    return field


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|~&$#])", r"\\\1", _line(text))


def _markdown_field(field: Shown) -> str:
    text = {"best": f"**{field.text}**", "second": f"<ins>{field.text}</ins>", "": field.text}[field.mark]
    return text + _markdown(_suffix(field)).replace("\\[", " \\[")


def _markdown_table(judged: Judged, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    n_text = len(judged.grid.row_axes)
    rule = ["---" if at < n_text else "---:" for at in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *rows])


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
    escaped = "".join(_LATEX.get(letter, letter) for letter in _line(text))
    return re.sub(r"([-',])(?=\1)", r"\1{}", escaped)  # no ligature


def _latex_field(field: Shown) -> str:
    command = {"best": r"\textbf", "second": r"\underline", "": ""}[field.mark]
    text = f"{command}{{{_latex(field.text)}}}" if command else _latex(field.text)
    raised = field.stars + (r"\dagger" if field.is_thin else "")
    return text + (f"$^{{{raised}}}$" if raised else "") + (f" {{[}}{field.footnote}{{]}}" if field.footnote else "")


def _latex_table(judged: Judged, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    n_text = len(judged.grid.row_axes)
    lines = [f"{' & '.join(line)} \\\\" for line in [head, *rows]]
    columns = "l" * n_text + "r" * (len(head) - n_text)
    body = ["\\toprule", lines[0], "\\midrule", *lines[1:], "\\bottomrule"]
    return "\n".join([f"\\begin{{tabular}}{{{columns}}}", *body, "\\end{tabular}"])
