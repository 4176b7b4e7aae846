"""What is printed on pages and is no text: numbers of lines, watermarks, and words set letter by letter."""

import pymupdf
import pytest

from kohaku_ray.documents.parse import parse_file

PROSE = (
    "The training run consumed 1,287 MWh of electricity in total and",
    "emitted 552 tonnes of carbon dioxide, which equals the yearly",
    "footprint of 119 households. The power usage effectiveness of",
    "the data center was 1.10 and the GPUs drew 300 W each while",
    "the job was running for 14.8 days on ten thousand devices.",
)
LINES = PROSE * 3
TEXT = " ".join(LINES)


def texts(*pages):
    """The paragraphs of a file whose pages are drawn by these functions."""
    file = pymupdf.open()
    for draw in pages:
        draw(file.new_page())
    document = parse_file("x.pdf", file.tobytes())
    return [paragraph.text for section in document.sections for paragraph in section.paragraphs]


def put(page, x, y, lines, size=11, leading=14):
    for i, line in enumerate(lines):
        page.insert_text((x, y + leading * i), line, fontsize=size)


@pytest.mark.parametrize(
    ("x", "size", "numbers"),
    [
        (40, 7, [f"{i:03d}" for i in range(1, 16)]),
        (40, 7, list(range(46, 61))),
        (59, 6, list(range(1, 16))),  # as close as LaTeX sets them
        (40, 11, list(range(1, 16))),  # as large as the text
        (400, 7, list(range(1, 16))),  # in the right margin
        (390, 7, list(range(1, 16))),
        (40, 7, ["" if i % 5 else i for i in range(36, 61)]),  # every fifth line
    ],
)
@pytest.mark.parametrize("is_last", [True, False], ids=["after the text", "line by line"])
def test_line_numbers_in_a_margin_are_no_text(x, size, numbers, is_last):
    lines = (PROSE * 5)[: len(numbers)]

    def draw(page):
        for i, line in enumerate(lines):
            page.insert_text((72, 120 + 14 * i), line, fontsize=11)
            if not is_last:
                page.insert_text((x, 120 + 14 * i), str(numbers[i]), fontsize=size)
        for i, number in enumerate(numbers if is_last else ()):
            page.insert_text((x, 120 + 14 * i), str(number), fontsize=size)

    assert texts(draw) == [" ".join(lines)]


def test_line_numbers_of_two_columns():
    left, right = [line[:38].strip() for line in LINES], [line[:38].strip().upper() for line in LINES]

    def draw(page):
        put(page, 60, 120, left, 10)
        put(page, 320, 120, right, 10)
        put(page, 30, 120, [f"{i:03d}" for i in range(15)], 7)
        put(page, 560, 120, [f"{i:03d}" for i in range(15, 30)], 7)

    assert texts(draw) == [" ".join(left), " ".join(right)]


def test_a_column_of_ranks_is_a_part_of_its_table():
    def draw(page):
        put(page, 72, 100, ["A sentence stands over the table and says what is in it."])
        for i in range(8):
            for x, cell in ((72, str(i + 1)), (140, f"Model {'ABCDEFGH'[i]}"), (260, f"{1280 + i} MWh")):
                page.insert_text((x, 140 + 14 * i), cell, fontsize=11)

    table = texts(draw)[1].split("\n")
    assert table[0] == "1 | Model A | 1280 MWh"
    assert len(table) == 8


def test_numbered_steps_keep_their_numbers():
    def draw(page):
        for i in range(8):
            page.insert_text((60, 120 + 30 * i), str(i + 1), fontsize=11)
            page.insert_text((80, 120 + 30 * i), f"Step {i + 1} of the work takes {i + 20} hours in all.", fontsize=11)

    assert all(f"{i}" in "\n".join(texts(draw)).split() for i in range(1, 9))


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("word", "size", "x"), [("DRAFT", 90, 300), ("CONFIDENTIAL", 48, 60), ("Draft 2.1", 60, 72)])
def test_a_watermark_across_the_lines_is_no_text(word, size, x, is_first):
    def draw(page):
        if is_first:
            page.insert_text((x, 260), word, fontsize=size, color=(0.9, 0.9, 0.9))
        put(page, 72, 200, PROSE)
        if not is_first:
            page.insert_text((x, 260), word, fontsize=size, color=(0.9, 0.9, 0.9))

    assert texts(draw) == [" ".join(PROSE)]


def test_a_large_title_and_an_initial_are_text():
    def draw(page):
        page.insert_text((72, 90), "A Title", fontsize=48)
        page.insert_text((72, 144), "T", fontsize=36)
        put(page, 96, 120, ["he first line stands beside the initial,", "and so does the second one of them."])
        put(page, 72, 148, PROSE)

    found = "\n".join(texts(draw))
    assert "he first line" in found
    assert "A Title" in everything(draw)


def everything(draw):
    file = pymupdf.open()
    draw(file.new_page())
    document = parse_file("x.pdf", file.tobytes())
    paragraphs = [(section.title, *(p.text for p in section.paragraphs)) for section in document.sections]
    return "\n".join((document.title, *(text for texts in paragraphs for text in texts)))


def letter_by_letter(page, x, y, text, gap, size=11):
    for char in text:
        page.insert_text((x, y), char, fontsize=size)
        x += pymupdf.get_text_length(char, fontsize=size) + gap


@pytest.mark.parametrize("gap", [1.6, 2.2, 3.3, 4.4])
@pytest.mark.parametrize("text", ["Energy use was 1287 MWh", "EXECUTIVE SUMMARY", "ABSTRACT", "article info"])
def test_words_set_letter_by_letter_are_words(text, gap):
    def draw(page):
        letter_by_letter(page, 72, 100, text, gap)
        put(page, 72, 170, PROSE)

    assert text in everything(draw)


@pytest.mark.parametrize("text", ["a b c d e f", "0 1 0 1 1 0", "Y N Y N N Y", "x = a + b"])
def test_single_letters_between_spaces_stay_apart(text):
    def draw(page):
        put(page, 72, 100, [text])
        put(page, 72, 170, PROSE)

    assert text in everything(draw)
