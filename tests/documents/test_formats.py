"""Formats that a configuration names: of the package's systems, and of one's own."""

import threading
import time
from dataclasses import replace

import pytest
from kit.rows import check_rows

from kohaku_ray.documents.find import find_files, passed_over
from kohaku_ray.documents.formats import AUTO, TEXT, DocumentFormat, find_format
from kohaku_ray.documents.model import Document, Paragraph, Parsed, Section
from kohaku_ray.documents.parse import parse_documents, parse_file
from kohaku_ray.documents.text.sentences import split_sentences
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.systems.hybrid.news import NEWS
from kohaku_ray.systems.narrative.novel import NOVEL

ARTICLES = b"""par_id,doc_id,document_url,document_date,document_netloc,document_title,paragraph_text,paragraph_order,\
paragraph_score,document_score
1,one,,2024-01-02,a.example,One,M. Roux dit non. Il part.,0,,
2,two,,,b.example,Two,Le vent se calme.,0,,
1,two,,,b.example,Two,Une ligne en double.,1,,
4,"",,,b.example,Bad,Un mauvais nom.,0,,
5,two,,,b.example,Two,,2,,
6,a:b,,,b.example,Odd,Un autre nom.,0,,
"""
BOOK = b"CHAPTER I\n\nIt was a dark night in the old town.\n\nCHAPTER II\n\nThe rain fell on and on."


def document(doc_id, *texts):
    paragraphs = tuple(Paragraph(text, split_sentences(text)) for text in texts)
    return Document(doc_id, doc_id, (Section(doc_id, paragraphs),))


def parse_mail(name, data):
    """One document per message, between lines of ``--``; a file of one message is one document."""
    messages = data.decode().split("\n--\n")
    if len(messages) == 1:
        return document("mail:1", messages[0])
    return Parsed(tuple(document(f"mail:{number}", text) for number, text in enumerate(messages, 1)))


MAIL = DocumentFormat((".mbox", ".txt"), parse_mail)


def test_a_news_file_holds_many_documents_and_rejects_by_line():
    parsed = parse_documents("d/x.csv", ARTICLES, document_format=NEWS)
    assert [document.doc_id for document in parsed.documents] == ["one", "two", "a-b-6783a31e"]
    assert [where for where, _ in parsed.rejects] == [f"d/x.csv: line {line}" for line in (4, 5, 6)]
    assert ["par_id '1'" in parsed.rejects[0][1], "doc_id is empty" in parsed.rejects[1][1]] == [True, True]
    assert len(parsed.documents[0].sections[0].paragraphs[0].sentences) == 2
    assert parsed == parse_documents("d/x.csv", ARTICLES, timeout_s=60, document_format=NEWS)


def test_a_news_file_that_gives_nothing_is_refused():
    header = ARTICLES.splitlines()[0]
    with pytest.raises(DataError, match=r"x\.csv has no text: there is no row in it"):
        parse_documents("x.csv", header + b"\n", document_format=NEWS)
    with pytest.raises(DataError, match=r"x\.csv has no text: the file is empty"):
        parse_documents("x.csv", b" \n", document_format=NEWS)
    with pytest.raises(DataError, match=r"x\.csv lacks the columns par_id, doc_id"):
        parse_documents("x.csv", b"text\nSome text.", document_format=NEWS)


def test_a_novel_is_read_in_chapters_where_that_is_asked_for():
    (novel,) = parse_documents("x.txt", BOOK, document_format=NOVEL).documents
    attributes = [section.paragraphs[0].attributes for section in novel.sections]
    assert [(chapter["chapter"], chapter["progress_pct"]) for chapter in attributes] == [
        ("CHAPTER I", 50),
        ("CHAPTER II", 100),
    ]
    assert parse_file("x.txt", BOOK).sections[0].paragraphs[0].attributes == {}
    assert parse_documents("x.txt", BOOK, 60, NOVEL) == Parsed((novel,))


@check_rows("document_format", [AUTO, TEXT, NOVEL, NEWS, MAIL])
def test_other_suffixes_are_read_as_ever(document_format):
    markdown, table = b"# Title\n\nA *word* of text.", b"text,page\nSome text.,3\n"
    for name, data in [("x.md", markdown), ("x.csv", table), ("x.txt", BOOK), ("x.jsonl", b'{"text": "A word."}')]:
        if document_format is not TEXT and name[1:] in document_format.suffixes:
            continue
        read_as = "x.txt" if name[1:] in document_format.suffixes else name
        assert parse_documents(name, data, document_format=document_format) == parse_documents(read_as, data)


@pytest.mark.parametrize("document_format", [NEWS, NOVEL, MAIL])
def test_the_time_limit_covers_formats(document_format):
    slow = replace(document_format, parse=lambda *_, **options: sum(1 for _ in iter(int, 1)))  # for ever
    start = time.process_time()
    with pytest.raises(DataError, match=r"are not parsed after 0\.3 s"):
        parse_documents(f"x{slow.suffixes[0]}", ARTICLES, 0.3, slow)
    assert time.process_time() - start < 5  # of a limit of 0.3 s
    messages = []

    def call():
        try:
            parse_documents(f"x{slow.suffixes[0]}", ARTICLES, 0.3, slow)
        except DataError as error:
            messages.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "a time limit on this format needs the main thread" in messages[0]


def test_a_format_is_given_the_documents_id_and_its_messages_name_the_file():
    own = DocumentFormat((".mbox",), lambda doc_id, data: document(doc_id, data.decode()))
    for default_id, doc_id in ((None, "pump 1.2"), ("north-pump", "north-pump")):
        (read,) = parse_documents(
            "/home/me/north/pump 1.2.mbox", b"It runs.", document_format=own, default_id=default_id
        ).documents
        assert (read.doc_id, read.title) == (doc_id, doc_id)

    def refuse(doc_id, data):
        raise DataError(f"{doc_id} has no message: add one.")

    with pytest.raises(DataError, match=r"^d/a\.mbox has no message: add one"):
        parse_documents("d/a.mbox", b"It runs.", document_format=replace(own, parse=refuse))


def test_a_format_of_ones_own_reads_one_document_or_many_under_valid_ids():
    parsed = parse_documents("d/a.mbox", b"The pump has stopped.", 60, MAIL)
    assert [document.doc_id[:7] for document in parsed.documents] == ["mail-1-"]
    many = parse_documents("d/a.mbox", b"The pump has stopped.\n--\n...\n--\nIt runs again.", document_format=MAIL)
    assert [document.title for document in many.documents] == ["mail:1", "mail:3"]
    assert [":" in document.doc_id for document in many.documents] == [False, False]
    assert [reason for _, reason in many.rejects] == ["its paragraphs have no sentence to search"]


@check_rows(
    ("parse", "message"),
    [
        (
            lambda name, data: None,
            r"^d/a\.mbox: its format returned NoneType, expected Document or Parsed: correct its",
        ),
        (lambda name, data: 1 / 0, r"^d/a\.mbox cannot be parsed \(ZeroDivisionError: division by zero\)"),
        (lambda name, data: document("a", "..."), r"^d/a\.mbox has no text: nothing in it can be searched"),
        (lambda name, data: document("", "Text."), r"doc_id '' is empty"),
        (lambda name, data: Parsed(()), r"^d/a\.mbox has no text"),
    ],
)
def test_what_a_format_of_ones_own_gets_wrong_is_a_reject_of_the_file(parse, message):
    with pytest.raises(DataError, match=message):
        parse_documents("d/a.mbox", b"Text.", document_format=replace(MAIL, parse=parse))


def test_directories_are_searched_for_a_formats_suffixes(tmp_path):
    for name in ("a.mbox", "b.md", "c.xyz"):
        (tmp_path / name).write_text("Some text.")
    assert find_files([str(tmp_path)]) == [f"{tmp_path}/b.md"]
    assert find_files([str(tmp_path)], document_format=MAIL) == [f"{tmp_path}/a.mbox", f"{tmp_path}/b.md"]
    assert passed_over([str(tmp_path)]) == [f"{tmp_path}/a.mbox", f"{tmp_path}/c.xyz"]
    assert passed_over([str(tmp_path)], MAIL) == [f"{tmp_path}/c.xyz"]
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no documents: files with these suffixes are read: .*, \.mbox"):
        find_files([str(empty)], document_format=MAIL)


def test_formats_are_found_by_name():
    assert [find_format(name) for name in ("auto", "text", "news", "novel")] == [AUTO, TEXT, NEWS, NOVEL]
    assert find_format("documents.test_formats:MAIL").suffixes == MAIL.suffixes
    with pytest.raises(
        ConfigError, match=r"format novle: no such format \(did you mean novel\?\); formats: auto, text, "
    ):
        find_format("novle")
