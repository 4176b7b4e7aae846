"""The tables of a run: their columns, and how to read them."""

from __future__ import annotations

import pyarrow as pa

_STRINGS = pa.list_(pa.string())
_NUMBERS = pa.map_(pa.string(), pa.float64())

SCHEMAS: dict[str, pa.Schema] = {
    "answers": pa.schema(
        [
            ("question_id", pa.string()),
            ("member", pa.int32()),
            ("attempt", pa.int32()),
            ("seed", pa.int64()),
            ("answer", pa.string()),
            ("answer_value", pa.string()),
            ("answer_unit", pa.string()),
            ("ref_ids", _STRINGS),
            ("explanation", pa.string()),
            ("is_blank", pa.bool_()),
            ("n_foreign_refs", pa.int32()),
            ("measures", _NUMBERS),
            ("reply", pa.string()),
            ("details", pa.string()),
            ("error", pa.string()),
        ]
    ),
    "votes": pa.schema(
        [
            ("question_id", pa.string()),
            ("question", pa.string()),
            ("asked_unit", pa.string()),
            ("answer", pa.string()),
            ("answer_value", pa.string()),
            ("answer_unit", pa.string()),
            ("ref_ids", _STRINGS),
            ("explanation", pa.string()),
            ("is_blank", pa.bool_()),
            ("winner", pa.int32()),
            ("groups", _STRINGS),
            ("group_weights", pa.list_(pa.float64())),
            ("n_members", pa.int32()),
            ("n_blank", pa.int32()),
            ("n_errors", pa.int32()),
        ]
    ),
    "trace": pa.schema(
        [
            ("question_id", pa.string()),
            ("member", pa.int32()),
            ("attempt", pa.int32()),
            ("step", pa.string()),
            ("rank", pa.int32()),
            ("node_id", pa.string()),
            ("doc_id", pa.string()),
            ("kind", pa.string()),
            ("text", pa.string()),
            ("scores", _NUMBERS),
            ("note", pa.string()),
            ("error", pa.string()),
        ]
    ),
    "usage": pa.schema(
        [
            ("question_id", pa.string()),
            ("member", pa.int32()),
            ("key", pa.string()),
            ("role", pa.string()),
            ("attempt", pa.int32()),
            ("source", pa.string()),
            ("deployment", pa.string()),
            ("replica", pa.string()),
            ("prompt_tokens", pa.int64()),
            ("cached_tokens", pa.int64()),
            ("completion_tokens", pa.int64()),
            ("wait_s", pa.float64()),
            ("queue_s", pa.float64()),
            ("service_s", pa.float64()),
            ("gpu_s", pa.float64()),
            ("joules", pa.float64()),
            ("dollars", pa.float64()),
        ]
    ),
}
"""Columns of a run's Parquet files; all but usage are identical after every resume."""

ANSWER_FILES = ("submission.csv", "answers.jsonl")
"""The voted answers, which every run writes beside its tables."""

SHARED = -1
"""Member number of steps shared by all members: the evidence with ``scope: answer``."""

SPENT = ("prompt_tokens", "cached_tokens", "completion_tokens", "queue_s", "service_s", "gpu_s", "joules", "dollars")
"""Columns of usage that can be summed."""
