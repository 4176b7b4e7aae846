"""Novels: chapters, what surrounds them, and what no book is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.documents.model import Document
from kohaku_ray.errors import DataError
from kohaku_ray.systems.narrative.novel import novel_sections, number_of, parse_novel, words_digest

PREFACE = "This story was told to me by an old sailor in the harbour."
ONE, TWO, THREE = "It was a dark night at sea.", "The ship came in at noon.", "Nobody spoke of it again."


def parse(text: str) -> Document:
    return parse_novel("book", text.encode())


def titles(text: str) -> list[str]:
    return [section.title for section in parse(text).sections]


def bodies(text: str) -> list[list[str]]:
    return [[part.text for part in section.paragraphs] for section in parse(text).sections]


@check_rows(
    ("first", "second"),
    [
        ("CHAPTER I", "CHAPTER II"),
        ("Chapter 1", "Chapter 2"),
        ("CHAPTER ONE", "CHAPTER TWO"),
        ("Chapter the First", "Chapter the Second"),
        ("CHAPTER I. THE STORM", "CHAPTER II. THE CALM"),
        ("CHAPTER XXI THE “DUNCAN”", "CHAPTER XXII THE YACHT"),
        ("  Chapter 1. Marseilles—The Arrival", "  Chapter 2. Father and Son"),
        ("PART ONE", "PART TWO"),
        ("BOOK THE FIRST: RECALLED TO LIFE", "BOOK THE SECOND: THE THREAD"),
        ("VOLUME FORTY-ONE", "VOLUME FORTY-TWO"),
        ("Book One Hundred and One", "Book One Hundred and Two"),
    ],
)
def test_headings_begin_chapters(first: str, second: str) -> None:
    text = f"{first}\n\n{ONE}\n\n{second}\n\n{TWO}\n\n{THREE}\n"
    assert titles(text) == [first.strip(), second.strip()]
    assert bodies(text) == [[ONE], [TWO, THREE]]


@check_rows(
    "line",
    [
        "Part I had forgotten by then.",
        "chapter of the Life of Pope Alexander VI., were these lines.",
        "Book of hours in hand, she prayed.",
        "Part of the guard had fled. Chapter 3 was lost.",
        "Chapter 5 was the one that he liked.",
        "Chapter V. The captain had said that he\nwould never go to sea again.",
        "Chapters I and II are lost.",
        "Volume IC is missing.",
    ],
)
def test_a_paragraph_that_begins_like_a_heading_is_none(line: str) -> None:
    text = f"CHAPTER I\n\n{ONE}\n\n{line}\n\nCHAPTER II\n\n{TWO}"
    assert bodies(text) == [[ONE, line], [TWO]]


@check_rows(
    ("heading", "title", "body"),
    [
        ("CHAPTER I\n\nTHE STORM", "CHAPTER I THE STORM", [ONE, TWO]),
        ("CHAPTER I.\n\nThe Storm at Sea", "CHAPTER I. The Storm at Sea", [ONE, TWO]),
        ("CHAPTER I\nTHE STORM", "CHAPTER I THE STORM", [ONE, TWO]),
        ("CHAPTER I. In which the captain and his mate\nput to sea", None, [ONE, TWO]),
        ("CHAPTER I. In which the captain and his mate\nput to sea.", None, [ONE, TWO]),
        ("CHAPTER I\n\n“Who goes there?”", "CHAPTER I", ["“Who goes there?”", ONE, TWO]),
        ("CHAPTER I\n\n20009m", "CHAPTER I", ["20009m", ONE, TWO]),
    ],
)
def test_a_title_may_stand_under_its_number(heading: str, title: str | None, body: list[str]) -> None:
    section = parse(f"{heading}\n\n{ONE}\n\n{TWO}").sections[0]
    assert section.title == (title or heading.replace("\n", " "))
    assert [part.text for part in section.paragraphs] == body


def test_text_right_under_a_heading_is_its_chapter() -> None:
    assert bodies(f"CHAPTER I\n{ONE}\nMore of it.\n\nCHAPTER II\n{TWO}") == [[f"{ONE}\nMore of it."], [TWO]]


def test_parts_lead_the_titles_of_their_chapters() -> None:
    text = (
        f"PART ONE\n\nCHAPTER I\n\n{ONE}\n\nCHAPTER II\n\n{TWO}\n\n"
        f"PART TWO\n\nCHAPTER I\n\n{THREE}\n\nCHAPTER II\n\n{ONE}\n"
    )
    assert titles(text) == [
        "PART ONE › CHAPTER I",
        "PART ONE › CHAPTER II",
        "PART TWO › CHAPTER I",
        "PART TWO › CHAPTER II",
    ]
    numbers = [section.paragraphs[0].attributes["chapter_number"] for section in parse(text).sections]
    assert numbers == [1, 2, 3, 4]


def test_three_levels_nest_as_they_first_come() -> None:
    volumes = "\n\n".join(
        f"VOLUME {v}\n\nBOOK {b}\n\nCHAPTER I\n\n{ONE}\n\nCHAPTER II\n\n{TWO}"
        for v, b in [("I", "ONE"), ("II", "ONE"), ("III", "ONE")]
    )
    assert titles(volumes)[::2] == [f"VOLUME {v} › BOOK ONE › CHAPTER I" for v in ("I", "II", "III")]


def test_a_parts_own_text_is_a_section_without_a_number_of_its_own() -> None:
    text = f"PART ONE\n\n{PREFACE}\n\nCHAPTER I\n\n{ONE}\n\nPART TWO\n\n{PREFACE} Again.\n\nCHAPTER II\n\n{TWO}"
    sections = [(s.title, s.paragraphs[0].attributes["chapter_number"]) for s in parse(text).sections]
    assert sections == [
        ("PART ONE", 0),
        ("PART ONE › CHAPTER I", 1),
        ("PART TWO", 1),
        ("PART TWO › CHAPTER II", 2),
    ]


def test_attributes_say_where_a_paragraph_stands() -> None:
    text = "".join(f"CHAPTER {i}\n\n{ONE}\n\n{TWO}\n\n" for i in range(1, 11))
    fifth = parse(text).sections[-6]
    assert [dict(part.attributes) for part in fifth.paragraphs] == [
        {"book": "book", "chapter": "CHAPTER 5", "chapter_number": 5, "progress_pct": 50.0}
    ] * 2


def test_a_preamble_is_kept_when_it_has_prose() -> None:
    chapters = f"CHAPTER I\n\n{ONE}\n\nCHAPTER II\n\n{TWO}"
    assert titles(f"THE SHIP\n\nby A. N. Author\n\n{PREFACE}\n\n{chapters}") == ["Preamble", "CHAPTER I", "CHAPTER II"]
    assert titles(f"THE SHIP\n\nby A. N. Author\n\nEdited By C. F. Horne, Ph.D.\n\n{chapters}")[0] == "CHAPTER I"
    preamble = parse(f"{PREFACE}\n\n{chapters}").sections[0].paragraphs[0]
    assert (preamble.attributes["chapter_number"], preamble.attributes["progress_pct"]) == (0, 0.0)


CONTENTS = "Contents\n\n VOLUME ONE\nChapter 1. The Sea\nChapter 2. The Land\n\n VOLUME TWO\nChapter 3. The Sky\n"
BOOK = (
    f"VOLUME ONE\n\n Chapter 1. The Sea\n\n{ONE}\n\n Chapter 2. The Land\n\n{TWO}\n\n"
    f"VOLUME TWO\n\n Chapter 3. The Sky\n\n{THREE}\n"
)


@pytest.mark.parametrize("between", ["\n\n\n", f"\n\n{PREFACE}\n\n", "\n\nLIST OF PLATES\n\n"])
def test_a_table_of_contents_is_no_chapters(between: str) -> None:
    expected = [
        "VOLUME ONE › Chapter 1. The Sea",
        "VOLUME ONE › Chapter 2. The Land",
        "VOLUME TWO › Chapter 3. The Sky",
    ]
    preamble = ["Preamble"] if PREFACE in between else []
    assert titles(CONTENTS + between + BOOK) == preamble + expected
    if preamble:
        assert PREFACE in bodies(CONTENTS + between + BOOK)[0]


def test_a_table_of_contents_may_write_numbers_and_titles_otherwise() -> None:
    contents = "CHAPTER I. The Sea . . . 1\nCHAPTER II. The Land . . . 20\n\nPART TWO\nCHAPTER I. The Sky . . . 41\n"
    book = f"CHAPTER ONE\n\n{ONE}\n\nCHAPTER TWO\n\n{TWO}\n\nPART TWO\n\nCHAPTER ONE\n\n{THREE}"
    assert titles(contents + "\n\n" + book) == ["CHAPTER ONE", "CHAPTER TWO", "PART TWO › CHAPTER ONE"]


def test_chapters_that_restart_in_every_part_are_no_table() -> None:
    text = "".join(f"VOLUME {v}\n\nBOOK {b}\n\nCHAPTER I\n\n{ONE}\n\n" for v in ("I", "II", "III") for b in ("I", "II"))
    assert len(titles(text)) == 6


def test_a_chapter_without_text_stays_a_chapter() -> None:
    text = f"CHAPTER I\n\n{ONE}\n\nCHAPTER II\n\nCHAPTER III\n\n{THREE}"
    assert bodies(text) == [[ONE], ["CHAPTER II"], [THREE]]


HEADER = (
    "The Project Gutenberg eBook of The Ship\n\nTitle: The Ship;\n    Or, The Sea\n\nAuthor: A. One\n        B. Two\n\n"
    "*** START OF THE PROJECT GUTENBERG EBOOK THE SHIP ***\n\nProduced by Judy Boss\n\n"
)
FOOTER = "\n\n*** END OF THE PROJECT GUTENBERG EBOOK THE SHIP ***\n\nChapter 7. License\n\nYou may copy it.\n"


@pytest.mark.parametrize(
    "footer", [FOOTER, "\n\nEnd of the Project Gutenberg EBook of The Ship, by A. One\n\nLicense.\n"]
)
def test_the_header_and_footer_of_an_e_text_are_dropped(footer: str) -> None:
    book = parse(f"{HEADER}CHAPTER I\n\n{ONE}{footer}")
    assert [[part.text for part in section.paragraphs] for section in book.sections] == [[ONE]]
    assert book.title == "The Ship; Or, The Sea"
    assert book.metadata == {"author": "A. One, B. Two"}
    assert book.sections[0].paragraphs[0].attributes["book"] == "The Ship; Or, The Sea"


def test_a_book_without_chapters_is_one_section() -> None:
    book = parse(f"{ONE}\n\n{TWO}")
    assert [(s.title, len(s.paragraphs)) for s in book.sections] == [("book", 2)]
    assert book.sections[0].paragraphs[1].attributes["progress_pct"] == 100.0


@check_rows("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1"])
def test_encodings_and_line_ends(encoding: str) -> None:
    quoted = "“He is at the Château d’If,” said Dantès." if encoding != "latin-1" else "He is at the Château of Dantès."
    text = f"CHAPTER I\n\n{quoted}\n\nCHAPTER II\n\n{TWO}"
    for line_end in ("\n", "\r\n", "\r"):
        book = parse_novel("book", text.replace("\n", line_end).encode(encoding))
        assert [[part.text for part in section.paragraphs] for section in book.sections] == [[quoted], [TWO]]


def test_wrapped_lines_and_sentence_spans_are_those_of_the_file() -> None:
    paragraph = parse(f"CHAPTER I\n\nIt was a dark\nnight. {TWO}\n\nCHAPTER II\n\n{THREE}").sections[0].paragraphs[0]
    assert [paragraph.text[s.start : s.end] for s in paragraph.sentences] == ["It was a dark\nnight.", TWO]


@check_rows(
    ("data", "message"),
    [
        (b"", "book has no text: the book is empty between its header and footer"),
        (b" \r\n\r\n ", "book has no text"),
        ((HEADER.replace("Produced by Judy Boss", "") + FOOTER).encode(), "book has no text"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "book is not text: NUL byte at offset 8"),
        (b"\xff\xd8\xe0\x10JFIF\x01", "book is not valid UTF-8: byte 0xff at offset 0"),
    ],
)
def test_what_is_no_book_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_novel("book", data)


def test_the_same_book_in_two_files_has_the_same_words() -> None:
    book = parse_novel("one", f"{HEADER}CHAPTER I\n\n{ONE}{FOOTER}".encode())
    wrapped = parse_novel("two", f"CHAPTER I\n\n{ONE.replace(' ', chr(10), 1)}".encode())
    other = parse_novel("three", f"CHAPTER I\n\n{TWO}".encode())
    assert words_digest(book) == words_digest(wrapped)
    assert words_digest(book) != words_digest(other)


@given(
    st.lists(st.sampled_from(["CHAPTER I", "PART TWO", "Chapter 3. X", "BOOK", ONE, TWO, "", "\f", "“", "*** START"]))
)
def test_any_text_is_cut_into_sections_without_losing_prose(lines: list[str]) -> None:
    sections = novel_sections("\n\n".join(lines), "book")
    kept = [part.text for section in sections for part in section.paragraphs]
    assert [text for text in kept if text in (ONE, TWO)] == [line for line in lines if line in (ONE, TWO)]
    assert all(section.paragraphs for section in sections)
    assert all(0 <= float(section.paragraphs[0].attributes["progress_pct"] or 0) <= 100 for section in sections)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "n_chapters", "first", "last"),
    [
        ("In search of the castaways.txt", 66, "CHAPTER I THE SHARK", "CHAPTER XXI PAGANEL’S LAST ENTANGLEMENT"),
        (
            "The Count of Monte Cristo.txt",
            117,
            "Chapter 1. Marseilles—The Arrival",
            "Chapter 117. The Fifth of October",
        ),
    ],
)
def test_the_chapters_of_real_novels(data_path: Path, name: str, n_chapters: int, first: str, last: str) -> None:
    path = data_path / "kdsh" / "books" / name
    if not path.is_file():
        pytest.skip(f"no {path}")
    book = parse_novel(path.stem, path.read_bytes())
    chapters = {part.attributes["chapter_number"]: s.title for s in book.sections for part in s.paragraphs[:1]}
    assert sorted(set(chapters) - {0}) == list(range(1, n_chapters + 1))
    assert chapters[1].endswith(first)
    assert chapters[n_chapters].endswith(last)
    assert not any("Gutenberg" in part.text for section in book.sections for part in section.paragraphs)


@check_rows(
    ("text", "value"),
    [
        ("7", 7),
        ("XIV", 14),
        ("xlix", 49),
        ("VIIII", 9),
        ("MDCCCXV", 1815),
        ("twelve", 12),
        ("Twelfth", 12),
        ("FORTY-TWO", 42),
        ("ninety\nninth", 99),
        ("twentieth", 20),
        ("One Hundred and Seventeen", 117),
        ("a hundred", 100),
        ("three hundred and ninety-nine", 399),
    ],
)
def test_numbers_are_read(text, value):
    assert number_of(text) == value


@check_rows("text", ["", "IC", "IVI", "of", "twenty-eleven", "the", "M" * 4])
def test_what_is_no_number_is_none(text):
    assert number_of(text) is None


@pytest.mark.parametrize("title", ["Title", "TITLE"])
@pytest.mark.parametrize("author", ["", "Author: A. Writer\n", "AUTHOR: A. Writer\n"])
def test_a_title_line_is_the_title_without_an_e_texts_header(title, author):
    text = f"{title}: The Small House\n{author}\nCHAPTER I\n\nIt stood there for many years, and nobody came.\n"
    book = parse_novel("pg123", text.encode())
    assert (book.title, book.metadata) == ("The Small House", {"author": "A. Writer"} if author else {})
    assert f"{title}:" not in str(book.sections)
    inside = parse_novel("pg123", b"It was a note.\n\nTitle: none of it. It goes on and on, as letters do.\n")
    assert inside.title == "pg123"
    assert "Title: none" in str(inside.sections)


@check_rows(
    ("text", "titles"),
    [
        # book-to-skill#28, readest#3570
        ("3\n\nIt went on.\n\n4\n\nIt went wrong.\n\nEPILOGUE\n\nIt ended.", ["3", "4", "EPILOGUE"]),
        ("Prologue\n\nIt was.\n\nI\n\nOne day.\n\nII.\n\nAnother.", ["Prologue", "I", "II."]),
        ("CHAPTER PROLOGUE\n\nIt was.\n\nCHAPTER I\n\nThen.", ["CHAPTER PROLOGUE", "CHAPTER I"]),
        ("PART TWELFTH NIGHT\n\nIt was.\n\nPART TWO\n\nThen.", ["PART TWELFTH NIGHT", "PART TWO"]),
        ("CHAPTER I\n\n1\n\nA day.\n\n2\n\nA night.\n\nCHAPTER II\n\nThen.", ["CHAPTER I", "CHAPTER II"]),
        ("It was the\n\n12\n\nbest of times.\n\n13\n\nIt was over.", ["x"]),
    ],
)
def test_bare_numbers_and_words_head_chapters_and_page_numbers_do_not(text, titles):
    assert [section.title for section in parse_novel("x", text.encode()).sections] == titles
