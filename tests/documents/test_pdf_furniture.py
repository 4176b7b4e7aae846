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
        (400, 7, list(range(1, 16))),  # in the right margin
        (390, 7, list(range(1, 16))),
        (40, 7, ["" if i % 5 else i for i in range(36, 61)]),  # every fifth line
        (40, 7, [f"{i}:" for i in range(1, 16)]),
    ],
)
@pytest.mark.parametrize("is_last", [True, False], ids=["after the text", "line by line"])
def test_line_numbers_in_a_margin_are_no_text(x, size, numbers, is_last):
    """MinerU#382, pdfalto#225."""
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

    text = "\n".join(texts(draw))
    assert "he first line" in text
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


def parse(*draws):
    file = pymupdf.open()
    for draw in draws:
        draw(file.new_page())
    return parse_file("x.pdf", file.tobytes())


def test_the_first_line_of_some_pages_far_apart_is_no_running_head():
    def page(i):
        def draw(page):
            put(page, 72, 40, ["A manual of the meter"])
            put(
                page,
                72,
                58,
                [f"See page {100 + i} on it." if i % 8 == 1 else f"Now {'abcdefgh'[i % 8] * 3} stands here."],
            )
            put(page, 72, 120, PROSE)

        return draw

    document = parse(*map(page, range(40)))
    text = "\n".join(paragraph.text for section in document.sections for paragraph in section.paragraphs)
    assert [f"See page {100 + i} on it." in text for i in range(40)] == [i % 8 == 1 for i in range(40)]
    assert "A manual of the meter" not in text


def test_the_numbers_of_an_axis_at_the_foot_of_a_page_are_no_page_numbers():
    def draw(page):
        put(page, 72, 120, LINES)
        for i in range(8):
            put(page, 100 + 50 * i, 780, [str(32 * i)])

    assert " ".join(texts(draw)).split()[-8:] == [str(32 * i) for i in range(8)]


def test_upright_labels_of_a_plot_are_named_as_dropped():
    def draw(page):
        put(page, 72, 120, LINES)
        for i in range(4):
            page.insert_text((100, 500 + 40 * i), f"0.{i}", fontsize=8, rotate=90)

    document = parse(draw)
    assert document.dropped == ("4 upright texts: '0.0', '0.1', '0.2' and 1 more",)
    assert "0.1" not in "".join(paragraph.text for section in document.sections for paragraph in section.paragraphs)


@pytest.mark.parametrize(
    ("symbol", "n", "is_dropped"), [("+", 40, True), ("+", 8, False), ("7", 40, False), ("e", 40, False)]
)
def test_the_points_of_a_plot_are_no_text(symbol, n, is_dropped):
    def draw(page):
        put(page, 72, 120, LINES)
        for i in range(n):
            put(page, 90 + (i * 37) % 400, 400 + (i * 53) % 250, [symbol], size=6)

    document = parse(draw)
    assert bool(document.dropped) is is_dropped
    if is_dropped:
        assert document.dropped == (f"{n} symbols of a plot: {symbol!r} × {n}",)
        assert [paragraph.text for section in document.sections for paragraph in section.paragraphs] == [TEXT]


def test_steps_in_small_print_keep_their_numbers():
    def draw(page):
        for i in range(8):
            page.insert_text((60, 120 + 14 * i), f"{i + 1}.", fontsize=7)
            page.insert_text((80, 120 + 14 * i), f"Step {i + 1} of the work takes {i + 20} hours in all.", fontsize=11)

    assert all(f"{i}." in "\n".join(texts(draw)).split() for i in range(1, 9))


def test_a_small_watermark_that_is_repeated_all_over_the_page():
    def draw(page):
        for x in (100, 300):
            put(page, x, 150, ["DRAFT"] * 3, 28, 70)
        put(page, 72, 120, LINES)

    assert texts(draw) == [TEXT]


def test_a_line_that_is_printed_twice_to_be_bold_is_read_once():
    def draw(page):
        for line in ("It was 1,287 MWh in 2020.", "It was 12 MWh in 2021."):
            for x in (72, 72.3):
                page.insert_text((x, 100), line, fontsize=11) if "2020" in line else put(page, x, 130, [line])
        put(page, 72, 170, PROSE)

    text = everything(draw)
    assert text.count("It was 1,287 MWh in 2020.") == text.count("It was 12 MWh in 2021.") == 1


@pytest.mark.parametrize("text", ["energy was 1287", "no more than 5"])
def test_a_part_of_a_line_that_is_set_letter_by_letter(text):
    def draw(page):
        page.insert_text((72, 100), "The use of", fontsize=11)
        letter_by_letter(page, 128, 100, text, 2.2)
        page.insert_text(
            (128 + pymupdf.get_text_length(text, fontsize=11) + 2.2 * len(text) + 4, 100), "MWh.", fontsize=11
        )
        put(page, 72, 170, PROSE)

    assert f"The use of {text} MWh." in everything(draw)
    assert "the ranks 1 2 3 4 5 6 7 are all" in everything(
        lambda page: put(page, 72, 99, ["Of the ranks 1 2 3 4 5 6 7 are all"])
    )
