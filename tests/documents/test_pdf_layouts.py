"""Seven layouts, each with the tree that a reader would make of it, written by hand."""

import pymupdf
import pytest
from documents.sheets import BOLD, SERIF, SERIF_BOLD, Sheet
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
    y = sheet.put(72, y + 6, "Meters were read by hand.", "1. This is one of two steps.", "2. This is the other.")
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
            ["Meters were read by hand.\n1. This is one of two steps.\n2. This is the other."],
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


ROWS = [("System", "Power (W)", "Energy (MWh)"), ("Alpha", "480", "1,220"), ("Beta", "600", "310"), ("Gamma", "", "95")]
WRITTEN = [
    "System: Alpha; Power (W): 480; Energy (MWh): 1,220",
    "System: Beta; Power (W): 600; Energy (MWh): 310",
    "System: Gamma; Energy (MWh): 95",
]


def grid(sheet, top):
    sheet.level(*range(top, top + 20 * len(ROWS) + 1, 20), right=372)
    sheet.upright(72, 172, 272, 372, top=top, bottom=top + 20 * len(ROWS))


def booktabs(sheet, top):
    sheet.level(top, top + 20, top + 20 * len(ROWS), right=372)


@pytest.mark.parametrize("draw", [grid, booktabs], ids=["grid", "three rules"])
def test_a_page_with_a_table(draw):
    sheet = Sheet(font=SERIF)
    sheet.put(72, 80, "Before the table stands a paragraph of prose.", "It has two lines.")
    sheet.put(72, 130, "Table 1: Power and energy of three systems.", size=9)
    for i, row in enumerate(ROWS):
        sheet.row(154 + 20 * i, *row, xs=(76, 176, 276))
    draw(sheet, 140)
    sheet.put(72, 260, "After the table the prose goes on.")
    document = sheet.parse()
    assert outline(document) == [
        (
            "made",
            [
                "Before the table stands a paragraph of prose. It has two lines.",
                "\n".join(["Table 1: Power and energy of three systems.", *WRITTEN]),
                "After the table the prose goes on.",
            ],
        )
    ]
    table = document.sections[0].paragraphs[1]
    assert sentences(table) == ["Table 1: Power and energy of three systems.", *WRITTEN]
    assert table.attachment == Attachment("table", "p1-table1", "Table 1: Power and energy of three systems.")


def test_cells_that_line_up_are_a_table_without_rules():
    sheet = Sheet(font=SERIF)
    sheet.put(72, 80, "Three grids gave us their intensities for the whole of the year of the study.")
    for i, row in enumerate([("Grid", "Mean", "Highest"), ("Norrland", "28", "41"), ("Mesa", "310", "540")]):
        sheet.row(110 + 14 * i, *row, xs=(90, 200, 300))
    sheet.put(72, 170, "The first of them is clean but flat, so that there is little to gain by waiting.")
    (section,) = sheet.parse().sections
    table = section.paragraphs[1]
    assert sentences(table) == ["Grid: Norrland; Mean: 28; Highest: 41", "Grid: Mesa; Mean: 310; Highest: 540"]
    assert table.attachment.kind == "table"
    assert len(section.paragraphs) == 3


def test_hyphens_and_ligatures():
    sheet = Sheet(font=SERIF)
    sheet.put(
        72,
        80,
        "An energy-efficient server needs less cooling and so a smaller mea-",
        "surement hall. The energy-",
        "efficient one of 2024 is a GPT-",
        "4 server; its long-",
        "lasting fans turn slowly, at 20-",
        "25 turns a second.",
    )
    sheet.page.insert_htmlbox(
        pymupdf.Rect(72, 200, 520, 300),
        "<p style='font-size:10px'>The ﬁrst eﬀect of oﬃce ﬂoors: 10<sup>6</sup> baﬄes, a soft&shy;ware.</p>",
    )
    assert outline(sheet.parse()) == [
        (
            "made",
            [
                "An energy-efficient server needs less cooling and so a smaller measurement hall. The energy-efficient "
                "one of 2024 is a GPT-4 server; its long-lasting fans turn slowly, at 20-25 turns a second.",
                "The first effect of office floors: 10^6 baffles, a software.",
            ],
        )
    ]


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


@pytest.mark.parametrize(
    ("heads", "has_numbers", "kept"),
    [
        ([f"Chapter {word}" for word in ("Power", "Power", "Water", "Water", "Land", "Land")], True, []),
        (["Results", "Results", *(letter * 9 for letter in "cdef")], False, ["Results", "Results"]),
    ],
    ids=["beside page numbers", "alone on two pages of six"],
)
def test_two_pages_make_a_head_only_beside_page_numbers(heads, has_numbers, kept):
    sheet = Sheet(font=SERIF)
    for number, head in enumerate(heads):
        if number:
            sheet.add_page()
        sheet.put(72, 40, head, size=9)
        if has_numbers:
            sheet.put(500, 40, str(number + 1), size=9)
        sheet.put(72, 300, f"Text of page {number}.")
    texts = [text for _, paragraphs in outline(sheet.parse()) for text in paragraphs]
    assert [text for text in texts if text in heads[:2]] == kept
    assert [text for text in texts if text.startswith("Text")] == [f"Text of page {number}." for number in range(6)]


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


def test_the_metadatas_title_is_taken_where_the_page_shows_none():
    sheet = Sheet(font=SERIF)
    sheet.put(72, 140, *LOREM)
    assert sheet.parse(title="A Proper Title").title == "A Proper Title"


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
