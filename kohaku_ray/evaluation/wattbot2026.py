"""WattBot 2026's metric, ``wattbot2026``, by the rules of the competition's public scorer: strings as they are written.

Questions that a submission lacks leave its mean, and a row without an explanation is an error, as there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kohaku_ray.evaluation.metrics import Figures, Metric, Number, OutcomeMarks, Part
from kohaku_ray.evaluation.references import citation_scores
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow
from kohaku_ray.evaluation.wattbot import (
    CLASS_NOTES,
    ERROR_CLASSES,
    class_of,
    isclose,
    lies_inside,
    official_blank,
    official_refs,
    read_float,
    read_items,
    same_items,
    written_refs,
)
from kohaku_ray.table import Column, Table
from kohaku_ray.values.normalise import normalise
from kohaku_ray.values.read import is_blank, parse_pair

FLAGS = ("Quote", "Table", "Figure", "Math", "is_NA", "CrossPaper", "Reconcile")
"""Columns of a truth that say what a question asks for: 1 or true where it does."""

_TRUE = frozenset({"1", "true", "t", "yes", "y"})
_ARTICLE = re.compile(r"(?:the|an|a)\s+")


def wattbot2026_value(truth: str, given: str, unit: str | None = None) -> float:
    """Score a value: 1.0 or 0.0.

    Args:
        truth: A number, a range ``[low,high]``, values in any order ``(a,b)``, a text, or a blank.
        given: The same in any brackets; a plain number in a true range is right too.
        unit: The question's unit, whose words are no part of a number.
    """
    if official_blank(truth):
        return float(official_blank(given))
    true_items, items = read_items(truth, "[({"), read_items(given, "[({")
    if true_items is not None and items is not None:
        return float(same_items(true_items, items))
    if true_items is not None:
        return float(truth.strip()[0] == "[" and lies_inside(true_items, given))
    numbers = _both_numbers(truth, given)
    if numbers is None and not is_blank(unit):
        numbers = _both_numbers(_without_unit(truth, unit or ""), _without_unit(given, unit or ""))
    return float(_words_of(truth) == _words_of(given) if numbers is None else isclose(*numbers))


def _both_numbers(truth: str, given: str) -> tuple[float, float] | None:
    true_number, number = read_float(truth), read_float(given)
    return None if true_number is None or number is None else (true_number, number)


def _words_of(text: str) -> str:
    """A text in lower case, with spaces for punctuation and without a leading article."""
    words = " ".join(re.sub(r"[^\w\s]", " ", text.lower()).split())
    return words[article.end() :] if (article := _ARTICLE.match(words)) else words


def _without_unit(text: str, unit: str) -> str:
    words = _words_of(text)
    for word in re.split(r"[\s/]+", unit.strip().lower()):
        if re.search("[a-z]", word):
            words = re.sub(rf"\b{re.escape(word)}\b", " ", words)
    return " ".join(words.split())


def describe_oddity(truth: SubmissionRow) -> str:
    """Say what is odd about a gold value, and how it is read; empty where nothing is."""
    value = truth.answer_value.strip()
    band = parse_pair(value)
    if band is not None and band[0] > band[1]:
        low, high = value.strip("[] ").split(",")
        return (
            f"the band {value} has its low end {low.strip()} above its high end {high.strip()}: it is read as "
            f"[{high.strip()},{low.strip()}]; swap them"
        )
    items = read_items(value, "(")
    if items is not None and len(items) == 1:
        return f"the list {value} has one element, and only an answer in brackets is right: leave the brackets out"
    return ""


def _rate(truth: SubmissionRow, given: SubmissionRow) -> dict[str, float]:
    abstains = official_blank(given.answer_value) and official_blank(given.refs_raw)
    return {
        "value": wattbot2026_value(truth.answer_value, given.answer_value, truth.answer_unit),
        "ref": citation_scores(official_refs(given.refs_raw), official_refs(truth.refs_raw))["f1"],
        "abstain": float(not official_blank(truth.answer_value) or abstains),
    }


def _mark(truth: Submission) -> OutcomeMarks:
    rows = list(truth.rows.values())
    gold = [official_refs(row.refs_raw) for row in rows]
    return OutcomeMarks(
        by_value={
            "value": lambda number, text: wattbot2026_value(rows[number].answer_value, text, rows[number].answer_unit)
        },
        by_refs={"ref": lambda number, refs: citation_scores(official_refs(written_refs(refs)), gold[number])["f1"]},
        by_blank={"abstain": lambda number, blank: float(blank or not official_blank(rows[number].answer_value))},
    )


def _classify(truth: SubmissionRow, given: SubmissionRow) -> str | None:
    """Name a wrong prediction's class; a number outside a band is compared with the band's nearer end."""
    unit, value = truth.answer_unit, normalise(given.answer_value, truth.answer_unit)
    score, band = wattbot2026_value(truth.answer_value, given.answer_value, unit), parse_pair(truth.answer_value)
    if not score and band and value.kind == "number":
        ends = {abs(normalise(repr(end), unit).numbers[0] - value.numbers[0]): repr(end) for end in band}
        truth = replace(truth, answer_value=ends[min(ends)])
    return class_of(truth, given, score)


def count_by_flag(truth: Submission, given: Submission) -> Figures | None:
    """Count wrong values by what questions ask for, citations and answers to unanswerable questions."""
    pairs = [(row, given.rows[key]) for key, row in truth.rows.items() if key in given.rows]
    if not pairs:
        return None
    cited = [
        citation_scores(official_refs(answer.refs_raw), official_refs(question.refs_raw)) for question, answer in pairs
    ]
    numbers = [
        Number(f"citation {name}", sum(scores[name] for scores in cited) / len(cited))
        for name in ("precision", "recall")
    ]
    blanks = [
        not official_blank(answer.answer_value) for question, answer in pairs if official_blank(question.answer_value)
    ]
    if blanks:
        numbers.append(
            Number("false answers", sum(blanks) / len(blanks), note=f"to {len(blanks)} unanswerable questions")
        )
    rows = []
    for flag in (name for name in FLAGS if name in truth.header):
        flagged = [pair for pair in pairs if pair[0].columns.get(flag, "").strip().lower() in _TRUE]
        if flagged:
            rows.append((flag, *_count(flagged)))
    table = Table.of(
        ["type", "n", "wrong", Column("% wrong", ".1f"), Column("score", ".4f")],
        [*rows, ("all", *_count(pairs))],
        "By type; a question may have several",
    )
    return Figures(len(pairs), tuple(numbers), (table,) if rows else ())


def _count(pairs: Sequence[tuple[SubmissionRow, SubmissionRow]]) -> tuple[int, int, float, float]:
    scores = [WATTBOT2026.score_question(*pair) for pair in pairs]
    n_wrong = sum(not score.is_right for score in scores)
    return len(pairs), n_wrong, 100.0 * n_wrong / len(pairs), WATTBOT2026.aggregate(scores).score


WATTBOT2026 = Metric(
    name="wattbot2026",
    title="WattBot 2026's score by the competition's rules",
    parts={"value": Part(0.75), "ref": Part(0.20, "F1 of references"), "abstain": Part(0.05, "abstention")},
    rate=_rate,
    unanswerable=lambda truth: official_blank(truth.answer_value),
    marks=_mark,
    classify=_classify,
    classes=ERROR_CLASSES,
    class_notes=CLASS_NOTES,
    filled_columns=("explanation",),
    counts_missing=False,
    oddity=describe_oddity,
    figures=count_by_flag,
)
