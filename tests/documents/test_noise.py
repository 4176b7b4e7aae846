"""Sentences that say nothing are not indexed, and counted as odd: leaders of contents pages, ornaments."""

import pymupdf
import pytest
from kit.trees import sentences as sentences_of

from kohaku_ray.documents.parse import parse_documents, parse_file

ENTRIES = [f"{i // 4 + 1}.{i % 4 + 1} Section about subject {i} " for i in range(24)]


def contents_page(leader):
    file = pymupdf.open()
    page = file.new_page()
    page.insert_text((72, 60), "Contents", fontsize=18)
    for i, entry in enumerate(ENTRIES):
        page.insert_text((72, 90 + 14 * i), f"{entry}{leader * 20} {i + 3}", fontsize=10)
    return file.tobytes()


def sentences(document):
    return [
        text for section in document.sections for paragraph in section.paragraphs for text in sentences_of(paragraph)
    ]


@pytest.mark.parametrize("leader", [". ", ".", " .", "_ "])
def test_an_entry_of_a_contents_page_is_one_sentence_without_its_leaders(leader):
    texts = sentences(parse_file("manual.pdf", contents_page(leader)))
    assert texts == [f"{entry}… {i + 3}" for i, entry in enumerate(ENTRIES)]


def test_what_has_neither_letter_nor_digit_is_no_sentence_and_is_counted():
    document = parse_file("x.txt", "A line of text. . . . . And more.\n\n* * *\n\n—\n\nThe end.".encode())
    assert all(any(map(str.isalnum, text)) for text in sentences(document))
    assert sentences(document)[-1] == "The end."
    assert any("without a letter or digit" in what and "not indexed" in what for what in document.odd)


def test_a_file_that_says_nothing_is_rejected_and_a_row_alone():
    with pytest.raises(Exception, match="no text"):
        parse_file("x.txt", b"* * *\n\n. . . . .")
    parsed = parse_documents("x.jsonl", b'{"id": "a", "text": "Some text."}\n{"id": "b", "text": ". . ."}\n')
    assert [document.doc_id for document in parsed.documents] == ["a"]
    assert [where for where, _ in parsed.rejects] == ["x.jsonl: b"]


def test_an_ordinary_text_has_nothing_odd():
    assert parse_file("x.txt", b"It used 5 kWh... The rest is known. Yes. Yes.").odd == ()
