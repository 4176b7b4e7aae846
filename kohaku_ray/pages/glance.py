"""A run at a glance: score, cost, coverage, why answers lose points, and what to look at first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from kohaku_ray.evaluation.paired import score_interval
from kohaku_ray.models.summary import pluralize, with_prompts
from kohaku_ray.pages.questions import (
    ABSTAINED,
    CAUSES,
    FAILED,
    IN_THE_REST,
    NO_ANSWER,
    NOT_INDEXED,
    NOT_SHOWN,
    READING,
    RETRIEVAL,
    VOTE,
    Gold,
    QuestionView,
)
from kohaku_ray.pages.text import list_link
from kohaku_ray.runs.files import RunFiles
from kohaku_ray.store.tables import SCHEMAS, SPENT

if TYPE_CHECKING:
    import polars as pl

N_WORST = 3
"""Questions that are named as the worst."""

_NOTES = {
    FAILED: "every member ended in an error, so nothing was answered",
    NO_ANSWER: "an answer was given where the truth says that there is none",
    VOTE: "a member had the right value, and lost the vote",
    NOT_INDEXED: "no document of the truth is in the index: it was rejected, or is none of the configured files",
    RETRIEVAL: "no document of the truth is in any step before the answer",
    NOT_SHOWN: "the right value stands in no text that the models were shown, though a document of the truth was found",
    READING: "no member read the right value, though it stands in a text that was shown, or cannot be looked for",
    IN_THE_REST: "the value is right, another part of the score is not",
}
_NOT_MADE = "Nothing was paid in this run: every reply came from the ledger. These are the figures of the first calls."


@dataclass(frozen=True, slots=True)
class Cause:
    """Questions that lose points at one step."""

    name: str  # one of ``CAUSES``
    note: str
    classes: tuple[tuple[str, str, tuple[QuestionView, ...]], ...]  # of errors: name, meaning, questions; most first

    @property
    def n(self) -> int:
        """How many questions."""
        return sum(len(views) for _, _, views in self.classes)


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """The score of one metric over all questions of the truth, with its 95 % interval where it has one."""

    metric: str
    score: float
    low: float | None
    high: float | None
    n: int
    why: str = ""  # why an end is missing, or how the interval was made where questions do not differ


@dataclass(frozen=True, slots=True)
class Coverage:
    """What became of the questions."""

    answered: int
    abstained: int  # left blank without an error
    rightly: int | None  # of those: the truth has no answer; None without a truth
    failed: int  # all members carry an error

    @property
    def n(self) -> int:
        """All questions."""
        return self.answered + self.abstained + self.failed


@dataclass(frozen=True, slots=True)
class Lead:
    """Something to look at."""

    n: int  # questions
    text: str  # what they have in common
    href: str  # shows them in the list, or is the question itself
    name: str  # text of the link


def causes_of(views: Sequence[QuestionView], class_notes: Mapping[str, str]) -> list[Cause]:
    """Group the questions that lose points by cause, and within it by class of error, with the notes of the classes."""
    groups: dict[str, dict[str, list[QuestionView]]] = {name: {} for name in CAUSES}
    for view in views:
        if view.cause and view.truth is not None:
            groups[view.cause].setdefault(view.truth.error or view.outcome, []).append(view)
    causes = []
    for name, classes in groups.items():
        most_first = sorted(classes.items(), key=lambda item: -len(item[1]))
        listed = tuple((each, class_notes.get(each, ""), tuple(of_class)) for each, of_class in most_first)
        causes.append(Cause(name, _NOTES[name], listed))
    return [cause for cause in causes if cause.classes]


def score_lines(gold: Gold) -> list[ScoreLine]:
    """Score a run with each metric, and give the interval that resampled questions, or clusters, would have."""
    lines = []
    for metric in gold.metrics:
        rows = list(gold.scores[metric.name].values())
        clusters = None if gold.clusters is None else [gold.clusters[row.question_id] for row in rows]
        interval = score_interval(metric, rows, clusters)
        score = metric.aggregate(rows).score
        lines.append(ScoreLine(metric.name, score, interval.low, interval.high, len(rows), interval.reason))
    return lines


def coverage(views: Sequence[QuestionView]) -> Coverage:
    """Count the questions that were answered, left blank, and lost to errors."""
    failed = sum(view.is_failed for view in views)
    blank = [view for view in views if view.outcome == ABSTAINED and not view.is_failed]
    rightly = sum(view.truth is not None and view.truth.headline.unanswerable for view in blank)
    is_scored = any(view.truth is not None for view in views)
    return Coverage(len(views) - len(blank) - failed, len(blank), rightly if is_scored else None, failed)


def read_usage(run: RunFiles) -> pl.DataFrame:
    """Read what the costs of a run are counted from: a row per model call, of its texts those that are few."""
    import polars as pl

    names, texts = ["question_id", "role", "key", "source", "deployment", *SPENT], ("question_id", "key", "prompt")
    empty = pl.DataFrame(SCHEMAS["usage"].empty_table().select(names))
    batches = chain([empty], run.batches("usage", *names))
    return pl.concat([with_prompts(batch).with_columns(pl.col(*texts).hash()) for batch in batches])


def tokens_of(usage: pl.DataFrame) -> tuple[int, int]:
    """Sum the tokens of all prompts, and the generated ones."""
    prompt, completion = (int(usage[f"{kind}_tokens"].sum()) for kind in ("prompt", "completion"))
    return prompt, completion


def cost_lines(run: RunFiles, usage: pl.DataFrame) -> list[str]:
    """Say what the answers cost, the sum of all tokens first."""
    prompt, completion = tokens_of(usage)
    sources = Counter(dict(usage["source"].value_counts().iter_rows()))
    lines = [f"{prompt + completion:,} tokens", f"{prompt:,} in prompts, {completion:,} generated"]
    if len(usage) and not prompt + completion:
        lines.append("0 tokens: these models report no counts.")
    made, recorded = sources["made"], sources["ledger"]
    calls = f"{pluralize(len(usage), 'model call')}: {made:,} made by this run, {recorded:,} from the ledger"
    if sources["joined"]:
        calls += f", {sources['joined']:,} sharing the reply of an equal call under way"
    lines += [calls, _money(run, usage)]
    seconds = run.facts.get("wall_s")
    if isinstance(seconds, int | float):
        lines.append(f"{seconds:,.1f} s for the whole job")
    if len(usage) and not made:
        lines.append(_NOT_MADE)
    return lines


def _money(run: RunFiles, usage: pl.DataFrame) -> str:
    deployments = run.setting("deployments")
    deployment_settings = deployments.values() if isinstance(deployments, Mapping) else ()
    prices = [settings.get("price") for settings in deployment_settings if isinstance(settings, Mapping)]
    dollars = usage["dollars"].sum()
    if not dollars and not any(isinstance(price, Mapping) and any(price.values()) for price in prices):
        return "No price in dollars: the configuration gives none (deployments.NAME.price)."
    made = usage.filter(source="made")["dollars"].sum()
    of_run = f"of which ${made:,.4f} for calls made by this run" if made else "none of it in this run"
    return f"${dollars:,.4f}, {of_run}" if dollars else "$0: every price is 0"


def leads(views: Sequence[QuestionView], causes: Sequence[Cause], n_shown: int) -> list[Lead]:
    """List what deserves a look, the most urgent first; only the first ``n_shown`` questions are named."""
    sure = sum("wrong" in view.marks and view.is_unanimous and len(view.members) > 1 for view in views)
    wrong = [
        (view.truth.headline.total, view)
        for view in views[:n_shown]
        if view.truth is not None and "wrong" in view.marks
    ]
    wrong.sort(key=lambda pair: (pair[0], -pair[1].n_winners))  # of equal scores, those on which most members agree
    all_leads = [
        _lead(sum(view.has_error for view in views), "with errors of models", mark="error"),
        _lead(sure, "wrong, though all members agree", mark="wrong", agree="all"),
        *(_lead(cause.n, f"losing points: {cause.note}", cause=cause.name) for cause in causes if cause.name != FAILED),
        _lead(sum(not view.is_unanimous for view in views), "where members disagree", agree="split"),
        *(
            Lead(
                1,
                f"among the worst, score {score:.2f}: {view.vote['question']}",
                f"#{view.anchor}",
                view.vote["question_id"],
            )
            for score, view in wrong[:N_WORST]
        ),
    ]
    return [lead for lead in all_leads if lead.n]


def _lead(n: int, text: str, **values: str) -> Lead:
    return Lead(n, text, list_link(**values), pluralize(n, "question"))
