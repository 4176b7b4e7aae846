"""HTML beyond what cases/html.txt shows: character sets, limits, and time that grows with the size of a page."""

import json

import pytest
from kit.growth import check_linear
from kit.rows import check_rows
from kit.trees import texts

from kohaku_ray.documents.markup.html import MAX_BYTES
from kohaku_ray.documents.parse import parse_file
from kohaku_ray.errors import DataError


def parse(text):
    return parse_file("site/page.html", text if isinstance(text, bytes) else text.encode())


def body(text):
    return texts(parse(text))


@check_rows(
    ("source", "title"),
    [
        ("<title>A</title><h1>B</h1>x", "A"),
        ("<title>B - Site</title><h1>B</h1>x", "B"),
        ("<h1>B</h1>x<h1>C</h1>y", "B"),
        ("<p>x", "page"),
    ],
)
def test_the_title(source, title):
    assert parse(source).title == title


def test_a_long_list_is_paragraphs_of_whole_items():
    items = [f"Step {i}: {'do what has to be done ' * 12}" for i in range(1, 41)]
    paragraphs = body(f"<ol>{''.join(f'<li>{item}' for item in items)}</ol>")
    assert "\n".join(paragraphs) == "\n".join(f"{i}. {item.strip()}" for i, item in enumerate(items, 1))
    assert 1500 < len(paragraphs[0]) <= 2000
    assert max(map(len, paragraphs)) <= 2000


def test_a_paragraph_above_the_bound_is_divided_between_sentences_and_a_table_between_rows():
    paragraphs = body(f"<p>{'It drew 5 MW. ' * 300}</p>")
    assert (len(paragraphs), max(map(len, paragraphs)) <= 2000) == (3, True)
    assert all(paragraph.endswith("It drew 5 MW.") for paragraph in paragraphs)
    rows = "".join(f"<tr><td>m{i}<td>{i}" for i in range(300))
    assert all(text.startswith("Model: m") for text in body(f"<table><tr><th>Model<th>MW{rows}</table>"))
    (given,) = texts(parse_file("x.json", json.dumps({"title": "T", "text": "It drew 5 MW. " * 300}).encode()))
    assert len(given) > 4000


def test_preformatted_text_is_divided_at_blank_lines():
    """man2html puts whole manual pages into one element (users6 S2, postscreen.8.html)."""
    assert body("<pre>\nNAME\n  plant\n \n\nSYNOPSIS\n  plant -v\n</pre>") == ["NAME\n  plant", "SYNOPSIS\n  plant -v"]


@check_rows(
    "data",
    [
        '<meta charset="windows-1252"><p>Café – 3 €'.encode("cp1252"),
        "<meta charset=iso-8859-1><p>Café – 3 €".encode("cp1252"),
        '<meta http-equiv=Content-Type content="text/html; charset=utf-8"><p>Café – 3 €'.encode(),
        "<meta charset=latin1><p>Café – 3 €".encode("utf-8-sig"),
        "<p>Café – 3 €".encode("utf-16"),
    ],
)
def test_the_charset_is_the_files_own(data):
    assert body(data) == ["Café – 3 €"]


def test_an_unknown_charset_is_named():
    with pytest.raises(
        DataError, match=r"page\.html says its charset is 'klingon', which is unknown: save it as UTF-8"
    ):
        parse("<meta charset=klingon><p>x")


def test_a_page_that_is_too_large_states_both_numbers():
    with pytest.raises(DataError, match=r"has 67,108,865 bytes, at most 67,108,864 are allowed: split it into files"):
        parse(b" " * MAX_BYTES + b"x")


@pytest.mark.parametrize("tags", ["<div>", "<b class=x>", "<table><td>", "<p>So <math><mrow>"])
def test_tags_open_without_end_are_refused_at_once(tags):
    def refused(source):
        with pytest.raises(DataError, match=r"page\.html is nested too deep: more than 2,000 tags are open at a time"):
            parse(source)

    check_linear(lambda n: tags * n + "x", refused, n=25_000)


def in_tex(tex):
    return f"<annotation encoding='application/x-tex'>{tex}</annotation>"


@pytest.mark.parametrize(
    ("formula", "value", "n"),
    [
        (lambda n: "<mi>x</mi><mo>+</mo><mn>713</mn><mo>=</mo>" * n, "713", 2_000),
        (lambda n: f"<mfrac>{'<mn>713</mn><mo>,</mo>' * n}</mfrac>", "713", 12_000),
        (lambda n: f"{'<mrow>' * 1900}<mn>10</mn><mn>713</mn>{'</mrow>' * 1900}<mo>+</mo>" * n, "10 713", 4),
        (lambda n: in_tex("713 + " * n), "713", 10_000),
        (lambda n: in_tex("10^{713" * n + "}" * n), "10^{713", 10_000),
    ],
)
def test_a_formula_of_100_000_nodes_keeps_its_numbers_and_takes_linear_time(formula, value, n):
    def read(formula):
        text = "".join(body(f"<p>So <math>{formula}</math> holds."))
        assert text.count(value) == formula.count("713" if "713" in value else "10")
        assert text.startswith("So ")
        assert text.endswith("holds.")

    check_linear(formula, read, n)


def test_nesting_that_is_allowed_is_read():
    assert body("<div>" * 1900 + "Deep." + "</div>" * 1900) == ["Deep."]
    assert body("<p>a<li>b<td>c" * 3000)[0] == "a"


@pytest.mark.slow
def test_12_mb_take_linear_time():
    line = "<p>Some words of text, <b>bold</b> ones among them, that fill a line of the page.</p>\n"

    def read(source):
        assert len(parse(source).sections[0].paragraphs) == source.count("\n")

    check_linear(lambda n: line * n, read, n=37_500)


def test_overlapping_spans_are_bounded():
    def read(rows):
        text = "\n".join(body(f"<table>{rows}</table>"))
        assert text.count("x") == rows.count("x")

    check_linear(lambda n: "<tr><td colspan=100 rowspan=100>x<td>y" * n, read, n=500)
