"""A file that is not what its name says is refused, and the message says what it is."""

import io
import json
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pymupdf
import pytest
from kit.rows import check_rows

from kohaku_ray.documents.formats import TEXT
from kohaku_ray.documents.parse import parse_documents
from kohaku_ray.errors import DataError

HUMAN = "Please verify that you are a human. " * 20
HTML = f"<html><head><title>Check</title></head><body><p>{HUMAN}</p></body></html>".encode()


def pdf():
    file = pymupdf.open()
    file.new_page().insert_text((72, 72), "A sentence of a report.")
    return file.tobytes()


def archive(name):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("[Content_Types].xml", "<Types/>")
        file.writestr(name, "<x/>")
    return out.getvalue()


def parquet():
    out = io.BytesIO()
    pq.write_table(pa.table({"id": ["a"], "text": ["A sentence."]}), out)
    return out.getvalue()


@check_rows(
    ("name", "data", "what"),
    [
        ("captcha2024.pdf", HTML, "is HTML, not PDF"),
        ("a.pdf", b"<!DOCTYPE html><p>" + HUMAN.encode(), "is HTML, not PDF"),
        ("a.pdf", b"\xef\xbb\xbf\n<!-- saved --><HTML><p>" + HUMAN.encode(), "is HTML, not PDF"),
        ("a.pdf", json.dumps({"error": HUMAN}).encode(), "is JSON, not PDF"),
        ("a.pdf", HUMAN.encode(), "is plain text, not PDF"),
        ("a.pdf", b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "is XML, not PDF"),
        ("a.pdf", archive("word/document.xml"), "is DOCX, not PDF"),
        ("a.pdf", b"\x89PNG\r\n\x1a\n" + bytes(100), "is PNG, not PDF"),
        ("a.html", pdf(), "is PDF, not HTML"),
        ("a.html", json.dumps([1, 2]).encode(), "is JSON, not HTML"),
        ("a.md", HTML, "is HTML, not MD"),
        ("a.txt", HTML, "is HTML, not TXT"),
        ("a.txt", pdf(), "is PDF, not TXT"),
        ("a.json", HTML, "is HTML, not JSON"),
        ("a.csv", archive("xl/workbook.xml"), "is XLSX, not CSV"),
        ("a.csv", HTML, "is HTML, not CSV"),
        ("a.jsonl", HTML, "is HTML, not JSONL"),
        ("a.jsonl", parquet(), "is PARQUET, not JSONL"),
        ("a.parquet", HTML, "is HTML, not PARQUET"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_a_reject(name, data, what):
    with pytest.raises(DataError, match=f"^d/{name} {what}: fetch the file again"):
        parse_documents(f"d/{name}", data)


@check_rows(
    ("name", "data"),
    [
        ("a.pdf", pdf()),
        ("a.pdf", b"junk before it\n" + pdf()),
        ("a.html", HTML),
        ("a.html", b"<?xml version='1.0'?>\n" + HTML),
        ("a.html", b"<p>A fragment of a page.</p>"),
        ("a.md", b"# A page\n\n<p>with HTML in it.</p>"),
        ("a.md", b"<p align='center'>A logo</p>\n\nA README begins so."),
        ("a.txt", b"{A sentence in braces.}"),
        ("a.txt", b"BM is a company of 12 people, and no bitmap."),
        ("a.txt", b'{"text": "a sentence of JSON in a text file"}'),
        ("a.csv", b'id,text\n1,"A sentence."\n'),
        ("a.jsonl", b'{"id": "a", "text": "A sentence."}\n'),
        ("a.parquet", parquet()),
    ],
)
def test_what_its_name_says_is_read(name, data):
    assert parse_documents(f"d/{name}", data).documents


def test_html_is_text_where_that_is_asked_for():
    (document,) = parse_documents("d/a.html", HTML, document_format=TEXT).documents
    assert "<title>" in document.sections[0].paragraphs[0].text


def test_markdown_may_begin_with_a_table_as_parsers_of_pdfs_write_it():
    table = (
        b"<html><body><table><tr><td>Model</td><td>Power</td></tr><tr><td>H100</td><td>700 W</td></tr></table></body>"
    )
    (document,) = parse_documents("a.md", table + b"</html>\n\nText below it.\n").documents
    assert [part.text for part in document.sections[0].paragraphs] == ["Model: H100; Power: 700 W", "Text below it."]
