"""Metrics of what a model was shown: ``passages``, quotations in the context, and ``context_value``, the gold number.

Both score runs, not bare submission files: they read the trace.parquet beside the submission. A context is judged
before any model reads it, so that retrieval can be compared without a call.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.metrics import Metric, Part
from kohaku_ray.evaluation.references import gold_refs, reciprocal_rank
from kohaku_ray.evaluation.submissions import SubmissionRow
from kohaku_ray.index.terms import tokenise
from kohaku_ray.store.storage import Directory
from kohaku_ray.values.normalise import TOLERANCE
from kohaku_ray.values.read import is_abstention, parse_number, parse_pair, split_list
from kohaku_ray.values.spelling import ref_key

QUOTATION_COLUMNS = ("quotations", "supporting_materials")
"""Columns of a truth file that hold the gold quotations; the first one it has is read."""

FEWEST_TERMS = 4
"""Distinct terms of a quotation; fewer, as in "Table 1", name a place and quote nothing."""

SHARE = 0.5
"""Least share of a quotation's pairs of neighbouring terms that a passage must have to hold it.

Of WattBot 2026's 83 quotations, 54 have more than half of their pairs in one paragraph of their documents and the
others, which are paraphrases, at most 0.36 but for one.
"""

_QUOTED = re.compile(r"[“\"]([^“”\"]+)[”\"]|(?<!\w)['‘]([^'‘]{20,}?)['’](?!\w)")
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_BETWEEN = re.compile(r"(?<=[.!?…])\s+|\s*[\n|]\s*")
_NUMBER = re.compile(
    r"((?<![\d.])\d[\d,]*(?:\.\d+)?|(?<![\d.])\.\d+)(?:[ -]?(thousand|million|billion|trillion)\b|([KMBT])\b)?"
)
_TIMES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True, slots=True)
class ShownPassage:
    """One passage of a context.

    Attributes:
        doc_id: Its document.
        text: Its text, as the model read it.
    """

    doc_id: str
    text: str


def quotations_of(text: str) -> tuple[str, ...]:
    """Split a cell of supporting materials into quotations: what stands in quotation marks, else its sentences.

    What has fewer than ``FEWEST_TERMS`` distinct terms is left out.
    """
    quoted = [first or second for first, second in _QUOTED.findall(text)]
    parts = [part for part in quoted if len(set(tokenise(part))) >= FEWEST_TERMS] or _BETWEEN.split(text)
    return tuple(part for part in parts if len(set(tokenise(part))) >= FEWEST_TERMS)


def holds_quotation(passage: ShownPassage, quotation: str) -> bool:
    """Tell whether a passage has at least ``SHARE`` of a quotation's pairs of neighbouring terms."""
    wanted = _pairs_of(quotation)
    return len(wanted & _pairs_of(passage.text)) >= SHARE * len(wanted)


@functools.lru_cache(maxsize=2**13)
def _pairs_of(text: str) -> frozenset[tuple[str, str]]:
    return frozenset(pairwise(tokenise(_UNSEEN.sub("", text))))


def gold_quotations(truth: SubmissionRow) -> tuple[str, ...]:
    """Return the quotations of a question's gold answer; none where it has no answer."""
    column = next((name for name in QUOTATION_COLUMNS if name in truth.columns), None)
    return () if column is None or is_abstention(truth.answer_value) else quotations_of(truth.columns[column])


def gold_numbers(truth: SubmissionRow) -> tuple[float, ...]:
    """Return the numbers of a question's gold value, as written; none of true and false (1 and 0), texts and blanks."""
    value = truth.answer_value.strip()
    if is_abstention(value) or value in ("0", "1"):
        return ()
    numbers = parse_pair(value) or tuple(map(parse_number, split_list(value) or (value,)))
    return tuple(number for number in numbers if number is not None) if None not in numbers else ()


def numbers_in(text: str) -> tuple[float, ...]:
    """Return the numbers that stand in a text, thousands separators apart; "6.1 billion" and "6.1B" also times 10⁹."""
    numbers = []
    for digits, word, letter in _NUMBER.findall(text):
        numbers.append(float(digits.replace(",", "")))
        if word or letter:
            numbers.append(numbers[-1] * _TIMES[word or letter])
    return tuple(numbers)


def numbers_stand_in(wanted: Sequence[float], text: str) -> bool:
    """Tell whether a text has every one of these numbers, within 0.1 % and whatever its sign."""
    if not wanted:
        return True
    shown, sizes = np.array(numbers_in(text) or (np.nan,)), np.abs(wanted)[:, None]
    close: npt.NDArray[np.bool_] = np.abs(shown[None] - sizes) <= np.maximum(sizes * TOLERANCE, 1e-9)
    return bool(close.any(axis=1).all())


def passage_scores(quotations: Sequence[str], passages: Sequence[ShownPassage]) -> dict[str, float]:
    """Score a context by its passages, best first.

    Returns:
        ``recall``, the share of the quotations that some passage holds, and ``mrr``, the reciprocal of the rank of the
        first passage that holds one; both 1 without quotations.
    """
    if not quotations:
        return {"recall": 1.0, "mrr": 1.0}
    held = [[holds_quotation(passage, quotation) for passage in passages] for quotation in quotations]
    ranks = [any(row[number] for row in held) for number in range(len(passages))]
    return {"recall": sum(map(any, held)) / len(held), "mrr": reciprocal_rank(ranks, (True,))}


def shown_passages(given: SubmissionRow) -> tuple[ShownPassage, ...]:
    """Return what the models were shown of a question at the first attempt, best first.

    Raises:
        DataError: There is no trace beside the submission.
    """
    try:
        changed = os.stat(given.path).st_mtime_ns
    except OSError:  # in an object store: read once per process
        changed = 0
    return _contexts(given.path, changed).get(given.question_id, ())


@functools.lru_cache(maxsize=8)
def _contexts(path: str, changed: int) -> Mapping[str, tuple[ShownPassage, ...]]:
    directory = Directory(os.path.dirname(path))
    try:
        trace = directory.read_parquet("trace.parquet")
    except (DataError, OSError) as error:
        raise DataError(
            f"{path}: has no trace.parquet beside it that can be read, where passages and context_value find what the "
            "model was shown: name a run's directory"
        ) from error
    rows = [row for row in trace.to_pylist() if row["node_id"] is not None and row["attempt"] <= 0]
    step = "context" if any(row["step"] == "context" for row in rows) else None
    best: dict[str, dict[tuple[int, int, str], ShownPassage]] = {}
    for row in rows:
        if step in (None, row["step"]):
            passage_key = (row["member"], row["rank"], row["node_id"])
            best.setdefault(row["question_id"], {})[passage_key] = ShownPassage(row["doc_id"], row["text"] or "")
    contexts = {}
    for question_id, shown in best.items():
        # Members are shown the same, unless they plan by themselves or divide it.
        first = min(member for member, _, _ in shown)
        contexts[question_id] = tuple(shown[passage_key] for passage_key in sorted(shown) if passage_key[0] == first)
    return contexts


def _rate_passages(truth: SubmissionRow, given: SubmissionRow) -> dict[str, float]:
    passages = shown_passages(given)
    refs, documents = gold_refs(truth), {ref_key(passage.doc_id) for passage in passages}
    of_documents = len(refs & documents) / len(refs) if refs else 1.0
    return {**passage_scores(gold_quotations(truth), passages), "documents": of_documents}


PASSAGES = Metric(
    name="passages",
    title="Share of the gold quotations in the context; questions without a quotation are left out",
    parts={
        "recall": Part(1.0, "passage recall"),
        "mrr": Part(0.0, "reciprocal rank"),
        "documents": Part(0.0, "document recall"),
    },
    rate=_rate_passages,
    unanswerable=lambda truth: is_abstention(truth.answer_value),
    truth_columns=(QUOTATION_COLUMNS,),
    gold=lambda truth: " | ".join(gold_quotations(truth)),
    needs_gold=True,
)

CONTEXT_VALUE = Metric(
    name="context_value",
    title="Whether every number of the gold value stands in the context; other questions are left out",
    parts={"value": Part(1.0, "value in the context")},
    rate=lambda truth, given: {
        "value": float(
            numbers_stand_in(gold_numbers(truth), "\n".join(passage.text for passage in shown_passages(given)))
        )
    },
    unanswerable=lambda truth: is_abstention(truth.answer_value),
    truth_columns=("answer_value",),
    gold=lambda truth: truth.answer_value if gold_numbers(truth) else "",
    needs_gold=True,
)
