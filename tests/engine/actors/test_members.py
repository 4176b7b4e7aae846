"""A process of members: each task answers for one, and what the tasks of a block share is made once and freed."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter

from kohaku_ray.answering.block import PreparedQuestion, prepare_question
from kohaku_ray.answering.local_index import LocalIndex
from kohaku_ray.answering.tools import RunContext
from kohaku_ray.config import Config, load_config
from kohaku_ray.config.roles import models_of
from kohaku_ray.engine.actors.members import MemberProcess
from kohaku_ray.engine.actors.retriever import Retriever
from kohaku_ray.engine.actors.voter import MembersAndVoter, Voter
from kohaku_ray.engine.ledger.client import Ledger
from kohaku_ray.errors import DataError
from kohaku_ray.models.summary import AnswerSummary
from kohaku_ray.models.target import Target
from kohaku_ray.records import Question, Reply, TraceRow
from kohaku_ray.store.parts import RunParts
from kohaku_ray.store.segments import Entry, LedgerReply
from kohaku_ray.store.tables import Tables
from tests.own_system import sharing
from tests.own_system.lookup import Found

REPLY = '{"answer": "4", "answer_value": "4", "ref_id": ["doc"], "explanation": ""}'
N_MEMBERS, N_QUESTIONS = 5, 3
FAILING_LINE = next(
    number
    for number, line in enumerate(Path(sharing.__file__).read_text().splitlines(), 1)
    if "raise ValueError" in line
)


class Shard:
    """A ledger shard that knows no key and answers every request; it notes the messages."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, int]] = []
        self.lookup, self.ask = Method(self, "lookup", lambda _: None), Method(self, "ask", self.make)

    def make(self, wanted) -> LedgerReply:
        return LedgerReply(Entry(Reply(REPLY), "m", 0.0), "made", wanted.key)


class Method:
    def __init__(self, shard: Shard, name: str, answer) -> None:
        self.shard, self.name, self.answer = shard, name, answer

    async def remote(self, items):
        self.shard.messages.append((self.name, len(items)))
        await asyncio.sleep(0)
        return [self.answer(item) for item in items]


class Ref:
    """Stands for a reference: fetched by awaiting it, which takes some turns of the event loop and is counted."""

    def __init__(self, value: object, n_fetched: Counter[str], name: str) -> None:
        self.value, self.n_fetched, self.name = value, n_fetched, name

    def hex(self) -> str:
        """Identify the reference, as ``ray.ObjectRef.hex`` does."""
        return self.name

    def __await__(self):
        self.n_fetched[self.name] += 1
        for _ in range(2 * N_MEMBERS):
            yield
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Process:
    """A member process, and what it is asked."""

    def __init__(self, *overrides: str) -> None:
        system = ["system=tests.own_system.sharing:SYSTEM", f"ensemble.members={N_MEMBERS}"]
        self.config = load_config("default", [*system, *overrides])
        targets = dict.fromkeys(self.config.deployments, Target("app"))
        models = tuple(models_of(self.config, targets, member) for member in range(N_MEMBERS))
        self.shard, self.n_fetched, self.member = Shard(), Counter[str](), MemberProcess()
        # As Ray does, each fetch would make another ledger client: siblings share the one they fetched together.
        self.context = Ref(
            RunContext(self.config, Ledger([self.shard]), models, self.config.declaration.prompts()),
            self.n_fetched,
            "context",
        )

    def block(self, number: int) -> Ref:
        rows = []
        for question in range(N_QUESTIONS):
            trace = (TraceRow("lookup", 0, "four", "doc:sec0:p0", "doc", "paragraph", {"bm25": 1.0}),)
            asked = Question(f"q{number}.{question}", f"How many {number}.{question}?")
            rows.append(PreparedQuestion(asked, Found(asked, trace), None))
        return Ref(rows, self.n_fetched, f"block {number}")

    def answer(self, block: Ref, member: int, settled=None):
        return self.member.answer((self.context, block), member, None, settled)

    @property
    def n_held(self) -> int:
        return len(self.member._blocks)


def vote_of(voter: Voter, home: Path, config: Config, prepared, *sent) -> tuple[AnswerSummary, Tables]:
    """Vote on a block; its counts, and the tables of its part, which has them too."""
    parts = RunParts(str(home), "run")
    result = voter.vote(config, parts, 1, prepared, *sent)
    [(name, counts)] = parts.find()[0].items()
    assert name == parts.name([row.question.question_id for row in prepared])
    assert TypeAdapter(AnswerSummary).validate_python(counts) == result
    return result, parts.read(name)


async def test_the_tasks_of_a_block_fetch_it_once_and_ask_in_one_message_per_prompt(tmp_path):
    process = Process()
    block = process.block(0)
    # As tasks arrive: one after the other, while the first fetches.
    tasks = []
    for member in range(N_MEMBERS):
        tasks.append(asyncio.ensure_future(process.answer(block, member)))
        await asyncio.sleep(0)
    sent = await asyncio.gather(*tasks)
    assert process.n_fetched == {"context": 1, "block 0": 1}
    assert process.shard.messages == [("lookup", N_MEMBERS * N_QUESTIONS), *[("ask", N_MEMBERS)] * N_QUESTIONS]
    assert len({row.trace for rows in sent for row in rows}) == 1, "equal traces are equal bytes"
    result, tables = vote_of(Voter(), tmp_path, process.config, block.value, *sent)
    assert (result.n_questions, result.n_answers, result.n_member_errors) == (N_QUESTIONS, 15, 0)
    shown = [row for row in tables["trace"].to_pylist() if row["step"] == "shown"]
    assert [(row["member"], row["text"]) for row in shown] == [(-1, "four")] * N_QUESTIONS, "a shared step once"
    assert len({row["seed"] for row in tables["answers"].to_pylist()}) == N_MEMBERS * N_QUESTIONS


async def test_what_a_block_shares_is_freed_with_its_last_task_and_not_before():
    process, most_held = Process(), []
    for first in range(0, 40, 2):
        blocks = [process.block(first), process.block(first + 1)]
        tasks = [asyncio.ensure_future(process.answer(block, member)) for block in blocks for member in range(3)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            most_held.append(process.n_held)
        await asyncio.gather(*tasks)
    assert max(most_held) == 2
    assert process.n_held == 0
    assert process.n_fetched.pop("context") == 40, "with each block"
    assert set(process.n_fetched.values()) == {1}


async def test_a_failed_fetch_reaches_each_task_is_not_kept_and_leaves_other_blocks_alone():
    process = Process()
    bad, good = Ref(DataError("the index is broken"), process.n_fetched, "bad"), process.block(1)
    tasks = [process.answer(block, member) for block in (bad, good) for member in range(2)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(error) for error in results[:2]] == ["the index is broken"] * 2
    assert [len(rows) for rows in results[2:]] == [N_QUESTIONS] * 2
    assert process.n_held == 0


async def test_an_exception_in_one_member_is_that_members_error():
    process = Process("sharing.failing_member=1")
    block = process.block(0)
    first, failed, last = await asyncio.gather(*(process.answer(block, member) for member in range(3)))
    assert [row.answered.answer.prediction.answer_value for row in (*first, *last)] == ["4"] * 6
    assert [row.answered.answer.prediction.error for row in failed] == [
        f"system sharing failed with ValueError in sharing.py, line {FAILING_LINE}: q0.{question} has no unit"
        for question in range(N_QUESTIONS)
    ]
    assert [len(row.answered.calls) for row in failed] == [1] * N_QUESTIONS, "its calls are told all the same"


@pytest.mark.parametrize("scope", ["answer", "question"])
def test_an_exception_while_a_question_is_prepared_is_that_questions_error(scope):
    context = Process(f"ensemble.scope={scope}").context.value
    broken = asyncio.run(prepare_question(context, None, Question("q", "How many?"), 1))  # it has no index to look into
    assert broken.evidence is None
    assert broken.error.startswith("system sharing failed with AttributeError in tools.py, line ")


async def test_a_settled_question_is_neither_answered_nor_asked():
    process = Process()
    settled = [True, False, True]
    assert [row is None for row in await process.answer(process.block(0), 4, settled)] == settled
    assert process.shard.messages == [("lookup", 1), ("ask", 1)]


def test_a_wave_is_settled_and_voted_on_with_those_before_it(tmp_path):
    process, voter = Process("ensemble.early_stop=value"), Voter()
    block = process.block(0)
    questions = [row.question for row in block.value]

    async def wave(members, settled=None):
        return await asyncio.gather(*(process.answer(block, member, settled) for member in members))

    first = asyncio.run(wave(range(3)))
    settled = voter.settle(process.config, questions, *first)
    assert settled == [True] * N_QUESTIONS, "three of five agree"
    settled[1] = False
    second = asyncio.run(wave(range(3, 5), settled))
    assert [[row is None for row in rows] for rows in second] == [settled] * 2
    assert voter.settle(process.config, questions, *first, *second) == [True] * N_QUESTIONS
    result, tables = vote_of(voter, tmp_path, process.config, block.value, *first, *second)
    assert (result.n_answers, tables["votes"]["n_members"].to_pylist()) == (11, [3, 5, 3])
    assert process.n_fetched["block 0"] == 2, "once per wave"


async def test_a_process_of_members_that_votes_too_counts_as_a_voter_does(tmp_path):
    process = Process("ensemble.early_stop=value")
    process.member = both = MembersAndVoter()
    block = process.block(0)
    questions = [row.question for row in block.value]
    sent = await asyncio.gather(*(process.answer(block, member) for member in range(N_MEMBERS)))
    settled = await both.settle(process.config, questions, *sent)
    parts = RunParts(str(tmp_path / "both"), "run")
    result = await both.vote(process.config, parts, 1, block.value, *sent)
    alone, tables_alone = vote_of(Voter(), tmp_path, process.config, block.value, *sent)
    [tables] = map(parts.read, parts.find()[0])
    assert settled == [True] * N_QUESTIONS
    assert result == alone
    assert tables == tables_alone


@pytest.mark.parametrize("error", ["DataError", "ConfigError"])
def test_what_breaks_the_run_is_no_members_error(monkeypatch, error):
    from kohaku_ray import errors

    process = Process()

    async def broken(_):
        raise getattr(errors, error)("the ledger cannot be written")

    monkeypatch.setattr(process.shard.ask, "remote", broken)
    with pytest.raises(getattr(errors, error), match="the ledger cannot be written"):
        asyncio.run(process.answer(process.block(0), 0))
    assert process.n_held == 0


def test_a_retriever_puts_what_runs_search_on_its_gpu_before_the_first_question(monkeypatch):
    views = []
    opened = SimpleNamespace(open_views=lambda kinds: views.append(kinds) or "the GPU is too small")
    monkeypatch.setattr(LocalIndex, "open", lambda *_: opened)
    config = load_config("demo", ["index.search_device=cuda", "cluster.retriever.gpus=1"])
    assert Retriever(config).ready() == "the GPU is too small"
    assert views == [[("sentence", "paragraph")]]
