import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.systems.hybrid.reading import bare_value, numbers_key, numbers_of, read_numbers, write_number


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1 234,5", [1234.5]),
        ("1\u202f234\u00a0567", [1234567]),
        ("1.234,5 et 1.234.567", [1234.5, 1234567]),
        ("3,14 puis 2.5", [2.5, 3.14]),
        ("18,5 millions d'euros", [18.5e6]),
        ("2 milliards, 3 millions et 40 mille", [40e3, 3e6, 2e9]),
        ("En 2024, 412 habitants", [412, 2024]),
        ("en 2024 412 habitants", [412, 2024]),
        ("94 % ou 94%", [94, 94]),
        ("-4 °C, puis −2 °C", [-4, -2]),
        ("entre 10-12 jours", [10, 12]),
        ("le A6, le CO2, 80GB et la 3e fois", []),
        ("aucun", []),
    ],
)
def test_french_numbers(text, numbers):
    assert list(numbers_of(text)) == pytest.approx(numbers)


def test_numbers_stand_in_reading_order_with_their_place():
    [first, second] = read_numbers("9,6 millions, puis 4.")
    assert (first.text, second.text) == ("9,6 millions", "4")
    assert "9,6 millions, puis 4."[: first.end] == "9,6 millions"


@pytest.mark.parametrize(
    ("value", "unit", "bare"),
    [
        ("1 150 emplois", "emplois", "1150"),
        ("9,6 millions d'euros", "millions d'euros", "9.6"),
        ("9,6", "millions d'euros", "9.6"),
        ("9,6 millions d'euros", "euros", "9600000"),
        ("1,2", None, "1.2"),
        ("1 234,5", "", "1234.5"),
        ("18 à 20", "jours", "18 à 20"),
        ("Hortense Valade", None, "Hortense Valade"),
        ("vers 1962", None, "vers 1962"),
        ("", None, ""),
    ],
)
def test_a_value_of_one_number_is_written_bare(value, unit, bare):
    assert bare_value(value, unit) == bare


def test_texts_of_the_same_numbers_have_one_key():
    assert numbers_key("412 évacués, 60 cm") == numbers_key("60,0 cm d'eau et 412 évacués") == "60; 412"
    assert numbers_key("412 et 412") != numbers_key("412")
    assert numbers_key("rien") == ""


@given(st.integers(-(10**9), 10**9))
def test_whole_numbers_survive_french_writing(number):
    written = f"{number:,}".replace(",", "\u202f")
    assert numbers_of(f"soit {written} euros") == (number,)
    assert bare_value(written, None) == write_number(float(number)) == str(number)


@given(st.text())
def test_any_text_is_read(text):
    assert list(numbers_of(text)) == sorted(numbers_of(text))
    bare_value(text, text)


@pytest.mark.parametrize("text", ["1" * 200_000, "123 " * 50_000 + "x", "1." * 99_999, "1 234" * 40_000, "-" * 200_000])
def test_long_hostile_texts_take_no_time(text):
    began = time.process_time()
    numbers_of(text)
    assert time.process_time() - began < 3
