"""The order of a block's steps, and the executor in this process: steps wait for what they take; errors are raised."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from kit.installed import loaded_after
from kit.scripted_tools import MemoryIndex, library

from kohaku_ray.answering.block import MemberAnswer, PreparedQuestion
from kohaku_ray.answering.executor import InProcessExecutor, start_block
from kohaku_ray.answering.tools import RunContext
from kohaku_ray.answering.votes import vote_block
from kohaku_ray.config import load_config
from kohaku_ray.config.roles import models_of
from kohaku_ray.errors import DataError, ModelError
from kohaku_ray.records import Prediction, Question, Reply, TraceRow
from kohaku_ray.store.segments import Entry, LedgerReply
from kohaku_ray.systems.base import Answer
from tests.own_system.lookup import SYSTEM as LOOKUP

NODES = library(doc=[("Numbers", ["Four is a number."])])
BLOCK = [Question(f"q{number}", f"How many are {number}?") for number in range(3)]
REPLY = '{"answer": "4", "answer_value": "4", "ref_id": ["doc"], "explanation": ""}'


class Noting:
    """An executor that notes its steps; a handle is the step's name."""

    def __init__(self):
        self.steps = []

    def _note(self, *step):
        self.steps.append(step)
        return step[0]

    def prepare(self, member, settled):
        return self._note(f"prepared by {member}", settled)

    def answer(self, member, prepared, settled):
        return self._note(f"answer {member}", prepared, settled)

    def settle(self, answered):
        return self._note(f"settled after {len(answered)}", *answered)

    def vote(self, prepared, answered):
        return self._note("vote", prepared, answered)


def steps_of(*overrides):
    executor = Noting()
    assert start_block(load_config("demo", list(overrides)), executor) == "vote"
    return executor.steps


def test_members_of_one_wave_share_the_evidence_and_the_vote_takes_them_all():
    assert steps_of("ensemble.members=2") == [
        ("prepared by 0", None),
        ("answer 0", "prepared by 0", None),
        ("answer 1", "prepared by 0", None),
        ("vote", ["prepared by 0"], ["answer 0", "answer 1"]),
    ]


def test_a_later_wave_leaves_out_what_those_before_it_have_settled():
    waves = ("ensemble.members=3", "ensemble.early_stop=value", "ensemble.scope=question")
    assert steps_of(*waves) == [
        ("prepared by 0", None),
        ("answer 0", "prepared by 0", None),
        ("prepared by 1", None),
        ("answer 1", "prepared by 1", None),
        ("settled after 2", "answer 0", "answer 1"),
        ("prepared by 2", "settled after 2"),
        ("answer 2", "prepared by 2", "settled after 2"),
        ("vote", ["prepared by 0", "prepared by 1", "prepared by 2"], ["answer 0", "answer 1", "answer 2"]),
    ]


class Model:
    """A ledger that answers every request, or raises; it counts the requests by question."""

    def __init__(self, error=None):
        self.error, self.asked = error, []

    async def ask(self, request, application, again=False):
        self.asked.append(request.session_id)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return LedgerReply(Entry(Reply(REPLY), request.model, 0.0), "made", f"{request.session_id} {request.seed}")


def answer_block_of(model, *overrides):
    config = load_config("default", ["system=tests.own_system.sharing:SYSTEM", *overrides])
    models = tuple(models_of(config, dict.fromkeys(config.deployments, ""), n) for n in range(config.ensemble.members))
    context = RunContext(config, model, models, config.declaration.prompts())
    index = MemoryIndex(NODES, LOOKUP, None)

    async def run():
        return await start_block(config, InProcessExecutor(context, index, BLOCK))

    return asyncio.run(run()), index


def test_a_block_in_this_process_is_prepared_once_shared_settled_and_voted_on():
    model = Model()
    (summary, tables), index = answer_block_of(model, "ensemble.members=5", "ensemble.early_stop=value")
    assert (summary.n_questions, summary.n_answers, summary.n_member_errors) == (3, 9, 0)
    assert tables["votes"]["n_members"].to_pylist() == [3, 3, 3], "three of five agree: the others are not asked"
    assert sorted(model.asked) == [question.question_id for question in BLOCK for _ in range(3)]
    assert [name for name, *_ in index.asked].count("lexical") == len(BLOCK), "once per question, not per member"
    shown = [row["member"] for row in tables["trace"].to_pylist() if row["step"] == "shown"]
    assert shown == [-1] * len(BLOCK), "what members share stands once"


def test_what_members_see_by_themselves_is_theirs_in_the_trace():
    config = load_config("default", ["ensemble.members=2", "ensemble.scope=question"])
    question, seen = BLOCK[0], TraceRow("context", 0, "shown")
    answers = [MemberAnswer(Answer(Prediction(), (seen,))) for _ in range(2)]
    prepared = PreparedQuestion(question, SimpleNamespace(trace=(TraceRow("plan", 0, "planned"),)), None)
    _, tables = vote_block(config, 2, [prepared], [prepared], *([answer] for answer in answers))
    rows = [(row["step"], row["member"]) for row in tables["trace"].to_pylist()]
    assert rows == [("plan", 0), ("plan", 1), ("context", 0), ("context", 1)]


def test_a_member_without_a_reply_has_its_error_and_what_breaks_the_run_is_raised():
    (summary, tables), _ = answer_block_of(Model(ModelError("no server")), "ensemble.members=2")
    assert summary.n_unanswered == 6
    assert set(tables["answers"]["error"].to_pylist()) == {"no server"}
    with pytest.raises(DataError, match="the ledger is full"):
        answer_block_of(Model(DataError("the ledger is full")), "ensemble.members=2")


def test_what_answers_without_ray_loads_none():
    assert not loaded_after("from kohaku_ray.answering import bundle, executor, here, replay", "ray")
