"""A whole job on a tiny random model behind Serve: what it is asked, and what must hold of its answers."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pyarrow.parquet as pq

import kohaku_ray.sample
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.schema import answer_schema

SAMPLE_TEXTS = [
    path.read_text(encoding="utf-8") for path in sorted(Path(kohaku_ray.sample.__file__).parent.rglob("*.md"))
]
"""What the tiny models' tokenizers learn."""


def request(seed: int, user: str, max_tokens: int = 200, question: str = "") -> ChatRequest:
    messages = (("system", "You answer from references."), ("user", user))
    schema = answer_schema(["alpha2024", "beta2023"])
    return ChatRequest("tiny", messages, 0.7, 1.0, max_tokens, seed, schema, session_id=question)


def table(config, name: str) -> list[dict]:
    return pq.read_table(f"{config.run}/{name}.parquet").to_pylist(maps_as_pydicts="strict")


def whole_answers(config) -> list[dict]:
    """The answers that were not cut off, once it is sure that they cite nothing but their contexts."""
    shown: dict[tuple, set] = {}
    for row in table(config, "trace"):
        if row["step"] == "evidence":
            shown.setdefault((row["question_id"], row["attempt"]), set()).add(row["doc_id"])
    answers = table(config, "answers")
    assert all(row["ref_ids"] == [] and "was cut at" in row["error"] for row in answers if row["error"] is not None)
    whole = [row for row in answers if row["error"] is None and "cut" not in row["flags"]]
    assert len(whole) >= 0.75 * len(answers), [row["error"] for row in answers]
    for row in whole:
        doc_ids = shown[row["question_id"], row["attempt"]]
        jsonschema.validate(json.loads(row["reply"]), answer_schema(sorted(doc_ids)))
        assert set(json.loads(row["reply"])["ref_id"]) <= doc_ids
        assert row["n_foreign_refs"] == 0
    return whole


def check_replays(first, again, run_answer) -> None:
    """Run again on the same ledger: no call is made, and the files are equal to the byte."""
    assert run_answer(again).n_calls["made"] == 0
    for name in ("answers.parquet", "submission.csv"):
        assert Path(again.run, name).read_bytes() == Path(first.run, name).read_bytes()
