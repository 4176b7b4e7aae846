"""What each command gives back: an exit code, one line, and the values that ``--json`` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

OK, FAILED, BAD_CONFIG, ROWS_IN_ERROR = 0, 1, 2, 3
"""Exit codes: all done; anything else; configuration; finished with some rows in error."""

SHAPES: Mapping[str, Mapping[str, str]] = {
    "init": {"directory": "where the files are", "files": "names of the files written"},
    "index": {
        "path": "directory of the index",
        "n_files": "files found",
        "counts": "documents, sentences, vectors, texts encoded and reused, … by name",
        "n_rejects": "files, and parts of files, that could not be used",
        "rejects": "the first of them, as {file, reason}",
        "seconds": "of parse, encode, reduce and all",
    },
    "documents": {
        "n_files": "files found",
        "documents": "{doc_id, title, file, counts, odd} of each",
        "rejects": "{file, reason} of each",
        "trees": "directory of the trees, or null",
    },
    "answer": {
        "run": "directory of the outputs",
        "finished_before": "true: the run was finished, and nothing was done",
        "n_questions": "questions",
        "n_answers": "answers of members",
        "n_errors": "answers of members that carry an error",
        "n_unanswered": "model calls that got no reply",
        "stopped": "why no more calls were made, or empty",
        "errors": "number of each error text",
        "calls": "model calls by source: made, ledger, joined",
        "used": "what the calls made used: tokens, dollars, and seconds summed over the calls",
        "seconds": "wall time of the job",
        "scores": "one record per metric; empty without gold answers",
        "why_unscored": "why scores is empty, or empty",
        "outputs": "names of the files in the run's directory",
        "page": "the page, or null",
        "tracked": "where the run was exported to, or null",
    },
    "ask": {
        "run": "directory of the outputs",
        "answer": "the line of answers.jsonl",
        "n_errors": "answers of members that carry an error",
        "seconds": "wall time of the job",
    },
    "sweep": {
        "plan": "cells, indexes and calls as text (--dry-run), or null",
        "n_cells": "cells of all tables",
        "n_runs": "distinct runs",
        "n_made": "runs made now",
        "n_errors": "answers of all runs that carry an error",
        "failed": "why a run is not finished, by run",
        "skipped": "why a run was not tried, by run",
        "page": "the page, or null",
        "files": "all files written",
        "tracked": "where the runs that are new there and the sweep were exported to",
        "seconds": "wall time",
    },
    "vote": {
        "output": "the voted submission",
        "n_questions": "questions",
        "n_members": "files",
        "n_abstained": "questions without an answer",
        "missing": "questions that a file lacks, by file",
    },
    "score": {
        "truth": "the gold answers",
        "metrics": "names of the metrics",
        "records": "{file, metric, score, …} per file, metric and label",
        "note": "which metrics were left out, and why, or empty",
    },
    "compare": {
        "truth": "the gold answers",
        "metric": "name of the metric",
        "n_questions": "questions compared",
        "scores": "{file, score, parts, n} of each",
        "pair": "with two files {difference, low, high, p, n_lost, n_won, flips}, else null",
        "notes": "warnings",
        "page": "the page (--page), or null",
    },
    "validate": {
        "valid": "true: a run would start",
        "findings": "what it would use, as lines",
        "problems": "what keeps it from starting, as lines",
        "probes": "{text, is_usable} of each deployment (--probe)",
    },
    "show": {"run": "directory of the run", "vote": "row of votes.parquet", "answers": "rows of answers.parquet",
             "trace": "rows of trace.parquet", "usage": "rows of usage.parquet"},
    "report": {"page": "the page"},
    "map": {"plot": "the plot"},
    "bench": {"output": "directory of the outputs", "files": "their names", "n_cells": "cells measured or not",
              "n_failed": "measurements that failed"},
    "completion": {"shell": "the shell", "script": "the script"},
}  # fmt: skip
"""The values of each command, with their meaning. ``--json`` prints them in one object, after ``command`` and
``exit_code``; after an error, ``error`` (``{kind, message}``) stands in their place."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a command.

    Attributes:
        command: Its name.
        line: The result in one line.
        values: See ``SHAPES``.
        code: Exit code.
    """

    command: str
    line: str
    values: Mapping[str, Any]
    code: int = OK

    def __post_init__(self) -> None:
        """Check the values against ``SHAPES``.

        Raises:
            ValueError: They differ.
        """
        if self.values.keys() != SHAPES[self.command].keys():
            different = sorted(self.values.keys() ^ SHAPES[self.command].keys())
            raise ValueError(f"values of {self.command} and SHAPES differ in {', '.join(different)}: this is a bug")

    def as_json(self, hide: Callable[[str], str] = str) -> dict[str, Any]:
        """Return the object that ``--json`` prints, with secrets hidden."""
        values = {"command": self.command, "exit_code": self.code, **self.values}
        return {name: plain(value, hide) for name, value in values.items()}


def failure(command: str, error: Exception, code: int, hide: Callable[[str], str] = str) -> dict[str, Any]:
    """Return the object that ``--json`` prints after an error."""
    told = {"kind": type(error).__name__, "message": hide(str(error))}
    return {"command": command, "exit_code": code, "error": told}


def plain(value: Any, hide: Callable[[str], str] = str) -> Any:
    """Turn a value into what JSON can hold; NaN and infinities become null."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {hide(str(key)): plain(one, hide) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one, hide) for one in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
