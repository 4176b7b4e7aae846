"""The page of two runs side by side: both answers to every question, and which of them is right."""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from markupsafe import Markup

from kohaku_ray.errors import ConfigError
from kohaku_ray.evaluation.compare import Comparing, Pair, compare_files
from kohaku_ray.evaluation.metrics import Metric, QuestionScore, find_metric
from kohaku_ray.evaluation.paired import score_interval
from kohaku_ray.evaluation.report import clusters_of
from kohaku_ray.evaluation.submissions import SubmissionRow, read_submission
from kohaku_ray.evaluation.truth import read_truth, scored_rows
from kohaku_ray.pages.evidence import Pictures
from kohaku_ray.pages.glance import cost_lines, read_usage
from kohaku_ray.pages.page import MAX_BYTES, Packed, page_environment
from kohaku_ray.pages.questions import PageLimits, QuestionView, anchor_of
from kohaku_ray.pages.report import Inputs, Select, gather, make_filters
from kohaku_ray.pages.score_text import explain_conflict, pair_text, write_signed
from kohaku_ray.pages.text import leave_out_shared, list_link
from kohaku_ray.runs.files import read_run
from kohaku_ray.settings import shown_path
from kohaku_ray.store.directory import submission_of
from kohaku_ray.store.listing import DEFAULT, find_label, list_differing
from kohaku_ray.store.storage import publish
from kohaku_ray.store.tables import SHARED
from kohaku_ray.table import Column, Table

if TYPE_CHECKING:
    import jinja2

LIMITS = (
    PageLimits(questions=3000, items=10, match_chars=600, around_chars=150, text_chars=1000),
    PageLimits(questions=3000, items=4, match_chars=200, around_chars=60, text_chars=200),
    PageLimits(questions=1000, items=2, match_chars=100, around_chars=30, text_chars=100),
)
"""Limits, largest first; the next one is used when a page would be larger than ``MAX_BYTES``."""

_NO_PICTURES = Pictures(None, ())

ONLY_A, ONLY_B, BOTH, NEITHER = "only A right", "only B right", "both right", "neither right"
VERDICTS = (ONLY_A, ONLY_B, NEITHER, BOTH)

_COLOURS = {ONLY_A: "part", ONLY_B: "part", BOTH: "right", NEITHER: "wrong"}
_SORTS = (
    ("change:-1", "B gains most first"),
    ("change:1", "B loses most first"),
    ("lowest:1", "lowest score first"),
)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs."""

    letter: str  # A or B
    path: str  # as given
    name: str  # by what the runs differ in
    rows: Mapping[str, SubmissionRow]
    scores: Sequence[QuestionScore]  # of each question compared
    views: Mapping[str, QuestionView]  # by id, without steps; empty for a submission file
    opened: Mapping[str, bytes]  # HTML of these views with their steps, compressed: one run is read after the other
    costs: Sequence[str]  # lines; empty for a submission file


@dataclass(frozen=True, slots=True)
class SideAnswer:
    """One run's answer to a question."""

    side: Side
    row: SubmissionRow
    score: QuestionScore
    error: str  # class of its error; empty where nothing is wrong
    view: QuestionView | None  # how the run came to it; None for a submission file

    @property
    def steps(self) -> Markup:
        """How the run came to it, as HTML."""
        html = zlib.decompress(self.side.opened[self.row.question_id]).decode()
        return Markup(html)  # noqa: S704 - rendered by our template, which escapes


@dataclass(frozen=True, slots=True)
class Beside:
    """Both answers to a question."""

    anchor: str  # its id on the page
    truth: SubmissionRow
    gold: str
    answers: tuple[SideAnswer, SideAnswer]

    @property
    def verdict(self) -> str:
        """Which is right: one of ``VERDICTS``."""
        a, b = (answer.score.is_right for answer in self.answers)
        return (BOTH if b else ONLY_A) if a else (ONLY_B if b else NEITHER)

    @property
    def colour(self) -> str:
        """Class name of its colour."""
        return _COLOURS[self.verdict]

    @property
    def change(self) -> float:
        """B's score less A's."""
        return self.answers[1].score.total - self.answers[0].score.total

    @property
    def question(self) -> str:
        """Its text, from the truth or from a run."""
        return self.truth.question or self.answers[0].row.question


def write_comparison(truth: str, runs: Sequence[str], output: str, metric: str, cluster: str | None = None) -> str:
    """Write the page of two runs, given as directories or submission files, and return its path.

    It is one HTML file that needs nothing beside it; see ``compare_files`` for ``metric`` and ``cluster``.

    Raises:
        ConfigError: There are not two runs, or there is no such metric.
        DataError: A file is damaged or missing, no question is in both, or the page cannot be written.
    """
    if len(runs) != 2:
        raise ConfigError(
            f"--page sets two runs side by side, and got {len(runs)}: name two, give --by COLUMN to compare groups of "
            "the questions, or leave --page out."
        )
    comparing = compare_files(truth, [submission_of(run) for run in runs], metric, cluster=cluster)
    inputs = [gather(read_run(run), truth) if os.path.isdir(run) else None for run in runs]
    rendered = (_render(comparing, runs, inputs, find_metric(metric), limits) for limits in LIMITS)
    publish(output, next(page for page in rendered if page is not None))
    return output


def _render(
    comparing: Comparing, runs: Sequence[str], inputs: Sequence[Inputs | None], metric: Metric, limits: PageLimits
) -> bytes | None:
    """Render the page; None where it exceeds ``MAX_BYTES``, unless these are the smallest limits."""
    truth = scored_rows(read_truth(comparing.truth, [metric]), [metric])
    environment, packed = page_environment(limits.text_chars), Packed()
    steps = environment.get_template("question.html.j2")
    differing = _list_differing(inputs)
    sides = [
        _side(letter, path, name, run_inputs, truth.rows, comparing, metric, limits, steps)
        for letter, path, name, run_inputs in zip("AB", runs, _names(runs, differing), inputs, strict=True)
    ]
    every = [_beside(number, key, truth.rows[key], sides, metric) for number, key in enumerate(comparing.question_ids)]
    body = environment.get_template("beside.html.j2")
    shown = every[: limits.questions]
    listed = [(beside, packed.add(body.render(one=beside, metric=metric, shared=SHARED))) for beside in shown]
    labels = comparing.cluster and clusters_of(truth, comparing.cluster)
    clusters = [labels[key] for key in comparing.question_ids] if labels else None
    verdicts = Counter(beside.verdict for beside in every)
    scores = zip(sides, comparing.scores, strict=True)
    shared = [line for line in sides[0].costs if line in sides[1].costs]
    page = environment.get_template("compare.html.j2").render(
        comparing=comparing,
        metric=metric,
        sides=[(side, score, score_interval(metric, side.scores, clusters)) for side, score in scores],
        costs={side.letter: [line for line in side.costs if line not in shared] for side in sides},
        shared_costs=shared,
        differing=Table.of([Column(name, align="left") for name in ("setting", "A", "B")], differing),
        interval=_draw_interval(comparing.pair) if comparing.pair else None,
        said=pair_text(comparing.files, comparing.pair).splitlines()[3:] if comparing.pair else [],
        verdicts=[(name, verdicts[name], list_link(verdict=name)) for name in VERDICTS],
        widest=sorted((beside for beside in shown if beside.change), key=lambda beside: -abs(beside.change))[:5],
        listed=listed,
        n_left_out=len(every) - len(listed),
        selects=_selects(every),
        sorts=_SORTS,
        limits=limits,
        packed=packed,
    )
    encoded: bytes = page.encode()
    return encoded if len(encoded) <= MAX_BYTES or limits == LIMITS[-1] else None


_MOST_IN_NAME = 3
"""Most settings in a run's name."""


def _list_differing(inputs: Sequence[Inputs | None]) -> list[tuple[str, str, str]]:
    """List the settings in which two runs differ: key, A's value, B's; none of files and of runs of older versions."""
    a, b = inputs
    if a is None or b is None:
        return []
    settings = [of_run.run.facts.get("settings") or {} for of_run in (a, b)]

    def write(of_run: Inputs, own: Mapping[str, str], key: str) -> str:
        default = of_run.run.setting(*key.split("."))
        return own.get(key) or (DEFAULT if default is None else f"{default} ({DEFAULT})")

    return [(key, write(a, settings[0], key), write(b, settings[1], key)) for key in list_differing(settings)]


def _names(runs: Sequence[str], differing: Sequence[tuple[str, str, str]]) -> list[str]:
    """Name two runs by what tells them apart: the labels of their cells, a few settings, or their paths."""
    labels = [find_label(run).split(", ") if os.path.isdir(run) else [] for run in runs]
    own = [[part for part in label if part not in other] for label, other in zip(labels, labels[::-1], strict=True)]
    if not all(map(any, own)):
        named = differing[:_MOST_IN_NAME]
        own = [[f"{key}={values[side]}" for key, *values in named] for side in range(2)]
    names = [", ".join(re.sub(r"^[\w.]+\.(?=\w+=)", "", part) for part in of_run) for of_run in own]
    return names if all(names) and names[0] != names[1] else leave_out_shared([shown_path(run) for run in runs])


def _draw_interval(pair: Pair) -> dict[str, object] | None:
    """Lay a difference's interval out on a line whose middle is 0, in per cent of its width."""
    low, high, mean = pair.interval.low, pair.interval.high, pair.interval.mean
    if low is None or high is None or mean is None:
        return None
    reach = 1.15 * max(abs(low), abs(high), abs(mean), 1e-9)
    ends = {name: 50 + 50 * value / reach for name, value in (("low", low), ("high", high), ("mean", mean))}
    conflict = explain_conflict(pair.interval, pair.permutation)
    return {
        **ends,
        "low_text": write_signed(low),
        "high_text": write_signed(high),
        "holds_0": low <= 0 <= high,
        "conflict": conflict,
    }


def _side(
    letter: str,
    path: str,
    name: str,
    inputs: Inputs | None,
    truth: Mapping[str, SubmissionRow],
    comparing: Comparing,
    metric: Metric,
    limits: PageLimits,
    steps: jinja2.Template,
) -> Side:
    rows = read_submission(submission_of(path)).rows
    scores = [metric.score_question(truth[key], rows[key]) for key in comparing.question_ids]
    views: dict[str, QuestionView] = {}
    opened: dict[str, bytes] = {}
    if inputs is not None:
        for view in islice(inputs.views(limits), limits.questions):
            html = steps.render(view=view, report=inputs.report, shared=SHARED, pictures=_NO_PICTURES)
            key = view.vote["question_id"]
            views[key], opened[key] = view.summary(), zlib.compress(html.encode(), 1)
    return Side(letter, shown_path(path), name, rows, scores, views, opened, _costs(inputs))


def _costs(inputs: Inputs | None) -> list[str]:
    return [] if inputs is None else cost_lines(inputs.run, read_usage(inputs.run))


def _beside(number: int, key: str, truth: SubmissionRow, sides: Sequence[Side], metric: Metric) -> Beside:
    classify = metric.classify or (lambda truth, given: None)
    a, b = (
        SideAnswer(
            side, side.rows[key], side.scores[number], classify(truth, side.rows[key]) or "", side.views.get(key)
        )
        for side in sides
    )
    return Beside(anchor_of(key, number + 1), truth, metric.gold(truth), (a, b))


def _selects(every: Sequence[Beside]) -> list[Select]:
    verdicts = Counter(beside.verdict for beside in every)
    choices: list[Select] = [("verdict", "Show", [(name, name, verdicts[name]) for name in VERDICTS])]
    for number, letter in enumerate("AB"):
        errors = Counter(beside.answers[number].error for beside in every if beside.answers[number].error)
        options = [(name, name, n) for name, n in sorted(errors.items())]
        choices.append((f"error{letter.lower()}", f"{letter}'s class of error", options))
    return make_filters(len(every), *choices)
