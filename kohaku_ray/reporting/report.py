"""The page of a run: scores, plots, and for every question the steps to its answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jinja2

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.metrics import DEFAULT_METRIC
from kohaku_ray.evaluation.report import ScoreReport
from kohaku_ray.files import is_file, publish
from kohaku_ray.index.store import Index
from kohaku_ray.reporting.charts import Chart, charts, formulas
from kohaku_ray.reporting.excerpts import Places, open_index
from kohaku_ray.reporting.limits import Limits
from kohaku_ray.reporting.page import page_environment
from kohaku_ray.reporting.questions import (
    Documents,
    Gold,
    QuestionView,
    shown_steps,
    view_questions,
)
from kohaku_ray.reporting.text import cut
from kohaku_ray.runs.directory import baseline_note, own_truth
from kohaku_ray.runs.failures import describe_errors
from kohaku_ray.runs.files import RunFiles, read_run
from kohaku_ray.runs.scoring import score_run
from kohaku_ray.runs.show import write_number
from kohaku_ray.runs.spending import spent
from kohaku_ray.runs.tables import SHARED
from kohaku_ray.storage import below

LIMITS = (
    Limits(questions=2000, items=20, match_chars=900, around_chars=300, text_chars=1500),
    Limits(questions=1000, items=8, match_chars=400, around_chars=120, text_chars=500),
    Limits(questions=500, items=4, match_chars=200, around_chars=60, text_chars=200),
)
"""Limits, largest first; the next one is used when a page would be larger than ``MAX_BYTES``."""

MAX_BYTES = 20_000_000
"""A browser opens a page of this size in a few seconds."""

_FILTERS = (
    ("all", "all", ""),
    ("right", "right", "is-right"),
    ("wrong", "wrong", "is-wrong"),
    ("blank", "blank", "is-blank"),
    ("part", "right in part", "is-part"),
    ("split", "members disagree", "is-split"),
    ("error", "with errors", "is-error"),
)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """All data of the page, without its limits."""

    run: RunFiles
    gold: Gold | None
    report: ScoreReport | None
    documents: Documents
    index: Index | None
    notes: Sequence[str]


def write_report(run: str, truth: str | None = None, output: str | None = None) -> str:
    """Write a run's page: one HTML file that needs nothing beside it and runs no script.

    All text from documents, questions and models is escaped, and invisible characters in it are shown. The same run
    gives the same page, byte by byte.

    Args:
        run: The run's directory.
        truth: A CSV with gold answers; None: the run's own question file. Without any the page has no scores.
        output: Path of the page; None: ``report.html`` in the run's directory.

    Returns:
        Path of the page.

    Raises:
        DataError: The run has not finished, a file is damaged or missing, or the page cannot be written.
    """
    inputs = _gather(read_run(run), own_truth(run) if truth is None else truth)
    target = output if output is not None else below(inputs.run.path, "report.html")
    page = b""
    for limits in LIMITS:
        page = _render(inputs, limits)
        if len(page) <= MAX_BYTES:
            break
    publish(target, page)
    return target


def _gather(run: RunFiles, truth: str | None) -> _Inputs:
    gold, report, why_unscored = _scores(run, truth)
    index, why_no_index = open_index(_index_paths(run))
    notes = [note for note in (baseline_note(run.facts), _unfinished(run), why_unscored, *_failures(run)) if note]
    if index is None:
        notes.append(f"The index cannot be read, so matches are shown without their paragraphs: {why_no_index}")
    return _Inputs(run, gold, report, _documents(run, index), index, notes)


def _scores(run: RunFiles, truth: str | None) -> tuple[Gold | None, ScoreReport | None, str]:
    """Score the run; without gold answers, return the reason."""
    if truth is None:
        return None, None, "No truth was given, so nothing is scored."
    if not is_file(truth):
        raise DataError(f"{truth}: there is no such truth file: check the path.")
    metrics, limit, split_by = run.fact("metrics", [DEFAULT_METRIC]), run.fact("limit"), run.fact("split_by", [])
    scored, why_not = score_run(run.path, truth, metrics, limit, split_by)
    if scored is None:
        return None, None, why_not
    rows = {metric.name: metric.score(scored.truth, run.submission) for metric in scored.metrics}
    scores = {name: {row.question_id: row for row in own} for name, own in rows.items()}
    return Gold(scored.truth, scored.metrics, scores), scored.report, ""


def _index_paths(run: RunFiles) -> list[str]:
    """Where the index is: as configured, or beside the run's files when the run was moved."""
    configured = run.setting("index", "path")
    return [*([configured] if isinstance(configured, str) else []), below(run.path, "index")]


def _unfinished(run: RunFiles) -> str:
    status = run.facts.get("status", "unknown")
    return "" if status == "finished" else f"The run's status is {status}: counts and seconds may be missing."


def _failures(run: RunFiles) -> list[str]:
    """Say what failed, and how often."""
    stopped, errors = run.fact("stopped", ""), run.fact("errors", {})
    return [f"Stopped asking: {stopped}" if stopped else "", *(f"Errors: {line}" for line in describe_errors(errors))]


def _documents(run: RunFiles, index: Index | None) -> Documents:
    """Titles from the index; addresses from the submission, which knows the metadata file, before the index's."""
    rows = index.documents.select(["doc_id", "title", "url"]).to_pylist() if index is not None else []
    urls = {row["doc_id"]: row["url"] for row in rows if row["url"]}
    for row in run.submission.rows.values():
        if len(row.ref_ids) == len(row.ref_urls):
            urls.update(zip(row.ref_ids, row.ref_urls, strict=True))
    return Documents({row["doc_id"]: row["title"] for row in rows if row["title"]}, urls)


def _render(inputs: _Inputs, limits: Limits) -> bytes:
    """Render the page; stop where it exceeds ``MAX_BYTES``, unless these are the smallest limits."""
    run = inputs.run
    places = Places(inputs.index.nodes if inputs.index else None, _shown_nodes(run, limits), inputs.documents.titles)
    views = view_questions(run, inputs.gold, inputs.documents, places, limits)
    template = _environment(limits).get_template("report.html.j2")
    chunks, n_bytes = [], 0
    for chunk in template.generate(
        run=run,
        header=_header(run),
        calls=_calls(run),
        spending=spent(run.tables["usage"]),
        notes=inputs.notes,
        report=inputs.report,
        parts=_parts(inputs.report),
        formulas=formulas(inputs.report.metrics) if inputs.report else "",
        missing=_missing(inputs.report),
        error_table=_error_table(inputs.report, views),
        charts=_charts(inputs, limits, views),
        views=views,
        filters=_filters(views, inputs.report is not None),
        limits=limits,
        shared=SHARED,
    ):
        chunks.append(chunk.encode())
        n_bytes += len(chunks[-1])
        if n_bytes > MAX_BYTES and limits != LIMITS[-1]:
            break
    return b"".join(chunks)


def _charts(inputs: _Inputs, limits: Limits, views: Sequence[QuestionView]) -> list[Chart]:
    """Draw the plots, which cover all questions, also those that the page leaves out."""
    every = views
    if len(views) < len(inputs.run.tables["votes"]):
        whole = Limits(len(inputs.run.tables["votes"]), 1, 1, 0, limits.text_chars)
        every = view_questions(inputs.run, inputs.gold, inputs.documents, Places(None, (), {}), whole)
    return charts(inputs.run, inputs.report, every)


def _shown_nodes(run: RunFiles, limits: Limits) -> list[str]:
    return [
        row["node_id"]
        for rows in run.by_question("trace").values()
        for _, shown in shown_steps(rows, limits.items)
        for row in shown
        if row["node_id"] is not None
    ]


def _environment(limits: Limits) -> jinja2.Environment:
    environment = page_environment()
    environment.filters["number"] = write_number
    environment.filters["cut"] = lambda text, n=limits.text_chars: cut(text, n)
    return environment


def _header(run: RunFiles) -> list[tuple[str, str]]:
    """The facts at the top of the page."""
    models: Mapping[str, list[str]] = run.fact("models", {})
    lead = run.fact("lead", "answer")
    named = ", ".join(models.get(lead, ["not known"]))
    others = "".join(f"; {role} {', '.join(own)}" for role, own in models.items() if own != models.get(lead))
    stop = run.setting("ensemble", "early_stop")
    answers, usage = run.tables["answers"], run.tables["usage"]
    n_errors = sum(row["error"] is not None for row in answers)
    prompt, completion = (sum(row[f"{kind}_tokens"] for row in usage) for kind in ("prompt", "completion"))
    strategy, ignores = (run.setting("ensemble", "vote", key) for key in ("strategy", "ignore_blank"))
    seconds = run.facts.get("wall_s")
    versions = run.facts.get("versions")
    known = versions.items() if isinstance(versions, Mapping) else ()
    scope = "evidence shared" if run.setting("ensemble", "scope") == "answer" else "each prepares for itself"
    return [
        ("System", str(run.fact("system", run.setting("system")))),
        ("Models", named + others),
        ("Questions", f"{len(run.tables['votes']):,}"),
        ("Members", f"{run.setting('ensemble', 'members')}, {scope}"),
        ("Vote", f"{strategy}, {'blanks ignored' if ignores else 'blanks vote'}"),
        ("Ends early", f"when its {stop} is settled" if stop in ("value", "row") else "never"),
        ("Answers with an error", f"{n_errors:,} of {len(answers):,}"),
        ("Tokens", f"{prompt:,} in prompts, {completion:,} generated"),
        ("Seconds", f"{seconds:,.1f}" if isinstance(seconds, int | float) else "not known"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in known) or "not known"),
    ]


def _calls(run: RunFiles) -> list[tuple[str, dict[str, int]]]:
    """Model calls by role and by where the reply came from."""
    counts = Counter((row["role"], row["source"]) for row in run.tables["usage"])
    roles = dict.fromkeys(row["role"] for row in run.tables["usage"])
    return [(role, {source: counts[role, source] for source in ("made", "ledger", "joined")}) for role in roles]


def _parts(report: ScoreReport | None) -> dict[str, str]:
    """Every part of a score by name, in words."""
    metrics = report.metrics if report is not None else ()
    return {name: metric.label(name) for metric in metrics for name in metric.parts}


def _missing(report: ScoreReport | None) -> list[str]:
    """Counts of questions and rows that the scores could not match."""
    if report is None:
        return []
    file, truth = report.files[0], report.truth
    return [
        f"{len(ids):,} {what}"
        for ids, what in (
            (file.missing, "questions of the truth are not in the run and score 0"),
            (file.extra, "questions of the run are not in the truth and are not scored"),
            (truth.doubled, "ids occur more than once in the truth; the first row counts"),
            (truth.ragged, "rows of the truth have more or fewer cells than its header"),
        )
        if ids
    ]


def _error_table(
    report: ScoreReport | None, views: Sequence[QuestionView]
) -> list[tuple[str, int, list[QuestionView]]]:
    if report is None:
        return []
    counts = report.files[0].errors
    return [
        (name, counts[name], [view for view in views if view.truth is not None and view.truth.error == name])
        for name in report.classes
    ]


def _filters(views: Sequence[QuestionView], is_scored: bool) -> list[tuple[str, str, int]]:
    """Name, label and count of each filter; those that select nothing are left out, except right, wrong and blank."""
    found = []
    for name, label, mark in _FILTERS:
        n = sum(not mark or mark in view.marks.split() for view in views)
        keep = is_scored if name in {"right", "wrong"} else n > 0 or name in {"all", "blank"}
        if keep:
            found.append((name, label, n))
    return found
