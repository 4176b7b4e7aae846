"""How a page's pieces of one font become lines: as MuPDF's own lines are, but for what they lack."""

import pymupdf
import pytest

from kohaku_ray.documents.parse import parse_file
from kohaku_ray.documents.pdf.page import read_page

MIXED = (
    "<p style='font-size:10px'>The <b>bold</b> word, an <i>italic</i><b>one</b>, <span style='color:red'>red</span> "
    "and <tt>code</tt>: 10<sup>6</sup> of H<sub>2</sub>O, <small>small</small> print that runs over the end of the "
    "line and <b>goes on in bold</b> to the full stop.</p><p><b>1</b> Heading</p><p>E = <i>mc</i><sup>2</sup></p>"
)


def page_of(draw):
    file = pymupdf.open()
    draw(file.new_page())
    return pymupdf.open(stream=file.tobytes())[0]


def lines_of_dict(page):
    """The lines as PyMuPDF's `dict` has them, which is slower: spans of one line joined."""
    flags = pymupdf.TEXT_MEDIABOX_CLIP
    lines = [line for block in page.get_text("dict", flags=flags)["blocks"] for line in block["lines"]]
    return [("".join(span["text"] for span in line["spans"]).strip(), line["bbox"]) for line in lines]


def test_pieces_of_several_fonts_make_the_lines_that_mupdf_makes():
    page = page_of(lambda page: page.insert_htmlbox(pymupdf.Rect(72, 72, 400, 400), MIXED))
    expected = lines_of_dict(page)
    assert len(expected) == 4
    lines = read_page(page).lines
    assert [line.text.replace("^", "") for line in lines] == [text for text, _ in expected]
    assert [line.box for line in lines] == [pytest.approx(box, abs=1e-3) for _, box in expected]
    assert "10^6 of" in lines[0].text


def test_size_and_weight_are_those_of_most_characters():
    def draw(page):
        for y, first, second in ((72, ("tiro", 9.6), ("tibo", 8)), (100, ("tibo", 12), ("tiro", 9.6))):
            width = pymupdf.get_text_length("Most of it. ", *first)
            page.insert_text((72, y), "Most of it. ", fontname=first[0], fontsize=first[1])
            page.insert_text((72 + width, y), "The rest", fontname=second[0], fontsize=second[1])

    assert [(line.size, line.bold) for line in read_page(page_of(draw)).lines] == [(9.6, False), (12.0, True)]


def test_a_stroke_drawn_between_two_words_leaves_the_space():
    def draw(page):
        page.insert_text((72, 100), "An underlined ", fontname="tiro", fontsize=10)
        x = 72 + pymupdf.get_text_length("An underlined ", "tiro", 10)
        page.draw_line((72, 102), (x, 102))
        page.insert_text((x, 100), "word is one line.", fontname="tiro", fontsize=10)

    page = read_page(page_of(draw))
    assert [line.text for line in page.lines] == ["An underlined word is one line."]
    assert len(page.rules) == 1


@pytest.mark.parametrize("angle", [90, 270, 60, -60])
def test_a_few_words_across_the_lines_are_left_out(angle):
    def draw(page):
        page.insert_text((72, 100), "A line of text.", fontname="tiro")
        page.insert_text((72, 120), "Another line.", fontname="tiro")
        turn = (pymupdf.Point(300, 400), pymupdf.Matrix(angle))
        page.insert_text((300, 400), "DRAFT", fontname="tiro", fontsize=40, morph=turn)

    assert [line.text for line in read_page(page_of(draw)).lines] == ["A line of text.", "Another line."]


def test_text_on_its_head_or_slightly_askew_is_kept():
    def draw(page):
        page.insert_text((72, 100), "A line of text.", fontname="tiro")
        page.insert_text((300, 300), "Askew.", morph=(pymupdf.Point(300, 300), pymupdf.Matrix(10)))
        page.insert_text((300, 500), "On its head.", rotate=180)

    assert [line.text for line in read_page(page_of(draw)).lines] == ["A line of text.", "Askew.", "On its head."]


@pytest.mark.parametrize("rotate", [90, 270])
def test_a_turned_pages_lines_go_from_left_to_right(rotate):
    def draw(page):
        for i in range(3):
            x = 100 + 14 * i if rotate == 90 else 400 - 14 * i
            page.insert_text((x, 500), f"Line {i} of a table.", fontname="tiro", fontsize=10, rotate=rotate)

    page = read_page(page_of(draw))
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
