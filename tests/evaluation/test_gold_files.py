"""Gold files: one format in three kinds of file, and the metrics that a file's columns allow."""

from __future__ import annotations

import csv
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.truth import GOLD_COLUMNS, gold_template, read_gold, read_truth
from kohaku_ray.systems.questions import read_questions

ROWS = [
    {"id": "q1", "question": "How much?", "answer_value": 4.5, "ref_id": ["a", "b"], "is_blank": False},
    {"id": "q2", "question": "Who, “so”?", "answer_value": "Ada", "ref_id": ["b"], "is_blank": None},
    {"id": "q3", "question": "When?", "answer_value": None, "ref_id": None, "is_blank": True},
]
ASKED = [find_metric(name) for name in ("wattbot", "kaggle")]


def written(path, rows):
    """Write rows as what the suffix says; in CSV, lists are JSON and booleans text."""
    if path.suffix == ".parquet":
        # a column of Parquet has one type
        texts = [
            {**row, **({"answer_value": str(row["answer_value"])} if row.get("answer_value") else {})} for row in rows
        ]
        pq.write_table(pa.Table.from_pylist(texts), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    else:
        out = io.StringIO()
        writer = csv.DictWriter(out, rows[0])
        writer.writeheader()
        for row in rows:
            cells = {key: json.dumps(v) if isinstance(v, list | bool) else v for key, v in row.items()}
            writer.writerow(cells)
        path.write_text(out.getvalue(), encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_every_format_gives_the_same_truth(tmp_path, suffix):
    truth = read_truth(written(tmp_path / f"gold.{suffix}", ROWS), ASKED)
    rows = [(row.question_id, row.answer_value, row.ref_ids, row.refs_raw) for row in truth.rows.values()]
    assert rows == [
        ("q1", "4.5", ("a", "b"), '["a", "b"]'),
        ("q2", "Ada", ("b",), '["b"]'),
        ("q3", "is_blank", (), "is_blank"),
    ]
    _, metrics, note = read_gold(truth.path, ASKED)
    assert (metrics, note) == (tuple(ASKED), "")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("columns", "metric", "note"),
    [
        ({"answer_value": "5"}, "exact", "Not scored by wattbot, kaggle: gold.{} has no column ref_id."),
        (
            {"answer": "It used 5 kWh."},
            "answer",
            "Not scored by wattbot, kaggle: gold.{} has no column answer_value, ref_id.",
        ),
        (
            {"answer": "It used 5 kWh.", "answer_value": "", "ref_id": ""},
            "answer",
            "Not scored by wattbot, kaggle: gold.{} has no gold in their columns.",
        ),
    ],
)
def test_a_file_is_scored_by_what_its_columns_allow(tmp_path, suffix, columns, metric, note):
    path = written(tmp_path / f"gold.{suffix}", [{"question_id": "q1", **columns}])
    truth, metrics, description = read_gold(path, ASKED)
    assert ([metric.name for metric in metrics], list(truth.rows)) == ([metric], ["q1"])
    assert description.startswith(f"Scored by {metric} (")
    assert description.endswith(note.format(suffix))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "id,question\nq1,a\n",
            r"g\.csv has no gold answers: it has no column answer_value, ref_id; .*init DIR --gold",
        ),
        ("id,answer_value,ref_id,answer\nq1,,,\n", r"g\.csv has no gold answers\."),
        ("id,label\nq1,consistent\n", "no gold for wattbot, kaggle, but for label: `kohaku-ray score --metric label`"),
        ("key,answer\nq1,a\n", "has no column id or question_id"),
    ],
)
def test_a_file_without_gold_is_refused(tmp_path, text, message):
    (tmp_path / "g.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_gold(tmp_path / "g.csv", ASKED)


def test_the_template_is_a_gold_file_and_a_question_file(tmp_path):
    file = tmp_path / "gold.csv"
    file.write_text(gold_template())
    assert set(file.read_text().split("\n")[0].split(",")) == set(GOLD_COLUMNS) - {"label"}
    truth, metrics, note = read_gold(file, ASKED)
    assert ([row.answer_value for row in truth.rows.values()], metrics, note) == (
        ["41200", "is_blank"],
        tuple(ASKED),
        "",
    )
    first, second = read_questions("gold.csv", file.read_bytes())
    assert (first.answer_unit, set(first.columns), set(second.columns)) == ("m3", {"answer_unit"}, {"answer_unit"})
