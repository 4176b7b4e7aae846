"""The page of a sweep: tables with their statistics, plots, costs, errors, and the questions behind them, packed."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from kohaku_ray.evaluation.metrics import Metric
from kohaku_ray.evaluation.paired import bounded_interval
from kohaku_ray.evaluation.statistics import CONFIDENCE
from kohaku_ray.pages.groups import group_block
from kohaku_ray.pages.page import MAX_BYTES, Packed, page_environment
from kohaku_ray.pages.plots import Chart
from kohaku_ray.pages.race_page import race_block
from kohaku_ray.pages.score_text import explain_conflict
from kohaku_ray.pages.sweep_charts import class_chart, cost_chart, error_chart, rate_charts, table_charts
from kohaku_ray.pages.sweep_tables import (
    explain_marks,
    group_scores_table,
    list_footnotes,
    measure_tables,
    score_table,
    selection_table,
    write_csv,
    write_latex,
    write_markdown,
    write_spread,
)
from kohaku_ray.pages.tables import as_csv
from kohaku_ray.pages.text import cut, visible, write_number
from kohaku_ray.records import pluralize
from kohaku_ray.store.listing import SWEEP_RUNS
from kohaku_ray.store.storage import make_directory, publish
from kohaku_ray.sweep.compare import SweepAnswer, SweepCell, SweepQuestion, SweepRecord, SweepRun
from kohaku_ray.sweep.costs import CellRuns, cost_points, list_cell_runs, pareto_frontier
from kohaku_ray.sweep.error_counts import ErrorCounts, count_errors, list_classes, scored_parts
from kohaku_ray.sweep.statistics import (
    TableStats,
    average_score,
    compute_sweep_stats,
    describe_sweep_selection,
    describe_table_selection,
    find_best,
    name_cell,
)
from kohaku_ray.table import Column, MarkedText, Table, TableRow
from kohaku_ray.values.read import is_blank

N_EXAMPLES = 3
"""Most examples per class of errors, each of another question."""

_FIGURE_CHARS = 60
"""Characters of a title in the names of its files, which file systems hold to 255 bytes."""

_PLACE = "\0"  # replaced by the questions; visible removes it from every text


@dataclass(frozen=True, slots=True)
class Example:
    """A wrong prediction, and the run that gave it."""

    question: SweepQuestion
    given: SweepAnswer
    run: SweepRun


def write_sweep(sweep: SweepRecord, directory: str, stats: Sequence[TableStats] | None = None) -> list[str]:
    """Write a sweep's page, its tables as Markdown, CSV and LaTeX, its plots as SVG and PDF with their data as CSV.

    The page needs nothing beside it; questions are packed until they are opened. All text from questions, models and
    errors is escaped, and invisible characters in it are shown. The same sweep gives the same files, byte by byte.

    Args:
        sweep: The results.
        directory: Directory of ``sweep.html``, ``tables/`` and ``figures/``; created if missing.
        stats: Its tables by ``compute_sweep_stats``, if already computed.

    Returns:
        The paths, the page first.

    Raises:
        DataError: A file cannot be written, or a score is not finite.
    """
    tables = os.path.join(directory, "tables")
    make_directory(tables)
    stats = compute_sweep_stats(sweep) if stats is None else stats
    laid_out = _lay_out(sweep, stats)
    files = {os.path.join(directory, "sweep.html"): _render(sweep, laid_out)}
    for table_stats in stats:
        start = os.path.join(tables, table_stats.table.name)
        files[f"{start}.md"] = write_markdown(table_stats)
        files[f"{start}.csv"] = write_csv(table_stats)
        files[f"{start}.tex"] = write_latex(table_stats)
    if sweep.groups is not None:
        files[os.path.join(tables, "groups.csv")] = as_csv(group_scores_table(sweep.groups))
    written = {path: text.encode() for path, text in files.items()} | _write_figures(laid_out, directory)
    runs = json.dumps({"runs": _list_runs(sweep, directory)}, indent=1)
    for path, data in {**written, os.path.join(directory, SWEEP_RUNS): runs.encode()}.items():
        publish(path, data)
    return list(written)


def _write_figures(laid_out: Mapping[str, Any], directory: str) -> dict[str, bytes]:
    """Write every plot of the page as SVG and PDF, and what it shows as CSV: contents by path."""
    charts = [(f"{block['table'].name} ", chart) for block in laid_out["blocks"] for chart in block["charts"]]
    costs = [laid_out[unit]["chart"] for unit in ("tokens", "seconds") if laid_out[unit]]
    of_errors = [laid_out["class_chart"], *laid_out["rate_charts"], *(chart for *_, chart in laid_out["errors"])]
    of_groups = laid_out["groups"]["charts"] if laid_out["groups"] else []
    charts += [("", chart) for chart in [*of_groups, *costs, *of_errors] if chart is not None]
    figures = os.path.join(directory, "figures")
    if charts:
        make_directory(figures)
    files: dict[str, bytes] = {}
    for table, chart in charts:
        title = re.sub(r"[^\w.]+", "-", visible(chart.title).lower()).strip("-.")
        start = name = os.path.join(figures, table.replace(" ", "-") + title[:_FIGURE_CHARS])
        n = 2
        while f"{start}.csv" in files:
            start, n = f"{name}-{n}", n + 1
        files |= {f"{start}.{form}": chart.svg.as_file(form) for form in ("svg", "pdf")}
        files[f"{start}.csv"] = as_csv(chart.data).encode()
    return files


def _list_runs(sweep: SweepRecord, directory: str) -> dict[str, dict[str, Any]]:
    """Say of each finished run, by its path from ``directory``, its labels and its score: for the list of all runs."""
    paths = {run.run_id: run.path for run in sweep.runs if run.path}
    listed: dict[str, dict[str, Any]] = {}
    for cell in (cell for table in sweep.tables for cell in table.cells if cell.run_ids):
        for run_id, seed, shares in zip(cell.run_ids, cell.seeds, cell.total, strict=True):
            path = os.path.relpath(paths[run_id], directory)
            label = ", ".join(f"{axis}={value}" for axis, value in {**cell.labels, "seed": seed}.items())
            if path in listed:  # it has the first table's labels, where several have the run
                continue
            interval = bounded_interval(sweep.metric, shares)
            score = {"score": float(shares.mean()), "low": interval.low, "high": interval.high}
            listed[path] = {"label": label, "metric": sweep.metric.name, **score}
    return listed


def page(sweep: SweepRecord, stats: Sequence[TableStats]) -> str:
    """Render the page; while it is too large, fewer questions are shown, the same number for each cell."""
    return _render(sweep, _lay_out(sweep, stats))


def _lay_out(sweep: SweepRecord, stats: Sequence[TableStats]) -> dict[str, Any]:
    """Lay out what the template shows, but for the questions."""
    behind, error_classes = list_cell_runs(sweep), list_classes(sweep)
    anchors = {cell_runs.cell.cell_id: anchor_of(cell_runs) for cell_runs in behind}
    blocks = [_lay_out_table(table_stats, number, sweep, anchors) for number, table_stats in enumerate(stats, 1)]
    class_head = "class", "errors", Column("of all errors", ".1f", " %"), Column("what it is", align="left")
    class_rows = [(kind.name, kind.n, 100 * kind.share, kind.note) for kind in error_classes]
    return {
        "sweep": sweep,
        "overview": _tabulate_best(blocks) if len(blocks) > 1 else None,
        "blocks": blocks,
        "selection": selection_table(facts, "What these questions can tell of all tables")
        if (facts := describe_sweep_selection(sweep))
        else None,
        "groups": sweep.groups and group_block(sweep.groups, "settings", "Mean over the runs of each setting."),
        "tokens": _lay_out_costs(behind, "tokens", lambda run: run.tokens),
        "seconds": _lay_out_costs(behind, "seconds", lambda run: run.service_s),
        "errors": _lay_out_errors(sweep),
        "error_classes": Table.of(class_head, class_rows) if class_rows else None,
        "class_chart": class_chart(error_classes) if len(error_classes) > 1 else None,
        "rate_charts": list(rate_charts(sweep)),
        "scored_parts": scored_parts(sweep.metric),
        "classes": [name for name in sweep.metric.classes if name in {kind.name for kind in error_classes}],
        "examples": pick_examples(sweep),
        "settings": _tabulate_settings(sweep),
        **(race_block(sweep.race) if sweep.race else {"view": None}),
    }


def _render(sweep: SweepRecord, laid_out: Mapping[str, Any]) -> str:
    environment = page_environment()
    environment.filters["is_blank"] = is_blank
    text = environment.get_template("sweep.html.j2").render(
        **laid_out,
        questions=Markup(_PLACE),  # noqa: S704 - no text can hold this character, see visible
        packed=Packed(),  # the questions bring their own
    )
    before, after = text.split(_PLACE)
    return before + write_questions(sweep.questions, list_cell_runs(sweep), MAX_BYTES - len(text.encode())) + after


def _lay_out_table(stats: TableStats, number: int, sweep: SweepRecord, anchors: Mapping[str, str]) -> dict[str, Any]:
    """Lay a table, the ``number``-th from 1, out for the template."""
    facts, states = describe_table_selection(stats), Counter(cell.state for cell in stats.grid.cells.values())
    return {
        "table": stats.table,
        "anchor": f"table-{number}",
        "best": _lay_out_best(stats, sweep, anchors),
        "finished": f"{states['finished']} of {len(stats.grid.cells)}",
        "unfinished": [f"{n:,} {_STATES.get(state, state)}" for state, n in states.items() if state != "finished"],
        "scores": score_table(stats, anchors),
        "measures": list(measure_tables(stats)),
        "footnotes": list_footnotes(stats),
        "selection": selection_table(facts) if facts else None,
        "legend": explain_marks(stats),
        "charts": table_charts(stats),
        "details": [
            table for column in stats.grid.columns if (table := _tabulate_statistics(stats, column, sweep.metric)).rows
        ],
    }


_STATES = {"dropped": "left the race"}
_MOST_NAMED = 6
"""Most cells that are named beside the best one."""


def _lay_out_best(stats: TableStats, sweep: SweepRecord, anchors: Mapping[str, str]) -> dict[str, Any] | None:
    """Lay the best cell of a table out, with the cells that are not told from it."""
    best = find_best(stats, sweep.metric, sweep.clusters)
    if best is None:
        return None

    def named(cells: Sequence[SweepCell]) -> str:
        more = f" and {len(cells) - _MOST_NAMED:,} more" if len(cells) > _MOST_NAMED else ""
        return "; ".join(name_cell(stats.table, cell) for cell in cells[:_MOST_NAMED]) + more

    ends = best.interval.low, best.interval.high
    return {
        "name": name_cell(stats.table, best.cell),
        "link": f"#{anchors[best.cell.cell_id]}" if best.cell.cell_id in anchors else "",
        "score": write_spread(average_score(best.cell)),
        "interval": "" if None in ends else f"{ends[0]:.3f} to {ends[1]:.3f}",
        "why": best.interval.reason,
        "n_questions": len(best.cell.question_ids),
        "n_tied": len(best.tied),
        "tied": named(best.tied),
        "n_contenders": len(best.contenders),
        "contenders": named(best.contenders),
    }


def _tabulate_best(blocks: Sequence[Mapping[str, Any]]) -> Table:
    """Tabulate the best cell of every table."""
    head = (
        *(Column("table", align="left"), Column("best cell", align="left"), "score", "95 % interval"),
        *("tied", "may be as good", "finished"),
    )
    rows = []
    for block in blocks:
        best, title = block["best"], MarkedText(block["table"].title, link=f"#{block['anchor']}")
        figures = ("no scores", "", "", None, None)
        if best:
            name = MarkedText(best["name"], link=best["link"]) if best["link"] else best["name"]
            figures = (name, *(best[key] for key in ("score", "interval", "n_tied", "n_contenders")))
        rows.append((title, *figures, block["finished"]))
    return Table.of(head, rows, n_text=1)


def _tabulate_settings(sweep: SweepRecord) -> Table | None:
    """Tabulate what the cells have in common: a value of some tables alone names them."""
    tables_of: dict[tuple[str, str, str], list[str]] = {}
    for name, fixed in sweep.fixed.items():
        for setting in fixed:
            tables_of.setdefault((setting.key, setting.value, setting.meaning), []).append(name)
    head = [Column(name, align="left") for name in ("what it is", "value", "key")]
    rows: list[TableRow] = []
    for (key, value, meaning), names in tables_of.items():
        where = f" ({', '.join(names)})" if len(names) < len(sweep.fixed) else ""
        rows.append((meaning or key, f"{value}{where}", key if meaning else ""))
    return Table.of(head, rows) if rows else None


def _tabulate_statistics(stats: TableStats, column: str, metric: Metric) -> Table:
    """Lay out the statistics of each scored cell of a column, with a remark on each."""
    head = [
        *("score", stats.table.repeats, "questions"),
        *(Column(metric.label(name), ".3f") for name in metric.parts),
        *(
            Column("rank in its column", "g"),
            "rank in the table",
            "common",
            Column("difference", "+z.3f"),
            "95 % interval",
        ),
        *("permutation p", "corrected p", "Welch p", Column("g", "+z.2f"), Column("d_z", "+z.2f")),
        Column("", align="left"),
    ]
    rows: list[TableRow] = []
    for row in stats.grid.rows:
        comparison = stats.comparisons.get((row, column))
        if comparison is None:
            continue
        cell, interval = stats.grid.cells[row, column], comparison.interval
        tests = comparison.welch, interval, comparison.permutation
        conflict = explain_conflict(interval, comparison.permutation)
        p, corrected = comparison.permutation.p, comparison.corrected_p
        if p is not None and corrected is not None and p < 1.0 - CONFIDENCE <= corrected:
            conflict = "differs if taken alone, not when the choice of the best is allowed for"
        reasons = "; ".join(filter(None, dict.fromkeys([*(test.reason for test in tests), conflict])))
        p_values = p, corrected, comparison.welch.p
        rank, selection = "", stats.selection  # among all cells of the table
        if selection is not None and cell.cell_id in selection.ranks:
            n_tied = selection.n_tied[cell.cell_id]
            tied = f", tied with {pluralize(n_tied, 'other')}" if n_tied else ""
            rank = f"{selection.ranks[cell.cell_id]:g}{tied}"
        figures: TableRow = (
            *(write_spread(average_score(cell)), comparison.n_seeds, comparison.n_questions),
            *(float(part.mean()) for part in cell.parts.values()),
            *(stats.ranks[row, column], rank, comparison.n_common),
            None if comparison.is_best else interval.mean,
            None if interval.low is None or interval.high is None else f"{interval.low:+z.3f} … {interval.high:+z.3f}",
            *(each if each is None else "< 0.0001" if each < 0.0001 else f"{each:.4f}" for each in p_values),
            *(comparison.welch.g, comparison.d_z),
        )
        rows.append((*row, *figures, "the best" if comparison.is_best else reasons))
    axis = stats.grid.column_axis
    title = f"{axis} = {column}" if axis else column
    return Table.of([*(Column(name, align="left") for name in stats.grid.row_axes), *head], rows, title)


def _lay_out_costs(behind: Sequence[CellRuns], unit: str, cost: Callable[[SweepRun], float]) -> dict[str, Any] | None:
    points = cost_points(behind, cost)
    if len({(point.cost, point.score) for point in points}) < 2:
        return None
    rows = [
        (
            number,
            step.of.names[0],
            write_number(step.cost),
            MarkedText(f"{step.score:.3f}", link=f"#{anchor_of(step.of)}"),
        )
        for number, step in enumerate(pareto_frontier(points), 1)
    ]
    head = Column(""), Column("Pareto frontier", align="left"), f"{unit} per question", "score"
    n_left_out = sum(bool(cell_runs.cell.run_ids) for cell_runs in behind) - len(points)
    return {
        "unit": unit,
        "chart": cost_chart(points, unit),
        "frontier": Table.of(head, rows, n_text=0),
        "n_left_out": n_left_out,
    }


def _lay_out_errors(sweep: SweepRecord) -> list[tuple[str, list[ErrorCounts], Chart | None]]:
    """Count the errors by each fact of the runs, with a chart where it differs, and over all runs."""
    classes = sweep.metric.classes
    if not classes or not any(run.predictions for run in sweep.runs):
        return []
    facts = dict.fromkeys(fact for run in sweep.runs for fact in run.facts)
    counts = {fact: count_errors(sweep, fact) for fact in facts}
    differing = {fact: some for fact, some in counts.items() if len(some) > 1}
    charts = ((fact, some, error_chart(some, fact, classes)) for fact, some in differing.items())
    return [*charts, ("", count_errors(sweep), None)]


def pick_examples(sweep: SweepRecord) -> dict[str, list[Example]]:
    """Pick up to ``N_EXAMPLES`` of each class, each of another question, and of other runs where possible."""
    asked = {question.question_id: question for question in sweep.questions}
    chosen: dict[str, dict[str, Example]] = {name: {} for name in sweep.metric.classes}
    spare: dict[str, dict[str, Example]] = {name: {} for name in sweep.metric.classes}
    for run in sweep.runs:
        had = set()
        for question_id, given in run.predictions.items():
            name = given.error
            if name not in chosen or question_id not in asked or question_id in chosen[name]:
                continue
            into = spare[name] if name in had else chosen[name]
            if len(into) < N_EXAMPLES:
                into.setdefault(question_id, Example(asked[question_id], given, run))
                had.add(name)
    return {name: list((of_class | spare[name] | of_class).values())[:N_EXAMPLES] for name, of_class in chosen.items()}


QUESTIONS_SHOWN = (2000, 1000, 500, 200, 100, 50, 20, 0)
"""Questions shown per cell; the next number is used when the page has no room."""

MOST_SEEDS = 10
"""Most seeds whose values are shown."""

_TEXT_CHARS, _VALUE_CHARS, _NAME_CHARS, _ID_CHARS = 160, 60, 200, 40
_BLANK = '<span class="dim">blank</span>'


def write_questions(questions: Sequence[SweepQuestion], behind: Sequence[CellRuns], room: int) -> str:
    """Write the questions behind every figure as HTML: an entry each, and what they show when opened, packed.

    The whole has at most ``room`` bytes, unless the cells' names alone need more.
    """
    asked = {question.question_id: _begin_row(question) for question in questions}
    most = max((len(cell_runs.cell.question_ids) for cell_runs in behind), default=0)
    text = ""
    for limit in [limit for limit in QUESTIONS_SHOWN if limit < most or limit == QUESTIONS_SHOWN[0]]:
        packed = Packed()
        entries = []
        for cell_runs in behind:
            entries.append(_write_entry(cell_runs, asked, limit, packed))
            if packed.n_bytes > room and limit:
                break
        text = "".join([*entries, *packed.elements()])
        if len(text.encode()) <= room:
            break
    return text


def anchor_of(cell_runs: CellRuns) -> str:
    """Name the place of a cell's questions on the page."""
    return f"cell-{cell_runs.number}"


def safe(text: str, n_chars: int) -> str:
    """Make an untrusted text part of the page: cut, visible, escaped."""
    return f"<bdi>{escape(visible(cut(text, n_chars)))}</bdi>"


def _write_entry(cell_runs: CellRuns, asked: Mapping[str, str], limit: int, packed: Packed) -> str:
    n, score = min(limit, len(cell_runs.cell.question_ids)), write_spread(average_score(cell_runs.cell))
    left_out = _explain_left_out(cell_runs, n) if n < len(cell_runs.cell.question_ids) else ()
    part = packed.add("".join([*_write_facts(cell_runs), *left_out, *(_write_rows(cell_runs, asked, n) if n else ())]))
    return (
        f'<details class="card"><summary>{safe(cell_runs.names[0], _NAME_CHARS)} <b>{score}</b></summary>'
        f'<div class="body" id="{anchor_of(cell_runs)}" data-chunk="{part.chunk}" '
        f'data-part="{part.number}"></div></details>\n'
    )


def _write_facts(cell_runs: CellRuns) -> Iterator[str]:
    if len(cell_runs.names) > 1:
        yield f'<p class="dim small">The same setting as {safe("; ".join(cell_runs.names[1:]), 3 * _NAME_CHARS)}</p>'
    if cell_runs.runs:
        named = (
            f"<code>{safe(run.path or run.run_id, _NAME_CHARS)}</code> (seed {run.seed})" for _, run in cell_runs.runs
        )
        yield f'<p class="small">Runs: {", ".join(named)}</p>'


def _explain_left_out(cell_runs: CellRuns, n: int) -> Iterator[str]:
    n_all = len(cell_runs.cell.question_ids)
    which = f"The first {n:,} of {n_all:,} questions" if n else f"None of {n_all:,} questions"
    rest = " The runs' directories hold all of them." if cell_runs.runs else ""
    yield f'<p class="note small">{which}: the page has no room for more.{rest}</p>'


def _write_rows(cell_runs: CellRuns, asked: Mapping[str, str], n: int) -> Iterator[str]:
    runs, cell = cell_runs.runs[:MOST_SEEDS], cell_runs.cell
    given = "".join(f"<th>seed {run.seed}</th>" for _, run in runs) or '<th class="n">right</th>'
    yield '<div class="scroll"><table class="asked"><thead><tr><th>id</th><th>question</th><th>truth</th>'
    yield f'{given}<th class="n">score</th></tr></thead><tbody>'
    right, right_share, scores = cell.right.tolist(), cell.right.mean(axis=0).tolist(), cell.by_question.tolist()
    for number, question_id in enumerate(cell.question_ids[:n]):
        yield asked.get(question_id) or f"<tr><th>{safe(question_id, _ID_CHARS)}</th><td></td><td></td>"
        for seed, run in runs:
            mark = "right" if right[seed][number] > 0.5 else "wrong"
            yield f'<td class="{mark}">{_write_answer(run, question_id)}</td>'
        if not runs:
            yield f'<td class="n">{right_share[number]:.3f}</td>'
        yield f'<td class="n">{scores[number]:.3f}</td></tr>\n'
    yield "</tbody></table></div>"


def _write_answer(run: SweepRun, question_id: str) -> str:
    prediction = run.predictions.get(question_id)
    if prediction is None:
        return ""
    return _BLANK if is_blank(prediction.answer_value) else safe(prediction.answer_value, _VALUE_CHARS)


def _begin_row(question: SweepQuestion) -> str:
    """Begin a question's row, which is the same for every figure."""
    unit = "" if is_blank(question.answer_unit) else f" {safe(question.answer_unit, _VALUE_CHARS)}"
    truth = _BLANK if is_blank(question.answer_value) else f"{safe(question.answer_value, _VALUE_CHARS)}{unit}"
    text = safe(question.text, _TEXT_CHARS)
    return f"<tr><th>{safe(question.question_id, _ID_CHARS)}</th><td>{text}</td><td>{truth}</td>"
