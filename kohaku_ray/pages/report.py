"""The page of a run: scores, plots, and for every question the steps to its answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import jinja2

from kohaku_ray.evaluation.report import ScoreReport
from kohaku_ray.pages.causes import Cause, cause_of, causes_of
from kohaku_ray.pages.charts import charts, formulas
from kohaku_ray.pages.excerpts import Places
from kohaku_ray.pages.glance import cost_lines, coverage, leads, score_lines, show
from kohaku_ray.pages.inputs import Inputs, gather
from kohaku_ray.pages.limits import Limits
from kohaku_ray.pages.packed import Packed
from kohaku_ray.pages.page import page_environment
from kohaku_ray.pages.pictures import Pictures
from kohaku_ray.pages.questions import QuestionView, view_questions
from kohaku_ray.run.directory import own_truth
from kohaku_ray.run.files import RunFiles, read_run
from kohaku_ray.run.show import write_number
from kohaku_ray.run.spending import spent
from kohaku_ray.run.tables import SHARED
from kohaku_ray.storage import below, publish

LIMITS = (
    Limits(questions=3000, items=20, match_chars=900, around_chars=300, text_chars=1500),
    Limits(questions=3000, items=8, match_chars=400, around_chars=120, text_chars=500),
    Limits(questions=3000, items=4, match_chars=200, around_chars=60, text_chars=200),
    Limits(questions=1000, items=4, match_chars=200, around_chars=60, text_chars=200),
)
"""Limits, largest first; the next one is used when a page would be larger than ``MAX_BYTES``."""

MAX_BYTES = 28_000_000
"""A browser opens a page of this size in less than two seconds: see benchmarks/page.py."""

_MARKS = (
    ("right", "right"),
    ("part", "right in part"),
    ("wrong", "wrong"),
    ("blank", "blank"),
    ("error", "with errors"),
)

_SORTS = [
    ("score:1", "lowest score first"),
    ("agreement:1", "least agreement first"),
    ("agreement:-1", "most agreement first"),
    ("tokens:-1", "most tokens first"),
]

Option = tuple[str, str, int]
"""Value, label and number of questions of a choice."""


def write_report(run: str, truth: str | None = None, output: str | None = None) -> str:
    """Write a run's page: one HTML file that needs nothing beside it.

    What a question shows when it is opened is packed (see ``Packed``), so that a long run opens at once.
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
    inputs = gather(read_run(run), own_truth(run) if truth is None else truth)
    target = output if output is not None else below(inputs.run.path, "report.html")
    page = b""
    for limits in LIMITS:
        page = _render(inputs, limits)
        if len(page) <= MAX_BYTES:
            break
    publish(target, page)
    return target


def _render(inputs: Inputs, limits: Limits) -> bytes:
    """Render the page; stop where it exceeds ``MAX_BYTES``, unless these are the smallest limits."""
    run = inputs.run
    views = inputs.views(limits)
    environment, packed = _environment(limits), Packed()
    index = inputs.index.directory.path if inputs.index is not None else None
    pictures = Pictures(index, (row["node_id"] for view in views for row in view.images))
    body = environment.get_template("question.html.j2")
    listed = []
    for view in views:
        listed.append(
            (view, packed.add(body.render(view=view, report=inputs.report, shared=SHARED, pictures=pictures)))
        )
        if packed.n_bytes > MAX_BYTES and limits != LIMITS[-1]:
            return b" " * packed.n_bytes
    every = _every(inputs, limits, views)
    notes = _class_notes(inputs.report)
    causes = causes_of(every, notes)
    named = {name for cause in causes for name, _, _ in cause.classes}
    page = environment.get_template("report.html.j2").render(
        run=run,
        header=_header(run),
        calls=_calls(run),
        spending=spent(run.tables["usage"]),
        notes=inputs.notes,
        why_unscored=inputs.why_unscored,
        scores=score_lines(inputs.gold) if inputs.gold is not None else [],
        costs=cost_lines(run),
        covered=coverage(every),
        leads=leads(every, causes, n_shown=len(views)),
        report=inputs.report,
        parts=_parts(inputs.report),
        formulas=formulas(inputs.report.metrics) if inputs.report else "",
        missing=_missing(inputs.report),
        causes=causes,
        cause_of=cause_of,
        show=show,
        none_of=[name for name in (inputs.report.classes if inputs.report else ()) if name not in named],
        charts=charts(run, inputs.report, every),
        views=listed,
        shown={view.anchor for view in views},
        selects=_selects(views, causes, inputs.report),
        sorts=_SORTS if inputs.report is not None else _SORTS[1:],
        limits=limits,
        packed=packed,
        pictures=pictures,
    )
    return page.encode()


def _every(inputs: Inputs, limits: Limits, views: list[QuestionView]) -> list[QuestionView]:
    """View all questions, also those that the page leaves out: for counts and plots."""
    n = len(inputs.run.tables["votes"])
    if len(views) == n:
        return views
    whole = Limits(n, 1, 1, 0, limits.text_chars)
    return view_questions(inputs.run, inputs.gold, inputs.documents, Places(None, (), {}), whole)


def _environment(limits: Limits) -> jinja2.Environment:
    environment = page_environment(limits.text_chars)
    environment.filters["number"] = write_number
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


def _class_notes(report: ScoreReport | None) -> Mapping[str, str]:
    """What the classes of errors mean, as the first metric that has any says."""
    metrics = report.metrics if report is not None else ()
    return next((metric.class_notes for metric in metrics if metric.classes), {})


def _selects(
    views: Sequence[QuestionView], causes: Sequence[Cause], report: ScoreReport | None
) -> list[tuple[str, str, list[Option]]]:
    """Name, label and options of what the list of questions is filtered by; what selects nothing is left out."""
    marks = Counter(mark for view in views for mark in view.marks)
    agree = Counter("all" if view.is_unanimous else "split" for view in views)
    errors = Counter(view.truth.error for view in views if view.truth is not None and view.truth.error)
    shown = Counter(cause_of(view) for view in views)
    choices = {
        ("mark", "Show"): [(mark, label, marks[mark]) for mark, label in _MARKS],
        ("agree", "Agreement"): [
            ("all", "all members agree", agree["all"]),
            ("split", "members disagree", agree["split"]),
        ],
        ("cause", "Lost in"): [(cause.name, cause.name, shown[cause.name]) for cause in causes],
        ("error", "Class of error"): [(name, name, errors[name]) for name in (report.classes if report else ())],
    }
    found = []
    for (name, label), options in choices.items():
        some = [option for option in options if option[2]]
        if some:
            found.append((name, label, [("", "all", len(views)), *some]))
    return found
