"""Years, stated and counted."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.systems.narrative.rules import find_years, year_anchors


@pytest.mark.parametrize(
    ("text", "years"),
    [
        ("in 1815", [1815]),
        ("the 24th of February, 1815.", [1815]),
        ("1815–1829 and 1700-1999", [1815, 1829, 1700, 1999]),
        ("eighteen hundred and fifteen", [1815]),
        ("seventeen eighty-nine", [1789]),
        ("nineteen hundred and five", [1905]),
        ("1815 francs, 1,815 men, 1829 miles, No. 1815, number 1815, page 1815, $1815, 1815.5", []),
        ("the 1790s, the 1790’s, 1699, 2000, 18150, 1815°", []),
        ("eighteen hundred men, nineteen francs, eighteen twenty francs", []),
        ("ten years later", []),
    ],
)
def test_stated_years(text: str, years: list[int]) -> None:
    assert [mention.year for mention in find_years(text)] == years


@pytest.mark.parametrize(
    ("text", "years"),
    [
        ("ten years later", [1825]),
        ("Twenty-four years afterwards", [1839]),
        ("14 years later", [1829]),
        ("a year later", [1816]),
        ("two decades later", [1835]),
        ("fifteen years earlier", [1800]),
        ("two years before, he", [1813]),
        ("two years before the mast", []),
        ("ten years after his arrest", []),
        ("the following year", [1816]),
        ("the previous year", [1814]),
        ("that same year", [1815]),
        ("In 1800. Two years later. Three years later.", [1800, 1802, 1805]),
        ("two hundred years earlier", []),
        ("some years later, years later", []),
    ],
)
def test_relative_years_count_from_the_last(text: str, years: list[int]) -> None:
    assert [mention.year for mention in find_years(text, 1815)] == years


def test_mentions_are_spans() -> None:
    text = "In 1815 he left; ten years\nlater he died."
    found = find_years(text)
    assert [(text[m.start : m.end], m.year) for m in found] == [
        ("1815", 1815),
        ("ten years\nlater", 1825),
    ]


def test_anchors_are_those_of_the_chapter() -> None:
    paragraphs = [
        ("I", "It was 1815."),
        ("I", "He waited."),
        ("I", "Ten years later he left."),
        ("I", "He came back."),
        ("II", "Ten years later."),
        ("II", "In 1838."),
        ("II", "The end."),
    ]
    assert year_anchors(paragraphs) == [None, 1815, 1815, 1825, None, None, 1838]


@given(st.text(alphabet="1 89507ten yearslatragoIn.,’“”\n", max_size=80), st.none() | st.integers(1700, 1999))
def test_any_text_gives_years_in_range_and_in_order(text: str, anchor: int | None) -> None:
    found = find_years(text, anchor)
    assert all(1700 <= mention.year <= 1999 for mention in found)
    assert all(a.end <= b.start for a, b in pairwise(found))
