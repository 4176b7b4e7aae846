import pytest
from kit.rows import check_rows

from kohaku_ray.documents.parse import parse_file


def parse(text):
    return parse_file("docs/notes.txt", text.encode())


def outline(text):
    return [(section.title, [paragraph.text for paragraph in section.paragraphs]) for section in parse(text).sections]


def test_blank_lines_and_page_breaks_separate_paragraphs():
    assert outline("One line.\nAnd a wrapped one.  \n \t\nTwo.\fThree.") == [
        ("notes", ["One line.\nAnd a wrapped one.", "Two.", "Three."])
    ]


@check_rows(
    ("text", "title"),
    [
        ("Energy Use of GPUs\n\nThey draw power.", "Energy Use of GPUs"),
        ("Energy Use of GPUs\nBy A. Smith\n\nThey draw power.", "Energy Use of GPUs"),
        ("Energy use\n==========\nThey draw power.", "Energy use"),
        ("They draw a lot of power, which is\nmore than ever.", "notes"),
        ("They draw power.", "notes"),
        ("x" * 81 + "\n\nThey draw power.", "notes"),
        ("***\n\nThey draw power.", "notes"),
    ],
)
def test_a_short_first_line_is_the_title(text, title):
    assert parse(text).title == title


def test_the_title_line_is_not_repeated_as_a_paragraph():
    assert outline("My report\n\nIt is short.") == [("My report", ["It is short."])]
    assert outline("My report\n\nCHAPTER I\n\nIt is short.") == [("CHAPTER I", ["It is short."])]
    assert outline("My report") == [("My report", ["My report"])]


@check_rows(
    "heading",
    [
        "CHAPTER IV",
        "CHAPTER IV.",
        "Chapter 1. Marseilles—The Arrival",
        "CHAPTER II THE THREE DOCUMENTS",
        "Part Two",
        "LETTER A (to her sister)",
        "BOOK THE FIRST: Recalled to Life",
        "1.2 Title of it",
        "3. Results",
        "2 Methods",
        "6. Who waits?",
        "IV. Results",
        "RELATED WORK",
        "Results\n=======",
        "Results\n---",
    ],
)
def test_headings_open_sections(heading):
    assert outline(f"It begins here.\n\n{heading}\n\nIt goes on.") == [
        ("notes", ["It begins here."]),
        (heading.split("\n")[0], ["It goes on."]),
    ]


@check_rows(
    "line",
    [
        "STOP!",
        "NO.",
        "MODEL  POWER  PRICE",
        "42 400 312",
        "42 MW of power",
        "1.5 GB",
        "Chapters of it",
        "3. He ran. It fell",
        "part of the story",
        "Section 3 shows the results.",
        "VOLUME ONE\nChapter 1",
        "Chapter 1\nIt rained.",
        "A normal line",
    ],
)
def test_other_short_lines_are_paragraphs(line):
    assert outline(f"It begins here.\n\n{line}\n\nIt goes on.") == [("notes", ["It begins here.", line, "It goes on."])]


@pytest.mark.parametrize("block", ["CHAPTER IV\nTHE STORM", " Chapter 61. How a Gardener\n May Get Rid of the Dormice"])
def test_a_chapter_title_may_take_two_lines(block):
    assert outline(f"It begins here.\n\n{block}\n\nIt goes on.")[1] == (" ".join(block.split()), ["It goes on."])


def test_a_division_over_another_heading_becomes_part_of_its_title():
    assert outline(
        "It begins.\n\nVOLUME ONE\n\nChapter 1\n\nTHE STORM\n\nText.\n\n1 Methods\n\n1.1 Setup\n\nText."
    ) == [
        ("notes", ["It begins."]),
        ("VOLUME ONE › Chapter 1 › THE STORM", ["Text."]),
        ("1 Methods › 1.1 Setup", ["Text."]),
    ]


def test_headings_without_a_body_stay_as_text():
    assert outline("It begins.\n\nPAGE ONE\n\nPAGE TWO\n\nText.\n\n1. Buy milk\n\n2. Sell eggs\n\nTHE END") == [
        ("notes", ["It begins.", "PAGE ONE"]),
        ("PAGE TWO", ["Text.", "1. Buy milk", "2. Sell eggs", "THE END"]),
    ]
