"""Score files against a truth."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.metrics import DEFAULT_METRIC, Figures, FiguresOf, Metric, find_metric
from kohaku_ray.evaluation.paired import score_interval
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow, read_submission
from kohaku_ray.evaluation.truth import read_truth, scored_rows
from kohaku_ray.records import BLANK, pluralize
from kohaku_ray.table import Table
from kohaku_ray.values.read import is_blank

_EMPTY = "(empty)"


@dataclass(frozen=True, slots=True)
class FileReport:
    """Facts about one scored file beside its scores: ids that it lacks (score 0) or the truth lacks (not scored).

    Attributes:
        doubled: Ids it holds more than once; the first row counts.
        ragged: Ids of rows with more cells than the header.
        n_without_id: Rows left out because their id is empty.
        wrong: Ids of wrong predictions in each class of the report's ``classes``.
        figures: Figures of the whole set by metric, for metrics that have any.
        odd: What else is odd, a line each.
    """

    file: str
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    doubled: tuple[str, ...]
    ragged: tuple[str, ...]
    n_without_id: int
    wrong: Mapping[str, Sequence[str]]
    figures: Mapping[str, Figures] = field(default_factory=dict)
    odd: tuple[str, ...] = ()

    @property
    def errors(self) -> dict[str, int]:
        """Number of wrong predictions in each class."""
        return {name: len(ids) for name, ids in self.wrong.items()}

    @property
    def notes(self) -> list[str]:
        """What is odd about the file, one line per oddity."""
        oddities = (
            (self.missing, "missing, scored 0 and not compared"),
            (self.extra, "not in the truth, not scored"),
            (self.doubled, "doubled, the first row counts"),
            (self.ragged, "with more cells than the header (an unquoted comma?)"),
        )
        nameless = [f"{pluralize(self.n_without_id, 'row')} without an id, left out"] if self.n_without_id else []
        return [f"{len(ids)} {what}: {', '.join(ids)}" for ids, what in oddities if ids] + nameless + list(self.odd)


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """Scores of files under metrics.

    Attributes:
        records: One dict per file, metric and label, with file, metric, score, every part of the metric, n, missing (a
            count); with ``by`` also ``by`` and ``label``, the column and its value; with ``cluster`` ``low`` and
            ``high``, the ends of the 95 % interval, and ``n_clusters``, and ``interval``, why an end is missing or
            how the interval was made, where questions do not differ; with errors also ``errors``,
            counts by class; with figures of the whole set ``figures``, numbers by name.
        files: Other facts about each file.
        truth: The same of the truth file.
        classes: Classes of errors: those of the first metric that has any.
    """

    records: list[dict[str, Any]]
    files: tuple[FileReport, ...]
    truth: FileReport
    metrics: tuple[Metric, ...]
    classes: tuple[str, ...]
    by: str | None = None
    errors: bool = False
    cluster: str | None = None


def run_score(
    truth_path: str | os.PathLike[str],
    files: Sequence[str | os.PathLike[str]],
    metrics: Sequence[str] = (DEFAULT_METRIC,),
    by: str | None = None,
    errors: bool = False,
    limit: int | None = None,
    split_by: Sequence[str] = (),
    cluster: str | None = None,
) -> ScoreReport:
    """Score submission files against a truth file.

    Args:
        truth_path: CSV with the gold answers.
        files: Submission CSVs.
        metrics: Names of the metrics, see ``find_metric``.
        by: A column of the truth to split the questions by; one record for each of its labels.
        errors: Count the error classes too, for each whole file.
        limit: How many of the truth's questions are scored, from the first, as in a limited run.
        split_by: Columns of the truth by which figures of the whole set are split too, where it has them.
        cluster: A column of the truth, such as ``ref_id``: each score gets the interval of a resampling by its values.

    Raises:
        ConfigError: There is no such metric.
        DataError: A file cannot be read, or the truth has no column ``by`` or ``cluster``.
    """
    scorers = tuple(map(find_metric, metrics))
    classifier = next((metric for metric in scorers if metric.classes), None)
    truth = scored_rows(read_truth(truth_path, scorers), scorers, limit)
    parts = parts_of(truth, by) if by is not None else {"": truth}
    submissions = [read_submission(path) for path in files]
    reports = tuple(
        replace(
            file_report(truth, each, classifier),
            figures=_figures(truth, each, scorers, split_by),
            odd=(
                *each.odd,
                *(odd for metric in scorers for odd in _given_oddities(truth, each, metric)),
                *_failures(truth, each, scorers),
            ),
        )
        for each in submissions
    )
    records = []
    for submission, report in zip(submissions, reports, strict=True):
        for metric, (label, part) in product(scorers, parts.items()):
            gold = scored_rows(part, [metric])
            rows = metric.score(gold, submission)
            score, rows = metric.aggregate(rows), metric.counted(rows)
            record: dict[str, Any] = {"file": submission.path, "metric": metric.name, "score": score.score}
            record |= {**score.parts, "n": score.n, "missing": score.missing}
            if by is not None:
                record |= {"by": by, "label": label}
            if cluster is not None:
                of_question = clusters_of(gold, cluster)
                names = [of_question[row.question_id] for row in rows]
                interval = score_interval(metric, rows, names)
                record |= {"low": interval.low, "high": interval.high, "n_clusters": len({*names})}
                record |= {"interval": interval.reason} if interval.reason else {}
            if metric.figures is not None and (whole := metric.figures(part, submission)) is not None:
                record["figures"] = {number.name: number.value for number in whole.numbers}
            if errors:
                record["errors"] = dict(report.errors)
            records.append(record)
    classes = classifier.classes if classifier is not None else ()
    of_truth = replace(file_report(truth, truth, classifier), odd=(*truth.odd, *gold_oddities(truth, scorers)))
    return ScoreReport(records, reports, of_truth, scorers, classes, by, errors, cluster)


def gold_oddities(truth: Submission, metrics: Sequence[Metric]) -> Iterator[str]:
    """Say what is odd about gold answers, and how the metrics read it."""
    for key, row in truth.rows.items():
        yield from dict.fromkeys(f"{key}: {odd}" for metric in metrics if (odd := metric.oddity(row)))


def _given_oddities(truth: Submission, given: Submission, metric: Metric) -> Iterator[str]:
    """Say what a metric finds odd about a submission.

    Raises:
        DataError: A cell is empty that must be filled, or the metric counts none of the truth's questions.
    """
    for column in metric.filled_columns:
        if column not in given.header:
            yield f"has no column {column}: {metric.name} scores it, the official scorer would not"
        elif empty := [key for key, row in given.rows.items() if not row.columns.get(column, "").strip()]:
            raise DataError(
                f"{given.path}: {metric.name} wants {column} in every row, and {pluralize(len(empty), 'row')} "
                f"{'has' if len(empty) == 1 else 'have'} none: {', '.join(empty)}; write {BLANK} there."
            )
    n_missing = sum(key not in given.rows for key in truth.rows)
    if n_missing and not metric.counts_missing:
        if n_missing == len(truth.rows):
            raise DataError(f"{given.path}: has none of the {n_missing} ids of {truth.path}: make the ids agree.")
        yield f"{n_missing} missing leave the mean of {metric.name}, as the official scorer has it"


def _failures(truth: Submission, given: Submission, metrics: Sequence[Metric]) -> Iterator[str]:
    """Say which questions failed, and what the file would score if their rows were abstentions, as it says."""
    failed = [key for key, row in given.rows.items() if row.is_failed and key in truth.rows]
    if failed:
        rows = {key: replace(row, explanation=BLANK) if row.is_failed else row for key, row in given.rows.items()}
        scores = []
        for metric in metrics:
            score = metric.aggregate(metric.score(scored_rows(truth, [metric]), replace(given, rows=rows))).score
            scores.append(f"{score:.4f} by {metric.name}")
        yield (
            f"{len(failed)} failed, scored 0: {', '.join(failed)}; the file alone, which says {BLANK} there, would "
            f"score {', '.join(scores)}"
        )


def _figures(
    truth: Submission, given: Submission, metrics: Sequence[Metric], split_by: Sequence[str]
) -> dict[str, Figures]:
    """Compute the figures of a whole file by metric, with a table of their numbers per column of ``split_by``."""
    figures = {}
    for metric in metrics:
        compute = metric.figures
        if compute is not None and (whole := compute(truth, given)) is not None:
            splits = [_by_label(compute, truth, given, by) for by in split_by if by in truth.header]
            figures[metric.name] = replace(whole, tables=(*whole.tables, *(table for table in splits if table)))
    return figures


def _by_label(compute: FiguresOf, truth: Submission, given: Submission, by: str) -> Table | None:
    figures_by_label = {
        label: label_figures
        for label, part in parts_of(truth, by).items()
        if (label_figures := compute(part, given)) is not None
    }
    names = tuple(dict.fromkeys(number.name for figures in figures_by_label.values() for number in figures.numbers))
    rows = []
    for label, figures in figures_by_label.items():
        texts = {number.name: number.text for number in figures.numbers}
        rows.append((label, figures.n, *(texts.get(name, "–") for name in names)))
    return Table.of([by, "n", *names], rows, f"By {by}") if rows else None


def parts_of(truth: Submission, by: str) -> dict[str, Submission]:
    """Split a truth by the label of each question in a column; labels as ``public_first`` orders them."""
    parts: dict[str, dict[str, SubmissionRow]] = {}
    for key, label in labels_of(truth, by).items():
        parts.setdefault(label, {})[key] = truth.rows[key]
    return {label: replace(truth, rows=parts[label]) for label in public_first(parts)}


def public_first(labels: Iterable[str]) -> list[str]:
    """Order the groups of a truth: ``public``, in whatever case, then the others as they appear."""
    return sorted(labels, key=lambda label: label.casefold() != "public")


def labels_of(truth: Submission, by: str) -> dict[str, str]:
    """Read the label of each question in a column of the truth, by question id.

    Raises:
        DataError: There is no such column.
    """
    if by not in truth.header:
        near = difflib.get_close_matches(by, truth.header, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise DataError(f"{truth.path}: has no column {by}; its columns are {', '.join(truth.header)}.{hint}")
    return {key: row.columns.get(by, "").strip() or _EMPTY for key, row in truth.rows.items()}


def clusters_of(truth: Submission, column: str) -> dict[str, str]:
    """Name the cluster of each question by its id: its value in a column of the truth, or itself where that is blank.

    Raises:
        DataError: There is no such column.
    """
    labels = labels_of(truth, column)
    return {key: f"question {key}" if label == _EMPTY or is_blank(label) else label for key, label in labels.items()}


def file_report(truth: Submission, submission: Submission, classifier: Metric | None = None) -> FileReport:
    """Compare the ids of a file with the truth's, and count its errors."""
    return FileReport(
        file=submission.path,
        missing=tuple(key for key in truth.rows if key not in submission.rows),
        extra=tuple(key for key in submission.rows if key not in truth.rows),
        doubled=submission.doubled,
        ragged=submission.ragged,
        n_without_id=submission.n_without_id,
        odd=submission.odd,
        wrong=classifier.find_errors(truth, submission) if classifier is not None else {},
    )
