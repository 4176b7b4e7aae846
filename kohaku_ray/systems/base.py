"""A system: one declaration and two async functions.

The engine, the pages, the sweeps and the checks read the declaration and nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol, TextIO

from pydantic import Field

from kohaku_ray.ensemble.rule import Ballot
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.chunks import Chunks
from kohaku_ray.index.views import View
from kohaku_ray.models.prompts import Prompt, Prompts, read_templates
from kohaku_ray.settings import PositiveInt, Settings
from kohaku_ray.systems.questions import QuestionColumns

if TYPE_CHECKING:
    from kohaku_ray.index.nodes import NodeTable
    from kohaku_ray.models.request import Backend
    from kohaku_ray.records import Prediction, Question, TraceRow
    from kohaku_ray.systems.tools import Tools

__all__ = [
    "Answer",
    "AnsweredQuestion",
    "Ask",
    "Chunks",
    "Depth",
    "Role",
    "System",
    "Traced",
    "Uses",
    "View",
    "ballot_of",
]

Stage = Literal["prepare", "answer"]


@dataclass(frozen=True, slots=True)
class Role:
    """A model call that a system makes.

    Attributes:
        template: Jinja file in the directory ``templates`` beside the system's ``answer``, or the template's own text,
            which has a ``{``.
        max_tokens: Longest reply, in tokens, unless the configuration says otherwise.
        temperature: Sampling temperature; None: that of the lead role.
        top_p: Nucleus sampling; None: that of the lead role.
        stage: Which of the two functions makes the call. Members may differ in the models of ``answer`` roles alone.
        seed: Seed of every call when ``ensemble.members`` is 1; None: derived from question, member and attempt.
        examples: Variables that the template is tried with when a run starts.
    """

    template: str
    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    stage: Stage = "answer"
    seed: int | None = None
    examples: tuple[Mapping[str, Any], ...] = ()


class RoleConfig(Settings):
    """Model and sampling of one of the system's roles; defaults: the system's, then the lead role's."""

    model: str | None = None
    """Deployment (a key of `deployments`) that is called, or `NAME + ADAPTER`: with one of its adapters."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Nucleus sampling."""
    max_tokens: PositiveInt | None = None
    """Longest reply, in tokens."""


@dataclass(frozen=True, slots=True)
class Depth:
    """Search depth of a view: most hits per query, by vectors and by BM25."""

    dense: int = 0
    lexical: int = 0


@dataclass(frozen=True, slots=True)
class Uses:
    """What a run with given settings uses.

    Attributes:
        roles: Model roles that are asked.
        views: Deepest search per view.
        attempts: Most attempts per member and question.
        retry_settings: Settings that do not change the first attempt.
        further_settings: Those of them that change the further attempts, not only their number.
        opens_again: Whether each further attempt of a member makes the calls of ``opening`` again.
        context_tokens: Longest context of the first attempt, in tokens; None: the model's window.
        context_matches: Most matches of the first attempt whose parents are shown; None: not known.
        cross_encoder: Deployment that ranks pairs; None: no pairs are ranked.
        images: Roles whose requests carry images.
    """

    roles: tuple[str, ...]
    views: Mapping[str, Depth] = field(default_factory=dict)
    attempts: int = 1
    retry_settings: tuple[str, ...] = ()
    further_settings: tuple[str, ...] = ()
    opens_again: bool = False
    context_tokens: int | None = None
    context_matches: int | None = None
    cross_encoder: str | None = None
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """A model call known before any reply: the first calls of ``prepare``."""

    role: str
    prompt: Prompt
    schema: Mapping[str, Any] | None = None


class Traced(Protocol):
    """Evidence: a system's own record, with the steps that produced it."""

    @property
    def trace(self) -> tuple[TraceRow, ...]:
        """The steps of ``prepare``."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A member's answer and the steps that led to it.

    Attributes:
        prediction: The answer that is voted on.
        measures: Named numbers, such as the tokens of the context.
        reply: Text of the reply that the prediction is from; None if there is none.
        other_replies: The member's further attempts: one row per reply, with its text and why it was not used.
        details: The system's own JSON.
    """

    prediction: Prediction
    trace: tuple[TraceRow, ...] = ()
    measures: Mapping[str, float] = field(default_factory=dict)
    reply: str | None = None
    details: str | None = None
    other_replies: tuple[TraceRow, ...] = ()


def ballot_of(row: Mapping[str, Any]) -> Ballot:
    """Build a ballot from a prediction or a row of answers.parquet; value and references unchanged."""
    return Ballot(
        answer_value=row["answer_value"],
        ref_ids=tuple(row["ref_ids"]),
        is_blank=row["is_blank"],
        answer=row["answer"],
        answer_unit=row["answer_unit"],
        explanation=row["explanation"],
        only_flagged=True,
    )


Rows = Sequence[Mapping[str, Any]]
"""Rows of a run's table."""


class AnsweredQuestion(NamedTuple):
    """The rows of a question in a run's tables: its vote, its members' answers, and what happened."""

    vote: Mapping[str, Any]
    answers: Rows
    trace: Rows


@dataclass(frozen=True, slots=True)
class System:
    """A question-answering system.

    Attributes:
        name: Name of the system and of its section of the configuration.
        settings: Type of that section, with its own cross-field checks.
        views: Views that may be searched, by name.
        roles: Model calls, by name.
        uses: ``settings -> Uses``: what a run uses.
        prepare: ``(question, tools, settings)``: gather evidence, once per question (or per member with
            ``ensemble.scope: question``); returns evidence with a ``trace``. Keeps no state between calls.
        answer: ``(evidence, tools, settings)``: answer from the evidence, once per member; a model's failure becomes a
            blank prediction with the error.
        metrics: Names of metrics, as ``find_metric`` takes them; the first one is the headline.
        opening: ``(question, prompts, settings)``: model calls that ``prepare`` makes before any reply; a dry run looks
            them up in the ledger.
        ballot: Turns a row of answers.parquet, its ``measures`` as a mapping, into a ballot.
        weighs: ``ballot`` gives weights other than 1, so that votes cannot be settled early.
        extra_columns: Further columns of submission.csv: ``(vote, its members' answers) -> text`` by name.
        columns: Which columns of a question file make the question, and which are gold.
        quote_step: Step of the trace whose texts support a citation; empty: the first step that has the document.
        outputs: Files written beside the tables, by name: each function takes the run's questions, one after the
            other, and the file to write.
        check: Takes a configuration; raises ``ConfigError`` where the system cannot run it.
        offline: Builds the stand-in for a model: ``window_tokens -> Backend``.
        derived: Further measures of an answer, which a sweep computes when it shows them: ``(rows of its trace, nodes
            of its index, settings) -> number`` by name.
        facts: Settings that distinguish runs on a sweep's page, by label.
        chunks: Default chunking of documents; None: no chunks.
        document_format: Default of ``documents.format``: a name, as ``find_format`` takes it.
        language: Default of ``index.bm25.language``.
        deployments: Entries of ``deployments`` by default, by name; one is there where the settings name it.
    """

    name: str
    settings: type[Settings]
    views: Mapping[str, View]
    roles: Mapping[str, Role]
    uses: Callable[[Any], Uses]
    prepare: Callable[[Question, Tools, Any], Awaitable[Any]]
    answer: Callable[[Any, Tools, Any], Awaitable[Answer]]
    metrics: tuple[str, ...]
    opening: Callable[[Question, Prompts, Any], Iterable[Ask]] | None = None
    ballot: Callable[[Mapping[str, Any]], Ballot] = ballot_of
    weighs: bool = False
    extra_columns: Mapping[str, Callable[[Mapping[str, Any], Rows], str]] = field(default_factory=dict)
    columns: QuestionColumns = field(default_factory=QuestionColumns)
    quote_step: str = ""
    outputs: Mapping[str, Callable[[Iterable[AnsweredQuestion], TextIO], object]] = field(default_factory=dict)
    check: Callable[[Any], None] | None = None
    offline: Callable[[int], Backend] | None = None
    derived: Mapping[str, Callable[[Rows, NodeTable, Any], float]] = field(default_factory=dict)
    facts: Callable[[Any], Mapping[str, str]] = lambda _: {}
    chunks: Chunks | None = None
    document_format: str = "auto"
    language: Literal["en", "fr"] = "en"
    deployments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the parts that the engine relies on; a ``ConfigError`` names one that is missing or wrong."""
        for part in ("prepare", "answer", "uses"):
            if not callable(getattr(self, part)):
                raise ConfigError(f"system {self.name} has no function {part}: give its System one")
        if all(role.stage != "answer" for role in self.roles.values()):
            raise ConfigError(f"system {self.name} has no role of the stage answer: declare the one that answers first")
        if not (isinstance(self.settings, type) and issubclass(self.settings, Settings)):
            raise ConfigError(f"system {self.name}: settings is {self.settings!r}, expected a subclass of Settings")

    @property
    def lead(self) -> str:
        """The first role that answers: its model is the default of the others, and ``ensemble.models`` sets it."""
        return next(name for name, role in self.roles.items() if role.stage == "answer")

    def prompts(self, directory: str | None = None) -> Prompts:
        """Load the templates of all roles, the user's own in ``directory`` before the system's, and try each once.

        Raises:
            ConfigError: A template is missing, does not parse, lacks a block or names an unknown variable.
        """
        roles = {name: (role.template, role.examples) for name, role in self.roles.items()}
        module = inspect.getsourcefile(self.answer) or "."
        return Prompts(read_templates(roles, Path(module).parent / "templates", directory))
