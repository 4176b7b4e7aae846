"""What each command gives back: an exit code, one line, and the fields that ``--json`` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kohaku_ray.evaluation.selection import Selection

OK, FAILED, BAD_CONFIG, ROWS_IN_ERROR = 0, 1, 2, 3
"""Exit codes: all done; anything else; configuration; finished with some rows in error."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a command.

    ``--json`` prints the fields of its own class in one object, after ``command`` and ``exit_code``; after an error,
    ``error`` (``{kind, message}``) stands in their place.

    Attributes:
        line: The result in one line.
        code: Exit code.
    """

    line: str
    code: int = OK

    def as_json(self, command: str, hide: Callable[[str], str] = str) -> dict[str, Any]:
        """Return the object that ``--json`` prints, with secrets hidden."""
        told = {"command": command, "exit_code": self.code} | {name: getattr(self, name) for name in self.shape()}
        return {name: plain(value, hide) for name, value in told.items()}

    @classmethod
    def shape(cls) -> list[str]:
        """Return the names of the fields that ``--json`` prints."""
        return [one.name for one in fields(cls) if one.name not in ("line", "code")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialised(Outcome):
    """``init``: where the files are, and their names."""

    directory: str
    files: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed(Outcome):
    """``index``.

    Attributes:
        counts: Documents, sentences, vectors, texts encoded and reused, … by name.
        n_rejects: Files, and parts of files, that could not be used.
        rejects: The first of them, as ``{file, reason}``.
        seconds: Of parse, encode, reduce and all.
    """

    path: str
    n_files: int
    counts: Mapping[str, int]
    n_rejects: int
    rejects: Rows
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed(Outcome):
    """``documents``: ``{doc_id, title, file, counts, odd}`` of each, ``{file, reason}`` of rejects, and trees."""

    n_files: int
    documents: Rows
    rejects: Rows
    trees: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Outcome):
    """``answer``.

    Attributes:
        run: Directory of the outputs.
        finished_before: The run was finished, and nothing was done.
        n_answers: Answers of members; ``n_errors`` of them carry an error.
        n_unanswered: Model calls that got no reply.
        stopped: Why no more calls were made, or empty.
        errors: Number of each error text.
        calls: Model calls by source: made, ledger, joined.
        used: What the calls made used: tokens, dollars, and seconds summed over the calls.
        seconds: Wall time of the job.
        scores: One record per metric; empty without gold answers, for the reason in ``why_unscored``.
        outputs: Names of the files in the run's directory.
        tracked: Where the run was exported to, or None.
    """

    run: str
    finished_before: bool
    n_questions: int
    n_answers: int
    n_errors: int
    n_unanswered: int
    stopped: str
    errors: Mapping[str, int]
    calls: Mapping[str, int]
    used: Mapping[str, float]
    seconds: float
    scores: Rows
    why_unscored: str
    outputs: Sequence[str]
    page: str | None
    tracked: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Outcome):
    """``ask``: directory of the outputs, the line of answers.jsonl, answers with an error, wall time of the job."""

    run: str
    answer: Mapping[str, Any]
    n_errors: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batched(Outcome):
    """``batch``: files of replies and of errors; ``calls`` and ``used`` as of ``answer``.

    Attributes:
        n_errors: Number of lines in error, by their code.
    """

    output: str
    errors: str | None
    n_lines: int
    n_errors: Mapping[str, int]
    calls: Mapping[str, int]
    used: Mapping[str, float]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept(Outcome):
    """``sweep``.

    Attributes:
        plan: Cells, indexes and calls as text (``--dry-run``), or None.
        n_runs: Distinct runs; ``n_made`` of them made now.
        n_errors: Answers of all runs that carry an error.
        failed: Why a run is not finished, by run.
        skipped: Why a run was not tried, by run.
        files: All files written.
        tracked: Where the runs that are new there and the sweep were exported to.
        selection: By table, what the choice of its best cell can tell, as ``evaluation.selection.Selection``.
    """

    plan: str | None = None
    n_cells: int
    n_runs: int
    n_made: int = 0
    n_errors: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    page: str | None = None
    files: Sequence[str] = ()
    tracked: Sequence[str] = ()
    selection: Mapping[str, Selection] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Voted(Outcome):
    """``vote``: the voted submission, counts, and the questions that a file lacks, by file."""

    output: str
    n_questions: int
    n_members: int
    n_abstained: int
    missing: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored(Outcome):
    """``score``: records are ``{file, metric, score, …}``; the note says which metrics were left out, and why."""

    truth: str
    metrics: Sequence[str]
    records: Rows
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Outcome):
    """``compare``.

    Attributes:
        scores: ``{file, score, parts, n}`` of each.
        pair: With two files ``{difference, low, high, p, n_lost, n_won, flips}``, else None.
        notes: Warnings.
        page: The page (``--page``), or None.
    """

    truth: str
    metric: str
    n_questions: int
    scores: Rows
    pair: Mapping[str, Any] | None
    notes: Sequence[str]
    page: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated(Outcome):
    """``validate``: whether a run would start, what it would use, and what keeps it from starting, as lines.

    Attributes:
        probes: ``{text, is_usable}`` of each deployment (``--probe``).
    """

    valid: bool
    findings: Sequence[str]
    problems: Sequence[str]
    probes: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown(Outcome):
    """``show``: directory of the run, and one question's rows of its tables and prompts; else the ids of all."""

    run: str
    vote: Mapping[str, Any] | None = None
    answers: Rows = ()
    trace: Rows = ()
    usage: Rows = ()
    prompts: Sequence[Any] = ()
    questions: Rows = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundled(Outcome):
    """``bundle``: the zip, the names of its runs, replies of its calls, its size."""

    bundle: str
    runs: Sequence[str]
    n_replies: int
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed(Outcome):
    """``replay``: ``{bundle, name, differences, scores, used, …}`` of each run; what differs in sweeps' tables."""

    same: bool
    runs: Rows
    tables: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported(Outcome):
    """``report``: the page."""

    page: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped(Outcome):
    """``map``: the plot."""

    plot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Benched(Outcome):
    """``bench``: directory of the outputs, their names, cells measured or not, measurements that failed."""

    output: str
    files: Sequence[str]
    n_cells: int
    n_failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(Outcome):
    """``completion``: the shell and its script."""

    shell: str
    script: str


def failure(command: str, error: Exception, code: int, hide: Callable[[str], str] = str) -> dict[str, Any]:
    """Return the object that ``--json`` prints after an error."""
    told = {"kind": type(error).__name__, "message": hide(str(error))}
    return {"command": command, "exit_code": code, "error": told}


def plain(value: Any, hide: Callable[[str], str] = str) -> Any:
    """Turn a value into what JSON can hold; NaN and infinities become null."""
    if isinstance(value, str):
        return hide(value)
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name), hide) for one in fields(value)}
    if isinstance(value, Mapping):
        return {hide(str(key)): plain(one, hide) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one, hide) for one in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
