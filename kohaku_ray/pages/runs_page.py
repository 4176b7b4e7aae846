"""All runs below a directory: a table for a terminal, and a page that is sorted and filtered."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote

from kohaku_ray.pages.page import Packed, page_environment
from kohaku_ray.pages.report import make_filters
from kohaku_ray.pages.tables import as_text
from kohaku_ray.pages.text import cut, one_line
from kohaku_ray.records import pluralize
from kohaku_ray.store.listing import ListedRun, RunList
from kohaku_ray.store.storage import publish
from kohaku_ray.table import Column, Table

PAGE = "runs.html"
"""Name of the page, in the directory that is listed: its links to the runs' pages are relative."""

_SORTS = (("date:-1", "latest first"), ("score:-1", "highest score first"), ("dollars:-1", "dearest first"))
_SETTINGS_CHARS = 70  # of a terminal's last column


def describe_runs(listed: RunList, width: int | None = None) -> str:
    """Write the runs as a table, with the settings in which they differ; where it is wider than ``width``, as lists."""
    differing = listed.differing()
    is_paid = any(run.dollars for run in listed.runs)
    columns = (
        Column("run", align="left"),
        Column("state", align="left"),
        Column("date", align="left"),
        Column("model", align="left"),
        Column("questions"),
        Column("score", align="left", missing="–"),
        *([Column("dollars", ".4f", missing="–")] if is_paid else []),
        Column("differs in", align="left"),
    )
    rows = tuple(
        (
            run.path if not run.label else f"{run.path} ({run.label})",
            run.state,
            f"{run.date:%Y-%m-%d %H:%M}",
            cut(run.models, 40),
            run.n_questions,
            score_text(run),
            *([run.dollars] if is_paid else []),
            cut(settings_text(differing.get(run.path, {})), _SETTINGS_CHARS),
        )
        for run in listed.runs
    )
    notes = [f"{path} is no run's file" for path in listed.unread]
    text = as_text(Table(columns, rows)) if rows else f"no run in {listed.directory}"
    if width is not None and max(map(len, text.splitlines())) > width:
        text = "\n".join(_as_list(columns, row, width) for row in rows)
    return "\n".join([text, *notes])


def _as_list(columns: Sequence[Column], row: Sequence[object], width: int) -> str:
    """Write a run in lines of a narrow terminal: its name, and indented what a table's row says."""
    name, *texts = (one_line(column.write(value)) for column, value in zip(columns, row, strict=True))
    labels = {"questions": "{} questions", "dollars": "${}", "differs in": "differs in {}"}
    parts = [
        labels.get(column.label, "{}").format(text)
        for column, text in zip(columns[1:], texts, strict=True)
        if text and text != column.missing
    ]
    told = textwrap.fill(", ".join(parts), width, initial_indent="  ", subsequent_indent="  ")
    return f"{textwrap.fill(name, width)}\n{told}"


def score_text(run: ListedRun) -> str | None:
    """Write a score with its metric and its interval."""
    if run.score is None:
        return None
    ends = "" if run.low is None or run.high is None else f" ({run.low:.3f} to {run.high:.3f})"
    return f"{run.metric} {run.score:.3f}{ends}"


def settings_text(settings: dict[str, str]) -> str:
    """Write settings as ``--set`` takes them."""
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def write_runs(listed: RunList) -> str:
    """Write the page of all runs into the directory that was listed; returns its path.

    Raises:
        DataError: The page cannot be written.
    """
    differing = listed.differing()
    choices = []
    for name, label in (("state", "State"), ("system", "System"), ("models", "Model"), ("metric", "Metric")):
        counted = Counter(getattr(run, name) for run in listed.runs)
        choices.append((name, label, [(value, value, n) for value, n in sorted(counted.items()) if value]))
    page = (
        page_environment()
        .get_template("runs.html.j2")
        .render(
            listed=listed,
            rows=[
                (run, score_text(run), settings_text(differing.get(run.path, {})), _link(listed.directory, run))
                for run in listed.runs
            ],
            said=pluralize(len(listed.runs), "run"),
            selects=make_filters(len(listed.runs), *(choice for choice in choices if len(choice[2]) > 1)),
            sorts=_SORTS,
            packed=Packed(),
        )
    )
    output = os.path.join(listed.directory, PAGE)
    publish(output, page.encode())
    return output


def _link(directory: str, run: ListedRun) -> str:
    """Link a run's page, where there is one."""
    return quote(run.page) if os.path.isfile(os.path.join(directory, run.page)) else ""
