"""Members in waves: how they are split, settled and voted over; whole runs: tests/answering/test_whole_runs.py."""

from __future__ import annotations

from kohaku_ray.answering.block import MemberAnswer, PreparedQuestion
from kohaku_ray.answering.executor import waves_of
from kohaku_ray.answering.votes import settle_block, vote_block
from kohaku_ray.config import load_config
from kohaku_ray.records import Prediction, Question
from kohaku_ray.systems.base import Answer


def answered(*values: str | None) -> list[MemberAnswer]:
    """One member's answers to a block; None is a blank."""
    predictions = [
        Prediction(answer_value=value or "", is_blank=value is None, ref_ids=() if value is None else ("doc",))
        for value in values
    ]
    return [MemberAnswer(Answer(prediction)) for prediction in predictions]


def test_waves_split_the_members():
    assert waves_of(load_config(None, ["ensemble.members=9"])) == [range(9)]
    early = ["ensemble.members=9", "ensemble.early_stop=value"]
    assert [len(wave) for wave in waves_of(load_config(None, early))] == [5, 1, 1, 1, 1]


def test_a_block_is_settled_question_by_question():
    config = load_config(None, ["ensemble.members=5", "ensemble.early_stop=value"])
    block = [Question("same", "?"), Question("split", "?"), Question("near", "?", answer_unit="kWh")]
    members = [answered("7", "7", "2500 Wh"), answered("7", "8", "2.5"), answered("7.0", "9", "2.5 kWh")]
    assert settle_block(config, block, *members) == [True, False, True]
    fourth = [None, answered("8")[0], None]
    assert settle_block(config, block, *members, fourth) == [True, False, True], "settled stays settled"


def test_a_settled_question_is_voted_over_those_who_answered():
    config = load_config(None, ["ensemble.members=5", "ensemble.early_stop=row"])
    prepared = [PreparedQuestion(Question("q", "?"), None, "no evidence")]
    result, tables = vote_block(config, 1, prepared, answered("7"), answered("7"), answered("7"), [None], [None])
    assert (result.n_answers, result.n_questions) == (3, 1)
    [vote] = tables["votes"].to_pylist()
    assert (vote["answer_value"], vote["n_members"]) == ("7", 3)
    assert tables["answers"]["member"].to_pylist() == [0, 1, 2]
