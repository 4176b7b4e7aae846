"""How a page's pieces of one font become lines: as MuPDF's own lines are, but for what they lack."""

import pymupdf
import pytest
from documents.sheets import SERIF, SERIF_BOLD, Sheet, width_of

from kohaku_ray.documents.parse import parse_file
from kohaku_ray.documents.pdf.page import read_page

MIXED = (
    "<p style='font-size:10px'>The <b>bold</b> word, an <i>italic</i><b>one</b>, <span style='color:red'>red</span> "
    "and <tt>code</tt>: 10<sup>6</sup> of H<sub>2</sub>O, <small>small</small> print that runs over the end of the "
    "line and <b>goes on in bold</b> to the full stop.</p><p><b>1</b> Heading</p><p>E = <i>mc</i><sup>2</sup></p>"
)


def read(sheet):
    return read_page(reopened(sheet))


def reopened(sheet):
    return pymupdf.open(stream=sheet.file.tobytes())[0]


def lines_of_dict(page):
    """The lines as PyMuPDF's `dict` has them, which is slower: spans of one line joined."""
    flags = pymupdf.TEXT_MEDIABOX_CLIP
    lines = [line for block in page.get_text("dict", flags=flags)["blocks"] for line in block["lines"]]
    return [("".join(span["text"] for span in line["spans"]).strip(), line["bbox"]) for line in lines]


def test_pieces_of_several_fonts_make_the_lines_that_mupdf_makes():
    sheet = Sheet()
    sheet.page.insert_htmlbox(pymupdf.Rect(72, 72, 400, 400), MIXED)
    expected = lines_of_dict(reopened(sheet))
    assert len(expected) == 4
    lines = read(sheet).lines
    assert [line.text.replace("^", "") for line in lines] == [text for text, _ in expected]
    assert [line.box for line in lines] == [pytest.approx(box, abs=1e-3) for _, box in expected]
    assert "10^6 of" in lines[0].text


def test_size_and_weight_are_those_of_most_characters():
    sheet = Sheet()
    serif, bold = {"size": 9.6, "font": SERIF}, {"size": 12, "font": SERIF_BOLD}
    for y, most, rest in ((72, serif, bold | {"size": 8}), (100, bold, serif)):
        sheet.put(72, y, "Most of it. ", **most)
        sheet.put(72 + width_of("Most of it. ", **most), y, "The rest", **rest)
    assert [(line.size, line.bold) for line in read(sheet).lines] == [(9.6, False), (12.0, True)]


def test_a_stroke_drawn_between_two_words_leaves_the_space():
    sheet = Sheet(font=SERIF)
    sheet.put(72, 100, "An underlined ")
    x = 72 + width_of("An underlined ", 10, SERIF)
    sheet.level(102, right=x)
    sheet.put(x, 100, "word is one line.")
    page = read(sheet)
    assert [line.text for line in page.lines] == ["An underlined word is one line."]
    assert len(page.rules) == 1


@pytest.mark.parametrize("angle", [90, 270, 60, -60])
def test_a_few_words_across_the_lines_are_left_out(angle):
    sheet = Sheet(font=SERIF, size=11)
    sheet.put(72, 100, "A line of text.", "Another line.", step=20)
    sheet.put(300, 400, "DRAFT", size=40, morph=(pymupdf.Point(300, 400), pymupdf.Matrix(angle)))
    assert [line.text for line in read(sheet).lines] == ["A line of text.", "Another line."]


def test_text_on_its_head_or_slightly_askew_is_kept():
    sheet = Sheet(size=11)
    sheet.put(72, 100, "A line of text.")
    sheet.put(300, 300, "Askew.", morph=(pymupdf.Point(300, 300), pymupdf.Matrix(10)))
    sheet.put(300, 500, "On its head.", rotate=180)
    assert [line.text for line in read(sheet).lines] == ["A line of text.", "Askew.", "On its head."]


@pytest.mark.parametrize("rotate", [90, 270])
def test_a_turned_pages_lines_go_from_left_to_right(rotate):
    sheet = Sheet(font=SERIF)
    for i in range(3):
        sheet.put(100 + 14 * i if rotate == 90 else 400 - 14 * i, 500, f"Line {i} of a table.", rotate=rotate)
    page = read(sheet)
    assert (page.turn, page.width, page.height) == (1 if rotate == 90 else 3, 842, 595)
    assert [line.text for line in page.lines] == [f"Line {i} of a table." for i in range(3)]
    assert all(line.x1 - line.x0 > 4 * (line.y1 - line.y0) for line in page.lines)
    assert [line.y0 for line in page.lines] == sorted(line.y0 for line in page.lines)


def test_a_page_with_half_a_surrogate_pair_is_read_by_the_reader_that_takes_it(monkeypatch):
    """MuPDF's JSON may hold one; the quick reader refuses it."""
    document = pymupdf.open()
    document.new_page().insert_text((72, 72), "One line of text.")
    data = document.tobytes()
    before = parse_file("a.pdf", data)

    def refuse(*_, **__):
        raise ValueError("lone leading surrogate in hex escape")

    monkeypatch.setattr("pydantic_core.from_json", refuse)
    assert parse_file("a.pdf", data) == before
    assert before.sections[0].paragraphs[0].text == "One line of text."
