"""`kohaku.check_value`: a number against the words that it comes with."""

import asyncio
import json

import pytest
from kit.scripted_tools import ScriptedTools, library

from kohaku_ray.errors import ModelError
from kohaku_ray.records import Question
from kohaku_ray.systems.kohaku import SYSTEM, answer, prepare
from kohaku_ray.systems.kohaku.check import check_value
from kohaku_ray.systems.kohaku.settings import KohakuSettings

RANGE = "Cooling takes 30 to 40 % of the power of a site."
GALLONS = "In 2022 the sites took 2.51 million gallons of water a day."
TWO = "Training drew 12 MW and serving drew 7 MW of power."
INDEX = library(energy=[("Power", [RANGE, TWO])], water=[("Water", [GALLONS])])


@pytest.mark.parametrize(
    ("value", "explanation", "passage", "kind", "unit", "verdict", "other"),
    [
        # The four kinds of a 1.5B model on fresh questions (issue 63): a range's lower end, digits of millions lost, a
        # blank beside its number, another number than its sentence has.
        ("30", RANGE, RANGE, "number", "percent", "other", "[30,40]"),
        ("251000", GALLONS, GALLONS, "number", "gallons", "other", "2510000"),
        ("", "The score is 200.", "The score is 200.", "number", None, "other", "200"),
        ("", "The limit is 200 W.", "Its limit is 200 W.", "number", "W", "other", "200"),
        ("2510000", GALLONS, GALLONS, "number", "gallons", "stands", ""),
        ("2.51", GALLONS, GALLONS, "number", "million gallons", "stands", ""),
        ("35", RANGE, RANGE, "range", "percent", "other", "[30,40]"),
        ("19", TWO, TWO, "number", "MW", "open", ""),  # a sum: the model alone can say
        ("9", "It says 9 MW.", TWO, "number", "MW", "open", ""),  # no passage states it
        ("", "Nothing speaks of it.", TWO, "number", "MW", "stands", ""),
        ("", TWO, TWO, "number", "MW", "open", ""),
        ("", "They draw 7 and 12 MW, respectively.", TWO, "number", "MW", "open", ""),
        ("Norway", RANGE, RANGE, "text", None, "stands", ""),
        ("1", RANGE, RANGE, "boolean", None, "stands", ""),
        ("30", RANGE, RANGE, None, None, "stands", ""),
    ],
)
def test_a_value_is_checked_against_its_explanation_and_its_passage(
    value, explanation, passage, kind, unit, verdict, other
):
    assert check_value(value, explanation, [passage], kind, unit) == (verdict, other)


def reply(value, explanation, refs=("energy",)):
    return json.dumps({"explanation": explanation, "answer_value": value, "answer_unit": "", "ref_id": list(refs)})


def answered(question, *replies, **changed):
    left = iter(replies)
    tools = ScriptedTools(INDEX, lambda call: next(left), SYSTEM)
    small = {"queries": 1, "top_k": 20, "bm25_top_k": 0, "section_tokens": 0, "max_retries": 0, "check_value": True}
    config = KohakuSettings(**small | {"instructions": "short", "cite": "explanation"} | changed)

    async def run():
        return await answer(await prepare(question, tools, config), tools, config)

    return asyncio.run(run()), tools


SHARE = Question("q1", "What share of the power does cooling take?", answer_unit="percent", answer_type="number")
DRAW = Question("q2", "How much power does training draw?", answer_unit="MW", answer_type="number")


def test_the_value_that_the_explanation_states_is_taken_and_flagged():
    result, tools = answered(SHARE, reply("30", RANGE))
    assert (result.prediction.answer_value, result.prediction.flags) == ("[30,40]", ("from_explanation",))
    assert len(tools.sent) == 1
    assert answered(SHARE, reply("30", RANGE), check_value=False)[0].prediction.answer_value == "30"


def test_a_blank_beside_its_number_is_an_answer_that_cites_what_it_quotes():
    read = answered(SHARE, reply("is_blank", RANGE, ()))[0].prediction
    assert (read.answer_value, read.is_blank, read.ref_ids, read.answer_unit) == (
        "[30,40]",
        False,
        ("energy",),
        "percent",
    )


def test_where_several_values_fit_the_member_is_asked_once_more_with_the_passage_alone():
    result, tools = answered(DRAW, reply("19", TWO), reply("12", "Training drew 12 MW."))
    assert (result.prediction.answer_value, result.prediction.flags) == ("12", ("asked_again",))
    first, second = tools.sent
    assert (second.attempt, second.role, len(second.prompt.variables["snippets"])) == (0, "answer", 1)
    assert TWO in second.prompt.user
    assert GALLONS in first.prompt.user
    assert GALLONS not in second.prompt.user
    assert [row.text for row in result.other_replies] == [reply("19", TWO)]
    assert result.trace, "what the first call was shown"


@pytest.mark.parametrize(
    "second", [reply("13", "It drew 13 MW."), reply("is_blank", ""), "no idea", ModelError("gone")]
)
def test_a_second_reply_that_the_passage_does_not_state_changes_nothing(second):
    result, tools = answered(DRAW, reply("19", TWO), second)
    assert (result.prediction.answer_value, result.prediction.flags) == ("19", ("unsupported",))
    assert len(tools.sent) == 2
    assert len(result.other_replies) == (not isinstance(second, ModelError))
    assert answered(DRAW, reply("is_blank", TWO, ()), second)[0].prediction.is_blank


def test_a_value_in_order_makes_no_call_and_has_no_flag():
    result, tools = answered(DRAW, reply("12", "Training drew 12 MW and serving drew 7 MW of power."))
    assert (result.prediction.answer_value, result.prediction.flags, len(tools.sent)) == ("12", (), 1)
