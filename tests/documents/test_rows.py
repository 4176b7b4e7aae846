"""Documents in the rows of JSON lines and Parquet, and a document in the rows of a CSV."""

from __future__ import annotations

import io
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.rows import check_rows

from kohaku_ray.documents.data.rows import csv_rows, read_rows, read_table
from kohaku_ray.documents.find import find_files
from kohaku_ray.documents.parse import parse_documents, parse_file
from kohaku_ray.errors import DataError

ROWS = [
    {"id": "alpha", "text": "One. Two.\n\nThree.", "title": "First", "year": 2024, "tags": ["a", "b"], "none": None},
    {"id": None, "text": "Without an id.", "title": None, "year": None, "tags": None, "none": None},
    {"id": "x" * 300, "text": "A bad id.", "title": None, "year": None, "tags": None, "none": None},
    {"id": "empty", "text": " ", "title": None, "year": None, "tags": None, "none": None},
    {"id": "dots", "text": "***", "title": None, "year": None, "tags": None, "none": None},
]


def data_of(suffix, rows):
    if suffix == "parquet":
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), sink)
        return sink.getvalue()
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize("suffix", ["jsonl", "ndjson", "parquet"])
def test_a_row_is_a_document_and_a_bad_row_is_a_reject(suffix):
    parsed = parse_documents(f"docs/some.{suffix}", data_of(suffix, ROWS), 60)
    first, second = parsed.documents[:2]
    assert (first.doc_id, first.title, first.metadata) == ("alpha", "First", {"year": "2024", "tags": "a, b"})
    assert [paragraph.text for paragraph in first.sections[0].paragraphs] == ["One. Two.", "Three."]
    assert (second.doc_id, second.title, second.metadata) == ("some-1", "some-1", {})
    assert len(parsed.documents) + len(parsed.rejects) == len(ROWS)
    reasons = dict(parsed.rejects)
    assert "has 300 characters" in reasons[f"docs/some.{suffix}: row 2"]
    assert reasons[f"docs/some.{suffix}: row 3"] == "text is empty: fill in or remove it"


@check_rows(
    ("line", "reason"),
    [
        (b"{broken", r"not JSON \(Expecting property name enclosed in double quotes\)"),
        (b"[1, 2]", "a list, expected an object"),
        (b"[" * 200_000, r"not JSON \(nested too deep\)"),
        (b'{"text": "\x81"}', "it is not valid UTF-8: byte 0x81 at offset 10"),
        (b'{"text": "no end"', "not JSON"),
    ],
)
def test_a_bad_line_is_one_reject_with_its_number(line, reason):
    good = [json.dumps({"id": name, "text": "Some text."}).encode() for name in ("a", "b")]
    parsed = parse_documents("d/x.jsonl", b"\n".join([good[0], b"", line, good[1]]), 60)
    assert [document.doc_id for document in parsed.documents] == ["a", "b"]
    ((where, why),) = parsed.rejects
    assert where == "d/x.jsonl: line 3"
    assert re.match(reason, why)


def test_a_row_may_be_a_whole_kohakurag_document():
    row = {"document_id": "k", "title": "T", "sections": [{"title": "S", "paragraphs": [{"text": "One. Two."}]}]}
    (document,) = parse_documents("k.jsonl", data_of("jsonl", [row])).documents
    assert (document.doc_id, document.title, document.sections[0].title) == ("k", "T", "S")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"id": 1}\n', r"x.jsonl has no column text or content or body; its columns are id: rename"),
        (b"\n\n", r"x.jsonl has no text: the file is empty"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(data, message):
    with pytest.raises(DataError, match=message):
        parse_documents("x.jsonl", data)


def test_they_are_read_where_they_are_named_alone(tmp_path):
    """A run's own tables below the same directory must not become documents."""
    (tmp_path / "a.md").write_text("Text.")
    (tmp_path / "trace.parquet").write_bytes(data_of("parquet", ROWS))
    assert find_files([str(tmp_path)]) == [f"{tmp_path}/a.md"]
    assert find_files([f"{tmp_path}/trace.parquet"]) == [f"{tmp_path}/trace.parquet"]
    (tmp_path / "a.md").unlink()
    with pytest.raises(DataError, match=r"holds no documents: .*; and, given by name, \.jsonl, \.ndjson, \.parquet"):
        find_files([str(tmp_path)])


def parse_table(text):
    return parse_file("docs/rows.csv", text.encode())


def test_rows_become_paragraphs_and_runs_of_rows_sections():
    document = parse_table(
        "\ufeffDoc_ID,title,section,page,Text,url,score\n"
        'd7,A Title,Intro,1,"One, two.\nThree.",https://x.org,1\n'
        "\n"
        ",,Intro,2,Four.,https://x.org,2\n"
        "d7,,,2,Five.,,\n"
        "d7,,Intro,,  ,,\n"
        "d7,,Intro,3,Six.,,\n"
    )
    assert (document.doc_id, document.title) == ("d7", "A Title")
    assert document.metadata == {"url": "https://x.org"}
    assert [(s.title, s.page, [(p.text, p.page) for p in s.paragraphs]) for s in document.sections] == [
        ("Intro", 1, [("One, two.\nThree.", 1), ("Four.", 2)]),
        ("A Title", 2, [("Five.", 2)]),
        ("Intro", 3, [("Six.", 3)]),
    ]
    assert [(s.start, s.end) for s in document.sections[0].paragraphs[0].sentences] == [(0, 9), (10, 16)]


def test_a_text_column_is_enough():
    document = parse_table("text\r\nOne.\r\n")
    assert (document.doc_id, document.title, document.sections[0].title) == ("rows", "rows", "rows")


@check_rows(
    ("text", "message"),
    [
        ("text,page\na,b,1\n", "docs/rows.csv: line 2 has 3 cells, the header has 2: put texts with separators"),
        ("text,text\na,b\n", "docs/rows.csv has two columns called 'text': rename or remove one."),
        (
            "doc_id,text\na,x\nb,y\n",
            "docs/rows.csv holds several documents: doc_id is 'a', then 'b' at line 3: write one file per document.",
        ),
        ("text,page\na,iv\n", "docs/rows.csv: line 2: page is 'iv', expected a whole number from 0 to 2147483647."),
        ('text\n"a\n', "docs/rows.csv: line 2 is not CSV (unexpected end of data at line 2): close its quotes"),
    ],
)
def test_what_does_not_fit_is_named_with_its_line(text, message):
    with pytest.raises(DataError) as caught:
        parse_table(text)
    assert str(caught.value).startswith(message)


def test_a_cell_beyond_the_libraries_usual_limit_is_read():
    assert len(parse_table("text\n" + "word " * 40_000).sections[0].paragraphs[0].text) == 199_999


QUESTIONS = [{"id": "q1", "question": "How much, then?"}, {"id": "q2", "question": "Who;"}]


@check_rows(
    "text",
    [
        'id,question\nq1,"How much, then?"\nq2,Who;\n',
        'id;question\nq1;How much, then?\nq2;"Who;"\n',
        "id\tquestion\nq1\tHow much, then?\nq2\tWho;\n",
        '\ufeffsep=;\r\nid;question\r\nq1;How much, then?\r\nq2;"Who;"\r\n',
        '"sep=|"\nid|question\nq1|How much, then?\nq2|Who;\n',
        'id,question,\nq1,"How much, then?",\n\nq2,Who;,\n',
    ],
)
def test_the_separator_is_the_files_own(text):
    rows = read_rows("q.csv", text.encode())
    assert [{key: row[key] for key in ("id", "question")} for row in rows] == QUESTIONS
    assert read_rows("q.csv", text.removeprefix("\ufeff").encode("utf-16")) == rows
    news = text.replace("id", "doc_id", 1).replace("question", "text", 1)
    rows_of_news, _ = csv_rows("n.csv", news.removeprefix("\ufeff"), ["text"], "")
    assert rows_of_news[0][1]["text"] == "How much, then?"


@check_rows(
    ("name", "data", "message"),
    [
        (
            "q.csv",
            b"id,question\nq0,a\nq1,a,b,c\n",
            "q.csv: line 3 has 4 cells, the header has 2: put texts with separators or line",
        ),
        (
            "q.csv",
            b"sep=;\nid;question\nq1;a;b\n",
            "q.csv: line 3 has 3 cells, the header has 2: put texts with separators or line",
        ),
        ("q.csv", b"id,question\nq2,'single, quoted'\n", "q.csv: line 2 has 3 cells"),
        (
            "q.csv",
            b'id,question\nq1,"How much\nq2,x\n',
            "q.csv: line 2 is not CSV .unexpected end of data at line 3.: close",
        ),
        ("q.csv", b'id,question\nq1,"How much\nq2,"x"\n', "q.csv: line 2 is not CSV .*: close its quotes"),
        ("q.csv", b"id,question,question\nq1,a,b\n", "q.csv has two columns called 'question': rename or remove one"),
        ("q.jsonl", b'{"id": 1, "question": "a", "id": 2}\n', "q.jsonl, line 1: the key 'id' is there twice"),
        ("q.csv", b"id,question\nq1,a,,\nq2,a,,b\n", "q.csv: line 3 has 4 cells"),
    ],
)
def test_nothing_of_a_row_is_cut_in_silence(name, data, message):
    with pytest.raises(DataError, match=message):
        read_rows(name, data)


CUT = "with fewer cells than the header, read as empty: the first at line"


def test_a_row_that_lacks_cells_at_its_end_is_read_as_by_pandas_and_polars_and_named():
    text = "text,page,note\nOne.,1,x\nTwo.\nThree.,2\n"
    document = parse_table(text)
    assert [(p.text, p.page) for p in document.sections[0].paragraphs] == [("One.", 1), ("Two.", None), ("Three.", 2)]
    table = read_table("q.csv", text.encode(), keep_ragged=False)
    assert [list(row.values()) for row in table.rows] == [["One.", "1", "x"], ["Two.", "", ""], ["Three.", "2", ""]]
    for odd in (document.odd, table.odd):
        assert [line.partition(" (")[0] for line in odd] == [f"2 rows {CUT} 3"]


def test_a_line_break_without_quotes_is_said():
    table = read_table("q.csv", b"id,question,answer_unit\nq1,How much\nwas it?,kWh\nq2,Who?,\n", keep_ragged=False)
    assert [row["id"] for row in table.rows] == ["q1", "was it?", "q2"]
    assert table.odd == (f"2 rows {CUT} 2 (a line break within a text needs double quotes)",)


def test_json_lines_are_refused_at_the_row_with_too_many_columns(monkeypatch):
    monkeypatch.setattr("kohaku_ray.documents.data.rows.MOST_COLUMNS", 3)
    assert read_table("q.jsonl", b'{"a": 1, "b": 1}\n{"c": 1}\n', keep_ragged=False).columns == ("a", "b", "c")
    for data in (b'{"a": 1, "b": 1, "c": 1, "d": 1}\nno json\n', b'{"a": 1, "b": 1}\n{"c": 1, "d": 1}\nno json\n'):
        with pytest.raises(DataError, match=r"q\.jsonl has 4 columns, at most 3 are read"):
            read_table("q.jsonl", data, keep_ragged=False)


def test_corpora_of_beir_flashrag_and_autorag_are_read_as_they_are():
    beir = {"_id": "d1", "title": "T", "text": "A text."}
    flashrag = {"id": "7", "contents": '"Aaron"\nHe was one.'}
    autorag = {"doc_id": "c1", "contents": "First line.\nSecond.", "metadata": {"path": "x"}}
    msmarco = {"docid": "D1", "title": "T", "body": "A text."}
    for row, doc_id, title, text in (
        (msmarco, "D1", "T", "A text."),
        (beir, "d1", "T", "A text."),
        (flashrag, "7", "Aaron", "He was one."),
        (autorag, "c1", "c1", "First line.\nSecond."),
    ):
        (document,) = parse_documents("c.jsonl", data_of("jsonl", [row])).documents
        assert (document.doc_id, document.title) == (doc_id, title)
        assert [paragraph.text for paragraph in document.sections[0].paragraphs] == [text]


@pytest.mark.parametrize(
    ("header", "row", "written"),
    [
        ("pays;année;émissions (t CO2/m²)", "Côte d’Ivoire;2020;12,5", "pays: Côte d’Ivoire; année: 2020; émissions "),
        ("nom;coût (€)", "Œuvre n°5;1 287", "nom: Œuvre n°5; coût (€): 1 287"),
        ("Stadt;Straße", "Köln;Größe 5", "Stadt: Köln; Straße: Größe 5"),
    ],
)
def test_a_csv_of_a_spreadsheet_in_western_europe_is_read_and_named(header, row, written):
    data = f"{header}\r\n{row}\r\n".encode("cp1252")
    document = parse_file("a.csv", data)
    assert document.sections[0].paragraphs[0].text.startswith(written)
    n_bytes = sum(byte > 127 for byte in data)
    assert document.odd == (f"{n_bytes} bytes not in UTF-8: read as Windows-1252",)
    assert list(read_rows("q.csv", data)[0]) == header.split(";")
    assert parse_file("a.csv", f"{header}\n{row}\n".encode()).odd == ()


@check_rows(
    ("text", "encoding"),
    [
        ("страна;год\nРоссия;2020\n", "cp1251"),
        ("nazwa;koszt\nbiałe pieniądze na złość;5\n", "cp1250"),
        ("nom;année\ncafé créé à Noël;5\n", "mac_roman"),
        ("nom;année\ncafé créé;5\n", "cp850"),
        ("名前;年\n東京都の人口;2020\n", "shift_jis"),
    ],
)
def test_a_csv_of_another_code_page_is_refused_and_no_letter_made_a_sign(text, encoding):
    with pytest.raises(DataError, match="is not valid UTF-8: byte 0x"):
        parse_file("a.csv", text.encode(encoding))
    with pytest.raises(DataError, match="save it as UTF-8"):
        read_rows("q.csv", text.encode(encoding))


def test_utf8_with_a_stray_byte_is_read_and_named():
    """As WattBot's own metadata.csv: one byte of Windows-1252, two characters of UTF-8."""
    data = "nom;coût\ncréé;5\n".encode() + b"caf\xe9;6\n"
    document = parse_file("a.csv", data)
    assert document.odd == ("1 byte not in UTF-8: read as Windows-1252",)
    assert [part.text for part in document.sections[0].paragraphs] == ["nom: créé; coût: 5", "nom: café; coût: 6"]
    assert read_rows("q.csv", data)[1] == {"nom": "café", "coût": "6"}


def test_a_tsv_and_bars_between_columns():
    assert rows_of("a.tsv", "country\tyear\nFrance, north\t2020\n") == ["country: France, north; year: 2020"]
    assert rows_of("a.csv", "country|year\nFrance|2020\n") == ["country: France; year: 2020"]
    assert read_rows("q.tsv", b"id\tquestion\nq1\tHow, and why?\n") == [{"id": "q1", "question": "How, and why?"}]


def rows_of(name, text):
    return [part.text for section in parse_file(name, text.encode()).sections for part in section.paragraphs]


@pytest.mark.parametrize("header", ["# source: a site\n#\nDate,IBM\n", "# source, of, it\n# Date,IBM\n"])
def test_comments_above_a_header_are_passed_over(header):
    """matplotlib's Stocks.csv."""
    rows = rows_of("a.csv", f"{header}1990-01-01,12\n")
    assert [row.removeprefix("# ") for row in rows] == ["Date: 1990-01-01; IBM: 12"]
    assert list(read_rows("q.csv", f"{header}1990-01-01,12\n".encode())[0].values()) == ["1990-01-01", "12"]


def test_a_header_shorter_than_its_rows_is_named_so():
    """scikit-learn's wine_data.csv."""
    for read in (parse_file, read_rows):
        with pytest.raises(DataError, match=r"line 2 has 4 cells, the header has 3: put texts .* name each column in"):
            read("a.csv", b"178,13,class_0\n14.23,1.71,2.43,0\n")


def test_names_of_columns_are_printed_without_control_characters():
    with pytest.raises(DataError, match=r"its columns are id, tet: rename"):
        parse_documents("a.jsonl", b'{"id": 1, "te\\u0000\\u001bt": "x"}\n')
