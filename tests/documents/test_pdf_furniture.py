"""What is printed on pages and is no text: numbers of lines, watermarks, and words set letter by letter."""

import pytest
from documents.sheets import Sheet, width_of

PROSE = (
    "The training run consumed 1,287 MWh of electricity in total and",
    "emitted 552 tonnes of carbon dioxide, which equals the yearly",
    "footprint of 119 households. The power usage effectiveness of",
    "the data center was 1.10 and the GPUs drew 300 W each while",
    "the job was running for 14.8 days on ten thousand devices.",
)
LINES = PROSE * 3
TEXT = " ".join(LINES)
STEP = 14


@pytest.fixture
def sheet():
    """A sheet for type of 11 points."""
    return Sheet(size=11, step=STEP)


def everything(sheet):
    """The title, the sections' titles and the paragraphs, a line each."""
    document = sheet.parse()
    sections = [(section.title, *(p.text for p in section.paragraphs)) for section in document.sections]
    return "\n".join((document.title, *(text for texts in sections for text in texts)))


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
def test_line_numbers_in_a_margin_are_no_text(sheet, x, size, numbers, is_last):
    """MinerU#382, pdfalto#225."""
    lines = (PROSE * 5)[: len(numbers)]
    if is_last:
        sheet.put(72, 120, *lines)
        sheet.put(x, 120, *map(str, numbers), size=size)
    else:
        for i, line in enumerate(lines):
            sheet.put(72, 120 + STEP * i, line)
            sheet.put(x, 120 + STEP * i, str(numbers[i]), size=size)
    assert sheet.texts() == [" ".join(lines)]


def test_line_numbers_of_two_columns(sheet):
    left, right = [line[:38].strip() for line in LINES], [line[:38].strip().upper() for line in LINES]
    sheet.put(60, 120, *left, size=10)
    sheet.put(320, 120, *right, size=10)
    sheet.put(30, 120, *(f"{i:03d}" for i in range(15)), size=7)
    sheet.put(560, 120, *(f"{i:03d}" for i in range(15, 30)), size=7)
    assert sheet.texts() == [" ".join(left), " ".join(right)]


def test_a_column_of_ranks_is_a_part_of_its_table(sheet):
    sheet.put(72, 100, "A sentence stands over the table and says what is in it.")
    for i in range(8):
        sheet.row(140 + STEP * i, str(i + 1), f"Model {'ABCDEFGH'[i]}", f"{1280 + i} MWh", xs=(72, 140, 260))
    table = sheet.texts()[1].split("\n")
    assert table[0] == "1 | Model A | 1280 MWh"
    assert len(table) == 8


@pytest.mark.parametrize(("number", "size", "step"), [("{}", 11, 30), ("{}.", 7, STEP)], ids=["apart", "small print"])
def test_numbered_steps_keep_their_numbers(sheet, number, size, step):
    for i in range(1, 9):
        sheet.put(60, 90 + step * i, number.format(i), size=size)
        sheet.put(80, 90 + step * i, f"Step {i} of the work takes {i + 19} hours in all.")
    assert {number.format(i) for i in range(1, 9)} <= set("\n".join(sheet.texts()).split())


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("word", "size", "x"), [("DRAFT", 90, 300), ("CONFIDENTIAL", 48, 60), ("Draft 2.1", 60, 72)])
def test_a_watermark_across_the_lines_is_no_text(sheet, word, size, x, is_first):
    grey = {"size": size, "color": (0.9, 0.9, 0.9)}
    if is_first:
        sheet.put(x, 260, word, **grey)
    sheet.put(72, 200, *PROSE)
    if not is_first:
        sheet.put(x, 260, word, **grey)
    assert sheet.texts() == [" ".join(PROSE)]


def test_a_small_watermark_that_is_repeated_all_over_the_page(sheet):
    for x in (100, 300):
        sheet.put(x, 150, *["DRAFT"] * 3, size=28, step=70)
    sheet.put(72, 120, *LINES)
    assert sheet.texts() == [TEXT]


def test_a_large_title_and_an_initial_are_text(sheet):
    sheet.put(72, 90, "A Title", size=48)
    sheet.put(72, 144, "T", size=36)
    sheet.put(96, 120, "he first line stands beside the initial,", "and so does the second one of them.")
    sheet.put(72, 148, *PROSE)
    assert "he first line" in "\n".join(sheet.texts())
    assert "A Title" in everything(sheet)


def put_letter_by_letter(sheet, x, y, text, gap):
    """Set a text with a gap behind each letter; return where it ends."""
    for char in text:
        sheet.put(x, y, char)
        x += width_of(char, sheet.size) + gap
    return x


@pytest.mark.parametrize("gap", [1.6, 2.2, 3.3, 4.4])
@pytest.mark.parametrize("text", ["Energy use was 1287 MWh", "EXECUTIVE SUMMARY", "ABSTRACT", "article info"])
def test_words_set_letter_by_letter_are_words(sheet, text, gap):
    put_letter_by_letter(sheet, 72, 100, text, gap)
    sheet.put(72, 170, *PROSE)
    assert text in everything(sheet)


@pytest.mark.parametrize("text", ["energy was 1287", "no more than 5"])
def test_a_part_of_a_line_that_is_set_letter_by_letter(sheet, text):
    sheet.put(72, 100, "The use of")
    end = put_letter_by_letter(sheet, 128, 100, text, 2.2)
    sheet.put(end + 4, 100, "MWh.")
    sheet.put(72, 170, *PROSE)
    assert f"The use of {text} MWh." in everything(sheet)


@pytest.mark.parametrize(
    "text", ["a b c d e f", "0 1 0 1 1 0", "Y N Y N N Y", "x = a + b", "Of the ranks 1 2 3 4 5 6 7 are all"]
)
def test_single_letters_between_spaces_stay_apart(sheet, text):
    sheet.put(72, 100, text)
    sheet.put(72, 170, *PROSE)
    assert text in everything(sheet)


def test_the_first_line_of_some_pages_far_apart_is_no_running_head(sheet):
    for i in range(40):
        if i:
            sheet.add_page()
        sheet.put(72, 40, "A manual of the meter")
        sheet.put(72, 58, f"See page {100 + i} on it." if i % 8 == 1 else f"Now {'abcdefgh'[i % 8] * 3} stands here.")
        sheet.put(72, 120, *PROSE)
    text = "\n".join(sheet.texts())
    assert [f"See page {100 + i} on it." in text for i in range(40)] == [i % 8 == 1 for i in range(40)]
    assert "A manual of the meter" not in text


def test_the_numbers_of_an_axis_at_the_foot_of_a_page_are_no_page_numbers(sheet):
    sheet.put(72, 120, *LINES)
    numbers = [str(32 * i) for i in range(8)]
    sheet.row(780, *numbers, xs=range(100, 500, 50))
    assert " ".join(sheet.texts()).split()[-8:] == numbers


def test_upright_labels_of_a_plot_are_named_as_dropped(sheet):
    sheet.put(72, 120, *LINES)
    for i in range(4):
        sheet.put(100, 500 + 40 * i, f"0.{i}", size=8, rotate=90)
    assert sheet.parse().dropped == ("4 upright texts: '0.0', '0.1', '0.2' and 1 more",)
    assert "0.1" not in "".join(sheet.texts())


@pytest.mark.parametrize(
    ("symbol", "n", "is_dropped"), [("+", 40, True), ("+", 8, False), ("7", 40, False), ("e", 40, False)]
)
def test_the_points_of_a_plot_are_no_text(sheet, symbol, n, is_dropped):
    sheet.put(72, 120, *LINES)
    for i in range(n):
        sheet.put(90 + (i * 37) % 400, 400 + (i * 53) % 250, symbol, size=6)
    assert sheet.parse().dropped == ((f"{n} symbols of a plot: {symbol!r} × {n}",) if is_dropped else ())
    assert (sheet.texts() == [TEXT]) == is_dropped


def test_a_line_that_is_printed_twice_to_be_bold_is_read_once(sheet):
    lines = {"It was 1,287 MWh in 2020.": 100, "It was 12 MWh in 2021.": 130}
    for line, y in lines.items():
        for x in (72, 72.3):
            sheet.put(x, y, line)
    sheet.put(72, 170, *PROSE)
    text = everything(sheet)
    assert [text.count(line) for line in lines] == [1, 1]
