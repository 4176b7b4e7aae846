import csv
import io
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.errors import DataError
from kohaku_ray.systems.hybrid.news import COLUMNS, parse_news

FIRST = {
    "par_id": "11",
    "doc_id": "a1",
    "document_url": "https://journal.example/a1",
    "document_date": "2024-03-05",
    "document_netloc": "journal.example",
    "document_title": "Le pont ferme",
    "paragraph_text": "Le pont ferme. M. Roy le dit.",
    "paragraph_order": "0",
    "paragraph_score": "0.75",
    "document_score": "1",
}


def row(**cells):
    return FIRST | cells


def write(*rows, columns=COLUMNS):
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def parse(*rows, **more):
    return parse_news("n.csv", write(*rows), **more)


def paragraphs(news):
    return [p for document in news.documents for section in document.sections for p in section.paragraphs]


def test_a_document_with_its_paragraphs_in_order():
    news = parse(row(par_id="12", paragraph_order="1", paragraph_text="Suite."), FIRST)
    (document,) = news.documents
    assert (document.doc_id, document.title) == ("a1", "Le pont ferme")
    assert document.metadata == {
        "type": "news",
        "url": "https://journal.example/a1",
        "date": "2024-03-05",
        "netloc": "journal.example",
        "year": "2024",
    }
    (section,) = document.sections
    assert section.title == "Le pont ferme"
    first, second = section.paragraphs
    assert first.attributes == {
        "par_id": "11",
        "document_url": "https://journal.example/a1",
        "document_date": "2024-03-05",
        "document_netloc": "journal.example",
        "document_title": "Le pont ferme",
        "paragraph_order": 0,
        "paragraph_score": 0.75,
        "document_score": 1.0,
        "prev_par_id": None,
        "next_par_id": "12",
    }
    assert second.attributes["prev_par_id"] == "11"
    assert second.attributes["next_par_id"] is None
    assert [first.text[s.start : s.end] for s in first.sentences] == ["Le pont ferme.", "M. Roy le dit."]
    assert news.rejects == ()


def test_neighbours_only_where_the_order_is_consecutive_and_equal_orders_as_in_the_file():
    rows = [row(par_id=str(order), paragraph_order=str(order)) for order in (3, 1, 0, 7, 8)]
    rows += [
        row(par_id=name, doc_id="b", paragraph_order=order) for name, order in (("y", "1"), ("x", "1"), ("z", "2"))
    ]
    attributes = [p.attributes for p in paragraphs(parse(*rows))]
    assert [(a["par_id"], a["prev_par_id"], a["next_par_id"]) for a in attributes] == [
        *[("0", None, "1"), ("1", "0", None), ("3", None, None), ("7", None, "8"), ("8", "7", None)],
        *[("y", None, None), ("x", None, "z"), ("z", "x", None)],
    ]


def test_documents_are_interleaved_and_empty_cells_are_none():
    empty = dict.fromkeys(("document_url", "document_date", "document_netloc", "document_title", "document_score"), "")
    news = parse(row(**empty), row(par_id="2", doc_id="b2", document_date="5 mars 2023"), row(par_id="3", **empty))
    assert [document.doc_id for document in news.documents] == ["a1", "b2"]
    first, second = news.documents
    assert (first.title, first.metadata) == ("a1", {"type": "news"})
    assert second.metadata["year"] == "2023"
    attributes = first.sections[0].paragraphs[1].attributes
    assert [attributes[name] for name in empty] == [None] * 5


def test_other_columns_travel_with_the_paragraph():
    (document,) = parse_news("n.csv", write(row(theme="eau"), columns=(*COLUMNS, "theme", ""))).documents
    assert document.sections[0].paragraphs[0].attributes["theme"] == "eau"
    assert "" not in document.sections[0].paragraphs[0].attributes


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_byte_order_marks_and_line_ends(encoding):
    text = write(row(paragraph_text="L'été\r\narrive.")).decode()
    news = parse_news("n.csv", text.encode(encoding))
    assert paragraphs(news)[0].text == "L'été\narrive."


@check_rows(
    ("cells", "reason"),
    [
        ({"paragraph_order": "deux"}, "paragraph_order is 'deux', expected a whole number such as 0"),
        ({"paragraph_order": "1.5"}, "paragraph_order is '1.5', expected"),
        ({"paragraph_order": ""}, "paragraph_order is '', expected"),
        ({"paragraph_order": "9" * 20}, "paragraph_order is '99999999999999999999', expected"),
        ({"paragraph_text": " \n"}, "paragraph_text is empty: fill in or remove the row"),
        ({"par_id": "", "doc_id": " "}, "par_id and doc_id are empty"),
        ({"par_id": "1\n2"}, r"par_id '1\\n2' holds a line break or control character"),
        ({"doc_id": "a" * 201}, "has 201 characters"),
        ({"par_id": "0"}, "par_id '0' is already used at line 2: give each row its own"),
        ({"paragraph_score": "haut"}, "paragraph_score is 'haut', expected a number or nothing"),
        ({"document_score": "inf"}, "document_score is 'inf', expected a number or nothing"),
    ],
)
def test_a_bad_row_is_one_reject_with_its_line_and_reason(cells, reason):
    news = parse(row(par_id="0", paragraph_text="Une ligne\navec deux."), row(**cells), row(par_id="9"))
    ((where, why),) = news.rejects
    assert where == "n.csv: line 4"
    assert re.search(reason, why)
    assert [p.attributes["par_id"] for p in paragraphs(news)] == ["0", "9"]


def test_whole_numbers_that_a_spreadsheet_wrote_as_decimals_and_nan_scores():
    (paragraph,) = paragraphs(parse(row(paragraph_order="3.0", paragraph_score="NaN")))
    assert (paragraph.attributes["paragraph_order"], paragraph.attributes["paragraph_score"]) == (3, None)


def test_a_rejected_row_does_not_take_its_id():
    news = parse(row(paragraph_text=""), FIRST)
    assert len(news.rejects) == len(paragraphs(news)) == 1


def test_bytes_that_are_no_utf8_are_read_as_in_all_files():
    data = write(row(par_id="1"), row(par_id="2", paragraph_text="Été"), row(par_id="3"))
    news = parse_news("n.csv", data.replace("É".encode(), b"\xc9"))
    assert news.rejects == ()
    assert [p.text for p in paragraphs(news)][1] == "Été"


def test_broken_quotes_and_wrong_numbers_of_cells_cost_their_row_alone():
    data = write(row(par_id="1"), row(par_id="2"), row(par_id="3")).decode().splitlines()
    data[2] = data[2].replace("2,a1", '2,"a1"x')
    data.insert(3, "4,a1,trop,court")
    news = parse_news("n.csv", "\n".join([*data, '5,"ouvert']).encode())
    assert [where for where, _ in news.rejects] == ["n.csv: line 3", "n.csv: line 4", "n.csv: line 6"]
    assert "is not CSV" in news.rejects[0][1]
    assert news.rejects[1][1].endswith("(the row has fewer cells than the header)")
    assert [p.attributes["par_id"] for p in paragraphs(news)] == ["1", "3"]


def test_a_row_without_its_scores_is_read_and_named():
    lines = write(row(par_id="1"), row(par_id="2", paragraph_score="", document_score="")).decode().splitlines()
    assert lines[2].endswith(",,")
    news = parse_news("n.csv", "\n".join([*lines[:2], lines[2][:-2]]).encode())
    assert [p.attributes["par_id"] for p in paragraphs(news)] == ["1", "2"]
    assert [document.odd[0].split(",")[0] for document in news.documents] == ["1 row with fewer cells than the header"]


def test_huge_fields(monkeypatch):
    assert len(paragraphs(parse(row(paragraph_text="mot " * 100_000)))[0].text) == 399_999
    monkeypatch.setattr("kohaku_ray.documents.data.rows.MAX_CELL_CHARS", 500)
    limit = csv.field_size_limit()
    news = parse(row(par_id="1"), row(par_id="2", paragraph_text="mot " * 200), row(par_id="3"))
    ((where, why),) = news.rejects
    assert where == "n.csv: line 3"
    assert "field larger than field limit (500)" in why
    assert [p.attributes["par_id"] for p in paragraphs(news)] == ["1", "3"]
    assert csv.field_size_limit() == limit


@check_rows(
    ("data", "message"),
    [
        (
            ",".join(COLUMNS[1:-1]).encode(),
            r"n\.csv lacks the columns par_id, document_score; its columns are 'doc_id',",
        ),
        (":".join(COLUMNS).encode(), r"lacks the columns par_id, .* its columns are 'par_id:doc_id:"),
        (b"\n \n", "its columns are none: add them"),
        (",".join(COLUMNS[1:]).encode(), "lacks the column par_id; its"),
        (",".join([*COLUMNS, "Par_ID"]).encode(), "two columns called 'par_id'"),
        (b'"par_id"x,doc_id\n', r"n\.csv is not CSV"),
    ],
)
def test_a_header_that_cannot_be_used_is_named(data, message):
    with pytest.raises(DataError, match=message):
        parse_news("n.csv", data)


def test_column_names_in_any_case_and_a_header_alone():
    assert parse_news("n.csv", (",".join(COLUMNS).upper() + "\n").encode()) == parse()
    assert parse().documents == ()


CELL = st.one_of(st.sampled_from(["", "0", "1", "2", "a", "b:", "x y.", '"', "é\n", "-1"]), st.text(max_size=4))


@given(st.lists(st.fixed_dictionaries(dict.fromkeys(COLUMNS, CELL)), max_size=8))
def test_rows_in_are_rows_out_and_rejects(rows):
    news = parse(*rows)
    n_blank = sum(not any(cell.strip() for cell in cells.values()) for cells in rows)
    assert len(paragraphs(news)) + len(news.rejects) == len(rows) - n_blank
    par_ids = [p.attributes["par_id"] for p in paragraphs(news)]
    assert len(set(par_ids)) == len(par_ids)
    for p in paragraphs(news):
        following = p.attributes["next_par_id"]
        assert following is None or following in par_ids


@given(st.binary(max_size=300))
def test_hostile_bytes_are_parsed_or_refused(data):
    for content in (data, ",".join(COLUMNS).encode() + b"\n" + data):
        with suppress(DataError):
            assert all(where.startswith("n.csv: line ") for where, _ in parse_news("n.csv", content).rejects)
