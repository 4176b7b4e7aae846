"""A run's tables are joined from parts, of which one is held at a time."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_files import answer, ballot, item, usage

from kohaku_ray.answering.block import MemberAnswer, PreparedQuestion
from kohaku_ray.answering.outputs import write_run
from kohaku_ray.answering.votes import VotesByAgreement, vote_block
from kohaku_ray.config import load_config
from kohaku_ray.ensemble.pool import agreement_weights
from kohaku_ray.models.calls import Call
from kohaku_ray.models.summary import AnswerSummary, describe_servers
from kohaku_ray.records import Prediction, Question, TraceRow
from kohaku_ray.store import tables as tables_module
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.store.tables import SCHEMAS, SHARED, Tables
from kohaku_ray.systems.base import Answer
from kohaku_ray.systems.registry import find_system

SYSTEM = find_system("kohaku")
N_BLOCKS, PER_BLOCK, N_MEMBERS = 12, 3, 3


def rows_of(block: int) -> dict[str, list[dict]]:
    """Questions q0, q1, … of which every third has one member that stands alone."""
    rows: dict[str, list[dict]] = {name: [] for name in SCHEMAS}
    for number in range(block * PER_BLOCK, (block + 1) * PER_BLOCK):
        key, values = f"q{number}", ["1", "2", "2"] if number % 3 else ["1", "2", "3"]
        answers = [answer(key, member, value, ["d"]) for member, value in enumerate(values)]
        rows["answers"] += answers
        rows["votes"].append(ballot(key, "How many?", answers) | {"asked_unit": ""})
        texts = [f"Sentence {number} of {rank}. " * 40 for rank in range(5)]
        rows["trace"] += [item(key, SYSTEM.quote_step, rank, text, doc_id="d") for rank, text in enumerate(texts)]
        rows["usage"].append(usage(key, 0, key=f"k{number}"))
    return rows


def tables_of(block: int) -> Tables:
    return {name: pa.Table.from_pylist(rows, schema=SCHEMAS[name]) for name, rows in rows_of(block).items()}


@pytest.fixture
def blocks() -> list[Tables]:
    return [tables_of(block) for block in range(N_BLOCKS)]


class OneByOne:
    """Blocks whose tables are made when they are read; ``most`` is the number of them that lived at once."""

    def __init__(self) -> None:
        self.alive: set[int] = set()
        self.most = 0

    def __iter__(self) -> Iterator[Tables]:
        for block in range(N_BLOCKS):
            tables = tables_of(block)
            self.alive.add(block)
            weakref.finalize(tables["trace"], self.alive.discard, block)
            self.most = max(self.most, len(self.alive))
            yield tables
            del tables


@pytest.fixture
def one_by_one() -> OneByOne:
    return OneByOne()


def test_a_large_run_is_written_in_row_groups_and_holds_few_blocks(tmp_path, monkeypatch, blocks, one_by_one):
    monkeypatch.setattr(tables_module, "ROW_GROUP_BYTES", 2 * blocks[0]["trace"].nbytes)
    directory = RunDirectory(str(tmp_path))
    directory.write_tables(one_by_one)
    assert pq.ParquetFile(directory.file("trace.parquet")).num_row_groups == N_BLOCKS / 2
    for name in SCHEMAS:
        assert directory.read_table(name).equals(pa.concat_tables(block[name] for block in blocks)), name
    assert one_by_one.most <= 3, "those of a row group, and the next one"


class Sized:
    """A table that counts how often it is asked for its size."""

    n_asked = 0

    @property
    def nbytes(self) -> int:
        Sized.n_asked += 1
        return 1


def test_each_table_of_a_row_group_is_asked_for_its_size_once(tmp_path):
    """3,000 small tables of one row group took minutes, each asked again for every later one."""
    writer = tables_module.TableWriter(str(tmp_path / "votes.parquet"), SCHEMAS["votes"])
    for _ in range(50):
        writer.add(Sized())
    assert Sized.n_asked == 50


def test_outputs_are_written_block_by_block(tmp_path, monkeypatch, blocks, one_by_one):
    monkeypatch.setattr("kohaku_ray.answering.outputs._documents", lambda config: {"d": {"url": "http://d"}})
    monkeypatch.setattr(tables_module, "ROW_GROUP_BYTES", 1)
    config = load_config("demo")
    for name, parts in (("blocks", one_by_one), ("whole", [joined(blocks)])):
        (tmp_path / name).mkdir()
        write_run(config, RunDirectory(str(tmp_path / name)), parts)
    for file in ("submission.csv", "answers.jsonl"):
        written = (tmp_path / "blocks" / file).read_text()
        assert written == (tmp_path / "whole" / file).read_text()
        assert written.count("How many?") == N_BLOCKS * PER_BLOCK
    assert "Sentence 0 of 0." in (tmp_path / "blocks" / "submission.csv").read_text(), "the first text of its document"
    assert one_by_one.most <= 2, "one block, and the next one while it is fetched"


def joined(blocks: list[Tables]) -> Tables:
    return {name: pa.concat_tables(block[name] for block in blocks) for name in SCHEMAS}


def test_a_vote_by_agreement_is_the_same_in_blocks_as_over_all(blocks, one_by_one):
    """Members 1 and 2 agree, member 0 never does: where all three differ, member 0 no longer wins as the first."""
    config = load_config("demo", ["ensemble.members=3", "ensemble.vote.weights=agreement"])
    voted = VotesByAgreement(config, one_by_one)
    again = pa.concat_tables(tables["votes"] for tables in voted)
    [whole] = VotesByAgreement(config, [joined(blocks)])
    assert whole["votes"].equals(again)
    assert pa.concat_tables(tables["trace"] for tables in voted).equals(whole["trace"]), "the other tables stay"
    assert not again.equals(joined(blocks)["votes"])
    assert set(again["answer_value"].to_pylist()) == {"2"}
    of_members = agreement_weights(np.array([[0, 1, 1 + (n % 3 == 0)] for n in range(N_BLOCKS * PER_BLOCK)]))
    first = again.slice(0, 1).to_pylist()[0]
    assert dict(zip(first["groups"], first["group_weights"], strict=True))["2"] == pytest.approx(of_members[1])
    assert one_by_one.most <= 2


@dataclass(frozen=True)
class Steps:
    """Evidence that is nothing but its steps."""

    trace: tuple[TraceRow, ...]


@pytest.mark.parametrize("scope", ["answer", "question"])
def test_a_step_that_failed_is_counted_and_its_members_own(scope):
    config = load_config("demo", ["ensemble.members=3", f"ensemble.scope={scope}", "kohaku.replan=true"])
    question = Question("q", "How many?")
    planned = PreparedQuestion(question, Steps((TraceRow("plan", text="How many?", error="no plan"),)), None)
    failed, context = TraceRow("plan", error="no second plan", attempt=1), TraceRow("context", text="A few.", attempt=1)
    read = Prediction(answer_value="1", is_blank=False, attempt=1)
    answers = [MemberAnswer(Answer(read, (failed, context))), MemberAnswer(Answer(read, (failed, context)))]
    broken = MemberAnswer(Answer(Prediction(error="HTTP 500"), (TraceRow("context", error="HTTP 500"),)))
    prepared = [[planned]] * (1 if scope == "answer" else 3)
    result, tables = vote_block(config, len(prepared), *prepared, *([answer] for answer in (*answers, broken)))
    assert result.errors == {"no plan": len(prepared), "no second plan": 2, "HTTP 500": 1}
    rows = tables["trace"].to_pylist()
    owners = [(row["member"], row["attempt"]) for row in rows if row["step"] == "plan"]
    first = [(SHARED, 0)] if scope == "answer" else [(0, 0), (1, 0), (2, 0)]
    assert sorted(owners) == sorted([*first, (0, 1), (1, 1)])
    shown = [row["member"] for row in rows if row["step"] == "context" and row["error"] is None]
    assert shown == ([SHARED] if scope == "answer" else [0, 1])


def call_of(prompt_tokens: int, least_tokens: int, note: str = "", deployment: str = "small") -> Call:
    times = dict.fromkeys(("wait_s", "queue_s", "service_s", "gpu_s", "dollars"), 0.0)
    counts = {"prompt_tokens": prompt_tokens, "cached_tokens": 0, "completion_tokens": 1, "joules": None}
    told = {"note": note, "least_tokens": least_tokens, "deployment": deployment, "replica": ""}
    return Call(key="k", role="answer", attempt=0, source="made", **times, **counts, **told)


def test_what_a_server_refused_or_cut_is_said_of_the_run_and_of_the_answer():
    config = load_config("demo", ["ensemble.members=4"])
    question = Question("q", "How many?")
    read = Answer(Prediction(answer_value="1", is_blank=False, flags=("uncited",)), ())
    calls = [
        (call_of(2048, 5000, "seed is not sent"),),
        (call_of(2048, 9000, "seed is not sent"),),
        (call_of(0, 9000), call_of(9100, 9000)),  # a server that does not say, and one that read all
        (call_of(10, 11, deployment="big"),),
    ]
    prepared = [[PreparedQuestion(question, Steps(()), None)]]
    result, tables = vote_block(config, 1, *prepared, *([MemberAnswer(read, some)] for some in calls))
    flags = [row["flags"] for row in tables["answers"].to_pylist()]
    assert flags == [["uncited", "shortened"], ["uncited", "shortened"], ["uncited"], ["uncited", "shortened"]]
    assert result.flags == {"uncited": 4, "shortened": 3}
    total = AnswerSummary("run")
    total.add(result)
    total.add(result)
    assert total.adapted == {"small: seed is not sent": 4}
    assert total.shortened == {"small": (2048, 9000), "big": (10, 11)}
    adapted, small, big = describe_servers(total.adapted, total.shortened)
    assert adapted == "deployments.small: seed is not sent (4 calls)"
    assert small.startswith("deployments.small: its server read 2,048 tokens of a prompt of at least 9,000: give it")
    assert "lower deployments.big.window_tokens" in big
