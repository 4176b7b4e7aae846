"""The page of a run: scores, plots, and for every question the steps to its answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from markupsafe import Markup

from kohaku_ray.documents.data.rows import HUB
from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.metrics import DEFAULT_METRIC, Metric
from kohaku_ray.evaluation.report import ScoreReport, clusters_of
from kohaku_ray.index.store import Index
from kohaku_ray.models.summary import SERVER_FACTS, describe_errors, describe_flags, describe_servers, spent
from kohaku_ray.pages.evidence import Documents, NodeLocations, Pictures, open_index
from kohaku_ray.pages.glance import (
    Cause,
    ScoreLine,
    causes_of,
    cost_lines,
    coverage,
    leads,
    read_usage,
    score_lines,
    tokens_of,
)
from kohaku_ray.pages.page import MAX_BYTES, Packed, page_environment
from kohaku_ray.pages.plots import Chart, Plot, grouped_bars, ranges, share_points, stacked_bars
from kohaku_ray.pages.questions import (
    ABSTAINED,
    ANSWERED,
    IN_PART,
    OUTCOMES,
    RIGHT,
    WRONG,
    Gold,
    PageLimits,
    QuestionView,
    view_questions,
)
from kohaku_ray.runs.files import RunFiles, read_run
from kohaku_ray.runs.scoring import score_run
from kohaku_ray.runs.truth import own_truth
from kohaku_ray.store.directory import SCORES, baseline_note, seal_page
from kohaku_ray.store.storage import is_file, join_path, publish, publishing
from kohaku_ray.store.tables import SHARED
from kohaku_ray.table import Column, Table
from kohaku_ray.values.spelling import ref_key

if TYPE_CHECKING:
    import polars as pl

LIMITS = (
    PageLimits(questions=3000, items=20, match_chars=900, around_chars=300, text_chars=1500),
    PageLimits(questions=3000, items=8, match_chars=400, around_chars=120, text_chars=500),
    PageLimits(questions=3000, items=4, match_chars=200, around_chars=60, text_chars=200),
    PageLimits(questions=1000, items=4, match_chars=200, around_chars=60, text_chars=200),
)
"""Limits, largest first; the next one is used when a page would be larger than ``MAX_BYTES``."""

SAMPLE, SURE = 200, 1.01
"""Questions after which the size of the page is estimated anew, and the factor over ``MAX_BYTES`` that ends it: later
questions may be a little shorter than the first ones."""

_MARKS = {"right": "right", "part": "right in part", "wrong": "wrong", "blank": "blank", "error": "with errors"}
_AGREEMENT = {"all": "all members agree", "split": "members disagree"}
_SORTS = (
    ("score:1", "lowest score first"),
    ("agreement:1", "least agreement first"),
    ("agreement:-1", "most agreement first"),
    ("tokens:-1", "most tokens first"),
)

Option = tuple[str, str, int]
"""Value, label and number of questions of a choice."""

Select = tuple[str, str, list[Option]]
"""Name, label and options of a filter of the list of questions."""


@dataclass(frozen=True)
class Inputs:
    """All data of a page, without its limits."""

    run: RunFiles
    gold: Gold | None
    report: ScoreReport | None
    documents: Documents
    index: Index | None  # the one that the run used, where it can be read
    notes: Sequence[str]  # what the reader must know first
    why_unscored: str  # why there are no scores, or what is odd about them; else empty

    def views(self, limits: PageLimits) -> Iterator[QuestionView]:
        """View each question as it is read; the first ones with as much evidence as the limits allow."""
        return view_questions(self.run, self.gold, self.documents, self.locations, limits)

    @cached_property
    def scores(self) -> list[ScoreLine]:
        """Scores by metric, with intervals; empty without gold answers."""
        return score_lines(self.gold) if self.gold is not None else []

    @cached_property
    def locations(self) -> NodeLocations:
        """Finds the nodes that the run's steps name in its index."""
        batches = self.run.batches("trace", "node_id")
        wanted = {node_id: None for batch in batches for node_id in batch["node_id"].unique(maintain_order=True)}
        wanted.pop(None, None)  # items that are no nodes
        return NodeLocations(self.index.nodes if self.index else None, wanted, self.documents.titles)


def write_report(run: str, truth: str | None = None, output: str | None = None, cluster: str | None = None) -> str:
    """Write a run's page, one HTML file that needs nothing beside it, and return its path.

    What a question shows when it is opened is packed (see ``Packed``), so that a long run opens at once.
    All text from documents, questions and models is escaped, and invisible characters in it are shown. The same run
    gives the same page, byte by byte.

    Args:
        run: The run's directory.
        truth: A CSV with gold answers; None: the run's own question file. Without any the page has no scores.
        output: Path of the page; None: ``report.html`` in the run's directory.
        cluster: A column of the gold answers, such as ``ref_id``, by whose values the scores' intervals resample.

    Raises:
        DataError: The run has not finished, a file is damaged or missing, or the page cannot be written.
    """
    inputs = gather(read_run(run), own_truth(run) if truth is None else truth, cluster)
    target = output if output is not None else join_path(inputs.run.path, "report.html")
    lines = [
        {"metric": line.metric, "score": line.score, "low": line.low, "high": line.high, "cluster": cluster}
        for line in inputs.scores  # before the questions: resampling takes some memory for a moment
    ]
    with publishing(target, "free the disk or choose another output") as temporary:
        next(limits for limits in LIMITS if _write_page(inputs, limits, temporary))
    if output is None and lines:  # for the list of all runs
        publish(join_path(inputs.run.path, SCORES), json.dumps({"scores": lines}, indent=1).encode())
    return target


def gather(run: RunFiles, truth: str | None, cluster: str | None = None) -> Inputs:
    """Score a run by a CSV with gold answers (None: by none), and open its index; ``cluster``: see ``write_report``.

    Raises:
        DataError: The truth is damaged or missing.
    """
    gold, report, why_unscored = _scores(run, truth, cluster)
    # As configured, or beside the run's files when the run was moved.
    paths = (run.setting("index", "path"), join_path(run.path, "index"))
    index, why_no_index = open_index(path for path in paths if isinstance(path, str))
    flags = run.columns("answers", "flags")["flags"]
    notes = [f"Stopped asking: {run.fact('stopped')}"] if run.fact("stopped") else []
    notes += [f"Errors: {line}" for line in describe_errors(run.fact("errors", {}))]
    notes += describe_flags(Counter(flags.explode().drop_nulls()), len(flags))
    notes += describe_servers(*(run.fact(name, {}) for name in SERVER_FACTS))
    if (status := run.facts.get("status", "unknown")) != "finished":
        notes.append(f"The run's status is {status}: counts and seconds may be missing.")
    notes += filter(None, (baseline_note(run.facts), why_unscored if report is not None else ""))
    if index is None:
        notes.append(f"The index cannot be read, so matches are shown without their paragraphs: {why_no_index}")
    return Inputs(run, gold, report, _documents(run, index), index, notes, why_unscored)


def _scores(run: RunFiles, truth: str | None, cluster: str | None) -> tuple[Gold | None, ScoreReport | None, str]:
    if truth is None:
        return None, None, "No truth was given, so nothing is scored."
    if not truth.startswith(HUB) and not is_file(truth):
        raise DataError(f"{truth}: there is no such truth file: check the path.")
    metrics, limit, split_by = run.fact("metrics", [DEFAULT_METRIC]), run.fact("limit"), run.fact("split_by", [])
    scored, why_not = score_run(run.path, truth, metrics, limit, split_by)
    if scored is None:
        return None, None, why_not
    rows = {metric.name: metric.score(scored.truth, run.submission) for metric in scored.metrics}
    scores = {name: {row.question_id: row for row in question_scores} for name, question_scores in rows.items()}
    clusters = None if cluster is None else clusters_of(scored.truth, cluster)
    return Gold(scored.truth, scored.metrics, scores, clusters), scored.report, scored.note


def _documents(run: RunFiles, index: Index | None) -> Documents:
    """Titles from the index; addresses from the submission, which knows the metadata file, before the index's."""
    rows = index.documents.select(["doc_id", "title", "url"]).to_pylist() if index is not None else []
    urls = {row["doc_id"]: row["url"] for row in rows if row["url"]}
    for row in run.submission.rows.values():
        if len(row.ref_ids) == len(row.ref_urls):
            urls.update(zip(row.ref_ids, row.ref_urls, strict=True))
    indexed = None if index is None else frozenset(ref_key(row["doc_id"]) for row in rows)
    return Documents({row["doc_id"]: row["title"] for row in rows if row["title"]}, urls, indexed)


def _write_page(inputs: Inputs, limits: PageLimits, path: str) -> bool:
    """Write the page; False where it would exceed ``MAX_BYTES``, unless these are the smallest limits.

    Questions are read, rendered and packed one after the other: what the page holds of a question is all that stays.
    """
    environment, packed = page_environment(limits.text_chars), Packed()
    pictures = Pictures(*_find_pictures(inputs, limits))
    body, item = (environment.get_template(name) for name in ("question.html.j2", "listed.html.j2"))
    n_shown, n_bytes = min(limits.questions, inputs.run.n_questions), 0
    every, listed = list[QuestionView](), list[Markup]()
    for view in inputs.views(limits):
        if len(listed) < n_shown:
            part = packed.add(body.render(view=view, report=inputs.report, shared=SHARED, pictures=pictures))
            listed.append(Markup(item.render(view=view, part=part)))  # noqa: S704 - its texts are escaped
            n_bytes += len(listed[-1].encode())
            view = view.summary()
            if len(listed) % SAMPLE == 0 and limits != LIMITS[-1]:
                expected = (packed.n_bytes_so_far() + n_bytes) * n_shown / len(listed)
                if expected > MAX_BYTES * SURE:
                    return False
        every.append(view)
    pa.default_memory_pool().release_unused()  # what reading took: 24 MiB of 10,000 questions
    pieces = environment.get_template("report.html.j2").generate(
        view_run(inputs, every, n_shown),
        listed=listed,
        shown={view.anchor for view in every[:n_shown]},
        limits=limits,
        packed=packed,
        pictures=pictures,
    )
    with open(path, "wb") as file:  # piece by piece: whole as text and as bytes it would be in memory four times
        file.writelines(seal_page(piece.encode() for piece in pieces))
        return file.tell() <= MAX_BYTES or limits == LIMITS[-1]


def _find_pictures(inputs: Inputs, limits: PageLimits) -> tuple[str | None, list[str]]:
    """Name the index, and the images that the page shows of it: these must be known before the first question."""
    if inputs.index is None or "images" not in inputs.index.manifest["files"]:
        return None, []
    shown = (view for view in inputs.views(limits) if view.steps)
    return inputs.index.directory.path, [row["node_id"] for view in shown for row in view.images]


def view_run(inputs: Inputs, every: Sequence[QuestionView], n_shown: int) -> dict[str, Any]:
    """View a run as a whole, as the template reads it: counts, causes and plots are those of all questions."""
    run, report, views = inputs.run, inputs.report, every[:n_shown]
    usage = read_usage(run)
    metrics = report.metrics if report is not None else ()
    classes = report.classes if report is not None else ()
    known = (("truth", report.truth), ("run", report.files[0])) if report is not None else ()
    causes = causes_of(every, next((metric.class_notes for metric in metrics if metric.classes), {}))
    named = {name for cause in causes for name, _, _ in cause.classes}
    return {
        "run": run,
        "report": report,
        "notes": inputs.notes,
        "why_unscored": inputs.why_unscored,
        "scores": inputs.scores,
        "n_clusters": inputs.gold and inputs.gold.clusters and len({*inputs.gold.clusters.values()}),
        "costs": cost_lines(run, usage),
        "covered": coverage(every),
        "leads": leads(every, causes, n_shown),
        "parts": {name: metric.label(name) for metric in metrics for name in metric.parts},
        "formulas": formulas(metrics) if metrics else "",
        "odd": [f"{what}: {note}" for what, file in known for note in file.notes],
        "causes": causes,
        "none_of": [name for name in classes if name not in named],
        "charts": run_charts(report, every),
        "selects": _selects(views, causes, classes),
        "sorts": _SORTS if report is not None else _SORTS[1:],
        "header": _header(run, usage),
        "calls": _calls(usage),
        "spending": _spending(usage),
    }


def _header(run: RunFiles, usage: pl.DataFrame) -> list[tuple[str, str]]:
    models: Mapping[str, list[str]] = run.fact("models", {})
    lead = run.fact("lead", "answer")
    named = ", ".join(models.get(lead, ["not known"]))
    others = "".join(
        f"; {role} {', '.join(model_names)}" for role, model_names in models.items() if model_names != models.get(lead)
    )
    stop = run.setting("ensemble", "early_stop")
    errors = run.columns("answers", "error")["error"]
    prompt, completion = tokens_of(usage)
    strategy, ignores = (run.setting("ensemble", "vote", key) for key in ("strategy", "ignore_blank"))
    seconds = run.facts.get("wall_s")
    versions = run.facts.get("versions")
    known = versions if isinstance(versions, Mapping) else {}
    scope = "evidence shared" if run.setting("ensemble", "scope") == "answer" else "each prepares for itself"
    return [
        ("System", str(run.fact("system", run.setting("system")))),
        ("Models", named + others),
        ("Questions", f"{run.n_questions:,}"),
        ("Members", f"{run.setting('ensemble', 'members')}, {scope}"),
        ("Vote", f"{strategy}, {'blanks ignored' if ignores else 'blanks vote'}"),
        ("Ends early", f"when its {stop} is settled" if stop in ("value", "row") else "never"),
        ("Answers with an error", f"{len(errors) - errors.null_count():,} of {len(errors):,}"),
        ("Tokens", f"{prompt:,} in prompts, {completion:,} generated"),
        ("Seconds", f"{seconds:,.1f}" if isinstance(seconds, int | float) else "not known"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in known.items()) or "not known"),
    ]


def _calls(usage: pl.DataFrame) -> Table:
    counts = Counter({(role, source): n for role, source, n in usage.group_by("role", "source").len().iter_rows()})
    roles = usage["role"].unique(maintain_order=True)
    rows = [[role, *(counts[role, source] for source in ("made", "ledger", "joined"))] for role in roles]
    return Table.of(["for", "made", "from the ledger", "sharing the reply of an equal call under way"], rows)


def _spending(usage: pl.DataFrame) -> Table:
    shared = "what the cache gives if the first call of a question fills it for the other members"
    share = Column("cached", ".0f", unit=" %", missing="–")
    columns = [
        *("deployment", "calls", "prompt tokens", share, replace(share, label="members share", tooltip=shared)),
        *("generated", *(Column(label, ".1f") for label in ("queued s", "served s", "GPU s"))),
        *(Column("kJ", ".1f", missing="–"), Column("$", ".4f")),
    ]
    rows = [
        (
            *(row.deployment, row.n_calls, row.prompt_tokens),
            *(part if part is None else 100 * part for part in (row.cached_share, row.cached_bound)),
            *(row.completion_tokens, row.queue_s, row.service_s, row.gpu_s),
            *(None if row.joules is None else row.joules / 1000, row.dollars),
        )
        for row in spent(usage)
    ]
    return Table.of(columns, rows)


def _selects(views: Sequence[QuestionView], causes: Sequence[Cause], classes: Iterable[str]) -> list[Select]:
    marks = Counter(mark for view in views for mark in view.marks)
    agree = Counter("all" if view.is_unanimous else "split" for view in views)
    errors = Counter(view.truth.error for view in views if view.truth is not None and view.truth.error)
    shown = Counter(view.cause for view in views)
    return make_filters(
        len(views),
        ("mark", "Show", [(mark, label, marks[mark]) for mark, label in _MARKS.items()]),
        ("agree", "Agreement", [(name, label, agree[name]) for name, label in _AGREEMENT.items()]),
        ("cause", "Lost in", [(cause.name, cause.name, shown[cause.name]) for cause in causes]),
        ("error", "Class of error", [(name, name, errors[name]) for name in classes]),
    )


def make_filters(n: int, *choices: Select) -> list[Select]:
    """Make the filters of a list of ``n`` questions: all first, and no option that selects none."""
    some = [(name, label, [option for option in options if option[2]]) for name, label, options in choices]
    return [(name, label, [("", "all", n), *options]) for name, label, options in some if options]


OUTCOME_COLOURS = {
    RIGHT: "#009e73",
    IN_PART: "#56b4e9",
    WRONG: "#d55e00",
    ABSTAINED: "#999999",
    ANSWERED: "#e69f00",
}
"""Okabe and Ito's colours for the outcomes of a question."""


def run_charts(report: ScoreReport | None, views: Sequence[QuestionView]) -> list[Chart]:
    """Draw a run: score parts where it was scored, agreement of members, tokens, and attempts where any was a retry."""
    drawn = [score_parts(report), *figure_plots(report)] if report is not None else []
    members = [member for view in views for member in view.members]
    if any(len(view.members) > 1 for view in views):
        drawn.append(agreement(views))
    if members:
        drawn.append(tokens(views))
    if any(member.row["attempt"] for member in members):
        drawn.append(attempts_used(views))
    return drawn


def score_parts(report: ScoreReport) -> Chart:
    """Draw the parts of the score that all metrics have, under each."""
    first, *others = report.metrics
    parts = {name: part for name, part in first.parts.items() if all(name in metric.parts for metric in others)}
    series = {str(record["metric"]): [record[name] for name in (*parts, "score")] for record in report.records}
    totals = "; ".join(f"{name}: score {values[-1]:.3f}" for name, values in series.items())
    svg = grouped_bars(
        [*(f"{first.label(name)}\n({part.weight:.2f})" for name, part in parts.items()), "score"],
        series,
        x_label="part of the score (its weight)",
        y_label="mean over questions (0 to 1)",
        label=f"Score parts. {totals}",
    )
    return Chart("Score parts", formulas(report.metrics), svg)


def figure_plots(report: ScoreReport) -> list[Chart]:
    """Draw the points of the metrics' figures."""
    return [
        Chart(plot.title, plot.note, share_points(plot.points, x_label=plot.x_label, y_label=plot.y_label))
        for figures in report.files[0].figures.values()
        for plot in figures.plots
    ]


def formulas(metrics: Sequence[Metric]) -> str:
    """Write the metrics' formulas; once where all are equal."""
    distinct = {metric.formula for metric in metrics}
    if len(distinct) == 1:
        return f"Score = {distinct.pop()}."
    return "; ".join(f"{metric.name}: {metric.formula}" for metric in metrics) + "."


def agreement(views: Sequence[QuestionView]) -> Chart:
    """Draw how many members gave each written answer."""
    m = max(len(view.members) for view in views)
    svg = _outcome_bars(
        [(view.n_winners, view.outcome) for view in views],
        range(min(view.n_winners for view in views), m + 1),
        f"members that gave the written answer (of {m})",
        "questions",
        f"Answer agreement: {sum(view.n_winners == m for view in views)} of {len(views)} questions unanimous",
    )
    return Chart("Answer agreement", "Size of the winning group of each question.", svg)


def tokens(views: Sequence[QuestionView]) -> Chart:
    """Draw the tokens per answer."""
    members = [member for view in views for member in view.members]
    series: dict[str, list[float]] = {
        "prompts, all attempts": [member.prompt_tokens for member in members],
        "generated, all attempts": [member.completion_tokens for member in members],
    }
    for name in dict.fromkeys(name for member in members for name in member.row["measures"] if name.endswith("tokens")):
        measured = [member.row["measures"][name] for member in members if name in member.row["measures"]]
        series[f"{name.replace('_', ' ')}, as measured"] = measured
    medians = ", ".join(f"{name} {np.median(values):,.0f}" for name, values in series.items())
    svg = ranges(series, x_label="tokens per member answer (log scale)", label=f"Median tokens per answer: {medians}")
    note = "Line: 5th to 95th percentile; box: the middle half; bar: the median."
    return Chart("Tokens per answer", note, svg)


def attempts_used(views: Sequence[QuestionView]) -> Chart:
    """Draw at which attempt the answers were given."""
    given = [(member.row["attempt"], member.outcome) for view in views for member in view.members]
    n_first = sum(attempt == 0 for attempt, _ in given)
    svg = _outcome_bars(
        given,
        range(max(attempt for attempt, _ in given) + 1),
        "last attempt, from 0",
        "member answers",
        f"Attempts used: {n_first} of {len(given)} answers came at the first attempt",
    )
    note = "The attempt that gave each member's answer: a system may retry, such as after a blank reply."
    return Chart("Attempts used", note, svg)


def _outcome_bars(given: Sequence[tuple[int, str]], bars: range, x_label: str, y_label: str, label: str) -> Plot:
    counts = Counter(given)
    series = {name: [counts[number, name] for number in bars] for name in OUTCOMES}
    names = [str(number) for number in bars]
    return stacked_bars(names, series, OUTCOME_COLOURS, x_label=x_label, y_label=y_label, label=label)
