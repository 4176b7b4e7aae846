"""Files that took minutes: what a reader compares in pairs has a limit, and the rest grows with the file."""

from contextlib import suppress

import pymupdf
import pytest
from kit.growth import check_linear
from kit.trees import texts
from test_pdf_hostile import assembled

from kohaku_ray.documents.parse import parse_file
from kohaku_ray.documents.pdf import grids
from kohaku_ray.documents.pdf.page import read_page
from kohaku_ray.errors import DataError


def pages(content, n=1, width=595, height=842):
    """A PDF of n pages that show the same content."""
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"", b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    objects.append(b"<</Length %d>>stream\n%s\nendstream" % (len(content), content.encode()))
    page = f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 {width} {height}]/Resources<</Font<</F 3 0 R>>>>/Contents 4 0 R>>"
    objects += [page.encode()] * n
    objects[1] = f"<</Type/Pages/Count {n}/Kids[{' '.join(f'{5 + i} 0 R' for i in range(n))}]>>".encode()
    return assembled(objects)


def print_at(x, y, text):
    return f"BT /F 6 Tf {x} {y} Td ({text}) Tj ET\n"


def ruled(n_rows, n_columns, text=lambda row, column: f"{row}.{column}"):
    """Rules round cells of 26 by 12 points, the first row at the top."""
    right, top = 10 + 26 * n_columns, 10 + 12 * n_rows
    level = [f"10 {10 + 12 * i} m {right} {10 + 12 * i} l S\n" for i in range(n_rows + 1)]
    upright = [f"{10 + 26 * i} 10 m {10 + 26 * i} {top} l S\n" for i in range(n_columns + 1)]
    cells = [print_at(12 + 26 * j, top - 9 - 12 * i, text(i, j)) for i in range(n_rows) for j in range(n_columns)]
    return "".join(["0.5 w\n", *level, *upright, *cells]), {"width": right + 10, "height": top + 10}


def test_pages_of_ruled_cells():
    content, size = ruled(50, 20)

    def read(given):
        n, data = given
        tables = parse_file("x.pdf", data).sections[0].paragraphs
        assert {table.attachment.path for table in tables} == {f"p{i}-table1" for i in range(1, n + 1)}
        assert sum(len(table.text.split("\n")) for table in tables) == n * 50

    check_linear(lambda n: (n, pages(content, n=n, **size)), read, n=2)


def test_every_cell_of_a_large_grid_is_found():
    content, size = ruled(60, 40)
    page = pymupdf.open(stream=pages(content, **size))[0]
    ((_, rows, _),) = read_page(page).grids
    assert rows == [[f"{i}.{j}" for j in range(40)] for i in range(60)]


def test_a_grid_beyond_the_limit_is_read_as_lines():
    def grid(n):
        content, size = ruled(n, 400, lambda row, column: f"w{row}" if column == 0 else "")
        return n, pages(content, **size)

    def read(given):
        n, data = given
        assert {f"w{i}" for i in range(n)} <= set(" ".join(texts(parse_file("x.pdf", data))).split())

    check_linear(grid, read, n=125)


def test_many_small_grids_are_read_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(grids, "MAX_GRIDS", 3)
    content, _ = ruled(2, 2)
    shifted = "".join(f"q 1 0 0 1 0 {80 * i} cm {content} Q\n" for i in range(5))
    page = read_page(pymupdf.open(stream=pages(shifted))[0])
    assert [rows for _, rows, _ in page.grids] == [[["0.0", "0.1"], ["1.0", "1.1"]]] * 3


def test_scattered_boxes_among_much_text():
    boxes = "".join(f"{i * 37 % 5700} {i * 91 % 8300} 12 11 re S\n" for i in range(300))

    def page(n):
        words = "".join(print_at(20 + i % 50 * 100, 30 + i // 50 * 7, "ab cd") for i in range(n))
        return pages(boxes + words, width=5900, height=8400)

    check_linear(page, lambda data: parse_file("x.pdf", data), n=1000)


def test_formatting_tags_that_each_paragraph_opens_again():
    opened = "".join(f"<font b={i}>" for i in range(1900))
    refused = r"leaves tags like <b> and <font> open: they are reopened more than 1,000,000 times \(<p> is the last\)"

    def read(page):
        with pytest.raises(DataError, match=refused):
            parse_file("x.html", page)

    check_linear(lambda n: f"<p>{opened}{'<p>x' * n}".encode(), read, n=10_000)
    assert len(texts(parse_file("x.html", b"<b>" * 20 + b"<p>Some text.</p>" * 2000))) == 2000


@pytest.mark.parametrize("tag", ["<a ", "<br ", "</p", "<a <br>"])
def test_html_in_markdown_whose_tags_do_not_end(tag):
    def read(page):
        with suppress(DataError):  # tags that are open beyond a limit
            parse_file("x.md", page)

    check_linear(lambda n: f"<div>Text {tag * n}".encode(), read, n=10_000)
