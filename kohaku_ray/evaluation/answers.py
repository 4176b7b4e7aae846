"""Metrics of the answer alone: ``exact`` compares values, ``answer`` texts, by exact match, token F1 and recall.

Texts are normalised and compared as by SQuAD's evaluation script: P. Rajpurkar, J. Zhang, K. Lopyrev and P. Liang,
*SQuAD: 100,000+ Questions for Machine Comprehension of Text*, EMNLP 2016; questions without an answer as in SQuAD 2.0,
P. Rajpurkar, R. Jia and P. Liang, *Know What You Don't Know*, ACL 2018.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter

from kohaku_ray.documents.data.rows import cell_of
from kohaku_ray.evaluation.metrics import Metric, OutcomeMarks, Part
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow
from kohaku_ray.values.normalise import normalise as normalise_value
from kohaku_ray.values.normalise import same
from kohaku_ray.values.read import fold, is_abstention, is_blank_strict
from kohaku_ray.values.spelling import one_form


def exact_value(truth: str, given: str, unit: str | None = None) -> float:
    """Score a value: 1.0 when a vote takes it for the true one (``values.normalise``); 0.0 otherwise.

    Only an empty cell and ``is_blank`` are no answer: ``NA`` or ``none`` may be one.
    """
    if is_blank_strict(truth) or is_blank_strict(given):
        return float(is_blank_strict(truth) and is_blank_strict(given))
    true_value, value = normalise_value(truth, unit), normalise_value(given, unit)
    is_null = true_value.kind == "blank"  # NA, none
    return float(fold(truth) == fold(given) if is_null else same(true_value, value))


def _mark_values(truth: Submission) -> OutcomeMarks:
    rows = list(truth.rows.values())
    return OutcomeMarks(
        by_value={"value": lambda number, text: exact_value(rows[number].answer_value, text, rows[number].answer_unit)}
    )


EXACT = Metric(
    name="exact",
    title="Share of values that are the true ones",
    parts={"value": Part()},
    rate=lambda truth, given: {"value": exact_value(truth.answer_value, given.answer_value, truth.answer_unit)},
    unanswerable=lambda truth: is_blank_strict(truth.answer_value),
    marks=_mark_values,
    truth_columns=("answer_value",),
)


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower-case, and drop punctuation, articles and superfluous space (SQuAD), after NFKC and with one apostrophe."""
    text = one_form(text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(truth: str, given: str) -> float:
    """1.0 if two texts are the same once normalised, else 0.0."""
    return float(normalise(truth) == normalise(given))


_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"  # Thai, Lao, Burmese, Khmer, kana, Han
_CHARACTER = re.compile(f"[{_UNSPACED}]")
_CHARACTER_OR_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def _tokens(text: str) -> list[str]:
    """Split at spaces (SQuAD); in a script without them each character is a token, as in MLQA's script."""
    text = normalise(text)
    return _CHARACTER_OR_WORD.findall(text) if _CHARACTER.search(text) else text.split()


def overlap(truth: str, given: str) -> tuple[float, float]:
    """F1 and recall of the tokens of two texts; tokens count as often as they occur (SQuAD)."""
    gold, given_tokens = _tokens(truth), _tokens(given)
    if not gold or not given_tokens:
        same = float(gold == given_tokens)
        return same, same
    n_common = (Counter(gold) & Counter(given_tokens)).total()
    if not n_common:
        return 0.0, 0.0
    precision, recall = n_common / len(given_tokens), n_common / len(gold)
    return 2 * precision * recall / (precision + recall), recall


def gold_texts(truth: SubmissionRow) -> tuple[str, ...]:
    """The acceptable answers: the cell, or the items of a JSON list in it; of numbers alone it may be a range."""
    if truth.answer.lstrip().startswith("["):
        try:
            items = json.loads(truth.answer)
        except ValueError:
            items = None
        if isinstance(items, list) and {str} <= {*map(type, items)} <= {str, int, float}:
            return tuple(map(cell_of, items))
    return (truth.answer,)


def _rate_text(truth: SubmissionRow, given: SubmissionRow) -> dict[str, float]:
    """Rate the best form of the answer against the best of the acceptable answers, in each part."""
    abstains = is_abstention(given.answer_value) and is_abstention(given.answer)
    if is_abstention(truth.answer) or abstains:
        return dict.fromkeys(("exact", "f1", "recall"), float(is_abstention(truth.answer) and abstains))
    unit = "" if is_blank_strict(given.answer_unit) else given.answer_unit
    # As a run writes an answer: the value, the value with its unit, the sentence.
    written = (given.answer_value, f"{given.answer_value} {unit}".strip(), given.answer)
    forms = [form for form in dict.fromkeys(written) if form]
    pairs = [(gold, form) for gold in gold_texts(truth) for form in forms]
    overlaps = [overlap(*pair) for pair in pairs]
    return {
        "exact": max(exact_match(*pair) for pair in pairs),
        "f1": max(f1 for f1, _ in overlaps),
        "recall": max(recall for _, recall in overlaps),
    }


ANSWER = Metric(
    name="answer",
    title="Token F1 of answers, with exact match and recall (SQuAD)",
    parts={"exact": Part(0.0, "exact match"), "f1": Part(1.0, "F1"), "recall": Part(0.0)},
    rate=_rate_text,
    unanswerable=lambda truth: is_abstention(truth.answer),
    truth_columns=("answer",),
    gold=lambda truth: truth.answer,
    needs_gold=True,
)
