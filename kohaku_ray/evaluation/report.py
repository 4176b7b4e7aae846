"""Score files against a truth, and print what came out."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.errors import ERROR_CLASSES, count_errors
from kohaku_ray.evaluation.scores import Metric, Score, aggregate, aggregate_by, score_rows
from kohaku_ray.submissions import Submission, read_submission

_NUMBERS = ("score", "value", "ref", "abstain")
_EMPTY = "(empty)"


@dataclass(frozen=True, slots=True)
class FileReport:
    """What is known of one scored file beside its scores.

    Attributes:
        file: Its path as given.
        missing: Questions of the truth it lacks; they score 0.
        extra: Its questions that the truth lacks; they are not scored.
        doubled: Ids it holds more than once; the first row counts.
        ragged: Ids of rows with more or fewer cells than the header.
        n_without_id: Rows left out because their id is empty.
        errors: How many wrong predictions fall in each class of ``ERROR_CLASSES``.
    """

    file: str
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    doubled: tuple[str, ...]
    ragged: tuple[str, ...]
    n_without_id: int
    errors: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """Scores of files under metrics.

    Attributes:
        records: A dict a file, metric and label, with file, metric, score, value, ref, abstain, n, missing (a count);
            with ``by`` also ``by`` and ``label``, the column and its value; with errors also ``errors``, counts by
            class.
        files: What else is known of each file.
        truth: The same of the truth file.
        by: The truth's column the questions were split by.
        errors: The error table was asked for.
    """

    records: list[dict[str, Any]]
    files: tuple[FileReport, ...]
    truth: FileReport
    by: str | None = None
    errors: bool = False


def run_score(
    truth_path: str | os.PathLike[str],
    files: Sequence[str | os.PathLike[str]],
    metrics: Sequence[Metric] = ("wattbot",),
    by: str | None = None,
    errors: bool = False,
    limit: int | None = None,
) -> ScoreReport:
    """Score submission files against a truth file.

    Args:
        truth_path: CSV with the gold answers.
        files: Submission CSVs.
        metrics: Under which metrics.
        by: A column of the truth to split the questions by; one record for each of its labels.
        errors: Count the error classes too (of a whole file, by the ``wattbot`` rule).
        limit: Only the truth's first so many questions, as a limited run answers them.

    Raises:
        DataError: A file cannot be read, or the truth has no column ``by``.
    """
    truth = read_submission(truth_path)
    if limit is not None:
        truth = replace(truth, rows=dict(list(truth.rows.items())[:limit]))
    labels = labels_of(truth, by) if by is not None else None
    submissions = [read_submission(path) for path in files]
    reports = tuple(_file_report(truth, submission) for submission in submissions)
    records = []
    for submission, report in zip(submissions, reports, strict=True):
        for metric in metrics:
            for label, score in _scores(truth, submission, metric, labels):
                record = {"file": submission.path, "metric": metric, **asdict(score)}
                if by is not None:
                    record["by"], record["label"] = by, label
                if errors:
                    record["errors"] = dict(report.errors)
                records.append(record)
    return ScoreReport(records, reports, _file_report(truth, truth), by, errors)


def _scores(
    truth: Submission, submission: Submission, metric: Metric, labels: Sequence[str] | None
) -> Iterator[tuple[str, Score]]:
    rows = score_rows(truth, submission, metric)
    if labels is None:
        yield "", aggregate(rows, metric)
    else:
        yield from aggregate_by(rows, labels, metric).items()


def labels_of(truth: Submission, by: str) -> list[str]:
    """Read the label of each question in a column of the truth.

    Raises:
        DataError: There is no such column.
    """
    if by not in truth.header:
        near = difflib.get_close_matches(by, truth.header, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise DataError(f"{truth.path}: has no column {by}; its columns are {', '.join(truth.header)}.{hint}")
    return [row.columns.get(by, "").strip() or _EMPTY for row in truth.rows.values()]


def _file_report(truth: Submission, submission: Submission) -> FileReport:
    return FileReport(
        file=submission.path,
        missing=tuple(key for key in truth.rows if key not in submission.rows),
        extra=tuple(key for key in submission.rows if key not in truth.rows),
        doubled=submission.doubled,
        ragged=submission.ragged,
        n_without_id=submission.n_without_id,
        errors=count_errors(truth, submission),
    )


def render(report: ScoreReport) -> str:
    """Lay a report out as plain text: the score table, the error table when asked for, and what is odd in the files."""
    head = ["file", "metric", *([report.by] if report.by else []), *_NUMBERS, "n", "missing"]
    body = [
        [
            str(record["file"]),
            str(record["metric"]),
            *([str(record["label"])] if report.by else []),
            *(f"{record[key]:.4f}" for key in _NUMBERS),
            str(record["n"]),
            str(record["missing"]),
        ]
        for record in report.records
    ]
    parts = [table(head, body, n_text=3 if report.by else 2)]
    if report.errors:
        counts = [[file.file, *(str(file.errors[name]) for name in ERROR_CLASSES)] for file in report.files]
        parts.append(table(["errors", *ERROR_CLASSES], counts, n_text=1))
    notes = [note for file in (report.truth, *report.files) for note in _notes(file)]
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])])


def table(head: Sequence[str], body: Sequence[Sequence[str]], n_text: int) -> str:
    """Align columns: the first ``n_text`` to the left, the others to the right."""
    widths = [max(len(line[column]) for line in [head, *body]) for column in range(len(head))]

    def lay(line: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if column < n_text else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([lay(head), lay(["-" * width for width in widths]), *map(lay, body)])


def _notes(file: FileReport) -> Iterator[str]:
    for ids, what in (
        (file.missing, "missing, scored 0"),
        (file.extra, "not in the truth, not scored"),
        (file.doubled, "doubled, the first row counts"),
        (file.ragged, "with more or fewer cells than the header (an unquoted comma?)"),
    ):
        if ids:
            yield f"{file.file}: {len(ids)} {what}: {', '.join(ids)}"
    if file.n_without_id:
        yield f"{file.file}: {file.n_without_id} rows without an id, left out"
