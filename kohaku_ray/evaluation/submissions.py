"""Submission files, read as real runs wrote them and written as WattBot asks for them."""

from __future__ import annotations

import csv
import functools
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from kohaku_ray.documents.data.rows import RowTable, cell_of, read_table
from kohaku_ray.documents.read import read_bytes
from kohaku_ray.documents.text.content import clean_print
from kohaku_ray.errors import DataError
from kohaku_ray.records import BLANK, FAILED, UNANSWERABLE
from kohaku_ray.store.storage import publish_with
from kohaku_ray.values.read import is_abstention, is_blank, is_blank_strict, split_items, split_list
from kohaku_ray.values.spelling import ref_key

COLUMNS = (
    "id",
    "question",
    "answer",
    "answer_value",
    "answer_unit",
    "ref_id",
    "ref_url",
    "supporting_materials",
    "explanation",
)
"""Columns of a submission, in the order they are written."""

REQUIRED = ("id", "answer_value", "ref_id")
"""Columns that a submission must have."""

_KNOWN_AS = {"qid": "id", "_id": "id", "query": "question", "golden_answers": "answer", "generation_gt": "answer"} | {
    "retrieval_gt": "gold"
}
"""Columns of FlashRAG, AutoRAG and BEIR, and what they are called here; read where the latter is missing."""

_REF_PREFIX = re.compile(r"^(?:ref_?id|doc_?id|ref|id)\s*[=:]\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SubmissionRow:
    """One answered question.

    Attributes:
        answer: The answer as a sentence for a person; ``answer_value`` is the bare value, as written.
        ref_ids: Cited document ids in the order cited, mended (see ``mend_refs``), without repeats and blanks.
        supporting_materials: Text or titles that support the answer.
        refs_raw: The ref_id cell as read, which is what is scored; empty in a row that was not read from a file.
        columns: Every cell of the row as it was read, extra columns too.
        path: File it was read from; metrics of what a model was shown look beside it.
    """

    question_id: str
    question: str = ""
    answer: str = ""
    answer_value: str = ""
    answer_unit: str = ""
    ref_ids: tuple[str, ...] = ()
    ref_urls: tuple[str, ...] = ()
    supporting_materials: str = ""
    explanation: str = ""
    refs_raw: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    path: str = ""

    @property
    def is_failed(self) -> bool:
        """Whether a run of ours says that it has no answer since all members failed."""
        return self.explanation.startswith(FAILED) and is_blank(self.answer_value)


@dataclass(frozen=True, slots=True)
class Submission:
    """A submission file, its rows by question id in the file's order.

    Attributes:
        doubled: Ids that occur more than once; their first row is kept.
        n_without_id: Rows that were left out because their id is empty.
        ragged: Ids of rows with more cells than the header, the mark of an unquoted comma.
        odd: What is odd about its bytes.
    """

    path: str
    header: tuple[str, ...]
    rows: Mapping[str, SubmissionRow]
    doubled: tuple[str, ...] = ()
    n_without_id: int = 0
    ragged: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()


def citing_row(
    question_id: str,
    question: str,
    voted: tuple[str, str, str, str],
    ref_ids: Sequence[str],
    documents: Mapping[str, Mapping[str, str]],
    supporting_materials: str,
) -> SubmissionRow:
    """Write a voted answer as a row, with the addresses of the documents it cites.

    Args:
        question_id: Unique within its file.
        question: The question's text.
        voted: Answer, value, unit and explanation.
        ref_ids: Cited documents.
        documents: Metadata by document id, or by its key (``ref_key``).
        supporting_materials: Text that supports the answer; empty: the cited documents' titles.
    """
    answer, value, unit, explanation = voted
    known = [documents.get(ref) or documents.get(ref_key(ref)) or {} for ref in ref_ids]
    return SubmissionRow(
        question_id=question_id,
        question=question,
        answer=answer,
        answer_value=value,
        answer_unit=unit,
        ref_ids=tuple(ref_ids),
        ref_urls=tuple(document["url"] for document in known if document.get("url")),
        supporting_materials=supporting_materials
        or " | ".join(document["title"] for document in known if document.get("title")),
        explanation=explanation,
    )


@functools.lru_cache(maxsize=16_384)  # a run's files are read for several purposes, and its members cite the same
def read_refs(text: str | None) -> tuple[str, ...]:
    """Split a ref_id cell into its tokens as written, ``is_blank`` tokens included, without repeats.

    Reads JSON and Python lists, bare ids, comma lists and lists that lack a bracket. A list's item is one token even
    when it holds a malformed list of its own: the competition scores it so (``mend_refs`` reads what was meant).
    """
    text = (text or "").strip()
    items = split_list(text)
    if items is None:
        items = split_items(text.strip("[]"))
    return tuple(dict.fromkeys(item.strip() for item in items if item.strip()))


def mend_refs(tokens: Iterable[str]) -> tuple[str, ...]:
    """Read the document ids that malformed tokens mean, in order, without blanks and repeats.

    Real runs wrote ``[ref_id=a]``, ``["a"]`` and ``a, b`` inside one item of a list. Ids are composed (NFC), as
    documents' own are.
    """
    parts = (unicodedata.normalize("NFC", part) for token in tokens for part in token.strip("[](){} ").split(","))
    ids = (_REF_PREFIX.sub("", part.strip(" \t\r\n[]'\"")).strip(" '\"") for part in parts)
    return tuple(dict.fromkeys(ref for ref in ids if not is_abstention(ref)))


def read_submission(
    path: str | os.PathLike[str], required: Sequence[str | tuple[str, ...]] = REQUIRED, table: RowTable | None = None
) -> Submission:
    """Read a submission or truth file: CSV, JSON lines or Parquet, by its suffix.

    Args:
        path: Path of the file.
        required: Columns it must have; of a tuple, any one.
        table: Its rows; None: they are read.

    Raises:
        DataError: The file cannot be read (see ``read_table``), or lacks a required column.
    """
    name = os.fspath(path)
    table = read_table(name, read_bytes(name), keep_ragged=True) if table is None else table
    header = table.columns
    header = tuple(column if _KNOWN_AS.get(column, column) in header else _KNOWN_AS[column] for column in header)
    if lacking := lacking_columns(header, required):
        raise DataError(f"{name}: {lacking}: rename them or choose another file.")
    return _submission(name, header, table)


def lacking_columns(header: Sequence[str], wanted: Sequence[str | tuple[str, ...]]) -> str:
    """Say which columns a table lacks, and which there are; of a tuple, any one is enough; empty if none."""
    alternatives = [(column,) if isinstance(column, str) else column for column in wanted]
    lacking = [" or ".join(columns) for columns in alternatives if not set(columns) & set(header)]
    present = clean_print(", ".join(header)) or "none"
    return f"has no column {', '.join(lacking)}; its columns are {present}" if lacking else ""


def _submission(name: str, header: tuple[str, ...], table: RowTable) -> Submission:
    rows: dict[str, SubmissionRow] = {}
    doubled: list[str] = []
    ragged: list[str] = []
    n_without_id, are_ragged = 0, frozenset(table.ragged)
    for number, row in enumerate(table.rows):
        values = zip(header, map(row.get, table.columns), strict=True)
        cells = {column: cell_of(_as_texts(column, value)) for column, value in values if column}
        question_id = (cells.get("id") or cells.get("question_id") or "").strip()
        if "\0" in question_id:  # of JSON and Parquet; questions refuse it too
            raise DataError(f"{name}: a NUL in the id of row {number + 1}, which no CSV file can hold: remove it")
        if not question_id:
            n_without_id += 1
        elif question_id in rows:
            doubled.append(question_id)
        else:
            rows[question_id] = _row(question_id, cells, name)
            if number in are_ragged:
                ragged.append(question_id)
    return Submission(name, header, rows, tuple(doubled), n_without_id, tuple(ragged), table.odd)


def _as_texts(column: str, value: Any) -> Any:
    """Write a list of acceptable answers as texts (``golden_answers: [1912]``): numbers alone would be a range."""
    is_list = column == "answer" and isinstance(value, list)
    return [cell_of(item) for item in value if item is not None] if is_list else value


def _row(question_id: str, cells: dict[str, str], path: str) -> SubmissionRow:
    refs_raw = cells.get("ref_id", "")
    urls = cells.get("ref_url", "").strip()
    url_items = split_list(urls) or ((urls,) if urls else ())
    return SubmissionRow(
        question_id=question_id,
        question=cells.get("question", ""),
        answer=cells.get("answer", ""),
        answer_value=cells.get("answer_value", "").strip(),
        answer_unit=cells.get("answer_unit", "").strip(),
        ref_ids=mend_refs(read_refs(refs_raw)),
        ref_urls=tuple(url for url in url_items if not is_blank(url)),
        supporting_materials=cells.get("supporting_materials", ""),
        explanation=cells.get("explanation", ""),
        refs_raw=refs_raw,
        columns=cells,
        path=path,
    )


def write_submission(path: str | os.PathLike[str], rows: Iterable[SubmissionRow], extra: Sequence[str] = ()) -> None:
    """Write a submission in one step: a reader finds the old file or the whole new one.

    Every cell is quoted, reference lists are JSON, and an empty cell says ``is_blank``. An abstention says so in
    answer_value, ref_id, ref_url and supporting_materials, whatever else its row holds there. ``extra`` names further
    columns, from the rows' ``columns``.

    Raises:
        DataError: The file cannot be written (full disk, read-only directory).
    """

    def write(temporary: str) -> None:
        # A model's reply may hold a lone surrogate or a NUL, which readers refuse: one bad character must not lose the
        # file.
        with Path(temporary).open("x", encoding="utf-8", errors="replace", newline="") as handle:
            write_rows(handle, rows, extra)
            handle.flush()
            os.fsync(handle.fileno())

    publish_with(os.fspath(path), write, "free the disk or change the path")


def write_rows(file: TextIO, rows: Iterable[SubmissionRow], extra: Sequence[str] = ()) -> None:
    """Write the header and the rows of a submission; see ``write_submission``."""
    writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow([*COLUMNS, *extra])
    for row in rows:
        further = (row.columns.get(name) or BLANK for name in extra)
        cells = (row.question_id, row.question, *_cells(row), *further)
        writer.writerow([cell.replace("\0", "␀") for cell in cells])


def _cells(row: SubmissionRow) -> tuple[str, ...]:
    unit, explanation = row.answer_unit or BLANK, row.explanation or BLANK
    says_none = is_abstention(row.answer_value) and not is_blank(row.answer_value)
    if is_blank_strict(row.answer_value) or says_none:
        answer = UNANSWERABLE if is_blank(row.answer) else row.answer
        return (answer, BLANK, unit, BLANK, BLANK, BLANK, explanation)
    return (
        row.answer or row.answer_value,
        row.answer_value,
        unit,
        _list_cell(row.ref_ids),
        _list_cell(row.ref_urls),
        row.supporting_materials or BLANK,
        explanation,
    )


def _list_cell(items: tuple[str, ...]) -> str:
    return json.dumps(items, ensure_ascii=False) if items else BLANK
