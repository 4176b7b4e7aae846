"""The text that a submission quotes of each document: the first of the step that supports citations."""

from dataclasses import replace

import pyarrow as pa
import pytest

from kohaku_ray.run.record.outputs import best_quotes
from kohaku_ray.run.tables import SCHEMAS
from kohaku_ray.systems.registry import find_system

TRACE = [
    ("q2", "rank", "b", "B by rank"),
    ("q2", "evidence", "b", "  B\nby   evidence "),
    ("q1", "evidence", None, "A step without a document"),
    ("q1", "evidence", "a", "A first"),
    ("q1", "evidence", "a", "A second"),
    ("q1", "plan", None, None),
    ("q1", "rank", "c", "C by rank"),
]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("evidence", {("q2", "b"): "B by e", ("q1", "a"): "A firs"}),
        ("", {("q2", "b"): "B by r", ("q1", "a"): "A firs", ("q1", "c"): "C by r"}),
        ("nothing", {}),
    ],
)
def test_the_first_text_of_a_document_is_quoted_and_cut(step, expected):
    rows = [dict(zip(("question_id", "step", "doc_id", "text"), row, strict=True)) for row in TRACE]
    trace = pa.Table.from_pylist(rows, SCHEMAS["trace"])
    quotes = best_quotes(trace, replace(find_system("kohaku"), quote_step=step), 6)
    assert list(quotes.items()) == list(expected.items())
    assert best_quotes(trace.slice(0, 0), find_system("kohaku")) == {}
