"""The questions behind a sweep's figures: the answers of each run, as many as the page has room for, packed.

HTML is written directly, since a template is slow for half a million rows; ``safe`` escapes every untrusted text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import escape

from kohaku_ray.pages.page import Packed
from kohaku_ray.pages.sweep_stats import name_cell, score_of
from kohaku_ray.pages.text import cut, visible
from kohaku_ray.sweep.compare import Run, Sweep, SweepQuestion, TableCell
from kohaku_ray.values.read import is_blank

QUESTIONS_SHOWN = (2000, 1000, 500, 200, 100, 50, 20, 0)
"""Questions shown per cell; the next number is used when the page has no room."""

MOST_SEEDS = 10
"""Most seeds whose values are shown."""

_TEXT_CHARS, _VALUE_CHARS, _NAME_CHARS, _ID_CHARS = 160, 60, 200, 40
_BLANK = '<span class="dim">blank</span>'


@dataclass(frozen=True, slots=True)
class Behind:
    """The questions behind a figure."""

    anchor: str  # its id on the page
    names: list[str]  # table and labels, for every table that has it
    cell: TableCell
    runs: list[tuple[int, Run]]  # row of the cell's arrays, and its run


def behind_figures(sweep: Sweep) -> list[Behind]:
    """List every scored cell once, in the order of the tables."""
    runs = {run.run_id: run for run in sweep.runs}
    found: dict[str, Behind] = {}
    for table in sweep.tables:
        for cell in table.cells:
            if not cell.is_scored:
                continue
            name = f"{table.title}: {name_cell(table, cell)}"
            if cell.cell_id in found:
                found[cell.cell_id].names.append(name)
                continue
            of_cell = [(seed, runs[run_id]) for seed, run_id in enumerate(cell.run_ids) if run_id in runs]
            found[cell.cell_id] = Behind(f"cell-{len(found) + 1}", [name], cell, of_cell)
    return list(found.values())


def write_questions(questions: Sequence[SweepQuestion], behind: Sequence[Behind], room: int) -> str:
    """Write the questions behind every figure as HTML: an entry each, and what they show when opened, packed.

    The whole has at most ``room`` bytes, unless the cells' names alone need more.
    """
    asked = {one.question_id: _asked(one) for one in questions}
    most = max((len(one.cell.question_ids) for one in behind), default=0)
    text = ""
    for limit in [limit for limit in QUESTIONS_SHOWN if limit < most or limit == QUESTIONS_SHOWN[0]]:
        packed = Packed()
        entries = []
        for one in behind:
            entries.append(_entry(one, asked, limit, packed))
            if packed.n_bytes > room and limit:
                break
        text = "".join([*entries, packed.elements()])
        if len(text.encode()) <= room:
            break
    return text


def safe(text: str, n_chars: int) -> str:
    """Make an untrusted text part of the page: cut, visible, escaped."""
    return f"<bdi>{escape(visible(cut(text, n_chars)))}</bdi>"


def _entry(one: Behind, asked: Mapping[str, str], limit: int, packed: Packed) -> str:
    n, score = min(limit, len(one.cell.question_ids)), score_of(one.cell).write()
    left_out = _left_out(one, n) if n < len(one.cell.question_ids) else ()
    part = packed.add("".join([*_facts(one), *left_out, *(_rows(one, asked, n) if n else ())]))
    return (
        f'<details class="card"><summary>{safe(one.names[0], _NAME_CHARS)} <b>{score}</b></summary>'
        f'<div class="body" id="{one.anchor}" data-chunk="{part.chunk}" data-part="{part.at}"></div></details>\n'
    )


def _facts(one: Behind) -> Iterator[str]:
    if len(one.names) > 1:
        yield f'<p class="dim small">The same setting as {safe("; ".join(one.names[1:]), 3 * _NAME_CHARS)}</p>'
    if one.runs:
        named = (f"<code>{safe(run.path or run.run_id, _NAME_CHARS)}</code> (seed {run.seed})" for _, run in one.runs)
        yield f'<p class="small">Runs: {", ".join(named)}</p>'


def _left_out(one: Behind, n: int) -> Iterator[str]:
    n_all = len(one.cell.question_ids)
    which = f"The first {n:,} of {n_all:,} questions" if n else f"None of {n_all:,} questions"
    rest = " The runs' directories hold all of them." if one.runs else ""
    yield f'<p class="note small">{which}: the page has no room for more.{rest}</p>'


def _rows(one: Behind, asked: Mapping[str, str], n: int) -> Iterator[str]:
    runs, cell = one.runs[:MOST_SEEDS], one.cell
    given = "".join(f"<th>seed {run.seed}</th>" for _, run in runs) or '<th class="n">right</th>'
    yield '<div class="scroll"><table class="asked"><thead><tr><th>id</th><th>question</th><th>truth</th>'
    yield f'{given}<th class="n">score</th></tr></thead><tbody>'
    right, right_share, scores = cell.right.tolist(), cell.right.mean(axis=0).tolist(), cell.by_question.tolist()
    for at, question_id in enumerate(cell.question_ids[:n]):
        yield asked.get(question_id) or f"<tr><th>{safe(question_id, _ID_CHARS)}</th><td></td><td></td>"
        for seed, run in runs:
            yield f'<td class="{"right" if right[seed][at] > 0.5 else "wrong"}">{_given(run, question_id)}</td>'
        if not runs:
            yield f'<td class="n">{right_share[at]:.3f}</td>'
        yield f'<td class="n">{scores[at]:.3f}</td></tr>\n'
    yield "</tbody></table></div>"


def _given(run: Run, question_id: str) -> str:
    prediction = run.predictions.get(question_id)
    if prediction is None:
        return ""
    return _BLANK if is_blank(prediction.answer_value) else safe(prediction.answer_value, _VALUE_CHARS)


def _asked(one: SweepQuestion) -> str:
    """Begin a question's row, which is the same for every figure."""
    unit = "" if is_blank(one.answer_unit) else f" {safe(one.answer_unit, _VALUE_CHARS)}"
    truth = _BLANK if is_blank(one.answer_value) else f"{safe(one.answer_value, _VALUE_CHARS)}{unit}"
    return f"<tr><th>{safe(one.question_id, _ID_CHARS)}</th><td>{safe(one.text, _TEXT_CHARS)}</td><td>{truth}</td>"
