"""The text that a submission quotes of each document: the first of the step that supports citations."""

from dataclasses import replace

import pyarrow as pa
import pytest

from kohaku_ray.answering.outputs import best_quotes
from kohaku_ray.store.tables import SCHEMAS
from kohaku_ray.systems.registry import find_system

TRACE = [
    ("q2", "rank", 0, "b", "B by rank"),
    ("q2", "evidence", 0, "b", "  B\nby   evidence "),
    ("q1", "evidence", 1, None, "A step without a document"),
    ("q1", "evidence", 0, "d", "Shown at an attempt that was blank"),
    ("q1", "evidence", 1, "a", "A first"),
    ("q1", "evidence", 1, "a", "A second"),
    ("q1", "plan", 0, None, None),
    ("q1", "rank", 0, "c", "C by rank"),
]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("evidence", {("q2", "b"): "B by e", ("q1", "a"): "A firs"}),
        ("", {("q2", "b"): "B by r", ("q1", "d"): "Shown ", ("q1", "a"): "A firs", ("q1", "c"): "C by r"}),
        ("nothing", {}),
    ],
)
def test_the_first_text_of_a_document_is_quoted_and_cut(step, expected):
    rows = [dict(zip(("question_id", "step", "attempt", "doc_id", "text"), row, strict=True)) for row in TRACE]
    trace = pa.Table.from_pylist(rows, SCHEMAS["trace"])
    answers = pa.table({"question_id": ["q1", "q2"], "attempt": [1, 0]})
    quotes = best_quotes(trace, answers, replace(find_system("kohaku"), quote_step=step), 6)
    assert list(quotes.items()) == list(expected.items())
    assert best_quotes(trace.slice(0, 0), answers, find_system("kohaku")) == {}
