from __future__ import annotations

import csv
import errno
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.errors import DataError, StorageError
from kohaku_ray.evaluation.submissions import (
    COLUMNS,
    SubmissionRow,
    mend_refs,
    read_refs,
    read_submission,
    write_submission,
)


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


@check_rows(
    ("text", "tokens", "mended"),
    [
        ('["a2024", "b2025"]', ("a2024", "b2025"), ("a2024", "b2025")),
        ("['wu2021b','patterson2021']", ("wu2021b", "patterson2021"), ("wu2021b", "patterson2021")),
        ("luccioni2025b", ("luccioni2025b",), ("luccioni2025b",)),
        ("a, b", ("a", "b"), ("a", "b")),
        ("['a', 'b'", ("a", "b"), ("a", "b")),
        ("[a, b]", ("a", "b"), ("a", "b")),
        ('["a", "a", "b"]', ("a", "b"), ("a", "b")),
        ('["[ref_id=erben2023]"]', ("[ref_id=erben2023]",), ("erben2023",)),
        ('["[\\"li2025b\\"]"]', ('["li2025b"]',), ("li2025b",)),
        ('[["a", "b"]]', ('["a", "b"]',), ("a", "b")),
        ('["strubell2019, jegham2025"]', ("strubell2019, jegham2025",), ("strubell2019", "jegham2025")),
        ('["is_blank"]', ("is_blank",), ()),
        ('["is_blank", "a"]', ("is_blank", "a"), ("a",)),
        ("is_blank", ("is_blank",), ()),
        ("[null]", (), ()),
        ("[None]", (), ()),
        ("['None']", ("None",), ()),
        ("null", (), ()),
        ("[]", (), ()),
        ("", (), ()),
        (None, (), ()),
    ],
)
def test_references_as_real_runs_wrote_them(text, tokens, mended):
    assert read_refs(text) == tokens
    assert mend_refs(tokens) == mended


def test_reads_a_bom_extra_columns_doubled_ids_and_huge_cells(tmp_path):
    long = "x" * 300_000
    path = write(
        tmp_path / "p.csv",
        f'id,answer_value,ref_id,kind,explanation\nq1,4.3,"[""a""]",number,{long}\n\nq2,,,text,\nq1,9,b,number,\n,7,c,,\n',
        "utf-8-sig",
    )
    submission = read_submission(path)
    assert list(submission.rows) == ["q1", "q2"]
    assert submission.doubled == ("q1",)
    assert submission.n_without_id == 1
    first = submission.rows["q1"]
    assert (first.answer_value, first.ref_ids, first.columns["kind"]) == ("4.3", ("a",), "number")
    assert first.explanation == long
    assert submission.rows["q2"].answer_value == ""
    assert submission.rows["q2"].ref_ids == ()


def test_a_row_shifted_by_an_unquoted_comma_is_named(tmp_path):
    path = write(tmp_path / "p.csv", "id,answer_value,ref_id\nq1,103,500,a\nq2,5,a\nq3,5\n")
    submission = read_submission(path)
    assert submission.ragged == ("q1",)
    assert submission.odd[0].startswith("1 row with fewer cells than the header, read as empty: the first at line 4")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"id,answer,refs\nq1,4,a\n", r"p\.csv: has no column answer_value, ref_id; its columns are id, answer, refs"),
        (b"", "its columns are none"),
        (None, r"p\.csv cannot be read: No such file"),
        (b"id,answer_value,ref_id\nq1,caf\x00,a\n", r"p\.csv"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, data, message):
    if data is not None:
        (tmp_path / "p.csv").write_bytes(data)
    with pytest.raises(DataError, match=message):
        read_submission(tmp_path / "p.csv")


def test_written_rows_are_quoted_and_lists_are_json(tmp_path):
    path = tmp_path / "out.csv"
    row = SubmissionRow(
        "q1", 'Say "how much"?', "4.3 tCO2e", "4.3", "tCO2e", ("a", "b"), ("https://x/1",), "Table 3", "Because."
    )
    write_submission(path, [row])
    assert path.read_text() == (
        ",".join(f'"{name}"' for name in COLUMNS)
        + '\n"q1","Say ""how much""?","4.3 tCO2e","4.3","tCO2e","[""a"", ""b""]",'
        '"[""https://x/1""]","Table 3","Because."\n'
    )


@pytest.mark.parametrize("value", ["", "is_blank", "Unable to answer with confidence based on the provided documents."])
def test_an_abstention_says_so_in_four_columns(tmp_path, value):
    path = tmp_path / "out.csv"
    row = SubmissionRow("q1", "Q?", "", value, "MWh", ("a",), ("https://x",), "Table 1", "No evidence.")
    write_submission(path, [row])
    with path.open(newline="") as handle:
        cells = next(csv.DictReader(handle))
    blank = [name for name in COLUMNS if cells[name] == "is_blank"]
    assert blank == ["answer_value", "ref_id", "ref_url", "supporting_materials"]
    assert cells["answer"] == "Unable to answer with confidence based on the provided documents."
    assert (cells["answer_unit"], cells["explanation"]) == ("MWh", "No evidence.")


def test_none_and_na_are_answers_of_ours(tmp_path):
    """VLMEvalKit#1559: who votes has told them from abstentions."""
    path = tmp_path / "out.csv"
    write_submission(path, [SubmissionRow(value, "Q?", "", value, "", ("a",)) for value in ("None", "Na")])
    with path.open(newline="") as handle:
        assert [(cells["answer_value"], cells["ref_id"]) for cells in csv.DictReader(handle)] == [
            ("None", '["a"]'),
            ("Na", '["a"]'),
        ]


def test_a_systems_own_columns_stand_last_and_half_a_surrogate_pair_does_not_cost_the_file(tmp_path):
    path, fields = tmp_path / "out.csv", {"confidence": "0.9"}
    row = SubmissionRow("q1", answer="a\ud800b", answer_value="5", columns=fields)
    write_submission(path, [row, SubmissionRow("q2")], ("confidence",))
    read = read_submission(path)
    assert read.header == (*COLUMNS, "confidence")
    assert [row.columns["confidence"] for row in read.rows.values()] == ["0.9", "is_blank"]
    assert read.rows["q1"].answer == "a?b"


cells = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
refs = st.lists(st.from_regex(r"[a-z]{2,8}[0-9]{4}", fullmatch=True), unique=True, max_size=3).map(tuple)


@given(value=st.sampled_from(["5", "[1,2]", "True", "a,b", 'say "x"']), ids=refs, answer=cells, why=cells)
def test_what_is_written_is_read_again(tmp_path_factory, value, ids, answer, why):
    path = tmp_path_factory.mktemp("round") / "p.csv"
    urls = tuple(f"https://x/{ref}?a,b" for ref in ids)
    write_submission(path, [SubmissionRow("q1", "Q?", answer or "A", value, "kg", ids, urls, "M", why or "W")])
    row = read_submission(path).rows["q1"]
    assert (row.answer, row.answer_value, row.ref_ids, row.ref_urls) == (answer or "A", value, ids, urls)
    assert row.explanation == (why or "W")


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path, monkeypatch):
    path = write(tmp_path / "out.csv", "old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"out\.csv: cannot be written \(No space left on device\)"):
        write_submission(path, [SubmissionRow("q1", answer_value="5")])
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.csv"]


def test_a_gold_file_is_read_as_strictly_as_questions_are(tmp_path):  # FastCSV#173, openfold-3#167
    path = tmp_path / "gold.csv"
    path.write_text('id,answer_value,ref_id\nq1,10,a\nq2,"3.5 inch,a\nq3,30,a\nq4,40,a\n')
    with pytest.raises(DataError, match=r"gold\.csv: line 3 is not CSV"):
        read_submission(path)
    path.write_text("id,answer_value,answer_value,ref_id\nq1,10,11,a\n")
    with pytest.raises(DataError, match=r"gold\.csv has two columns called 'answer_value'"):
        read_submission(path)
    path.write_text(f"id,answer_value,ref_id{',x' * 10_000}\nq1,10,a\n")
    with pytest.raises(DataError, match=r"gold\.csv has 10,003 columns, at most 10,000 are read"):
        read_submission(path)
    with pytest.raises(DataError, match=r"null is no regular file"):
        read_submission("/dev/null")
    path.write_bytes("id,answer_value,ref_id\nq1,Zürich,a\n".encode("cp1252"))
    assert read_submission(path).rows["q1"].answer_value == "Zürich"
    assert read_submission(path).odd == ("1 byte not in UTF-8: read as Windows-1252",)
    lines = tmp_path / "gold.jsonl"
    lines.write_text('{"id": "q1", "answer_value": NaN, "ref_id": null}\n')
    assert (read_submission(lines).rows["q1"].answer_value, read_submission(lines).rows["q1"].refs_raw) == ("", "")


def test_what_is_odd_about_the_bytes_of_json_lines_is_said_and_utf16_is_read(tmp_path):
    path, row = tmp_path / "gold.jsonl", '{"id": "q1", "answer_value": "Zürich", "ref_id": "a"}\n'
    path.write_bytes(row.encode("cp1252"))
    assert read_submission(path).odd == ("1 line not in UTF-8: read as Windows-1252",)
    path.write_bytes(row.encode("utf-16"))
    assert (read_submission(path).rows["q1"].answer_value, read_submission(path).odd) == ("Zürich", ())
    path.write_text('{"id": "q\\u0000", "answer_value": "1", "ref_id": "a"}\n')
    with pytest.raises(DataError, match=r"gold\.jsonl: a NUL in the id of row 1"):
        read_submission(path)


def test_a_small_parquet_that_makes_gigabytes_is_refused_before_it_does(tmp_path):  # B19
    repeated = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2_000, dtype=np.int32)), pa.array(["x" * 1_000_000]))
    many = pa.DictionaryArray.from_arrays(pa.array(np.zeros(3_000_000, dtype=np.int32)), pa.array(["q"]))
    one = pa.array([[0] * 5_000_000])
    for number, column in enumerate((repeated, many, one)):
        path = tmp_path / f"gold{number}.parquet"
        pq.write_table(pa.table({"id": column, "answer_value": column, "ref_id": column}), path, compression="zstd")
        assert path.stat().st_size < 100_000
        with pytest.raises(DataError, match=r"gold\d\.parquet has [\d,]+ bytes, and more than 268,435,456 in memory"):
            read_submission(path)
