"""One table, five renderers: the same figures in each, and hostile text that stays text."""

import csv
import io
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.pages.tables import as_csv, as_html, as_latex, as_markdown, as_text
from kohaku_ray.table import Column, MarkedText, Table

TABLE = Table.of(
    [
        "model",
        "score",
        Column("difference", "+z.4f", missing="n/a"),
        Column("share", ".1f", " %", tooltip="of all errors"),
        "n",
        Column("remark", align="left"),
    ],
    [
        ["small | plain", MarkedText("0.500 ± 0.100", "second", "*"), -0.00001, 12.34, 1234, ""],
        ["big_one", MarkedText("0.750", "best", "†", 2, "paper 0.800", "#cell-1"), None, 87.66, 5, "the best"],
        ["none", MarkedText("failed", footnote=1), 0.25, None, 0, "no *reply*"],
    ],
    title="Models",
)


class Cells(HTMLParser):
    """The text of every cell, row by row."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.tags = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip("\n")


def cells_of_markdown(text):
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines()]
    return [[cell.strip() for cell in line] for number, line in enumerate(lines) if number != 1]


def cells_of_latex(text):
    lines = text.partition("\\toprule\n")[2].partition("\n\\bottomrule")[0].splitlines()
    return [re.split(r" (?<!\\)& ", line.removesuffix(r" \\")) for line in lines if line != r"\midrule"]


def test_a_terminal_gets_aligned_columns_with_words_for_marks():
    assert as_text(TABLE).splitlines() == [
        "model                                         score  difference   share      n  remark",
        "-------------  ------------------------------------  ----------  ------  -----  ----------",
        "small | plain  2nd 0.500 ± 0.100 *                      +0.0000  12.3 %  1,234",
        "big_one               best 0.750 †[2] (paper 0.800)         n/a  87.7 %      5  the best",
        "none                      failed [1]                    +0.2500              0  no *reply*",
    ]


def test_a_program_gets_bare_figures():
    rows = list(csv.reader(io.StringIO(as_csv(TABLE))))
    assert rows == [
        ["model", "score", "difference", "share", "n", "remark"],
        ["small | plain", "0.500 ± 0.100", "+0.0000", "12.3", "1234", ""],
        ["big_one", "0.750", "", "87.7", "5", "the best"],
        ["none", "failed", "+0.2500", "", "0", "no *reply*"],
    ]


def test_markdown_latex_and_html_mark_the_best_and_escape_the_rest():
    markdown, latex, html = as_markdown(TABLE), as_latex(TABLE), as_html(TABLE)
    assert markdown.splitlines()[1] == "| --- | ---: | ---: | ---: | ---: | --- |"
    assert [row[1] for row in cells_of_markdown(markdown)][1:] == [
        r"<ins>0.500 ± 0.100</ins>\*",
        r"**0.750**† \[2\] (paper 0.800)",
        r"failed \[1\]",
    ]
    assert cells_of_markdown(markdown)[1][0] == r"small \| plain"
    assert latex.startswith("\\begin{tabular}{lrrrrl}\n")
    assert [row[1] for row in cells_of_latex(latex)][1:] == [
        r"\underline{0.500 $\pm$ 0.100}$^{*}$",
        r"\textbf{0.750}$^{\dagger}$ {[}2{]} (paper 0.800)",
        "failed {[}1{]}",
    ]
    cells = Cells(html)
    assert cells.rows[2][:4] == ["big_one", "0.750†[2]paper 0.800", "n/a", "87.7 %"]
    assert ("a", {"class": "best", "href": "#cell-1"}) in cells.tags
    assert [attrs for tag, attrs in cells.tags if tag == "th"][3] == {"class": "n", "title": "of all errors"}
    assert [tag for tag, _ in cells.tags].count("th") == 6 + 3, "the head, and the names of the rows"


texts = st.text(st.characters(codec="utf-8"), max_size=12)


@given(st.lists(st.tuples(texts, st.floats(-1e6, 1e6), texts), min_size=1, max_size=4), texts)
def test_no_text_breaks_a_table(rows, label):
    table = Table.of([label, Column("figure", ".6f"), Column("remark", align="left")], rows)
    figures = [f"{figure:.6f}" for _, figure, _ in rows]
    assert [row[1] for row in csv.reader(io.StringIO(as_csv(table)))][1:] == figures
    lines = as_text(table).splitlines()
    assert len(lines) == 2 + len(rows)
    assert all(figure in line for figure, line in zip(figures, lines[2:], strict=True))
    assert [row[1] for row in cells_of_markdown(as_markdown(table))][1:] == figures
    assert len(as_latex(table).splitlines()) == 6 + len(rows)
    cells = Cells(as_html(table))
    assert [row[1] for row in cells.rows][1:] == figures
    assert {tag for tag, _ in cells.tags} == {"div", "table", "thead", "tbody", "tr", "th", "td"}


def test_a_table_without_rows_has_its_head_in_every_format():
    empty = Table.of(["model", "score"], [])
    assert as_text(empty).splitlines() == ["model  score", "-----  -----"]
    assert as_csv(empty) == "model,score\n"
    assert as_markdown(empty).splitlines() == ["| model | score |", "| --- | ---: |"]
    assert "\\midrule\n\\bottomrule" in as_latex(empty)
    assert Cells(as_html(empty)).rows == [["model", "score"]]


def test_a_row_that_lacks_a_value_is_refused():
    with pytest.raises(ValueError, match="shorter"):
        as_text(Table.of(["model", "score"], [["a"]]))
