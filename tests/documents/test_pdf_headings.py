"""Headings of real documents: none in a table of contents, but those in bold at the size of the text."""

import pytest
from documents.sheets import SERIF, SERIF_BOLD, Sheet, width_of

RIGHT = 520
PROSE = (
    "The meters were read every hour, and what they said was kept in a plain table that",
    "anyone may read. Nobody had asked for the figures before, so nobody had them at hand",
    "when the first question came in; since then they have been published month by month.",
)


class Column(Sheet):
    """A sheet that is filled from top to bottom."""

    def __init__(self):
        super().__init__(font=SERIF)

    def add_page(self):
        super().add_page()
        self.y = 80

    def add(self, *lines, x=72, size=10, font=SERIF, gap=10):
        self.y = self.put(x, self.y + gap, *lines, size=size, font=font)

    def add_centred(self, text, size):
        width = max(width_of(line, font=SERIF) for line in PROSE)
        self.add(text, x=72 + (width - width_of(text, size, SERIF_BOLD)) / 2, size=size, font=SERIF_BOLD)

    def entry(self, title, page, x=72, font=SERIF, gap=6, leaders=True):
        """One line of a table of contents."""
        self.add(title, x=x, font=font, gap=gap)
        begin, end = x + width_of(title, font=font) + 6, RIGHT - width_of(page, font=font)
        if leaders:
            self.put(begin, self.y - 12, ". " * int((end - 6 - begin) / width_of(". ", font=SERIF)))
        self.put(end, self.y - 12, page, font=font)


def titles(document):
    return [section.title for section in document.sections]


def report(with_contents):
    """A numbered report with chapters in bold, and a table of contents as LaTeX sets it."""
    sheet = Column()
    sheet.add("Energy of a Small Plant", size=20, font=SERIF_BOLD)
    sheet.add_page()
    with_contents(sheet)
    sheet.add_page()
    for chapter in ("1 Introduction", "2 Methods of Measurement"):
        sheet.add(chapter, size=14, font=SERIF_BOLD, gap=24)
        sheet.add(*PROSE)
        for section in ("1 Scope", "2 Meters and Their Places on the Site, with All that Was Changed Later"):
            sheet.add(f"{chapter[0]}.{section}", font=SERIF_BOLD)
            sheet.add(*PROSE, gap=4)
    return sheet.parse()


def latex_contents(sheet):
    sheet.add("Contents", size=14, font=SERIF_BOLD)
    for chapter in (("1 Introduction", "3"), ("2 Methods of Measurement", "4")):
        sheet.entry(*chapter, font=SERIF_BOLD, gap=12, leaders=False)
        sheet.entry(f"{chapter[0][0]}.1 Scope", chapter[1], x=90)
        # a long title goes on in a second line; only that one has leaders
        sheet.add(f"{chapter[0][0]}.2 Meters and Their Places on the Site,", x=90)
        sheet.entry("with All that Was Changed Later", "12", x=110)
    sheet.entry("A. Data", "14", font=SERIF_BOLD, gap=12, leaders=False)


def office_contents(sheet):
    """Wide lines, and a number of two parts in every entry."""
    sheet.add("Table of Contents", size=14, font=SERIF_BOLD)
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
    sheet = Column()
    sheet.add("Energy of a Small Plant", size=20, font=SERIF_BOLD)
    for number in "1234":
        sheet.entry(f"{number} Chapter", f"1{number}")
    sheet.add("1 Chapter", font=SERIF_BOLD, gap=30)
    sheet.add(*PROSE, gap=4)
    assert titles(sheet.parse()) == ["1 Chapter"]


def test_headings_of_a_manual_page():
    """Bold lines at the size of the text, left of it; an option in a list is bold and at its margin, but no heading."""
    sheet = Column()
    sheet.add("NAME", font=SERIF_BOLD)
    sheet.add("meterd - reads the meters of a plant", x=108, gap=0)
    sheet.add("DESCRIPTION", font=SERIF_BOLD, gap=6)
    sheet.add(*PROSE, x=108, gap=0)
    sheet.add("Places", x=87, font=SERIF_BOLD, gap=6)
    sheet.add(*PROSE, x=108, gap=0)
    sheet.add("ENVIRONMENT", font=SERIF_BOLD, gap=6)
    for name in ("METER", "METER_UNIT"):
        sheet.add(name, x=108, font=SERIF_BOLD, gap=6)
        sheet.add(*PROSE, x=144, gap=0)
    document = sheet.parse()
    assert titles(document) == ["NAME", "DESCRIPTION", "DESCRIPTION › Places", "ENVIRONMENT"]
    assert [p.text for p in document.sections[-1].paragraphs] == [
        "METER", " ".join(PROSE), "METER_UNIT", " ".join(PROSE)
    ]  # fmt: skip


def test_bold_headings_at_the_margin_of_the_text():
    sheet = Column()
    for title in ("Where we measured", "What we found"):
        sheet.add(title, font=SERIF_BOLD, gap=16)
        sheet.add(*PROSE, gap=2)
        sheet.add(*PROSE, gap=8)
    document = sheet.parse()
    assert titles(document) == ["Where we measured", "What we found"]
    assert [len(section.paragraphs) for section in document.sections] == [2, 2]


def test_a_bold_line_within_a_paragraph_is_no_heading():
    sheet = Column()
    sheet.add(*PROSE)
    sheet.add("The figures of May and of June", font=SERIF_BOLD, gap=0)
    sheet.add(*PROSE, gap=0)
    assert titles(sheet.parse()) == ["made"]


def test_a_form_of_labels_in_bold_has_no_headings():
    sheet = Column()
    for label in ("Name", "Street", "Town", "Country", "Telephone", "Signature"):
        sheet.add(label, font=SERIF_BOLD, gap=16)
        sheet.add("written by hand", gap=4)
    assert titles(sheet.parse()) == ["made"]


def test_bold_lines_in_the_middle_of_the_column_are_headings():
    """REVTeX sets them so, a little smaller than the text, and APA style at its size; a report number is no heading."""
    sheet = Column()
    sheet.add("Energy of a Small Plant", size=20, font=SERIF_BOLD)
    sheet.add("LA-UR-21-12345", x=400, size=9)
    for size in (9, 10):
        sheet.add_centred("METHODS", size)
        sheet.add(*PROSE, gap=4)
        sheet.add(*PROSE, gap=10)
        sheet.add_centred("Meters", size)
        sheet.add(*PROSE, gap=4)
        sheet.add(*PROSE, gap=10)
        sheet.add_centred("RESULTS", size)
        sheet.add(*PROSE, gap=4)
        sheet.add(*PROSE, gap=10)
    assert titles(sheet.parse()) == [
        "Energy of a Small Plant",
        *("METHODS", "METHODS › Meters", "RESULTS") * 2,
    ]
