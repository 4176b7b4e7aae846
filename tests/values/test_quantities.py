"""A value, its own unit and the unit asked for: what is written, and what measures something else."""

from __future__ import annotations

from kit.rows import check_rows

from kohaku_ray.values.normalise import group_values, read_quantity


@check_rows(
    ("value", "own", "asked", "text", "unit"),
    [  # PortOS#7304; predictions q124, q263, q296; issue 69, bad input
        ("77", "MWh", "kWh", "77000", "kWh"),
        ("77 MWh", "kWh", "kWh", "77000", "kWh"),
        ("77", "MWh", None, "77", "MWh"),
        ("[5,6]", "MWh", "kWh", "[5000,6000]", "kWh"),
        ("5.439", "million liters", "liters", "5439000", "liters"),
        ("5439000", "liters", "million liters", "5.439", "million liters"),
        ("5", "million people", "people", "5000000", "people"),
        # rocketride-server#1407, modern-data-warehouse-dataops#1120: the scale stands apart from the figures
        ("5.2", "in millions", "USD", "5200000", "USD"),
        ("5.2", "USD millions", "USD", "5200000", "USD"),
        ("5.2", "millions of litres", "billion litres", "0.0052", "billion litres"),
        ("5.2", "million", "million litres", "5.2", "million litres"),
        ("$5.2MM", "", "USD", "5200000", ""),  # Recognizers-Text#1800, analytics.en#5
        # gold of 2026 is in million gallons per year: what a unit is counted per may go without saying
        ("77", "MWh/yr", "kWh/year", "77000", "kWh/year"),
        ("77", "MWh", "kWh per year", "77000", "kWh per year"),
        ("420 mWh per query", "", "Wh/query", "0.42", ""),
        ("0.5", "USD per million", "USD per million", "0.5", "USD per million"),
        ("300 W to 1 kW", "", "W", "[300,1000]", ""),
        ("80–90%", "percent", "percent", "[80,90]", "percent"),
        ("50%", "", "fraction", "0.5", ""),
        ("0.5", "fraction", "percent", "50", "percent"),
        ("53%", "%", "", "53", "%"),
        ("53%", "", "", "53%", ""),
        ("(15 GW, 14,600 MW)", "", "GW", "(14.6, 15)", ""),
        ("(5)", "", "", "5", ""),
        ("{0.71}", "", "", "0.71", ""),
        ("[90,80]", "", "", "[80,90]", ""),
        ("[80, 90.0]", "", "", "[80, 90.0]", ""),
        ("5.0", "kWh", "kWh", "5.0", "kWh"),
        ("about 5.6 billion", "parameters", "parameters", "5600000000", "parameters"),
        ("12", "zorkmids", "kWh", "12", "zorkmids"),  # an unknown unit: as asked
        ("5 kg or 11 lb", "", "kg", "5 kg or 11 lb", ""),
        ("1e309", "kWh", "kWh", "1e309", "kWh"),
        # hybrid's values of answers in words, predictions q105: two numbers are a range only where they are written so
        ("44; 90", "", "", "(44, 90)", ""),
        ("28 and 35", "samples", "samples", "(28, 35)", "samples"),
        ("28, 35", "samples", "samples", "(28, 35)", "samples"),
        ("{28, 35}", "", "samples", "(28, 35)", ""),
        ("between 80 and 90%", "percent", "percent", "[80,90]", "percent"),
        ("from 80 to 90", "", "", "[80,90]", ""),
        ("NaN", "", "kWh", "NaN", ""),
        ("ML.ENERGY Benchmark", "", "", "ML.ENERGY Benchmark", ""),
        ("['a', 'b']", "", "", "['a', 'b']", ""),
        ("2", "V100_GPUs", "", "2", "V100_GPUs"),
    ],
)
def test_a_value_is_written_in_the_unit_asked_for(value, own, asked, text, unit):
    quantity = read_quantity(value, own, asked)
    assert (quantity.text, quantity.unit, quantity.differs) == (text, unit, False)


@check_rows(
    ("value", "own", "asked", "text"),
    [
        ("5", "EUR", "USD", "5"),
        ("€5", "", "USD", "€5"),
        ("5", "kg", "kWh", "5"),
        ("5 kg", "", "kWh", "5 kg"),
        ("1.2", "L", "L/kWh", "1.2"),
        ("5", "million gallons per day", "million gallons per year", "5"),
    ],
)
def test_another_dimension_than_asked_is_told_and_is_another_answer(value, own, asked, text):
    quantity = read_quantity(value, own, asked)
    assert (quantity.text, quantity.differs) == (text, True)
    bare = value.strip("€ kg")
    assert group_values([bare, value], asked, [asked, own]) == [0, 1]


def test_members_are_grouped_in_their_own_units():
    assert group_values(["77", "77", "77000", "77"], "kWh", ["kWh", "MWh", "kWh", ""]) == [0, 1, 1, 0]
    assert group_values(["77", "77", "77000", "77"], None, ["kWh", "MWh", "kWh", ""]) == [0, 1, 1, 0]
