"""Lay out each question for a page: steps, members, vote, truth, and where the right answer was lost."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from kohaku_ray.evaluation.metrics import Metric, QuestionScore
from kohaku_ray.evaluation.passages import gold_numbers, numbers_stand_in
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow
from kohaku_ray.index.views import IMAGE
from kohaku_ray.pages.evidence import Citation, Documents, Excerpt, NodeLocation, NodeLocations, excerpt
from kohaku_ray.records import BLANK
from kohaku_ray.runs.files import RunFiles, RunRow, StepRows, steps_of
from kohaku_ray.values.normalise import group_values
from kohaku_ray.values.read import is_abstention, is_blank_strict
from kohaku_ray.values.spelling import ref_key

RIGHT, IN_PART, WRONG, ABSTAINED, ANSWERED = OUTCOMES = ("right", "right in part", "wrong", "blank", "answered")
"""Outcomes of a question. In part: its value is right, but not every part of the score; answered: no truth."""

FAILED, NO_ANSWER, VOTE, NOT_INDEXED, RETRIEVAL, NOT_SHOWN, READING, IN_THE_REST = CAUSES = (
    *("model error", "no answer exists", "vote", "not in the index", "retrieval", "no shown text", "reading"),
    "references or other parts",
)
"""Where points are lost, in the order in which they are looked for."""

_NAMES = ("node_id", "doc_id", "note")
"""Columns of trace.parquet that may hold what a reference is to."""

Tokens = Mapping[int, tuple[int, int]]
"""Tokens of a question's prompts, and generated ones, by member."""

_ANCHOR = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class PageLimits:
    """How much of a run its page shows."""

    questions: int
    items: int  # per step of a question; lists of several attempts or members share it evenly
    match_chars: int
    around_chars: int  # of a match's paragraph, on either side
    text_chars: int  # of any other text


@dataclass(frozen=True, slots=True)
class Truth:
    """The gold answer."""

    row: SubmissionRow
    citations: tuple[Citation, ...]
    metric: Metric  # the headline's
    scores: Mapping[str, QuestionScore]  # by metric, the headline first
    error: str | None  # class of the error; None where nothing is wrong
    is_indexed: bool = True  # one of its documents is in the index, or may be

    @property
    def value(self) -> str:
        """The gold value."""
        return self.metric.gold(self.row)

    @property
    def headline(self) -> QuestionScore:
        """Score by the first metric."""
        return next(iter(self.scores.values()))


@dataclass(frozen=True, slots=True)
class StepItem:
    """One item of a step."""

    row: RunRow  # of trace.parquet
    path: tuple[str, ...]  # titles and ordinals from the document down; empty where it is not a node
    page: int | None
    excerpt: Excerpt
    is_cited: bool  # by the voted answer: it or its document
    is_gold: bool  # the truth cites it or its document


@dataclass(frozen=True, slots=True)
class Step:
    """One step towards an answer."""

    rows: StepRows
    items: tuple[StepItem, ...]  # those shown, in order
    n_gold: int = 0  # references of the truth among all its items
    share: float | None = None  # items that go on, over the most of any step; None: it does not count them

    @property
    def title(self) -> str:
        """Its name as a heading."""
        name = self.rows.name.replace("_", " ")
        return name[:1].upper() + name[1:]

    @property
    def note(self) -> str:
        """The note beside its counts."""
        return str(self.rows.pool["note"]).partition("; ")[2] if self.rows.pool else ""


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member's answer; its tokens are those of all attempts."""

    row: RunRow  # of answers.parquet
    group: int | None  # of the vote; None where it is not known
    outcome: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class VoteGroup:
    """Members that gave the same answer."""

    value: str  # empty for the blanks
    weight: float
    share: float  # of all groups' weight
    members: tuple[int, ...]  # empty where they are not known
    is_winner: bool


@dataclass(frozen=True)
class QuestionView:
    """One question as the page shows it."""

    anchor: str  # its id on the page
    vote: RunRow  # of votes.parquet
    outcome: str
    truth: Truth | None
    citations: tuple[Citation, ...]
    steps: tuple[Step, ...] = field(repr=False)
    members: tuple[MemberView, ...] = field(repr=False)
    groups: tuple[VoteGroup, ...] = field(repr=False)
    is_traced: bool  # a step has nodes of the index
    is_found: bool  # a reference of the truth is among the nodes of a step
    is_stated: bool  # the gold value stands in a text that was shown, or is none that could

    def summary(self) -> QuestionView:
        """Leave out what only the opened question shows: its steps, its documents, and its members' texts."""
        members = tuple(replace(member, row=_keep_counts(member.row)) for member in self.members)
        vote = {name: self.vote[name] for name in ("question_id", "question")}
        truth = self.truth and replace(self.truth, citations=())
        return replace(self, vote=vote, truth=truth, citations=(), steps=(), members=members)

    @property
    def funnel(self) -> tuple[Step, ...]:
        """Steps that count what came in and what went on."""
        return tuple(step for step in self.steps if step.rows.pool is not None)

    @property
    def images(self) -> tuple[RunRow, ...]:
        """The image items of all steps, each image paragraph once."""
        rows = [item.row for step in self.steps for item in step.items if item.row["kind"] == IMAGE]
        return tuple({row["node_id"]: row for row in reversed(rows)}.values())[::-1]

    @property
    def n_winners(self) -> int:
        """Size of the group whose answer was written."""
        return sum(len(group.members) for group in self.groups if group.is_winner)

    @property
    def is_unanimous(self) -> bool:
        """All members gave the written answer."""
        return self.n_winners == len(self.members)

    @property
    def has_error(self) -> bool:
        """A member carries an error."""
        return any(member.row["error"] for member in self.members)

    @property
    def is_failed(self) -> bool:
        """Every member carries an error."""
        return bool(self.members) and all(member.row["error"] for member in self.members)

    @property
    def n_tokens(self) -> int:
        """Tokens of all members' calls."""
        return sum(member.prompt_tokens + member.completion_tokens for member in self.members)

    @property
    def marks(self) -> tuple[str, ...]:
        """Outcomes that the page's list selects."""
        value = self.truth.headline.is_right if self.truth else None
        marks = {
            "right": value == 1,
            "wrong": value == 0,
            "blank": self.outcome == ABSTAINED,
            "part": self.outcome == IN_PART,
            "error": self.has_error,
        }
        return tuple(name for name, holds in marks.items() if holds)

    @cached_property
    def cause(self) -> str:
        """Where the right answer was lost, one of ``CAUSES``; empty where no point is lost or there is no truth."""
        if self.truth is None or self.outcome == RIGHT:
            return ""
        if self.truth.headline.is_right:
            return IN_THE_REST if self.outcome == IN_PART or self.truth.error else ""
        if self.is_failed:
            return FAILED
        if self.truth.headline.unanswerable:
            return NO_ANSWER
        if any(member.outcome == RIGHT for member in self.members):
            return VOTE
        has_gold = any(ref_key(ref) != BLANK for ref in self.truth.row.ref_ids)
        if has_gold and not self.truth.is_indexed:
            return NOT_INDEXED
        if self.is_traced and has_gold and not self.is_found:
            return RETRIEVAL
        return READING if self.is_stated or not self.is_traced else NOT_SHOWN

    @property
    def colour(self) -> str:
        """Class name of the outcome's colour: an abstention is right where the truth is blank."""
        if self.outcome == ABSTAINED and self.truth is not None:
            return "good-blank" if self.truth.headline.is_right else "bad-blank"
        return {RIGHT: "right", IN_PART: "part", WRONG: "wrong"}.get(self.outcome, "plain")


def _keep_counts(row: RunRow) -> RunRow:
    """Keep what is counted over all questions of an answer."""
    measured = {name: value for name, value in row["measures"].items() if name.endswith("tokens")}
    return {"attempt": row["attempt"], "error": row["error"], "measures": measured}


@dataclass(frozen=True, slots=True)
class Gold:
    """A truth file with every question's scores, by metric (the headline first) and question id."""

    truth: Submission
    metrics: tuple[Metric, ...]
    scores: Mapping[str, Mapping[str, QuestionScore]]
    clusters: Mapping[str, str] | None = None  # of questions that are resampled together, by question id


def choose_steps(trace: Sequence[RunRow], n: int) -> list[tuple[StepRows, list[RunRow]]]:
    """Share ``n`` places of each step evenly among its lists (of members and attempts): each with its items shown."""
    steps = steps_of(trace)
    n_lists = Counter(step.name for step in steps)
    return [(step, step.items[: max(n // n_lists[step.name], 1)]) for step in steps]


def view_questions(
    run: RunFiles, gold: Gold | None, documents: Documents, locations: NodeLocations, limits: PageLimits
) -> Iterator[QuestionView]:
    """View each question, in the run's order, as it is read: with its steps as long as the limits show it.

    The others are views without steps, so that a run's page needs no more memory than what it shows.

    Raises:
        DataError: The tables do not fit each other.
    """
    votes, answers, trace = (run.rows_by_question(table) for table in ("votes", "answers", "trace"))
    usage = run.rows_by_question("usage", "question_id", "member", "prompt_tokens", "completion_tokens")
    compat = run.setting("ensemble", "vote", "compat")
    traced, found, stated = _find_traced(run, gold, limits.questions)
    for number in range(1, run.n_questions + 1):
        vote = votes.next_row()
        key, is_shown = vote["question_id"], number <= limits.questions
        truth = _truth(key, gold, run.submission, documents)
        rows = answers.take(key)
        members = _members(vote, rows, _tokens_by_member(usage.take(key)), truth, compat)
        of_trace = trace.take(key) if is_shown else []
        steps = _steps(vote, of_trace, truth, locations, limits)
        nodes = any(row["node_id"] for step in steps for row in step.rows.items)
        view = QuestionView(
            anchor=anchor_of(key, number),
            vote=vote,
            outcome=_outcome(vote["is_blank"], truth),
            truth=truth,
            citations=documents.cite(vote["ref_ids"]),
            steps=steps,
            members=members,
            groups=_groups(vote, members),
            is_traced=nodes if is_shown else key in traced,
            is_found=any(step.n_gold for step in steps) if is_shown else key in found,
            is_stated=truth is None or (_is_stated(truth.row, of_trace) if is_shown else key in stated),
        )
        yield view if is_shown else view.summary()
    for table in (answers, usage, *([trace] if run.n_questions <= limits.questions else [])):
        table.check_taken()


def _tokens_by_member(usage: Sequence[RunRow]) -> Tokens:
    sums: dict[int, tuple[int, int]] = {}
    for row in usage:
        prompt, completion = sums.get(row["member"], (0, 0))
        sums[row["member"]] = (prompt + (row["prompt_tokens"] or 0), completion + (row["completion_tokens"] or 0))
    return sums


def _is_stated(truth: SubmissionRow, trace: Iterable[RunRow]) -> bool:
    """Whether the gold value stands in what the models were shown, at any attempt; true of what is no number or text.

    Shown are the texts of the step ``context``, of a system without it those of every step.
    """
    value, numbers = truth.answer_value.strip().casefold(), gold_numbers(truth)
    if is_abstention(value) or value in ("0", "1"):
        return True
    rows = [row for row in trace if row["node_id"]]
    shown = [row for row in rows if row["step"] == "context"] or rows
    text = "\n".join(row["text"] or "" for row in shown)
    return numbers_stand_in(numbers, text) if numbers else value in text.casefold()


def _find_traced(run: RunFiles, gold: Gold | None, n_shown: int) -> tuple[set[str], set[str], set[str]]:
    """Find the questions whose steps have nodes, those with a reference of the truth among them, and with its value.

    Only for those that lose points beyond the first ``n_shown``, whose steps are not read.
    """
    if gold is None or run.n_questions <= n_shown:
        return set(), set(), set()
    import polars as pl

    beyond = run.columns("votes", "question_id")["question_id"][n_shown:].to_list()
    truths = {key: gold.truth.rows[key] for key in beyond if key in gold.truth.rows}
    pairs = [(key, name) for key, row in truths.items() for name in {*map(ref_key, row.ref_ids)} - {BLANK}]
    refs = pl.DataFrame(pairs, schema=["question_id", "name"], orient="row")
    right = {key for key, score in gold.scores[gold.metrics[0].name].items() if score.is_right}
    traced, found, stated = set[str](), set[str](), set[str]()
    for batch in run.batches("trace", "question_id", "step", "text", *_NAMES):
        nodes = batch.filter(pl.col("node_id").str.len_bytes() > 0)
        traced.update(nodes["question_id"].unique())
        names = nodes.unpivot(_NAMES, index="question_id", value_name="name")
        spelled = names["name"].drop_nulls().unique().to_list()
        names = names.with_columns(pl.col("name").replace(spelled, [*map(ref_key, spelled)]))
        found.update(names.join(refs, on=["question_id", "name"], how="semi")["question_id"].unique())
        asked = nodes.filter(pl.col("question_id").is_in(list(truths.keys() - right - stated)))
        for (key,), rows in asked.group_by("question_id"):
            if _is_stated(truths[str(key)], rows.select("node_id", "step", "text").to_dicts()):
                stated.add(str(key))
    return traced, found, stated


def anchor_of(question_id: str, number: int) -> str:
    """Return a question's id on a page: by its place, from 1, where its own has characters no address may have."""
    return f"q-{question_id}" if _ANCHOR.fullmatch(question_id) else f"question-{number}"


def _truth(question_id: str, gold: Gold | None, given: Submission, documents: Documents) -> Truth | None:
    row = gold.truth.rows.get(question_id) if gold is not None else None
    if gold is None or row is None or question_id not in given.rows:
        return None
    known = dict(zip(row.ref_ids, row.ref_urls, strict=False)) if len(row.ref_ids) == len(row.ref_urls) else {}
    known_documents = Documents(documents.titles, {**known, **documents.urls})
    scores = {metric: rows[question_id] for metric, rows in gold.scores.items()}
    classify = next((metric.classify for metric in gold.metrics if metric.classify and metric.classes), None)
    error = classify(row, given.rows[question_id]) if classify else None
    is_indexed = documents.has_any(row.ref_ids)
    return Truth(row, known_documents.cite(row.ref_ids), gold.metrics[0], scores, error, is_indexed)


def _outcome(abstains: bool, truth: Truth | None) -> str:
    if abstains:
        return ABSTAINED
    if truth is None:
        return ANSWERED
    if not truth.headline.is_right:
        return WRONG
    is_whole = truth.error is None and min(truth.headline.parts.values()) == 1
    return RIGHT if is_whole else IN_PART


def _members(
    vote: RunRow, answers: Sequence[RunRow], tokens: Tokens, truth: Truth | None, compat: str | None
) -> tuple[MemberView, ...]:
    # Grouped as the vote did, by value or, when it was the published vote, by spelling.
    values = ["" if row["is_blank"] else row["answer_value"] for row in answers]
    keys: Sequence[str | int] = [value.strip() for value in values]
    if compat is None:
        keys = group_values(values, vote["asked_unit"], [row["answer_unit"] for row in answers])
    groups = list(dict.fromkeys(keys))
    if len(groups) != len(vote["groups"]):  # the failed have no ballot: in older runs they count as blank
        groups = list(dict.fromkeys(key for key, row in zip(keys, answers, strict=True) if row["error"] is None))
    is_known = len(groups) == len(vote["groups"])
    member_groups = [groups.index(key) if is_known and key in groups else None for key in keys]
    members = []
    for row, group in zip(answers, member_groups, strict=True):
        prompt, completion = tokens.get(row["member"], (0, 0))
        if row["is_blank"]:
            outcome = ABSTAINED
        elif truth is None:
            outcome = ANSWERED
        else:
            named = ("question_id", "answer", "answer_value", "answer_unit", "explanation")
            refs = tuple(row["ref_ids"])
            given = SubmissionRow(**{name: row[name] for name in named}, ref_ids=refs, refs_raw=json.dumps(refs))
            outcome = RIGHT if truth.metric.score_question(truth.row, given).is_right else WRONG
        members.append(MemberView(row, group, outcome, prompt, completion))
    return tuple(members)


def _groups(vote: RunRow, members: Sequence[MemberView]) -> tuple[VoteGroup, ...]:
    total = sum(vote["group_weights"]) or 1.0
    winner = next((member.group for member in members if member.row["member"] == vote["winner"]), None)
    groups = []
    for number, (value, weight) in enumerate(zip(vote["groups"], vote["group_weights"], strict=True)):
        blank = is_blank_strict(value)
        who = tuple(member.row["member"] for member in members if member.group == number)
        wins = number == winner and blank == vote["is_blank"]
        groups.append(VoteGroup("" if blank else value, weight, weight / total, who, wins))
    return tuple(groups)


def _steps(
    vote: RunRow, rows: Sequence[RunRow], truth: Truth | None, locations: NodeLocations, limits: PageLimits
) -> tuple[Step, ...]:
    cited = set(map(ref_key, vote["ref_ids"]))
    gold = set(map(ref_key, truth.row.ref_ids)) - {BLANK} if truth is not None else set()

    def view(row: RunRow) -> StepItem:
        if row["node_id"] is None:
            return StepItem(row, (), None, excerpt(NodeLocation(()), row["text"], limits.match_chars, 0), False, False)
        location = locations.find(row["node_id"], row["text"])
        shown = excerpt(location, row["text"], limits.match_chars, limits.around_chars)
        names = _names(row)
        return StepItem(
            row, location.path, location.page, shown, not names.isdisjoint(cited), not names.isdisjoint(gold)
        )

    lists = choose_steps(rows, limits.items)
    most = max((step.pool["scores"]["out"] for step, _ in lists if step.pool), default=0.0) or 1.0
    return tuple(
        Step(
            rows=step,
            items=tuple(map(view, shown)),
            n_gold=len(gold & {name for row in step.items if row["node_id"] for name in _names(row)}),
            share=step.pool["scores"]["out"] / most if step.pool else None,
        )
        for step, shown in lists
    )


def _names(row: RunRow) -> set[str]:
    """What a reference may call an item: its node, its document, or its note."""
    return {ref_key(row[name]) for name in _NAMES if row[name]}
