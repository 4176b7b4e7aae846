"""Numbers in words, roman and arabic."""

from __future__ import annotations

import re

import pytest

from kohaku_ray.documents.novel import CARDINAL, number_of, roman


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("XIV", 14),
        ("xlix", 49),
        ("VIIII", 9),
        ("MDCCCXV", 1815),
        ("twelve", 12),
        ("Twelfth", 12),
        ("FORTY-TWO", 42),
        ("ninety\nninth", 99),
        ("twentieth", 20),
        ("One Hundred and Seventeen", 117),
        ("a hundred", 100),
        ("three hundred and ninety-nine", 399),
    ],
)
def test_numbers_are_read(text: str, value: int) -> None:
    assert number_of(text) == value


@pytest.mark.parametrize("text", ["", "IC", "IVI", "of", "twenty-eleven", "the", "M" * 4])
def test_what_is_no_number_is_none(text: str) -> None:
    assert number_of(text) is None


@pytest.mark.parametrize("value", range(1, 400))
def test_every_roman_numeral_is_read_back(value: int) -> None:
    sizes = {"C": 100, "XC": 90, "L": 50, "XL": 40, "X": 10, "IX": 9, "V": 5, "IV": 4, "I": 1}
    parts, rest = [], value
    for numeral, size in sizes.items():
        parts.append(numeral * (rest // size))
        rest %= size
    assert roman("".join(parts)) == value


@pytest.mark.parametrize("text", ["fourteen", "twenty-four", "a hundred and five", "one hundred", "thirty\nsix"])
def test_the_pattern_takes_a_whole_cardinal(text: str) -> None:
    match = re.match(CARDINAL, text + " years", re.IGNORECASE)
    assert match is not None
    assert match[0] == text
