"""How one question was answered, as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc

from kohaku_ray.errors import DataError, did_you_mean
from kohaku_ray.records import BLANK
from kohaku_ray.runs.directory import RunDirectory
from kohaku_ray.runs.spending import spent
from kohaku_ray.runs.tables import SHARED

WIDTH = 110


def show_question(run: str, question_id: str, n_items: int | None) -> str:
    """Lay out the steps, the members and the vote of one question.

    Args:
        run: The run's directory.
        question_id: The question.
        n_items: Items shown of each step; None: all.

    Raises:
        DataError: The run has not finished, or has no such question.
    """
    directory = RunDirectory(run)
    rows = {name: _rows(directory, name, question_id) for name in ("votes", "trace", "answers", "usage")}
    if not rows["votes"]:
        known = directory.read_table("votes", columns=["question_id"])["question_id"].to_pylist()
        hint = did_you_mean(question_id, known) or f"; it has {len(known)} questions, from {known[0]} on"
        raise DataError(f"{directory.path} has no question {question_id}{hint}")
    vote = rows["votes"][0]
    parts = [f"{question_id}  {vote['question']}", *_steps(rows["trace"], n_items), ""]
    parts += ["members", *_members(rows["answers"], rows["usage"]), "", "vote", *_vote(vote), "", *_took(rows["usage"])]
    return "\n".join(parts)


def _rows(directory: RunDirectory, name: str, question_id: str) -> list[dict[str, Any]]:
    table = directory.read_table(name, filters=pc.field("question_id") == question_id)
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    return rows


def _steps(rows: list[dict[str, Any]], n: int | None) -> Iterator[str]:
    for owner, attempt, step in dict.fromkeys((row["member"], row["attempt"], row["step"]) for row in rows):
        mine = [row for row in rows if (row["member"], row["attempt"], row["step"]) == (owner, attempt, step)]
        again = f", attempt {attempt}" if attempt else ""
        yield f"\n{step}{'' if owner == SHARED else f' of member {owner}'}{again}: {len(mine)}"
        for row in mine[:n]:
            yield from _item(row)
        if n is not None and len(mine) > n:
            yield f"  … {len(mine) - n} more: --items 0 shows all"
        yield from (f"  error: {error}" for error in dict.fromkeys(row["error"] for row in mine if row["error"]))


def _item(row: dict[str, Any]) -> Iterator[str]:
    text = textwrap.shorten(" ".join(row["text"].split()), WIDTH, placeholder=" …")
    scores = "  ".join(f"{name} {value:.4g}" for name, value in row["scores"].items())
    where = "  ".join(part for part in (row["node_id"], row["note"], scores) if part)
    if where:
        yield f"  {row['rank']:>4}. {where}"
        yield f"        {text}"
    else:
        yield f"  {row['rank']:>4}. {text}"


def _members(answers: list[dict[str, Any]], usage: list[dict[str, Any]]) -> Iterator[str]:
    for row in answers:
        calls = [call for call in usage if call["member"] == row["member"]]
        tokens = sum(call["prompt_tokens"] + call["completion_tokens"] for call in calls)
        value = BLANK if row["is_blank"] else f"{row['answer_value']} {row['answer_unit']}".rstrip()
        yield (
            f"  {row['member']:>2}  seed {row['seed']:>10}  attempt {row['attempt']}  {value}  "
            f"[{', '.join(row['ref_ids'])}]  {len(calls)} calls, {tokens} tokens"
        )
        if row["explanation"]:
            yield textwrap.shorten(row["explanation"], WIDTH, placeholder=" …", initial_indent=" " * 6)
        if row["error"]:
            yield f"      error: {row['error']}"


def _took(usage: list[dict[str, Any]]) -> Iterator[str]:
    for row in spent(usage):
        share = "" if row.cached_share is None else f" ({row.cached_share:.0%} cached)"
        energy = "" if row.joules is None else f", {row.joules:.0f} J"
        yield (
            f"took    {row.deployment}: {row.n_calls} calls, {row.prompt_tokens} prompt tokens{share}, "
            f"{row.completion_tokens} generated, {row.queue_s:.2f} s queued, {row.service_s:.2f} s served, "
            f"{row.gpu_s:.2f} GPU s{energy}, ${row.dollars:.4f}"
        )


def _vote(vote: dict[str, Any]) -> Iterator[str]:
    value = BLANK if vote["is_blank"] else f"{vote['answer_value']} {vote['answer_unit']}".rstrip()
    yield f"  {value}  [{', '.join(vote['ref_ids'])}]"
    groups = zip(vote["groups"], vote["group_weights"], strict=True)
    counted = ", ".join(f"{group or BLANK} × {weight:g}" for group, weight in groups)
    yield f"  {vote['n_members']} members, {vote['n_blank']} blank, {vote['n_errors']} in error; {counted}"
