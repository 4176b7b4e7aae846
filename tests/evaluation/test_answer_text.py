"""``answer``: texts compared as SQuAD's script compares them."""

from __future__ import annotations

import collections
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.evaluation.answers import ANSWER, exact_match, normalise, overlap
from kohaku_ray.evaluation.submissions import SubmissionRow

WORDS = st.lists(st.sampled_from(["the", "A", "cat", "cat.", "Cat's", "an", "42", "4,2", "—", "é"]), max_size=6).map(
    " ".join
)


def published_normalise(s):
    """``normalize_answer`` of SQuAD's evaluate-v2.0.py, as published."""

    def remove_articles(text):
        return re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", text)

    def white_space_fix(text):
        return " ".join(text.split())

    def remove_punc(text):
        exclude = set(string.punctuation)
        return "".join(ch for ch in text if ch not in exclude)

    return white_space_fix(remove_articles(remove_punc(s.lower())))


def published_f1(a_gold, a_pred):
    """``compute_f1`` of the same script."""
    gold_toks = published_normalise(a_gold).split() if a_gold else []
    pred_toks = published_normalise(a_pred).split() if a_pred else []
    num_same = sum((collections.Counter(gold_toks) & collections.Counter(pred_toks)).values())
    if len(gold_toks) == 0 or len(pred_toks) == 0:
        return int(gold_toks == pred_toks)
    if num_same == 0:
        return 0
    precision = 1.0 * num_same / len(pred_toks)
    recall = 1.0 * num_same / len(gold_toks)
    return (2 * precision * recall) / (precision + recall)


@given(WORDS, WORDS)
def test_equal_to_the_published_script(truth, prediction):
    assert normalise(truth) == published_normalise(truth)
    assert exact_match(truth, prediction) == int(published_normalise(truth) == published_normalise(prediction))
    assert overlap(truth, prediction)[0] == pytest.approx(published_f1(truth, prediction))


@pytest.mark.parametrize(
    ("truth", "given_text", "f1"),
    [
        ("天氣很好", "天氣好", 6 / 7),  # llmtrim#52
        ("天氣很好。", "天氣很好", 1),
        ("อากาศดี", "อากาศดี", 1),  # xtreme#28
        ("GPT-4 在 2023 年", "GPT4 在2023年", 1),
        ("天氣很好", "cats", 0),
    ],
)
def test_where_no_space_parts_words_each_character_is_a_token(truth, given_text, f1):
    assert overlap(truth, given_text)[0] == pytest.approx(f1)


def rated(truth, cells):
    return ANSWER.score_question(
        SubmissionRow("q", answer=truth), SubmissionRow("q", **({"answer_value": "is_blank"} | cells))
    )


@check_rows(
    ("truth", "cells", "exact", "f1", "recall"),
    [
        ("The Cat sat.", {"answer_value": "cat sat"}, 1, 1, 1),
        ("312 MWh", {"answer_value": "312", "answer_unit": "MWh"}, 1, 1, 1),
        ("312 MWh", {"answer_value": "312", "answer_unit": "is_blank"}, 0, 2 / 3, 1 / 2),
        ("312 MWh", {"answer_value": "9", "answer": "It used 312 MWh in all."}, 0, 1 / 2, 1),
        ("red", {"answer_value": "blue", "answer": "It is blue."}, 0, 0, 0),
        ('["UK", "United Kingdom"]', {"answer_value": "the United Kingdom"}, 1, 1, 1),
        ("[3, 4]", {"answer_value": "[3, 4]"}, 1, 1, 1),
        ("is_blank", {"answer": "Unable to answer with confidence based on the provided documents."}, 1, 1, 1),
        ("is_blank", {"answer_value": "5"}, 0, 0, 0),
        ("5", {}, 0, 0, 0),
    ],
)
def test_the_best_form_of_an_answer_counts(truth, cells, exact, f1, recall):
    rates = rated(truth, cells)
    assert rates.parts == {"exact": exact, "f1": pytest.approx(f1), "recall": pytest.approx(recall)}
    assert rates.total == rates.parts["f1"]
    assert rates.is_right == bool(exact)


def test_one_unicode_form_and_one_apostrophe():  # deja-vu#1098
    assert overlap("Zürnäk’s ﬁeld", "Zu\u0308rna\u0308k's field")[0] == 1.0
