"""What every format promises: one cell per format and promise, a file that keeps it or the reason why none can.

A rule that all formats share, such as that of raised characters, is tested by its own table; here its wiring is.
"""

from __future__ import annotations

import io

import docx
import openpyxl
import pptx
import pymupdf
from kit.rows import check_rows
from kit.trees import texts
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont

from kohaku_ray.documents.formats import FORMATS
from kohaku_ray.documents.parse import parse_file

RAISED = "It drew 10^2 kWh."
TABLE = "Model: GPT-3; Energy: 1,287 MWh"
HEADING = "Power of the hall"
ROWS = (("Model", "Energy"), ("GPT-3", "1,287 MWh"), ("BLOOM", "433 MWh"))
PLAIN = "plain text has no such sign"


def saved(file) -> bytes:
    data = io.BytesIO()
    file.save(data)
    return data.getvalue()


def word_raised() -> bytes:
    file = docx.Document()
    paragraph = file.add_paragraph("It drew 10")
    paragraph.add_run("2").font.superscript = True
    paragraph.add_run(" kWh.")
    return saved(file)


def word_table() -> bytes:
    file = docx.Document()
    table = file.add_table(len(ROWS), 2)
    for row, cells in zip(table.rows, ROWS, strict=True):
        for cell, text in zip(row.cells, cells, strict=True):
            cell.text = text
    return saved(file)


def word_heading() -> bytes:
    file = docx.Document()
    file.add_heading(HEADING)
    file.add_paragraph("It drew 4 MW.")
    return saved(file)


def slide(layout: int = 5):
    file = pptx.Presentation()
    page = file.slides.add_slide(file.slide_layouts[layout])
    page.shapes.title.text = HEADING
    return file, page


def slides_raised() -> bytes:
    file, page = slide(1)
    paragraph = page.placeholders[1].text_frame.paragraphs[0]
    for text, baseline in (("It drew 10", None), ("2", "30000"), (" kWh.", None)):
        run = paragraph.add_run()
        run.text = text
        if baseline is not None:
            run.font._element.set("baseline", baseline)
    return saved(file)


def slides_table() -> bytes:
    file, page = slide()
    table = page.shapes.add_table(len(ROWS), 2, 0, 0, 5_000_000, 2_000_000).table
    for number, cells in enumerate(ROWS):
        for column, text in enumerate(cells):
            table.cell(number, column).text = text
    return saved(file)


def slides_heading() -> bytes:
    file, page = slide(1)
    page.placeholders[1].text = "It drew 4 MW."
    return saved(file)


def sheet_raised() -> bytes:
    file = openpyxl.Workbook()
    raised = TextBlock(InlineFont(vertAlign="superscript"), "2")
    file.active["A1"] = CellRichText("It drew 10", raised, " kWh.")
    return saved(file)


def sheet_table() -> bytes:
    file = openpyxl.Workbook()
    for row in ROWS:
        file.active.append(row)
    return saved(file)


def sheet_heading() -> bytes:
    file = openpyxl.Workbook()
    file.active.title = HEADING
    for row in ROWS:
        file.active.append(row)
    return saved(file)


def page():
    file = pymupdf.open()
    return file, file.new_page()


def pdf_raised() -> bytes:
    file, on = page()
    on.insert_htmlbox(pymupdf.Rect(72, 72, 500, 200), "<p>It drew 10<sup>2</sup> kWh.</p>")
    return file.tobytes()


def pdf_table() -> bytes:
    file, on = page()
    for i in range(4):
        on.draw_line((72, 72 + 20 * i), (312, 72 + 20 * i))
    for i in range(3):
        on.draw_line((72 + 120 * i, 72), (72 + 120 * i, 132))
    for number, cells in enumerate(ROWS):
        for column, text in enumerate(cells):
            on.insert_text((76 + 120 * column, 86 + 20 * number), text)
    return file.tobytes()


def pdf_heading() -> bytes:
    file, on = page()
    lines = "".join("<p>It drew 4 MW in the year, and the next hall drew 5 MW in the same year.</p>" for _ in range(9))
    on.insert_htmlbox(pymupdf.Rect(72, 72, 500, 700), f"<h1>{HEADING}</h1>{lines}")
    return file.tobytes()


MARKDOWN_TABLE = b"| Model | Energy |\n|---|---|\n| GPT-3 | 1,287 MWh |\n| BLOOM | 433 MWh |\n"
HTML_TABLE = b"<table><tr><th>Model<th>Energy<tr><td>GPT-3<td>1,287 MWh<tr><td>BLOOM<td>433 MWh</table>"
HTML_RAISED = b"<p>It drew 10<sup>2</sup> kWh.</p>"
TREE = "its writer has made text of it: what stands there is kept"

CELLS = {
    ".md": (HTML_RAISED, MARKDOWN_TABLE, f"# {HEADING}\n\nIt drew 4 MW.\n".encode()),
    ".html": (HTML_RAISED, HTML_TABLE, f"<h1>{HEADING}</h1><p>It drew 4 MW.".encode()),
    ".rst": (
        b"It drew 10\\ :sup:`2` kWh.\n",
        b"===== =========\nModel Energy\n===== =========\nGPT-3 1,287 MWh\nBLOOM 433 MWh\n===== =========\n",
        f"{HEADING}\n{'=' * len(HEADING)}\n\nIt drew 4 MW.\n".encode(),
    ),
    ".docx": (word_raised, word_table, word_heading),
    ".pptx": (slides_raised, slides_table, slides_heading),
    ".xlsx": (sheet_raised, sheet_table, sheet_heading),
    ".pdf": (pdf_raised, pdf_table, pdf_heading),
    ".txt": (PLAIN, PLAIN, PLAIN),
    ".csv": (PLAIN, "columns beside the text are metadata", "a row has no sections"),
    ".json": (TREE, TREE, TREE),
}
SAME = {".markdown": ".md", ".htm": ".html", ".text": ".txt", ".tsv": ".csv"}
"""Suffixes that the parser of another reads."""


def test_the_table_has_every_format():
    assert {*CELLS, *SAME} == {*FORMATS}
    assert all(FORMATS[suffix] == FORMATS[other] for suffix, other in SAME.items())


def cells(promise: int) -> list[str]:
    return [suffix for suffix, row in CELLS.items() if not isinstance(row[promise], str)]


def parsed(suffix: str, promise: int):
    cell = CELLS[suffix][promise]
    return parse_file(f"x{suffix}", cell() if callable(cell) else cell)


@check_rows("suffix", cells(0))
def test_raised_digits_are_written_as_a_power(suffix):
    assert RAISED in " ".join(texts(parsed(suffix, 0)))


@check_rows("suffix", cells(1))
def test_a_cell_is_read_with_the_name_of_its_column(suffix):
    assert TABLE in " ".join(texts(parsed(suffix, 1))).replace("\n", " ")


@check_rows("suffix", cells(2))
def test_a_heading_is_the_title_of_its_section(suffix):
    assert HEADING in [section.title for section in parsed(suffix, 2).sections]
