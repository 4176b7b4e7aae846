"""Layouts, each with the tree that a reader would make of it, written by hand: columns, headings, running heads."""

import pymupdf
import pytest
from documents.sheets import BOLD, SERIF, SERIF_BOLD, Sheet, width_of
from kit.rows import check_rows
from kit.trees import outline, sentences

from kohaku_ray.documents.model import Attachment

LOREM = (
    "The plant drew power from the grid at night and from its own panels by day.",
    "Nobody had asked for the figures before, so nobody had written them down.",
    "We read the meters every hour and kept what they said in a plain table.",
)


def test_one_column_with_numbered_headings():
    sheet = Sheet(font=SERIF)
    sheet.put(72, 90, "Energy of a Small Plant", size=20, font=SERIF_BOLD)
    sheet.put(72, 120, "A. Author and B. Author")
    y = sheet.put(72, 160, "1 Introduction", size=14, font=SERIF_BOLD)
    y = sheet.put(72, y + 6, LOREM[0], LOREM[1])
    y = sheet.put(72, y + 10, LOREM[2])
    y = sheet.put(72, y + 14, "2 Methods", size=14, font=SERIF_BOLD)
    y = sheet.put(72, y + 10, "2.1 Meters", font=SERIF_BOLD)
    y = sheet.put(
        72, y + 6, "Meters were read by hand.", "\u00b7 This is one of two steps.", "\u00b7 This is the other."
    )
    y = sheet.put(72, y + 14, "2.2 Units", font=SERIF_BOLD)
    y = sheet.put(72, y + 6, "All figures are in kWh.")
    y = sheet.put(72, y + 14, "A.3 Spare Parts")
    sheet.put(72, y + 8, "None were used.")
    document = sheet.parse()
    assert (document.title, document.doc_id) == ("Energy of a Small Plant", "made")
    assert outline(document) == [
        ("Energy of a Small Plant", ["A. Author and B. Author"]),
        ("1 Introduction", [f"{LOREM[0]} {LOREM[1]}", LOREM[2]]),
        (
            "2 Methods › 2.1 Meters",
            ["Meters were read by hand.\n· This is one of two steps.\n· This is the other."],
        ),
        ("2 Methods › 2.2 Units", ["All figures are in kWh."]),
        ("2 Methods › A.3 Spare Parts", ["None were used."]),
    ]
    assert [section.page for section in document.sections] == [1] * 5
    left, top, right, bottom = document.sections[1].paragraphs[0].bbox
    assert left == 72
    assert 150 < top < bottom < 215
    assert right < 523


def test_two_columns_with_full_width_title_figure_and_footnote():
    """Full-width lines cut the page into bands; inside a band the left column comes first."""
    sheet = Sheet(font=SERIF)
    sheet.put(60, 80, "A Title that is Wider than One of the Columns", size=20, font=SERIF_BOLD)
    sheet.put(60, 112, "An abstract as wide as the page, which goes on well beyond the middle of it and so crosses")
    sheet.put(60, 124, "the gutter, and ends here.")
    left, right = 60, 305

    def column(x, y, word, n):
        return sheet.put(x, y, *(f"{word} line {i} of a column of prose here." for i in range(1, n + 1)))

    column(left, 160, "Alpha", 5)
    column(right, 160, "Beta", 5)
    sheet.page.insert_image(pymupdf.Rect(60, 240, 480, 320), pixmap=grey())
    sheet.put(60, 336, "Figure 1: A picture as wide as the page, with a caption that crosses the gutter too.", size=9)
    column(left, 370, "Gamma", 5)
    column(right, 370, "Delta", 5)
    sheet.put(60, 600, "* A footnote in small print that is as wide as both of the columns and the gutter.", size=8)

    def prose(word, n=5):
        return " ".join(f"{word} line {i} of a column of prose here." for i in range(1, n + 1))

    assert outline(sheet.parse()) == [
        (
            "A Title that is Wider than One of the Columns",
            [
                "An abstract as wide as the page, which goes on well beyond the middle of it and so crosses "
                "the gutter, and ends here.",
                prose("Alpha"),
                prose("Beta"),
                "Figure 1: A picture as wide as the page, with a caption that crosses the gutter too.",
                prose("Gamma"),
                prose("Delta"),
                "* A footnote in small print that is as wide as both of the columns and the gutter.",
            ],
        )
    ]


def test_a_paragraph_goes_on_over_columns_and_pages_around_floats():
    sheet = Sheet(font=SERIF)
    for x in (60, 305):
        sheet.put(x, 600, *["Prose that fills a line of the column."] * 5)
    sheet.put(60, 660, "This sentence began in the left column")
    sheet.put(60, 690, "1 A footnote stands in small print.", size=8)
    sheet.page.insert_image(pymupdf.Rect(305, 500, 500, 580), pixmap=grey())
    sheet.put(305, 588, "and went on in the right one, where")
    sheet.put(305, 660, "it might have ended, but it goes")
    sheet.add_page()
    sheet.put(60, 100, "on on the next page. It ends there.")
    texts = [p.text for p in sheet.parse().sections[0].paragraphs]
    prose = " ".join(["Prose that fills a line of the column."] * 5)
    assert texts == [
        f"{prose} This sentence began in the left column and went on in the right one, where {prose} "
        "it might have ended, but it goes on on the next page. It ends there.",
        "1 A footnote stands in small print.",
        "",
    ]


def test_a_slide_is_a_section():
    sheet = Sheet(960, 540)
    sheet.put(80, 220, "A Year on Sunlight", size=40, font=BOLD)
    sheet.put(80, 280, "B. Orlo, May 2025", size=22)
    sheet.put(900, 525, "1", size=12)
    for number, title, points in [
        (2, "The plant", ["An array of 24 MW.", "A battery of 61 MWh."]),
        (3, "The model", ["Nine billion parameters.", "It was paused 147 times."]),
    ]:
        sheet.add_page()
        sheet.put(80, 90, title, size=36, font=BOLD)
        sheet.put(80, 180, *(f"\u00b7 {point}" for point in points), size=24)
        sheet.put(900, 525, str(number), size=12)
    sheet.add_page()
    sheet.put(300, 280, "312 MWh in 74 days", size=60, font=BOLD)
    document = sheet.parse()
    assert document.title == "A Year on Sunlight"
    assert outline(document) == [
        ("A Year on Sunlight", ["B. Orlo, May 2025"]),
        ("The plant", ["· An array of 24 MW.\n· A battery of 61 MWh."]),
        ("The model", ["· Nine billion parameters.\n· It was paused 147 times."]),
        ("312 MWh in 74 days", ["312 MWh in 74 days"]),
    ]
    assert [section.page for section in document.sections] == [1, 2, 3, 4]


def test_running_heads_and_page_numbers_are_dropped():
    sheet = Sheet(font=SERIF)
    for number in range(1, 5):
        if number > 1:
            sheet.add_page()
        even = number % 2 == 0
        sheet.put(72 if even else 380, 40, f"Journal of Power, vol. 7, p. {100 + number}", size=9)
        sheet.put(72, 100, f"Page {number} begins with this sentence.", "It goes on with another one.")
        sheet.put(72, 720, f"The last line of page {number} is text.")
        sheet.put(290, 810, f"- {number} -", size=9)
    document = sheet.parse()
    expected = []
    for number in range(1, 5):
        expected.append(f"Page {number} begins with this sentence. It goes on with another one.")
        expected.append(f"The last line of page {number} is text.")
    assert outline(document) == [("made", expected)]


def grey():
    pixmap = pymupdf.Pixmap(pymupdf.csGRAY, pymupdf.IRect(0, 0, 40, 20))
    pixmap.clear_with(128)
    return pixmap


def test_a_figure_takes_its_caption():
    sheet = Sheet(font=SERIF)
    sheet.put(72, 80, "The text refers to Figure 2 and goes on.")
    sheet.page.insert_image(pymupdf.Rect(72, 100, 372, 250), pixmap=grey())
    sheet.put(72, 264, "Figure 2: Power by hour. The peak is", "at noon.", size=9)
    sheet.put(72, 310, "The text goes on below the figure.")
    sheet.page.insert_image(pymupdf.Rect(72, 400, 372, 550), pixmap=grey())
    sheet.page.insert_image(pymupdf.Rect(72, 600, 82, 610), pixmap=grey())
    (section,) = sheet.parse(title="Power by Hour", author="A. Author", creationDate="D:20240317120000Z").sections
    before, figure, after, bare = section.paragraphs
    caption = "Figure 2: Power by hour. The peak is at noon."
    assert figure.attachment == Attachment("image", "p1-img1", caption)
    assert figure.text == caption
    assert sentences(figure) == ["Figure 2: Power by hour.", "The peak is at noon."]
    assert (figure.page, figure.bbox) == (1, (72.0, 100.0, 372.0, 250.0))
    assert (before.text, after.text) == (
        "The text refers to Figure 2 and goes on.",
        "The text goes on below the figure.",
    )
    assert (bare.text, bare.sentences, bare.attachment) == ("", (), Attachment("image", "p1-img2", None))


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("A Proper Title", "A Proper Title"),  # it stands on the page, below a larger heading
        ("Template of Last Year's Report", "Only a Heading"),
        ("ONLY A HEADING", "ONLY A HEADING"),
    ],
)
def test_author_and_date_come_from_the_file_and_the_title_where_page_1_shows_it(title, expected):
    sheet = Sheet(font=SERIF)
    sheet.put(72, 100, "Only a Heading", size=16)
    sheet.put(72, 120, "A Proper Title")
    sheet.put(72, 140, *LOREM)
    document = sheet.parse(title=title, author="A. Author", creationDate="D:20240317120000Z")
    assert document.title == expected
    assert document.metadata == {"author": "A. Author", "date": "2024-03-17"}


def test_many_pages_in_one_section_are_odd():
    sheet = Sheet(font=SERIF)
    for _ in range(8):
        sheet.put(72, 140, *LOREM)
        sheet.add_page()
    assert sheet.parse().odd[-1] == "one section on 9 pages: no heading was found"


@check_rows("made_up", ["Microsoft Word - draft_3.docx", "untitled", "paper.tex", "D_17", "Slide 1", "42"])
def test_a_made_up_title_gives_way_to_the_largest_text(made_up):
    sheet = Sheet(font=SERIF)
    sheet.put(72, 100, "What the First Page", "Says", size=18)
    sheet.put(72, 160, *LOREM)
    document = sheet.parse(title=made_up, author="Unknown")
    assert document.title == "What the First Page Says"
    assert document.metadata.get("author") is None
    assert outline(document) == [("What the First Page Says", [" ".join(LOREM)])]


def test_paragraphs_told_by_their_indent_alone():
    sheet = Sheet(font=SERIF)
    y = sheet.put(72, 100, LOREM[0], LOREM[1])
    y = sheet.put(86, y, "An indent begins a paragraph where the one before has ended.")
    sheet.put(72, y, LOREM[2])
    assert outline(sheet.parse())[0][1] == [
        f"{LOREM[0]} {LOREM[1]}",
        f"An indent begins a paragraph where the one before has ended. {LOREM[2]}",
    ]


def test_a_page_printed_sideways_is_read_along_its_lines():
    sheet = Sheet(font=SERIF)
    for i, line in enumerate(LOREM):
        sheet.put(100 + 12 * i, 700, line, rotate=90)
    (section,) = sheet.parse().sections
    (paragraph,) = section.paragraphs
    assert paragraph.text == " ".join(LOREM)
    left, top, right, bottom = paragraph.bbox
    assert 85 < left < right < 135
    assert 300 < top < bottom <= 700


def test_the_files_own_contents_list_tells_the_headings():
    """Its levels count, not sizes; a large line that it does not name is text."""
    sheet = Sheet(font=SERIF)
    y = sheet.put(72, 60, "A Year of Meters", size=24) + 20
    for title in ("Where we measured", "The meters", "What we found"):
        y = sheet.put(72, y, title, font=SERIF_BOLD)
        y = sheet.put(72, y + 10, *LOREM) + 20
    sheet.put(72, y, "Call us today", size=16)
    sheet.file.set_toc([[1, "1 Where we measured", 1], [2, "1.1 The meters", 1], [1, "2 What we found", 1]])
    prose = " ".join(LOREM)
    assert outline(sheet.parse()) == [
        ("Where we measured", [prose]),
        ("Where we measured › The meters", [prose]),
        ("What we found", [prose, "Call us today"]),
    ]


def test_a_contents_list_that_the_pages_do_not_show_tells_nothing():
    sheet = Sheet(font=SERIF)
    sheet.put(72, 100, "1 Introduction", size=14, font=SERIF_BOLD)
    sheet.put(72, 130, *LOREM)
    sheet.file.set_toc([[1, "Cover", 1], [1, "slide-04.png", 1], [1, "Introduction", 1]])
    assert [section.title for section in sheet.parse().sections] == ["1 Introduction"]


def test_the_numbers_of_an_axis_at_the_foot_of_a_page_are_no_page_numbers():
    sheet = Sheet()
    sheet.put(72, 120, *LOREM)
    numbers = [str(32 * i) for i in range(8)]
    sheet.row(780, *numbers, xs=range(100, 500, 50))
    sheet.put(290, 830, "17")
    assert " ".join(text for _, texts in outline(sheet.parse()) for text in texts).split()[-8:] == numbers


def test_upright_labels_of_a_plot_are_named_as_dropped():
    sheet = Sheet()
    sheet.put(72, 120, *LOREM)
    for i in range(4):
        sheet.put(100, 500 + 40 * i, f"0.{i}", size=8, rotate=90)
    document = sheet.parse()
    assert document.dropped == ("4 upright texts: '0.0', '0.1', '0.2' and 1 more",)
    assert outline(document) == [("made", [" ".join(LOREM)])]


@check_rows(
    ("lines", "written"),
    [
        (("The server needs less measure-", "ment than before."), "The server needs less measurement than before."),
        (("It is state-", "of-the-art."), "It is state-of-the-art."),
        (("It used 345 MWh in 2019-", "2021."), "It used 345 MWh in 2019-2021."),
        (("See the works [60,", "158] of others."), "See the works [60, 158] of others."),  # 12,⏎345 was one number
        (("1 Chapter . . . . . . . . 10", "2 Chapter . . . . . . . . 11"), "1 Chapter … 10\n2 Chapter … 11"),
    ],
)
def test_words_and_numbers_that_a_lines_end_divides_are_one(lines, written):
    sheet = Sheet()
    sheet.put(72, 100, *lines)
    assert sheet.texts() == [written]


@check_rows(
    ("text", "script", "size", "rise", "written"),
    [
        ("It has 1.3 x 10", "9", 7, 4, "It has 1.3 x 10^9"),
        ("The mean was 1.58", "2", 7, 4, "The mean was 1.58 [2]"),
        ("It emits CO", "2", 7, -2, "It emits CO2"),
        ("It has 1.3 x 10", "9", 9.7, 5, "It has 1.3 x 10^9"),  # WeasyPrint's size of a raised digit
        ("On the 21", "st", 7, 4, "On the 21st"),
    ],
)
def test_raised_and_lowered_characters(text, script, size, rise, written):
    sheet = Sheet()
    sheet.put(72, 100, text)
    sheet.put(72 + width_of(text), 100 - rise, script, size=size)
    assert sheet.texts() == [written]
