"""Headings of real documents: none in a table of contents, but those in bold at the size of the text."""

import pymupdf
import pytest

from kohaku_ray.documents.parse import parse_file

SERIF, BOLD = "tiro", "tibo"
RIGHT = 520
PROSE = (
    "The meters were read every hour, and what they said was kept in a plain table that",
    "anyone may read. Nobody had asked for the figures before, so nobody had them at hand",
    "when the first question came in; since then they have been published month by month.",
)


class Sheet:
    """A PDF in the making, filled from top to bottom."""

    def __init__(self):
        self.file = pymupdf.open()
        self.add_page()

    def add_page(self):
        self.page = self.file.new_page(width=595, height=842)
        self.y = 80

    def put(self, *lines, x=72, size=10, font=SERIF, gap=10):
        self.y += gap
        for line in lines:
            self.page.insert_text((x, self.y), line, fontname=font, fontsize=size)
            self.y += 1.2 * size

    def put_right(self, text, size=10, font=SERIF):
        """Set a text against the right edge of the line that was put last."""
        width = pymupdf.get_text_length(text, fontname=font, fontsize=size)
        self.page.insert_text((RIGHT - width, self.y - 1.2 * size), text, fontname=font, fontsize=size)

    def entry(self, title, page, x=72, font=SERIF, gap=6, leaders=True):
        """One line of a table of contents."""
        self.put(title, x=x, font=font, gap=gap)
        number = pymupdf.get_text_length(page, fontname=font, fontsize=10)
        start = x + pymupdf.get_text_length(title, fontname=font, fontsize=10) + 6
        if leaders:
            dots = ". " * int((RIGHT - number - 6 - start) / pymupdf.get_text_length(". ", fontname=SERIF, fontsize=10))
            self.page.insert_text((start, self.y - 12), dots, fontname=SERIF, fontsize=10)
        self.put_right(page, font=font)

    def parse(self):
        return parse_file("docs/made.pdf", self.file.tobytes())


def titles(document):
    return [section.title for section in document.sections]


def report(with_contents):
    """A numbered report with chapters in bold, and a table of contents as LaTeX sets it."""
    sheet = Sheet()
    sheet.put("Energy of a Small Plant", size=20, font=BOLD)
    sheet.add_page()
    with_contents(sheet)
    sheet.add_page()
    for chapter in ("1 Introduction", "2 Methods of Measurement"):
        sheet.put(chapter, size=14, font=BOLD, gap=24)
        sheet.put(*PROSE)
        for section in ("1 Scope", "2 Meters and Their Places on the Site, with All that Was Changed Later"):
            sheet.put(f"{chapter[0]}.{section}", font=BOLD)
            sheet.put(*PROSE, gap=4)
    return sheet.parse()


def latex_contents(sheet):
    sheet.put("Contents", size=14, font=BOLD)
    for chapter in (("1 Introduction", "3"), ("2 Methods of Measurement", "4")):
        sheet.entry(*chapter, font=BOLD, gap=12, leaders=False)
        sheet.entry(f"{chapter[0][0]}.1 Scope", chapter[1], x=90)
        # a long title goes on in a second line; only that one has leaders
        sheet.put(f"{chapter[0][0]}.2 Meters and Their Places on the Site,", x=90)
        sheet.entry("with All that Was Changed Later", "12", x=110)
    sheet.entry("A. Data", "14", font=BOLD, gap=12, leaders=False)


def office_contents(sheet):
    """Wide lines, and a number of two parts in every entry."""
    sheet.put("Table of Contents", size=14, font=BOLD)
    for number, title, page in (
        ("1.1", "Scope", "iv"), ("1.2", "Meters", "3"), ("2.1", "Scope", "10"), ("2.2", "Meters", "101")
    ):  # fmt: skip
        sheet.entry(f"{number} {title}", page, gap=14)


@pytest.mark.parametrize("contents", [latex_contents, office_contents])
def test_entries_of_a_table_of_contents_are_no_headings(contents):
    long = "Meters and Their Places on the Site, with All that Was Changed Later"
    document = report(contents)
    headings = [title for title in titles(document) if title != "Energy of a Small Plant"]
    assert headings == [
        "1 Introduction",
        "1 Introduction › 1.1 Scope",
        f"1 Introduction › 1.2 {long}",
        "2 Methods of Measurement",
        "2 Methods of Measurement › 2.1 Scope",
        f"2 Methods of Measurement › 2.2 {long}",
    ]
    assert "contents lines on page 2" in document.dropped[-1]


def test_a_numbered_heading_below_a_table_of_contents_stays_one():
    sheet = Sheet()
    sheet.put("Energy of a Small Plant", size=20, font=BOLD)
    for number in "1234":
        sheet.entry(f"{number} Chapter", f"1{number}")
    sheet.put("1 Chapter", font=BOLD, gap=30)
    sheet.put(*PROSE, gap=4)
    assert titles(sheet.parse()) == ["1 Chapter"]


def test_headings_of_a_manual_page():
    """Bold lines at the size of the text, left of it; an option in a list is bold and at its margin, but no heading."""
    sheet = Sheet()
    sheet.put("NAME", font=BOLD)
    sheet.put("meterd - reads the meters of a plant", x=108, gap=0)
    sheet.put("DESCRIPTION", font=BOLD, gap=6)
    sheet.put(*PROSE, x=108, gap=0)
    sheet.put("Places", x=87, font=BOLD, gap=6)
    sheet.put(*PROSE, x=108, gap=0)
    sheet.put("ENVIRONMENT", font=BOLD, gap=6)
    for name in ("METER", "METER_UNIT"):
        sheet.put(name, x=108, font=BOLD, gap=6)
        sheet.put(*PROSE, x=144, gap=0)
    document = sheet.parse()
    assert titles(document) == ["NAME", "DESCRIPTION", "DESCRIPTION › Places", "ENVIRONMENT"]
    assert [p.text for p in document.sections[-1].paragraphs] == [
        "METER", " ".join(PROSE), "METER_UNIT", " ".join(PROSE)
    ]  # fmt: skip


def test_bold_headings_at_the_margin_of_the_text():
    sheet = Sheet()
    for title in ("Where we measured", "What we found"):
        sheet.put(title, font=BOLD, gap=16)
        sheet.put(*PROSE, gap=2)
        sheet.put(*PROSE, gap=8)
    document = sheet.parse()
    assert titles(document) == ["Where we measured", "What we found"]
    assert [len(section.paragraphs) for section in document.sections] == [2, 2]


def test_a_bold_line_within_a_paragraph_is_no_heading():
    sheet = Sheet()
    sheet.put(*PROSE)
    sheet.put("The figures of May and of June", font=BOLD, gap=0)
    sheet.put(*PROSE, gap=0)
    assert titles(sheet.parse()) == ["made"]


def test_a_form_of_labels_in_bold_has_no_headings():
    sheet = Sheet()
    for label in ("Name", "Street", "Town", "Country", "Telephone", "Signature"):
        sheet.put(label, font=BOLD, gap=16)
        sheet.put("written by hand", gap=4)
    assert titles(sheet.parse()) == ["made"]


def centred(sheet, text, size=10):
    width = pymupdf.get_text_length(text, fontname=BOLD, fontsize=size)
    sheet.y += 10
    sheet.page.insert_text((72 + (column_width() - width) / 2, sheet.y), text, fontname=BOLD, fontsize=size)
    sheet.y += 1.2 * size


def column_width():
    return max(pymupdf.get_text_length(line, fontname=SERIF, fontsize=10) for line in PROSE)


def test_bold_lines_in_the_middle_of_the_column_are_headings():
    """REVTeX sets them so, a little smaller than the text, and APA style at its size; a report number is no heading."""
    sheet = Sheet()
    sheet.put("Energy of a Small Plant", size=20, font=BOLD)
    sheet.put("LA-UR-21-12345", x=400, size=9)
    for size in (9, 10):
        centred(sheet, "METHODS", size)
        sheet.put(*PROSE, gap=4)
        sheet.put(*PROSE, gap=10)
        centred(sheet, "Meters", size)
        sheet.put(*PROSE, gap=4)
        sheet.put(*PROSE, gap=10)
        centred(sheet, "RESULTS", size)
        sheet.put(*PROSE, gap=4)
        sheet.put(*PROSE, gap=10)
    assert titles(sheet.parse()) == [
        "Energy of a Small Plant",
        *("METHODS", "METHODS › Meters", "RESULTS") * 2,
    ]
