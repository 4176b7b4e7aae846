"""A run at a glance: score, cost, coverage, and what to look at first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from kohaku_ray.evaluation.paired import score_interval
from kohaku_ray.pages.causes import IN_THE_REST, NO_ANSWER, READING, RETRIEVAL, VOTE, Cause
from kohaku_ray.pages.questions import ABSTAINED, Gold, QuestionView
from kohaku_ray.run.files import RunFiles

N_WORST = 3
"""Questions that are named as the worst."""

_LOST = {
    NO_ANSWER: "answered, though the truth has no answer",
    RETRIEVAL: "lost in retrieval: no document of the truth was found",
    READING: "lost in reading: no member read the right value",
    VOTE: "lost in the vote: a member had the right value",
    IN_THE_REST: "with the right value, but other references or parts",
}

_NOT_MADE = "Nothing was paid in this run: every reply came from the ledger. These are the figures of the first calls."


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """The score of one metric.

    Attributes:
        metric: Its name.
        score: Over all questions of the truth.
        low: Lower end of its 95 % interval; None where it has none.
        high: Upper end.
        n: Number of questions.
    """

    metric: str
    score: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """What became of the questions.

    Attributes:
        answered: Questions with an answer.
        abstained: Questions left blank without an error.
        rightly: Those of them whose truth has no answer; None without a truth.
        failed: Questions all of whose members carry an error.
    """

    answered: int
    abstained: int
    rightly: int | None
    failed: int

    @property
    def n(self) -> int:
        """All questions."""
        return self.answered + self.abstained + self.failed


@dataclass(frozen=True, slots=True)
class Lead:
    """Something to look at.

    Attributes:
        n: Number of questions.
        text: What they have in common.
        href: Shows them in the list, or is the question itself.
        name: Text of the link.
    """

    n: int
    text: str
    href: str
    name: str


def score_lines(gold: Gold) -> list[ScoreLine]:
    """Score a run with each metric, and give the interval that resampled questions would have."""
    lines = []
    for metric in gold.metrics:
        rows = list(gold.scores[metric.name].values())
        interval = score_interval(metric, rows)
        ends = (None, None) if interval.reason else (interval.low, interval.high)
        lines.append(ScoreLine(metric.name, metric.aggregate(rows).score, *ends, len(rows)))
    return lines


def coverage(views: Sequence[QuestionView]) -> Coverage:
    """Count the questions that were answered, left blank, and lost to errors."""
    failed = sum(view.is_failed for view in views)
    blank = [view for view in views if view.outcome == ABSTAINED and not view.is_failed]
    known = [view for view in blank if view.truth is not None]
    rightly = sum(view.truth is not None and view.truth.headline.unanswerable for view in known)
    is_scored = any(view.truth is not None for view in views)
    return Coverage(len(views) - len(blank) - failed, len(blank), rightly if is_scored else None, failed)


def cost_lines(run: RunFiles) -> list[str]:
    """Say what the answers cost, the sum of all tokens first."""
    usage = run.tables["usage"]
    prompt, completion = (sum(row[f"{kind}_tokens"] for row in usage) for kind in ("prompt", "completion"))
    sources = Counter(row["source"] for row in usage)
    lines = [f"{prompt + completion:,} tokens", f"{prompt:,} in prompts, {completion:,} generated"]
    if usage and not prompt + completion:
        lines.append("0 tokens: these models report no counts.")
    lines += [
        f"{len(usage):,} model calls: {sources['made']:,} made by this run, {sources['ledger']:,} from the ledger"
    ]
    if sources["joined"]:
        lines[-1] += f", {sources['joined']:,} sharing the reply of an equal call under way"
    lines.append(_money(run))
    seconds = run.facts.get("wall_s")
    if isinstance(seconds, int | float):
        lines.append(f"{seconds:,.1f} s for the whole job")
    if usage and not sources["made"]:
        lines.append(_NOT_MADE)
    return lines


def _money(run: RunFiles) -> str:
    deployments = run.setting("deployments")
    own = deployments.values() if isinstance(deployments, Mapping) else ()
    prices = [one.get("price") for one in own if isinstance(one, Mapping)]
    dollars = sum(row["dollars"] for row in run.tables["usage"])
    if not dollars and not any(isinstance(price, Mapping) and any(price.values()) for price in prices):
        return "No price in dollars: the configuration gives none (deployments.NAME.price)."
    made = sum(row["dollars"] for row in run.tables["usage"] if row["source"] == "made")
    return f"${dollars:,.4f}, of which ${made:,.4f} for calls made by this run"


def leads(views: Sequence[QuestionView], causes: Sequence[Cause], n_shown: int) -> list[Lead]:
    """List what deserves a look, the most urgent first; only what there is.

    Args:
        views: All questions.
        causes: Why they lose points.
        n_shown: Questions that the page shows, from the first: only they are named.
    """
    sure = sum("wrong" in view.marks and view.is_unanimous and len(view.members) > 1 for view in views)
    found = [
        _lead(sum(view.has_error for view in views), "with errors of models", mark="error"),
        _lead(sure, "wrong, though all members agree", mark="wrong", agree="all"),
        *(_lead(cause.n, _LOST[cause.name], cause=cause.name) for cause in causes if cause.name in _LOST),
        _lead(sum(not view.is_unanimous for view in views), "where members disagree", agree="split"),
        *_worst(views[:n_shown]),
    ]
    return [lead for lead in found if lead.n]


def _lead(n: int, text: str, **values: str) -> Lead:
    return Lead(n, text, show(**values), f"{n:,} question{'s' if n != 1 else ''}")


def _worst(views: Sequence[QuestionView]) -> Iterator[Lead]:
    """Name the wrong answers with the least score, those on which most members agree first."""
    wrong = [(view.truth.headline.total, view) for view in views if view.truth is not None and "wrong" in view.marks]
    for score, view in sorted(wrong, key=lambda pair: (pair[0], -pair[1].n_winners))[:N_WORST]:
        said = f"among the worst, score {score:.2f}: {view.vote['question']}"
        yield Lead(1, said, f"#{view.anchor}", view.vote["question_id"])


def show(**values: str) -> str:
    """Write the address that sets the list of questions to these values."""
    return f"#show:{urlencode(values)}"
