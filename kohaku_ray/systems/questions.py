"""Questions: their settings, and how a file of them is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kohaku_ray.errors import DataError
from kohaku_ray.records import Question
from kohaku_ray.settings import FilePath, PositiveInt, Settings
from kohaku_ray.values.read import is_blank

if TYPE_CHECKING:
    from kohaku_ray.documents.data.rows import RowTable

MAX_QUESTION_CHARS = 200_000  # longest question; encoders, planners and models read it whole


class QuestionsConfig(Settings):
    """The questions."""

    path: FilePath = "sample:questions.csv"
    """CSV, JSON lines or Parquet, also from `s3://` or as `hf://datasets/OWNER/NAME?split=test`, with columns id and
    question; optional answer_unit, answer_type and gold answers."""
    limit: PositiveInt | None = None
    """Answer only the first questions, this many; None: all."""
    metrics: tuple[str, ...] | None = None
    """Metrics that score the answers, the headline first: `wattbot2026`, or your own as `module:NAME`; None: the
    system's."""


@dataclass(frozen=True, slots=True)
class QuestionColumns:
    """Which columns of a question file a system reads.

    Attributes:
        question_id: Possible names of the id column; the first one present is read.
        text: Possible names of the question column, likewise.
        gold: Columns of gold answers, in any case. They are never passed on, so they cannot leak into a prompt.
        needed: Other columns that the file must have.
        split_by: Columns by which scores are also shown.
    """

    question_id: tuple[str, ...] = ("id", "question_id", "qid", "_id")
    text: tuple[str, ...] = ("question", "text", "query")
    gold: frozenset[str] = frozenset(
        {"answer", "answer_value", "ref_id", "ref_url", "supporting_materials", "explanation", "is_blank", "is_na"}
        | {"golden_answers", "generation_gt", "retrieval_gt"}
    )
    needed: tuple[str, ...] = ()
    split_by: tuple[str, ...] = ()


def read_questions(
    name: str,
    data: bytes,
    limit: int | None = None,
    columns: QuestionColumns = QuestionColumns(),
    odd: list[str] | None = None,
) -> list[Question]:
    """Read questions from the bytes of a CSV, JSON lines or Parquet; ``name`` tells which (see ``questions_in``)."""
    # actors know the settings of this module, and read no questions
    from kohaku_ray.documents.data.rows import read_table

    return questions_in(name, read_table(name, data, "questions", keep_ragged=False), limit, columns, odd)


def questions_in(
    name: str,
    table: RowTable,
    limit: int | None = None,
    columns: QuestionColumns = QuestionColumns(),
    odd: list[str] | None = None,
) -> list[Question]:
    """Take the questions of a table.

    Args:
        name: Its file, for messages.
        table: Its rows.
        limit: How many questions are read, from the first; None: all.
        columns: Which columns hold the question, and which the gold answers.
        odd: Takes what is odd about the file, a line each; None: a job reads what was read and said before.

    Returns:
        Questions in the file's order. An empty text is kept: it becomes a row with an error, not a lost row.

    Raises:
        DataError: It lacks a column, an id is missing or repeated, or a question is too long.
    """
    from kohaku_ray.documents.data.rows import cell_of, check_ids

    if odd is not None:
        odd += [f"{name}: {what}" for what in table.odd]
    rows = [{column: cell_of(value).strip() for column, value in row.items()} for row in table.rows]
    if not rows:
        raise DataError(f"{name} holds no questions: write one per row, below a header such as id,question")
    header = list(table.columns)
    id_column = _column(name, header, columns.question_id)
    text_column = _column(name, header, columns.text)
    for needed in columns.needed:
        _column(name, header, (needed,))
    check_ids(name, table, [row.get(id_column, "") for row in rows], "questions", id_column)
    gold = frozenset(column.casefold() for column in columns.gold)
    questions = [_question(number, row, id_column, text_column, gold) for number, row in enumerate(rows[:limit])]
    for question in questions:
        if len(question.text) > MAX_QUESTION_CHARS:
            raise DataError(
                f"{name}: question {question.question_id!r} has {len(question.text):,} characters, at most "
                f"{MAX_QUESTION_CHARS:,} are read: shorten it"
            )
    return questions


def _question(
    number: int, texts: Mapping[str, str], id_column: str, text_column: str, gold: frozenset[str]
) -> Question:
    unit = texts.get("answer_unit", "")
    return Question(
        question_id=texts[id_column],
        text=texts.get(text_column, ""),
        answer_unit=None if is_blank(unit) else unit,
        answer_type=texts.get("answer_type") or None,
        columns={
            column: text
            for column, text in texts.items()
            if column not in (id_column, text_column) and column.strip().casefold() not in gold
        },
        number=number,
    )


def _column(name: str, columns: list[str], wanted: tuple[str, ...]) -> str:
    for column in wanted:
        if column in columns:
            return column
    raise DataError(
        f"{name}: no column {' or '.join(wanted[:2])}; it has {', '.join(map(str, columns))}: rename one of them"
    )
