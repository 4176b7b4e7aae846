"""Compare submission files: questions that flipped, the paired test, scores on groups of questions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.evaluation.flips import Pair, compare_pair, flip_tables, pair_text
from kohaku_ray.evaluation.grid import FEW_QUESTIONS
from kohaku_ray.evaluation.metrics import DEFAULT_METRIC, Score, find_metric
from kohaku_ray.evaluation.report import labels_of, table
from kohaku_ray.evaluation.splits import Split, split_scores, split_tables
from kohaku_ray.evaluation.submissions import Submission, read_submission
from kohaku_ray.evaluation.truth import read_truth, scored_rows


@dataclass(frozen=True, slots=True)
class Comparing:
    """Files compared on the questions that the truth and all of them have.

    Attributes:
        truth: Path of the truth.
        files: Paths, as given.
        metric: Name of the metric.
        question_ids: The questions compared, in the truth's order.
        scores: One per file.
        pair: With two files, their comparison question by question.
        split: With ``by``, the groups.
        notes: Warnings for the reader: questions left out, odd rows, too few questions.
    """

    truth: str
    files: tuple[str, ...]
    metric: str
    question_ids: tuple[str, ...]
    scores: tuple[Score, ...]
    pair: Pair | None
    split: Split | None
    notes: tuple[str, ...]


def compare_files(
    truth_path: str | os.PathLike[str],
    files: Sequence[str | os.PathLike[str]],
    metric: str = DEFAULT_METRIC,
    by: str | None = None,
) -> Comparing:
    """Compare submission files on the questions that the truth and all of them have.

    Args:
        truth_path: CSV with the gold answers.
        files: Two or more submission CSVs; two are compared question by question.
        metric: Name of the metric, see ``find_metric``.
        by: A column of the truth, such as public/private, that splits the questions into groups.

    Raises:
        ConfigError: There are fewer than two files, or there is no such metric.
        DataError: A file cannot be read, no question is in all of them, or the truth has no column ``by``.
    """
    if len(files) < 2:
        given = ", ".join(os.fspath(file) for file in files) or "none"
        raise ConfigError(f"compare takes two or more runs, and got {len(files)} ({given}): name what to compare with.")
    found = find_metric(metric)
    truth = scored_rows(read_truth(truth_path, [found]), [found])
    submissions = [read_submission(file) for file in files]
    keys = _common(truth, submissions)
    labels = _labels(truth, by, keys) if by is not None else ()
    rows = [[found.score_question(truth.rows[key], each.rows[key]) for key in keys] for each in submissions]
    split = split_scores(by, labels, rows, found) if by is not None else None
    return Comparing(
        truth=truth.path,
        files=tuple(submission.path for submission in submissions),
        metric=found.name,
        question_ids=keys,
        scores=tuple(map(found.aggregate, rows)),
        pair=compare_pair(truth, submissions, rows, found) if len(files) == 2 else None,
        split=split,
        notes=tuple(_notes(truth, submissions, keys, split)),
    )


def _common(truth: Submission, submissions: Sequence[Submission]) -> tuple[str, ...]:
    keys = tuple(key for key in truth.rows if all(key in submission.rows for submission in submissions))
    if not keys:
        counts = ", ".join(f"{each.path} has {len(each.rows)}" for each in (truth, *submissions))
        raise DataError(f"no question is in all files ({counts}): compare runs over the same questions.")
    return keys


def _labels(truth: Submission, by: str, keys: Sequence[str]) -> tuple[str, ...]:
    label = dict(zip(truth.rows, labels_of(truth, by), strict=True))
    return tuple(label[key] for key in keys)


def _notes(
    truth: Submission, submissions: Sequence[Submission], keys: Sequence[str], split: Split | None
) -> Iterator[str]:
    if len(keys) < len(truth.rows):
        yield f"compared on {len(keys)} of the truth's {len(truth.rows)} questions: those that all files have"
    for what, files in _oddities(truth, submissions).items():
        who = f"all {len(files)} files" if len(files) == len(submissions) else ", ".join(files)
        yield f"{who}: {what}"
    groups = {f"{split.by} {name}": split.scores[name][0].n for name in split.labels} if split else {}
    for name, n in {"the comparison": len(keys), **groups}.items():
        if n < FEW_QUESTIONS:
            yield f"{name} has only {n} questions: fewer than {FEW_QUESTIONS} say little"


def _oddities(truth: Submission, submissions: Sequence[Submission]) -> dict[str, list[str]]:
    """List oddities, each with the files that have it: many runs often lack the same questions."""
    found: dict[str, list[str]] = {}
    for file in submissions:
        for ids, what in (
            ([key for key in truth.rows if key not in file.rows], "missing, left out of the comparison"),
            ([key for key in file.rows if key not in truth.rows], "not in the truth, not compared"),
            (file.doubled, "doubled, the first row counts"),
            (file.ragged, "with more or fewer cells than the header (an unquoted comma?)"),
        ):
            if ids:
                found.setdefault(f"{len(ids)} {what}: {', '.join(ids)}", []).append(file.path)
        if file.n_without_id:
            found.setdefault(f"{file.n_without_id} rows without an id, left out", []).append(file.path)
    return found


def render(comparing: Comparing) -> str:
    """Lay a comparison out as plain text: scores, the two files question by question, the groups, and what is odd."""
    parts = [_score_table(comparing)]
    if comparing.pair is not None:
        parts += [pair_text(comparing.files, comparing.pair), *flip_tables(comparing.pair)]
    if comparing.split is not None:
        parts += split_tables(comparing.files, _order(comparing), comparing.split)
    return "\n\n".join([*parts, *(["\n".join(comparing.notes)] if comparing.notes else [])])


def _order(comparing: Comparing) -> list[int]:
    """Order of the files: two as given, more by score, the best first."""
    places = list(range(len(comparing.files)))
    return places if comparing.pair is not None else sorted(places, key=lambda i: -comparing.scores[i].score)


def _score_table(comparing: Comparing) -> str:
    body = []
    for i in _order(comparing):
        score = comparing.scores[i]
        figures = (score.score, *score.parts.values())
        body.append([comparing.files[i], *(f"{figure:.4f}" for figure in figures), str(score.n)])
    return table([comparing.metric, "score", *comparing.scores[0].parts, "n"], body, n_text=1)
