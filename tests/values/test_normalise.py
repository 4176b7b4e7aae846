from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.values.normalise import Value, group_values, normalise, same
from kohaku_ray.values.spelling import LONGEST_VALUE, plain_characters, text_key
from kohaku_ray.values.units import find_unit

ABSTAINED = "Unable to answer with confidence based on the provided documents."


@check_rows("text", ["", "is_blank", "N/A", "null", "None", "['is_blank']", ABSTAINED])
def test_blanks(text):
    assert normalise(text, "W").kind == "blank"


def test_plain_numbers():
    rows = [
        ("103,500", None, 103500),
        ("1,234,567.5", None, 1234567.5),
        ("1.5e6", None, 1.5e6),
        ("1.5×10^6", None, 1.5e6),
        ("2.51 million", None, 2.51e6),
        ("−5", None, -5),
        ("13\u202f812", None, 13812),
        ("True", None, 1),
        (" FALSE ", None, 0),
        ("~13", None, 13),
        ("5 papers", "papers", 5),
        ("1 paper", "papers", 1),
        ("0.02 500 mL bottles", "500 mL bottles", 0.02),
    ]
    read = [normalise(text, unit) for text, unit, _ in rows]
    wrong = [row for row, value in zip(rows, read, strict=True) if (value.kind, value.numbers) != ("number", (row[2],))]
    assert wrong == []


def test_what_is_text():
    texts = ("A100-80GB", "1,2,3", "13,81", "5 apples", "1e999", "2024-01-15", "1990s", "5-3-7", "5--3", "12-")
    assert [text for text in texts if normalise(text) != Value("text", text=text_key(text))] == []
    texts = ("GPT-3 to GPT-4", "3 W to 5 kg")
    assert [text for text in texts if normalise(text) != Value("text", text=text_key(text))] == []


def test_units_of_one_quantity_are_converted():
    rows = [
        ("2.5 kWh", "2500", "Wh"),
        ("2.5kWh", "2500 watt-hours", None),
        ("0.0025 MWh", "9 MJ", "kWh"),
        ("4300 kg", "4.3", "tCO2e"),
        ("4.3 metric tons CO2e", "4300 kgCO2e", None),
        ("626,155 lbs", "626155", "lbs"),
        ("1 Kilowatt", "1000", "W"),
        ("64.7 GB", "64700 MB", None),
        ("$2.5M", "2500000", "USD"),
        ("US$ 5", "5 dollars", None),
        ("180 mL/kWh", "0.18 liters per kWh", None),
        ("500 KWH", "0.5", "MWh"),
        ("5B", "5", "bytes"),
        ("5B", "5000000000", "parameters"),
        ("5 m", "500 cm", "m"),
        ("5 m", "5000000", "parameters"),
    ]
    assert [row for row in rows if group_values(row[:2], row[2]) != [0, 0]] == []


def test_what_is_not_one_answer():
    rows = [
        ("5 mW", "5 MW", "MW"),
        ("5 kW", "5 kWh", None),
        ("5", "5 kWh", None),
        ("5 GB", "5 GiB", None),
        ("5 FLOPs", "5 FLOPS", None),
        ("5 L/kWh", "5 L", "L/kWh"),
        ("5 tons", "5 tonnes", None),
        ("80-90", "80", None),
        ("5", "-5", None),
        ("0", "1e-30", None),
        ("1000", "1001.1", None),
        ("1000", "998.9", None),
        ("1", "yes", "kWh"),
        ("293.15 K", "293150", "°C"),  # js-abbreviation-number#16: K is kelvin, no thousand
    ]
    assert [row for row in rows if group_values(row[:2], row[2]) != [0, 1]] == []


@check_rows("text", ["mw", "tons", "MT", "months", "Gwh", "", "/", "L/", "/kWh", "parrots/kWh", "kgC"])
def test_unknown_and_ambiguous_units_are_not_guessed(text):
    assert find_unit(text) is None


def test_ranges():
    texts = ("[ 80, 90 ]", "[90,80]", "80-90", "80–90", "80 - 90", "80 to 90", "from 80 to 90", "between 80 and 90")
    assert [text for text in texts if normalise(text) != Value("pair", (80.0, 90.0))] == []
    rows = [
        ("300 Watts to 1 Kilowatt", "W", (300, 1000), "power"),
        ("300-1000 W", None, (300, 1000), "power"),
        ("300-1000", "W", (300, 1000), "power"),
        ("80–90%", "percent", (80, 90), "share"),
        ("[80, 90] %", None, (80, 90), "share"),
        ("$80-90 million", None, (80e6, 90e6), "money"),
        ("10 - 50 500 mL bottles", "500 mL bottles", (10, 50), ""),
        ("-5 to 5", None, (-5, 5), ""),
        ("1,000-2,000", None, (1000, 2000), ""),
        ("[1,000, 2,000]", None, (1000, 2000), ""),
    ]
    assert [row for row in rows if normalise(*row[:2]) != Value("pair", *row[2:])] == []


def test_text_is_folded():
    assert group_values(["Water  Consumption", "water consumption", "Water use"]) == [0, 0, 1]


def test_groups_are_numbered_by_first_appearance_and_blanks_stand_aside():
    assert group_values(["", "b", "1000", "is_blank", "1,000", "B", "1000.9", "1002"]) == [-1, 0, 1, -1, 1, 0, 1, 2]


def test_tolerance_is_counted_from_the_first_member_and_does_not_drift():
    assert group_values(["1000", "1001", "1002", "999"]) == [0, 0, 1, 0]
    assert group_values(["1001", "1000", "1002", "999"]) == [0, 0, 0, 1]
    assert group_values(["1000 g", "1.001 kg", "1.0011 kg"]) == [0, 0, 1]


def test_a_long_value_is_text_at_once():
    long = "1" * (LONGEST_VALUE + 1)
    assert normalise(long) == Value("text", text=long)
    assert normalise(long[:-1]).kind == "number"


WORDS = [
    *("to", "and", "million", "kg", "×10^", "e9", "80", "1,000", "GB", "CO2", "about ", "three", "half", " in ", "a "),
    *("⁻⁵", "½", "€", "±", "1'000", "\\times ", "\\frac", "{", "}", "(", ")", ";", "^", "=", "~", "_", "&", "s", "\\"),
]
pieces = st.sampled_from([*"$[],- %./٣\x00\u200b", *WORDS])
texts = st.one_of(st.lists(pieces, max_size=9).map("".join), st.text(max_size=20))


@given(texts, st.one_of(st.none(), texts))
def test_hostile_values_never_raise_and_are_themselves(text, unit):
    value = normalise(text, unit)
    assert value == normalise(text, unit)
    assert all(number == number and abs(number) != float("inf") for number in value.numbers)
    assert len(value.numbers) == {"blank": 0, "text": 0, "list": 0, "number": 1, "pair": 2}[value.kind]
    assert all(same(item, item) for item in value.items)
    assert group_values([text, text], unit) in ([0, 0], [-1, -1])


@given(
    number=st.integers(1, 10**9),
    prefix=st.sampled_from(["", "k", "M", "G"]),
    unit=st.sampled_from(["W", "Wh", "J", "B"]),
)
def test_a_value_written_in_the_asked_unit_is_the_bare_number(number, prefix, unit):
    asked = prefix + unit
    assert group_values([str(number), f"{number} {asked}", f"{number:,}{asked}", f"{float(number)}"], asked) == [0] * 4


@given(texts, st.one_of(st.none(), texts))
def test_look_alike_spellings_are_one_answer(text, unit):
    spelled = text.translate({ord("-"): "\u2010", ord(" "): "\u2002"}) + "\u200b"
    if plain_characters(spelled) == plain_characters(text):  # a narrow space may part thousands
        assert normalise(spelled, unit) == normalise(text, unit)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "text",
    [
        *("1,000" * 40, "a " * 100, "(" * 200, "1 " * 100, "about " * 33, "5-" * 100, "one " * 50, "$^" * 100),
        *("10^" * 66, "1/2" * 66, "<sup>" * 40, "[a, " * 50, "~" * 200, "½" * 200, "\u200b" * 200, "1." * 100),
        *("1<sup>" + " " * 50_000, "1^{" + "\t" * 50_000, "$" + "x" * 50_000, "$x" * 25_000, "^{" * 25_000),
    ],
)
def test_hostile_values_are_read_quickly(text):
    for _ in range(20):
        normalise.__globals__["_normalise"].cache_clear()
        normalise(text, text[:40])
