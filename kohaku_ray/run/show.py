"""Print how one question was answered: its steps, members and vote."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

import pyarrow.compute as pc

from kohaku_ray.errors import DataError, did_you_mean
from kohaku_ray.records import BLANK
from kohaku_ray.run.directory import RunDirectory
from kohaku_ray.run.files import Row, rows_of, steps_of
from kohaku_ray.run.summary import spent
from kohaku_ray.run.tables import SCHEMAS, SHARED

WIDTH = 110


def show_question(run: str, question_id: str, n_items: int | None) -> str:
    """Format the steps, the members and the vote of one question.

    Args:
        run: The run's directory.
        question_id: The question.
        n_items: Items shown per step; None: all.

    Raises:
        DataError: The run has not finished, or has no such question.
    """
    return describe_question(question_rows(run, question_id), n_items)


def question_rows(run: str, question_id: str) -> dict[str, list[Row]]:
    """Read the rows of one question from every table of a run.

    Raises:
        DataError: The run has not finished, or has no such question.
    """
    directory = RunDirectory(run)
    mine = pc.field("question_id") == question_id
    rows = {name: rows_of(directory.read_table(name, filters=mine)) for name in SCHEMAS}
    if not rows["votes"]:
        known = directory.read_table("votes", columns=["question_id"])["question_id"].to_pylist()
        hint = did_you_mean(question_id, known) or f"; it has {len(known)} questions, from {known[0]} on"
        raise DataError(f"{directory.path} has no question {question_id}{hint}")
    return rows


def describe_question(rows: Mapping[str, list[Row]], n_items: int | None) -> str:
    """Format the rows of one question (``question_rows``)."""
    vote = rows["votes"][0]
    parts = [f"{vote['question_id']}  {vote['question']}", *_steps(rows["trace"], n_items), ""]
    parts += ["members", *_members(rows["answers"], rows["usage"]), "", "vote", *_vote(vote), "", *_took(rows["usage"])]
    return "\n".join(parts)


def describe_vote(vote: Row) -> str:
    """Format what the ensemble answers, in one line."""
    value = BLANK if vote["is_blank"] else f"{vote['answer_value']} {vote['answer_unit']}".rstrip()
    return f"{value}  [{', '.join(vote['ref_ids'])}]"


def _steps(rows: list[Row], n: int | None) -> Iterator[str]:
    for step in steps_of(rows):
        owner = "" if step.member == SHARED else f" of member {step.member}"
        again = f", attempt {step.attempt}" if step.attempt else ""
        pool = "" if step.pool is None else f" ({step.pool['note']})"
        yield f"\n{step.name}{owner}{again}: {len(step.items)}{pool}"
        for row in step.items[:n]:
            yield from _item(row)
        if n is not None and len(step.items) > n:
            yield f"  … {len(step.items) - n} more: --items 0 shows all"
        yield from (f"  error: {error}" for error in step.errors)


def _item(row: Row) -> Iterator[str]:
    where = "  ".join(part for part in (row["node_id"], row["note"], _numbers(row["scores"])) if part)
    first, *more = [part for part in (where, _short(row["text"])) if part]
    yield f"  {row['rank']:>4}. {first}"
    yield from (f"        {part}" for part in more)


def _short(text: str) -> str:
    return textwrap.shorten(text, WIDTH, placeholder=" …")


def _numbers(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {write_number(value)}" for name, value in values.items())


def write_number(value: float) -> str:
    """Format a score or a measure: whole numbers in full, others with four digits."""
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def _members(answers: list[Row], usage: list[Row]) -> Iterator[str]:
    for row in answers:
        calls = [call for call in usage if call["member"] == row["member"]]
        tokens = sum(call["prompt_tokens"] + call["completion_tokens"] for call in calls)
        value = BLANK if row["is_blank"] else f"{row['answer_value']} {row['answer_unit']}".rstrip()
        yield (
            f"  {row['member']:>2}  seed {row['seed']:>10}  attempt {row['attempt']}  {value}  "
            f"[{', '.join(row['ref_ids'])}]  {len(calls)} calls, {tokens} tokens"
        )
        labelled = {"details": row["details"] and _short(row["details"]), "error": row["error"]}
        said = (f"{label}: {text}" for label, text in labelled.items() if text)
        yield from (f"      {text}" for text in (_short(row["explanation"]), _numbers(row["measures"]), *said) if text)


def _took(usage: list[Row]) -> Iterator[str]:
    for row in spent(usage):
        share = "" if row.cached_share is None else f" ({row.cached_share:.0%} cached)"
        energy = "" if row.joules is None else f", {row.joules:.0f} J"
        yield (
            f"took    {row.deployment}: {row.n_calls} calls, {row.prompt_tokens} prompt tokens{share}, "
            f"{row.completion_tokens} generated, summed over the calls "
            f"{row.queue_s:.2f} s of waiting for a replica, {row.service_s:.2f} s in replicas, "
            f"{row.gpu_s:.2f} GPU s{energy}, ${row.dollars:.4f}"
        )


def _vote(vote: Row) -> Iterator[str]:
    yield f"  {describe_vote(vote)}"
    groups = zip(vote["groups"], vote["group_weights"], strict=True)
    counted = ", ".join(f"{group or BLANK} × {weight:g}" for group, weight in groups)
    yield f"  {vote['n_members']} members, {vote['n_blank']} blank, {vote['n_errors']} in error; {counted}"
