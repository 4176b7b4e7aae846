"""Question files: every format, and every way they can be wrong."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.rows import check_rows

from kohaku_ray.documents.data.rows import read_table
from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.answers import gold_texts
from kohaku_ray.evaluation.references import gold_refs
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.systems.questions import read_questions

CSV = (
    "id,question,answer_value,answer_unit,answer_type,topic\nq1,How much?,5,kWh,number,energy\nq2,Who?,Ada,is_blank,,\n"
)


COLUMNS = ("id", "question", "answer_unit", "answer_type", "topic")


def parquet(rows) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def test_a_question_of_a_million_characters_is_refused():
    data = f"id,question\nq1,How much?\nq2,{'x' * 10**6}\n".encode()
    with pytest.raises(
        DataError, match=r"q\.csv: question 'q2' has 1,000,000 characters, at most 200,000 are read: shorten"
    ):
        read_questions("q.csv", data)
    assert len(read_questions("q.csv", data, limit=1)) == 1


@check_rows(
    ("name", "data"),
    [
        ("q.csv", CSV.encode()),
        ("q.csv", CSV.encode("utf-8-sig")),
        ("q.csv", CSV.replace("\n", "\r\n").encode()),
        (
            "q.jsonl",
            b'{"id":"q1","question":"How much?","answer_unit":"kWh","answer_type":"number","topic":"energy"}\n\n'
            b'{"id":"q2","question":"Who?","answer_unit":null}\n',
        ),
        (
            "q.parquet",
            parquet(
                [
                    dict(zip(COLUMNS, ("q1", "How much?", "kWh", "number", "energy"), strict=True)),
                    dict(zip(COLUMNS, ("q2", "Who?", None, None, None), strict=True)),
                ]
            ),
        ),
    ],
)
def test_every_format_gives_the_same_questions(name, data):
    first, second = read_questions(name, data)
    assert (first.question_id, first.text, first.answer_unit, first.answer_type) == ("q1", "How much?", "kWh", "number")
    assert first.columns["topic"] == "energy"
    assert (second.question_id, second.text, second.answer_unit, second.answer_type) == ("q2", "Who?", None, None)


def test_that_a_question_has_no_answer_is_gold_too():
    question, *_ = read_questions("q.csv", b"id,question,is_NA,Quote\nq1,What?,1,0\n")
    assert question.columns == {"Quote": "0"}


@pytest.mark.parametrize("spelling", ["answer_value", "Answer_Value", "ANSWER_VALUE "])
def test_gold_answers_are_never_handed_on_in_any_case(spelling):
    first, _ = read_questions("q.csv", CSV.replace("answer_value", spelling).encode())
    assert "5" not in first.columns.values()


def test_null_and_nan_are_empty_and_every_column_of_json_lines_counts():  # openfold-3#167
    lines = b'{"id": "q1", "answer_unit": NaN}\n{"id": "q2", "question": "Why?", "answer_unit": null, "topic": NaN}\n'
    [first, second] = read_questions("q.jsonl", lines)
    assert (first.text, first.answer_unit) == ("", None)
    assert (second.text, second.answer_unit, second.columns["topic"]) == ("Why?", None, "")
    with pytest.raises(DataError, match="1 of 1 questions have no id"):
        read_questions("q.jsonl", b'{"id": NaN, "question": "Why?"}\n')


def test_order_limit_and_an_empty_or_long_text_are_kept():
    data = "id,question\n" + "".join(f"q{n},ask {n}\n" for n in range(9, 0, -1))
    assert [question.question_id for question in read_questions("q.csv", data.encode(), limit=3)] == ["q9", "q8", "q7"]
    assert [
        len(question.text) for question in read_questions("q.csv", f"id,question\nq1,\nq2,{'x' * 100_000}\n".encode())
    ] == [
        0,
        100_000,
    ]


@check_rows(
    ("name", "data", "message"),
    [
        ("q.csv", b"id,question\n", "q.csv holds no questions: write one per row, below a header"),
        ("q.csv", b"", "q.csv holds no questions: write one per row, below a header"),
        ("q.csv", b"key,question\n1,a\n", "no column id or question_id; it has key, question"),
        ("q.csv", b"id,ask\n1,a\n", "no column question or text; it has id, ask"),
        ("q.csv", b"id,question\n,a\nx,b\n,c\n", "2 of 3 questions have no id, first at line 2"),
        ("q.csv", b'id,question\nx,"a\nb"\n\n,c\n', "1 of 2 questions have no id, first at line 5"),
        ("q.csv", b"id,question\nx,a\ny,b\nx,c\n", "1 id is used more than once .first 'x': line 2, line 4.: make"),
        (
            "q.jsonl",
            b'{"id": "a\\u0000b", "question": "x"}\n',
            "a NUL in the id of line 1, which no CSV file can hold: remove it",
        ),
        ("q.csv", b"id,question\nx,\x81\n", "not valid UTF-8: byte 0x81 at offset 14"),
        ("q.jsonl", b'{"id": 1}\nnot json\n', "line 2: not JSON"),
        ("q.jsonl", b"[1]\n", "line 1: a list, expected an object"),
        ("q.parquet", b"PAR?", "is not Parquet"),
        ("q.xlsx", b"x", r"read from \.csv, \.tsv, \.jsonl or \.parquet, not \.xlsx"),
    ],
)
def test_what_is_wrong_is_said(name, data, message):
    with pytest.raises(DataError, match=message):
        read_questions(name, data)


@pytest.mark.parametrize(
    ("row", "question_id", "text"),
    [
        ({"id": "q1", "question": "Who?", "golden_answers": ["Ada", "Ada L."], "metadata": {}}, "q1", "Who?"),
        ({"qid": "q1", "query": "Who?", "retrieval_gt": [["d1"]], "generation_gt": ["Ada", "Ada L."]}, "q1", "Who?"),
        ({"_id": "q1", "text": "Who?"}, "q1", "Who?"),
    ],
    ids=["FlashRAG", "AutoRAG", "BEIR"],
)
def test_question_files_of_others_are_read_as_they_are_and_gold_is_kept_apart(row, question_id, text):
    for name, data in (("q.jsonl", json.dumps(row).encode()), ("q.parquet", parquet([row | {"metadata": None}]))):
        (question,) = read_questions(name, data)
        assert (question.question_id, question.text) == (question_id, text)
        assert "Ada" not in str(question.columns)
        assert "d1" not in str(question.columns)
        if len(row) > 2:
            truth = read_submission(name, ("id", "answer"), read_table(name, data, keep_ragged=True)).rows["q1"]
            assert gold_texts(truth) == ("Ada", "Ada L.")
            assert gold_refs(truth) == ({"d1"} if "retrieval_gt" in row else set())


@pytest.mark.parametrize(
    ("name", "data", "texts"),
    [
        ("q.jsonl", b'{"id": "q1", "golden_answers": [1912, 0.5, "April 1912"]}', ("1912", "0.5", "April 1912")),
        ("q.jsonl", b'{"id": "q1", "golden_answers": [1912, 1913, null]}', ("1912", "1913")),
        ("q.csv", b'id,answer\nq1,"[1912, ""April 1912""]"\n', ("1912", "April 1912")),
        ("q.csv", b'id,answer\nq1,"[3, 4]"\n', ("[3, 4]",)),  # a range
    ],
)
def test_numbers_among_acceptable_answers_are_texts(name, data, texts):
    table = read_table(name, data, keep_ragged=True)
    assert gold_texts(read_submission(name, ("id", "answer"), table).rows["q1"]) == texts
