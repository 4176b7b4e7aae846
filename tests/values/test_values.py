from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.values.read import (
    clean_text,
    is_abstention,
    is_blank,
    is_blank_lenient,
    is_blank_strict,
    parse_number,
    parse_pair,
    split_list,
)

READINGS = (is_blank_strict, is_blank, is_abstention, is_blank_lenient)  # each reads as blank what the one before does


@check_rows(
    ("text", "n_readings"),
    [
        *((text, 4) for text in (None, "", " IS_BLANK\n")),
        *((text, 3) for text in ("NA", "none", "null", "n/a", "<NA>", "NaN", "[]", "['is_blank']", "is  blank")),
        ("Unable to answer with confidence based on the provided documents, sorry", 2),
        *((text, 1) for text in ("Unknown.", "`not  stated`", "—", "Cannot answer: no data")),
        *((text, 0) for text in ("0", "False", "Nanjing", "unknowns", "-5")),
    ],
)
def test_how_many_of_the_four_readings_take_a_text_for_blank(text, n_readings):
    assert [read(text) for read in READINGS] == [False] * (4 - n_readings) + [True] * n_readings


@given(st.text() | st.text(alphabet="[]`'\"<> .\n\x0bIS_BLANKblankna/unoe-", max_size=12))
def test_a_more_lenient_reading_takes_no_blank_for_an_answer(text):
    read = [reading(text) for reading in READINGS]
    assert read == sorted(read)


@check_rows(
    ("text", "number"),
    [("13", 13.0), (" 13.20 ", 13.2), ("1.5e6", 1.5e6), ("-.5", -0.5), ("+3.", 3.0)]
    + [(text, None) for text in ("", "1,000", "1_000", "inf", "nan", "1e999", "80-90", "0x10", "1.2.3", "٣", "5 kg")],
)
def test_numbers(text, number):
    assert parse_number(text) == number


@check_rows(
    ("text", "pair"),
    [("[80,90]", (80.0, 90.0)), (" [ -1.5 , 2e3 ] ", (-1.5, 2000.0)), ("[90,80]", (90.0, 80.0))]
    + [(text, None) for text in ("[80]", "[1,2,3]", "80,90", "[80,null]", "[true,false]", "[80-90]", "[1,1e999]")],
)
def test_pairs(text, pair):
    assert parse_pair(text) == pair


@check_rows(
    ("text", "items"),
    [
        ('["a", "b, c"]', ("a", "b, c")),
        ("['a', 'b, c']", ("a", "b, c")),
        ("[a, b]", ("a", "b")),
        ("('a', 'b')", ("a", "b")),
        ("{'a', 'b'}", ("a", "b")),
        ('["a", null, 3]', ("a", "3")),
        ("['a', None]", ("a",)),
        ("['a', \"b']", ("a", "b")),
        (r"['it\'s', 'b']", ("it's", "b")),
        ('["[\\"a\\"]"]', ('["a"]',)),
        ("[]", ()),
        ("a, b", None),
        ("[a", None),
        ("", None),
    ],
)
def test_lists(text, items):
    assert split_list(text) == items


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "[1," * 5_000 + "]", "1" * 100_000 + "x", '["' * 50_000, "[" + "1" * 6_000 + "]", "'" * 99_999],
    ids=range(6),
)
def test_long_hostile_text_is_read_quickly(text):
    parse_number(text)
    parse_pair(text)
    split_list(text)
    assert not is_abstention(text + "answer")


@given(st.text(alphabet=st.sampled_from("[](){}'\",\\ 0123456789.eE+-ais_blnk\x00\ud800"), max_size=60))
def test_no_text_raises(text):
    number, items = parse_number(text), split_list(text)
    assert number is None or number == number
    assert items is None or all(isinstance(item, str) for item in items)
    parse_pair(text)
    is_abstention(text)


@check_rows(
    ("text", "clean"),
    [("a\ud800b", "ab"), ("\udfff", ""), ("a\x00\x1b[0m\r\n\tb", "a[0m\n\tb"), ("é 😀\u2028", "é 😀\u2028"), ("", "")],
)
def test_clean_text_is_what_a_file_can_hold(text, clean):
    assert clean_text(text) == clean
    assert clean_text(text).encode().decode() == clean
