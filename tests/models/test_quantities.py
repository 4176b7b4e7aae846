"""Numbers and units in prose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.models.extractive.quantities import asked_unit, find_quantities, in_unit, parse_unit
from kohaku_ray.models.extractive.terms import normalise
from kohaku_ray.values.units import PLAIN, PREFIXED, find_unit, spell_out


@pytest.mark.parametrize(
    ("text", "unit", "values"),
    [
        ("It used 1,287 MWh.", "MWh", ["1287"]),
        ("about 1.5e6 litres", "liters", ["1.5e6"]),
        ("5.4 million liters of water", "liters", ["5400000"]),
        ("5.4 million liters of water", "million liters", ["5.4"]),
        ("96 GWh of heat", "MWh", ["96000"]),
        ("1,220.4 MWh", "kWh", ["1220400"]),
        ("7.2 MJ", "kWh", ["2"]),
        ("costs $2.5 million", "USD", ["2500000"]),
        ("US$2.51 million", "USD", ["2510000"]),
        ("€31 a year", "EUR", ["31"]),
        ("24.5 tCO2e", "kgCO2e", ["24500"]),
        ("24.5 metric tons of CO₂ equivalent", "tCO2e", ["24.5"]),
        ("310 gCO2e/kWh", "kgCO2e per MWh", ["310"]),
        ("1.45 L/kWh", "L/kWh", ["1.45"]),
        ("a drop of 56.7 %.", "percent", ["56.7"]),
        ("a drop of 56.7%", "%", ["56.7"]),
        ("7.1x faster, 3-fold, 6.7×, 8 times", "multiplier", ["7.1", "3", "6.7", "8"]),
        ("a factor of 8.7", "multiplier", ["8.7"]),
        ("2.5 × 10^24 FLOPs", "FLOPs", ["2.5e24"]),
        ("2.5·10²⁴ FLOPs", "FLOPs", ["2.5e24"]),
        ("at −5 °C", "°C", ["-5"]),
        ("180 billion parameters and 70B parameters", "parameters", ["180000000000", "70000000000"]),
        ("180 billion parameters", "billion parameters", ["180"]),
        ("on four GPUs", "GPUs", ["4"]),
    ],
)
def test_numbers_in_the_unit_asked_for(text, unit, values):
    wanted = asked_unit(normalise(unit))
    found = find_quantities(normalise(text))
    fitting = [q for q in found if q.unit.dimension == wanted.dimension]
    assert [in_unit(quantity, wanted) for quantity in fitting] == [(value,) for value in values]
    assert len(fitting) == len(found)


@pytest.mark.parametrize(
    ("text", "unit", "ends"),
    [
        ("80-90 % of it", "percent", ("80", "90")),
        ("60–70 %", "percent", ("60", "70")),
        ("10%–20%", "percent", ("10", "20")),
        ("3 to 6 %", "percent", ("3", "6")),
        ("between 80 and 90 percent", "percent", ("80", "90")),
        ("from 18 kW to 55 kW", "kW", ("18", "55")),
        ("300 Watts to 1 Kilowatt", "W", ("300", "1000")),
        ("4.2 – 6.6 billion cubic metres", "m3", ("4200000000", "6600000000")),
    ],
)
def test_ranges(text, unit, ends):
    (quantity,) = find_quantities(normalise(text))
    assert in_unit(quantity, asked_unit(unit)) == ends


@pytest.mark.parametrize(
    "text",
    [
        "A100-80GB",
        "GPT-3 and LLaMA-65B",
        "Tern 70B",
        "Table 3 and Fig. 2",
        "[12] [3]",
        "8-bit",
        "the 21st",
        "K200",
        "v1.2.3",
    ],
)
def test_digits_that_are_no_quantities(text):
    assert find_quantities(text) == ()


def test_a_difference_and_a_list_are_no_ranges():
    assert [q.high for q in find_quantities("1, 2 and 3 papers")] == [None] * 3
    assert [q.high for q in find_quantities("90-80 W")] == [None]


def test_case_tells_milli_from_mega():
    assert parse_unit("mW").factor * 1e9 == pytest.approx(parse_unit("MW").factor)


@pytest.mark.parametrize("text", ["papers", "household-years", "500 mL bottles", "", "million"])
def test_things_are_no_units(text):
    assert parse_unit(text) is None
    assert asked_unit(text).dimension is None


def test_prose_and_votes_give_a_unit_one_meaning():
    symbols, names = spell_out(PREFIXED, PLAIN)
    both = [(parse_unit(text), find_unit(text)) for text in symbols | names]
    read = [pair for pair in both if pair[0] is not None]
    assert len(read) > 250
    assert all(prose.dimension == vote.dimension for prose, vote in read)
    bare = {"energy": 3600.0, "volume": 1e-3}
    factors = [prose.factor * bare.get(prose.dimension, 1.0) for prose, _ in read]
    assert factors == pytest.approx([vote.factor for _, vote in read], rel=1e-12)


@pytest.mark.parametrize(
    ("text", "unit"), [("1.50 MJ/kWh", "kJ/Wh"), ("1.50 L/MWh", "mL/kWh"), ("1.50 kL", "m3"), ("1.50 kWh", "kWh")]
)
def test_a_number_in_an_equal_unit_stays_as_written(text, unit):
    (quantity,) = find_quantities(text)
    assert in_unit(quantity, asked_unit(unit)) == ("1.50",)


@pytest.mark.parametrize("text", ["5 d", "5 us", "5 US", "5 NM", "5 MS"])
def test_words_that_look_like_units_are_none_in_prose(text):
    (quantity,) = find_quantities(text)
    assert quantity.unit.dimension is None


@given(st.text(alphabet="0123456789.,-–eE %$xkMWh()to and") | st.text())
def test_any_text_can_be_searched(text):
    for quantity in find_quantities(normalise(text)):
        assert quantity.start < quantity.end
        float(quantity.low)
        in_unit(quantity, asked_unit("kWh"))
