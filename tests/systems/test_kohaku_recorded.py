"""Replies of three small models to the sample's questions: none of their answers is lost, none of their loops counts.

Qwen2.5-0.5B-Instruct, Qwen2.5-Coder-0.5B-Instruct and SmolLM2-135M-Instruct, 4 and 8 bits in llama.cpp, temperature
0.7, at most 256 or 400 tokens, asked with the schema in use before: it had a field ``is_blank`` beside the value.
"""

import asyncio
import json
import re
from pathlib import Path

from kit.rows import check_rows
from kit.scripted_tools import ScriptedTools, library

from kohaku_ray import sample
from kohaku_ray.models.json_text import loops
from kohaku_ray.models.parse import parse_answer, parse_plan
from kohaku_ray.records import Reply
from kohaku_ray.systems.kohaku import SYSTEM, answer, prepare
from kohaku_ray.systems.kohaku.settings import KohakuSettings
from kohaku_ray.systems.questions import read_questions
from kohaku_ray.values.kinds import kind_of, read_as
from kohaku_ray.values.read import is_blank_lenient

REPLIES = Path(__file__).parent / "recorded/small_models.jsonl"
RECORDED = [json.loads(line) for line in REPLIES.read_text(encoding="utf-8").split("\n") if line]
ANSWERS = [row for row in RECORDED if row["role"] == "answer"]
PLANS = [row for row in RECORDED if row["role"] == "plan"]
QUESTIONS = {
    question.question_id: question
    for question in read_questions("questions.csv", Path(sample.path("questions.csv")).read_bytes())
}
LOOP = Reply('{"explanation": "' + "It draws power. " * 60, 90, 0, 400, "length")


def reply_of(row) -> Reply:
    return Reply(row["text"], 90, 0, row["tokens"], row["finish"])


def field(row, name):
    """A field as the reply spells it, read without the parser."""
    hits = re.search(rf'"{name}":\s*("(?:[^"\\]|\\.)*"|\[[^\]]*\]|true|false)', row["text"])
    return json.loads(hits[1]) if hits else None


def is_usable(row) -> bool:
    """The reply has a value of the kind that is asked for, and cites a document of its context."""
    question = QUESTIONS[row["question"]]
    kind = kind_of(question.text, question.answer_unit, question.answer_type)
    value, refs = field(row, "answer_value"), field(row, "ref_id")
    if value is None or is_blank_lenient(value) or not set(refs or ()) & set(row["allowed"]):
        return False
    return read_as(value, kind, question.answer_unit)[1]


USABLE = [row for row in ANSWERS if is_usable(row)]
BOOLEANS = {"yes": "1", "true": "1", "no": "0", "false": "0"}
"""Answers to questions for true or false, which ask for 1 or 0."""


@check_rows("row", USABLE)
def test_a_usable_answer_is_kept_whatever_else_the_reply_says_and_whatever_follows(row):
    question = QUESTIONS[row["question"]]
    kind = kind_of(question.text, question.answer_unit, question.answer_type)
    prediction = parse_answer(reply_of(row), row["allowed"], 0, question.answer_unit, kind)
    assert not prediction.is_blank
    value = field(row, "answer_value").strip()
    assert prediction.answer_value == (BOOLEANS.get(value.lower(), value) if kind == "boolean" else value)
    assert set(prediction.ref_ids) == set(field(row, "ref_id")) & set(row["allowed"])
    assert ("contradictory" in prediction.flags) == field(row, "is_blank")
    answer = answered(row, LOOP, LOOP)
    assert answer.prediction == prediction


@check_rows("row", ANSWERS)
def test_every_reply_is_kept_and_a_loop_has_its_cause(row):
    answer = answered(row, LOOP, LOOP, LOOP)
    read, kept = answer.prediction, [answer.reply, *(other_reply.text for other_reply in answer.other_replies)]
    assert row["text"] in kept
    assert read.is_blank or row["text"] == answer.reply
    if row["finish"] == "length" and read.error:
        assert loops(row["text"])
        assert "it repeats itself" in read.error


@check_rows("row", PLANS)
def test_a_plan_is_searched_by_queries_about_the_question_alone(row):
    question = QUESTIONS[row["question"]].text
    plan = parse_plan(reply_of(row), question, 4)
    assert plan.queries[0] == question
    assert len(plan.queries) > 1 or plan.error
    assert plan.error is None or "max_tokens" not in plan.error or not loops(row["text"])


def answered(row, *later):
    """What a member answers whose first reply is the recorded one."""
    words = "Training and inference draw power and water."
    index = library(**{doc_id: [("Page", [words])] for doc_id in row["allowed"] or ["none"]})
    left = iter([reply_of(row), *later])
    tools = ScriptedTools(index, lambda call: next(left), SYSTEM, max_tokens=row["tokens"])
    config = KohakuSettings(queries=1, top_k=20, dedup="node", bm25_top_k=0, section_tokens=0)

    async def run():
        return await answer(await prepare(QUESTIONS[row["question"]], tools, config), tools, config)

    return asyncio.run(run())
