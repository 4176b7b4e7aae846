from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohaku_ray.documents.model import Paragraph
from kohaku_ray.documents.text.sentences import split_sentences
from kohaku_ray.index.chunks import _best_breaks, character_windows, join_paragraphs, token_windows


def n_words(texts):
    return np.array([len(text.split()) for text in texts], np.int64)


def cut(*paragraphs, least=4, most=8):
    """Windows over paragraphs of one-letter words; a full stop ends a sentence."""
    text, spans = join_paragraphs([Paragraph(part, split_sentences(part)) for part in paragraphs])
    return [text[start:end] for start, end in token_windows(text, spans, n_words, least, most)]


def sentence(n, word="Mot"):
    return " ".join([word] * n) + "."


@given(st.integers(0, 400), st.integers(1, 60), st.data())
def test_character_windows_cover_a_text_and_none_lies_within_another(n, size, data):
    overlap = data.draw(st.integers(0, size - 1))
    windows = character_windows("x" * n, size, overlap)
    assert all(end - start <= size for start, end in windows)
    assert all(first[1] - start == overlap and first[1] < end for first, (start, end) in pairwise(windows))
    assert (windows[0][0], windows[-1][1]) == (0, n) if n else not windows


def test_whole_paragraphs_where_they_fit():
    a, b, c, d = sentence(3), sentence(3, "Bis"), sentence(5, "Ter"), sentence(2, "Fin")
    assert cut(a, b, c, d) == [f"{a}\n\n{b}", f"{c}\n\n{d}"]


def test_a_long_paragraph_is_cut_between_sentences():
    parts = [sentence(5, word) for word in ("Un", "Deux", "Trois", "Quatre")]
    assert cut(" ".join(parts)) == parts


def test_a_long_sentence_is_cut_between_words_and_a_long_word_stays():
    windows = cut(sentence(30))
    assert all(4 <= len(window.split()) <= 8 for window in windows)
    assert " ".join(windows) == sentence(30)
    whole = [split_sentences("x" * 900)]
    assert token_windows("x" * 900, whole, lambda texts: np.array([*map(len, texts)]), 4, 8) == [(0, 900)]


def naive_cost(sizes, paragraph, ends, least, most):
    total = 0.0
    for first, behind in pairwise([0, *ends]):
        size = sum(sizes[first:behind])
        if size > most and behind - first > 1:
            return float("inf")
        middle = (least + most) / 2
        total += ((size - middle) / middle) ** 2 + 1e4 * max(least - size, 0)
        total += 1e2 * (behind < len(sizes) and paragraph[behind] == paragraph[behind - 1])
    return total


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=9))
def test_no_other_breaks_are_cheaper(units):
    sizes = [size for size, _ in units]
    paragraph = np.cumsum([new for _, new in units])
    breaks = _best_breaks(np.array(sizes), paragraph, 4, 8)
    n = len(sizes)
    every = ([*inner, n] for k in range(n) for inner in combinations(range(1, n), k))
    best = min(naive_cost(sizes, paragraph, ends, 4, 8) for ends in every)
    assert naive_cost(sizes, paragraph, breaks, 4, 8) == pytest.approx(best)
