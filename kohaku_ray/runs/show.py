"""How one question was answered, as text for a terminal."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc

from kohaku_ray.runs.directory import RunDirectory
from kohaku_ray.engine.actors.voter import SHARED
from kohaku_ray.errors import DataError
from kohaku_ray.records import BLANK
from kohaku_ray.runs.spending import spent

WIDTH = 110


def show_question(run: str, question_id: str, n_evidence: int | None) -> str:
    """Lay out plan, ranked evidence, members and vote of one question.

    Args:
        run: The run's directory.
        question_id: The question.
        n_evidence: Evidence rows shown of each attempt; None: all.

    Raises:
        DataError: The run has not finished, or has no such question.
    """
    directory = RunDirectory(run)
    rows = {name: _rows(directory, name, question_id) for name in ("votes", "plans", "evidence", "answers", "usage")}
    if not rows["votes"]:
        known = directory.read_table("votes", columns=["question_id"])["question_id"].to_pylist()
        near = difflib.get_close_matches(question_id, known, 1)
        hint = f", did you mean {near[0]}?" if near else f"; it has {len(known)} questions, from {known[0]} on"
        raise DataError(f"{directory.path} has no question {question_id}{hint}")
    vote = rows["votes"][0]
    parts = [f"{question_id}  {vote['question']}", *_plans(rows["plans"])]
    parts += _evidence(rows["evidence"], n_evidence)
    parts += ["members", *_members(rows["answers"], rows["usage"]), "", "vote", *_vote(vote), "", *_took(rows["usage"])]
    return "\n".join(parts)


def _rows(directory: RunDirectory, name: str, question_id: str) -> list[dict[str, Any]]:
    table = directory.read_table(name, filters=pc.field("question_id") == question_id)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _plans(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield f"\nplan{_owner(row['member'])}"
        yield from (f"  {number}. {query}" for number, query in enumerate(row["queries"], 1))
        if row["error"]:
            yield f"  error: {row['error']}"


def _evidence(rows: list[dict[str, Any]], n: int | None) -> Iterator[str]:
    for owner, attempt in dict.fromkeys((row["member"], row["attempt"]) for row in rows):
        mine = [row for row in rows if (row["member"], row["attempt"]) == (owner, attempt)]
        yield f"\nevidence{_owner(owner)}, attempt {attempt}: {len(mine)} matches"
        yield "  rank   score  freq  sum sim  tokens  node"
        for row in mine[:n]:
            yield (
                f"  {row['rank']:>4}  {row['score']:6.3f}  {row['frequency']:>4}  {row['similarity']:7.3f}  "
                f"{row['n_tokens']:>6}  {row['node_id']}{' (BM25)' if row['source'] == 'lexical' else ''}"
            )
            yield textwrap.shorten(" ".join(row["text"].split()), WIDTH, placeholder=" …", initial_indent=" " * 8)
        if n is not None and len(mine) > n:
            yield f"  … {len(mine) - n} more: --evidence 0 shows all"
    yield ""


def _members(answers: list[dict[str, Any]], usage: list[dict[str, Any]]) -> Iterator[str]:
    for row in answers:
        calls = [call for call in usage if call["member"] == row["member"] and call["role"] == "answer"]
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


def _owner(member: int) -> str:
    return "" if member == SHARED else f" of member {member}"
