"""What each command's ``--json`` prints, after ``command`` and ``exit_code``; docs/commands.md explains the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from kohaku_ray.evaluation.compare import Flip, Pair

R = TypeVar("R")
Calls = Mapping[str, int]
"""Number of calls by source."""


def take_fields(result: type[R], summary: object, **others: object) -> R:
    """Make a result of the ``others``; its remaining fields are those of a summary with the same names."""
    names = [item.name for item in fields(result) if item.name not in others]  # type: ignore[arg-type]
    return result(**others, **{name: getattr(summary, name) for name in names})


@dataclass(frozen=True, slots=True)
class RejectedFile:
    """A file, or a part of one, that is not indexed."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class InitResult:
    """What ``init --json`` prints."""

    directory: str
    files: Sequence[str]


@dataclass(frozen=True, slots=True)
class RunsResult:
    """What ``runs --json`` prints: fields of ``run.listing.ListedRun``, and files that are no run's."""

    directory: str
    runs: Sequence[Mapping[str, Any]]
    unread: Sequence[str]
    page: str | None


@dataclass(frozen=True, slots=True)
class DocsResult:
    """What ``docs --json`` prints: the file of a page, or the directory of all and their names."""

    path: str
    pages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompletionResult:
    """What ``completion --json`` prints."""

    shell: str
    script: str


@dataclass(frozen=True, slots=True)
class IndexResult:
    """What ``index --json`` prints."""

    path: str
    n_files: int
    counts: Mapping[str, Any]
    n_rejects: int
    rejects: Sequence[RejectedFile]  # the first
    seconds: Mapping[str, float]  # parse, encode, reduce, all


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """One document of ``documents``."""

    doc_id: str
    title: str
    file: str
    counts: Mapping[str, int]
    odd: Sequence[str]
    dropped: Sequence[str]


@dataclass(frozen=True, slots=True)
class DocumentsResult:
    """What ``documents --json`` prints."""

    n_files: int
    documents: Sequence[ParsedDocument]
    rejects: Sequence[RejectedFile]
    trees: str | None


@dataclass(frozen=True, slots=True)
class AnswerResult:
    """What ``answer --json`` prints."""

    run: str
    finished_before: bool  # nothing was done
    n_questions: int
    n_answers: int  # of members
    n_errors: int  # of these
    n_unanswered: int  # calls
    stopped: str  # why no more calls were made
    errors: Mapping[str, int]
    adapted: Mapping[str, int]
    finish_reasons: Mapping[str, int]
    shortened: Mapping[str, tuple[int, int]]
    calls: Calls
    used: Mapping[str, float]
    seconds: float
    scores: Sequence[Mapping[str, Any]]
    why_unscored: str
    outputs: Sequence[str]
    page: str | None
    tracked: str | None
    why_untracked: str


@dataclass(frozen=True, slots=True)
class AskResult:
    """What ``ask --json`` prints, one per question."""

    run: str
    answer: Mapping[str, Any]  # a line of answers.jsonl
    n_errors: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What ``sweep --json`` prints."""

    n_cells: int
    n_runs: int
    plan: str | None = None  # --dry-run
    n_made: int = 0  # now
    n_errors: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)  # reason by run
    skipped: Mapping[str, str] = field(default_factory=dict)
    page: str | None = None
    files: Sequence[str] = ()
    tracked: Sequence[str] = ()
    why_untracked: str = ""
    selection: Mapping[str, Any] = field(default_factory=dict)  # by table
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class VoteResult:
    """What ``vote --json`` prints."""

    output: str
    n_questions: int
    n_members: int
    n_abstained: int
    missing: Mapping[str, Sequence[str]]  # questions by file


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """What ``score --json`` prints."""

    truth: str
    metrics: Sequence[str]
    records: Sequence[Mapping[str, Any]]
    note: str  # on metrics left out


@dataclass(frozen=True, slots=True)
class FileScore:
    """The score of one file of ``compare``."""

    file: str
    score: float
    parts: Mapping[str, float]
    n: int


@dataclass(frozen=True, slots=True)
class PairResult:
    """The difference of the two files of ``compare``, the second less the first."""

    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    n_lost: int
    n_won: int
    flips: Sequence[Flip]
    n_clusters: int | None  # with --cluster

    @classmethod
    def of(cls, pair: Pair) -> PairResult:
        """Make it from a comparison of two files."""
        ends = pair.interval.mean, pair.interval.low, pair.interval.high
        return cls(*ends, pair.permutation.p, pair.n_lost, pair.n_won, pair.flips, pair.n_clusters)


@dataclass(frozen=True, slots=True)
class CompareResult:
    """What ``compare --json`` prints."""

    truth: str
    metric: str
    n_questions: int
    scores: Sequence[FileScore]
    pair: PairResult | None  # of two files
    split: Mapping[str, Any] | None
    notes: Sequence[str]
    page: str | None


@dataclass(frozen=True, slots=True)
class ValidateResult:
    """What ``validate --json`` prints."""

    valid: bool
    findings: Sequence[str]
    problems: Sequence[str]
    probes: Sequence[Any]


@dataclass(frozen=True, slots=True)
class ShowResult:
    """What ``show --json`` prints."""

    run: str
    vote: Mapping[str, Any] | None = None
    answers: Sequence[Mapping[str, Any]] = ()
    trace: Sequence[Mapping[str, Any]] = ()
    usage: Sequence[Mapping[str, Any]] = ()
    prompts: Sequence[Any] = ()
    questions: Sequence[Mapping[str, Any]] = ()  # without a question's id


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What ``replay --json`` prints."""

    same: bool
    runs: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ReportResult:
    """What ``report --json`` prints."""

    page: str


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What ``bench --json`` prints."""

    output: str
    files: Sequence[str]
    n_cells: int
    n_failed: int
