"""Numbers and ranges found in prose: each as the reader of values reads it, none inside another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.values.normalise import normalise, same, write_value
from kohaku_ray.values.stated import find_stated


@pytest.mark.parametrize(
    ("text", "unit", "stated"),
    [
        # Explanations of wattbot_qwen25_coder_15b.zip and what a member made of them: see test_check.py
        ("between 80 and 90 percent of the energy", "percent", ["[80,90]"]),
        ("from 2.4 to 3.6 MWh.", "MWh", ["[2.4,3.6]"]),
        ("The value is 200. In 2023 it rose.", None, ["200", "2023"]),
        ("It used 2.51 million gallons in 2022,", "gallons", ["2510000", "2022"]),
        ("about 1,287 MWh (552 tCO2e)", "MWh", ["1287"]),
        ("a 12-layer model, GPT-3 on A100s", "layers", ["12"]),
        ("5 MW and 7 MW for cooling", "MW", ["5", "7"]),
        ("[12, 14] and (45%)", "%", ["[12,14]", "45"]),
        ("80–90% less", "%", ["[80,90]"]),
    ],
)
def test_amounts_are_found_in_prose(text, unit, stated):
    dimension = normalise("1", unit).dimension
    found = [write_value(each.value, unit) for each in find_stated(text, unit) if each.value.dimension == dimension]
    assert found == stated


def test_the_unit_asked_for_is_told_from_others():
    text = "In 2023 it drew 24 TWh, or 24 of 100, with 1.25T tokens at 0.18 liters of water per kWh, on 8 GPUs"

    def with_unit(unit):
        return [each.text for each in find_stated(text, unit) if each.has_unit]

    assert with_unit("MWh") == ["24 TWh"]
    assert with_unit("GPUs") == ["8 GPUs"]
    assert with_unit("days") == with_unit(None) == []
    text = "In 2022, 10, 20 and 30 % of 7 tasks; of 12 GPUs, 5 or 6 %, or [1,2] and 4 %"
    assert with_unit("%") == ["10", "20", "30 %", "6 %", "4 %"]


@given(
    st.floats(1e-3, 1e12, allow_nan=False).map(lambda number: float(f"{number:.6g}")),
    st.sampled_from([None, "MWh", "gallons", "million gallons", "percent", "tokens"]),
)
def test_a_number_that_is_written_into_a_sentence_is_stated_there_and_written_back(number, unit):
    value = normalise(f"{number:.6f}", unit)
    stated = find_stated(f"In all it took {number:.6f} {unit or ''} of it", unit)
    assert any(each.says(value, f"{number:.6f}") for each in stated)
    assert same(normalise(write_value(value, unit), unit), value)


@given(st.text(max_size=400))
def test_any_text_can_be_searched(text):
    find_stated(text, "MWh")


# Explanations of the recorded runs of wattbot_qwen25_coder_15b.zip, and the values beside them.
@pytest.mark.parametrize(
    ("text", "unit", "value", "says"),
    [
        (
            "WUE to 0.18 liters of water per kilowatt-hour (L/kWh) in 2023 from 0.19 L/kWh in 2022",
            "L/kWh",
            "0.18",
            True,
        ),
        ("are 4.3 tCO2e —3.5 passenger SF-NY round trips—from consuming 24 MWh", "tCO2e", "4.3", True),
        ("reduced Qwen's carbon emissions by 45%", "percent", "-45", True),
        ("is 5.4 million liters.", "liters", "5.4", False),
        ("is 300 Watts to 1 Kilowatt from the lower shard configuration of 8 GPUs", "W", "300", False),
        ("was 1.4 TWh.", "MWh", "1400000", True),
        ("carbon intensity of 0.332 kg CO 2e / kWh.", "tCO2e", "0.000332", False),  # a rate
    ],
)
def test_a_value_stands_in_its_words_whatever_unit_and_sign_they_give(text, unit, value, says):
    assert any(each.says(normalise(value, unit), value) for each in find_stated(text, unit)) == says
