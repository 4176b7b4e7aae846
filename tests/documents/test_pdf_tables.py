"""Tables of PDFs, ruled and not: headers, spans, wrapped cells, captions, tables that go on over a page; no tables."""

import re

import pytest
from documents.sheets import BOLD, Sheet, width_of
from kit.trees import sentences

from kohaku_ray.documents.model import Attachment

BEFORE = "The table below was made by hand, and this sentence stands above it."
AFTER = "After the table the prose goes on to the end of the page."


def begin():
    """A sheet on which a sentence stands above the table."""
    sheet = Sheet()
    sheet.put(72, 80, BEFORE)
    return sheet


def read(*rows, xs=(76, 180, 260, 340), step=16, bold=0):
    """Tables and paragraphs of a page with rows of cells, None where there is no cell; ``bold``: rows of names."""
    sheet = begin()
    for i, row in enumerate(rows):
        for x, cell in zip(xs, row, strict=False):
            if cell:
                sheet.put(x, 120 + step * i, cell, font=BOLD if i < bold else None)
    sheet.put(72, 120 + step * len(rows) + 40, AFTER)
    return sheet.tables()


def grid(sheet, *rows, top=100, xs=(72, 200, 300, 420)):
    """Put rows of cells into a grid of lines."""
    bottom = top + 20 * len(rows)
    sheet.level(*range(top, bottom + 1, 20), right=xs[len(rows[0])])
    sheet.upright(*xs[: len(rows[0]) + 1], top=top, bottom=bottom)
    for i, row in enumerate(rows):
        sheet.row(top + 14 + 20 * i, *row, xs=[x + 4 for x in xs])


ROWS = [("System", "Power (W)", "Energy (MWh)"), ("Alpha", "480", "1,220"), ("Beta", "600", "310"), ("Gamma", "", "95")]
WRITTEN = [
    "System: Alpha; Power (W): 480; Energy (MWh): 1,220",
    "System: Beta; Power (W): 600; Energy (MWh): 310",
    "System: Gamma; Energy (MWh): 95",
]


@pytest.mark.parametrize("has_grid", [True, False], ids=["grid", "three rules"])
def test_a_table_is_a_paragraph_of_its_caption_and_a_sentence_per_row(has_grid):
    sheet = begin()
    sheet.put(72, 130, "Table 1: Power and energy of three systems.", size=9)
    if has_grid:
        grid(sheet, *ROWS, top=140)
    else:
        for i, row in enumerate(ROWS):
            sheet.row(154 + 20 * i, *row)
        sheet.level(140, 160, 220)
    sheet.put(72, 260, AFTER)
    (section,) = sheet.parse().sections
    before, table, after = section.paragraphs
    assert (before.text, after.text) == (BEFORE, AFTER)
    assert sentences(table) == ["Table 1: Power and energy of three systems.", *WRITTEN]
    assert table.attachment == Attachment("table", "p1-table1", "Table 1: Power and energy of three systems.")


STACKED = [
    "Model: GPT-3; Energy, MWh: 1,287; Energy, kWh per query: 0.004",
    "Model: Gopher; Energy, MWh: 1,066; Energy, kWh per query: 0.003",
]


def test_stacked_names_of_a_grid():
    sheet = begin()
    sheet.level(120, 160, 180, 200)
    sheet.level(140, left=200)
    sheet.upright(72, 200, 420, top=120, bottom=200)
    sheet.upright(300, top=140, bottom=200)
    sheet.put(76, 145, "Model")
    sheet.put(290, 134, "Energy")
    sheet.row(154, "MWh", "kWh per query", xs=(204, 304))
    sheet.row(174, "GPT-3", "1,287", "0.004")
    sheet.row(194, "Gopher", "1,066", "0.003")
    assert sheet.tables() == ([STACKED], [BEFORE])


def test_a_name_that_goes_on_in_the_next_line_is_one():
    rows = [(None, "Energy", None, "Water"), ("Model", "(MWh)", "PUE", "(ML)"), ("GPT-3", "1,287", "1.10", "3.5")]
    tables, _ = read(*rows, ("Gopher", "1,066", "1.08", "2.5"), ("OPT", "324", "1.09", "1.5"))
    assert tables[0][0] == "Model: GPT-3; Energy (MWh): 1,287; PUE: 1.10; Water (ML): 3.5"


def test_years_name_columns_of_numbers():
    sheet = begin()
    grid(sheet, ("Scope", "2021", "2022"), ("Scope 1", "1,012", "998"), ("Scope 2", "512", "488"))
    assert sheet.tables()[0] == [["Scope: Scope 1; 2021: 1,012; 2022: 998", "Scope: Scope 2; 2021: 512; 2022: 488"]]


def test_spans_of_rows_are_filled_and_a_row_as_wide_as_the_table_stands_alone():
    sheet = begin()
    sheet.level(100, 120, 140, 180)
    sheet.level(160, left=200)
    sheet.upright(72, 420, top=100, bottom=180)
    sheet.upright(200, 300, top=100, bottom=120)
    sheet.upright(200, 300, top=140, bottom=180)
    sheet.row(114, "Model", "Format", "Energy, MWh", font=BOLD)
    sheet.put(200, 134, "Large models")
    sheet.put(76, 164, "GPT-3")
    sheet.row(154, "fp16", "1,287", xs=(204, 304))
    sheet.row(174, "int8", "640", xs=(204, 304))
    assert sheet.tables()[0] == [
        [
            "Large models",
            "Model: GPT-3; Format: fp16; Energy, MWh: 1,287",
            "Model: GPT-3; Format: int8; Energy, MWh: 640",
        ]
    ]


def test_names_in_bold_are_those_of_columns_without_numbers():
    rows = [("Model", "Open", "Small"), ("OPT", "+", "-"), ("GPT-3", "-", "-"), ("BLOOM", "+", "+/-")]
    tables, _ = read(*rows, bold=1)
    assert tables == [[f"Model: {model}; Open: {is_open}; Small: {small}" for model, is_open, small in rows[1:]]]


def test_a_row_with_an_empty_cell_stays_in_its_table():
    rows = [("Site", "Q1", "Q2", "Q3"), ("Dublin", "+3.1%", None, "2.2%"), ("Oslo", "-1.7%", "0.9%", None)]
    tables, rest = read(*rows, ("Rome", "0.0%", "-2.3%", "4.4%"))
    assert tables == [
        [
            "Site: Dublin; Q1: +3.1%; Q3: 2.2%",
            "Site: Oslo; Q1: -1.7%; Q2: 0.9%",
            "Site: Rome; Q1: 0.0%; Q2: -2.3%; Q3: 4.4%",
        ]
    ]
    assert rest == [BEFORE, AFTER]


def test_cells_set_apart_by_spaces_alone():
    sheet = begin()
    rows = [("Model", "Power", "PUE"), ("GPT-3", "300", "1.10"), ("OPT", "400", "1.09")]
    sheet.put(76, 120, *("".join(f"{cell:<16}" for cell in row) for row in rows), font="cour", step=16)
    assert sheet.tables()[0] == [["Model: GPT-3; Power: 300; PUE: 1.10", "Model: OPT; Power: 400; PUE: 1.09"]]


def test_a_raised_mark_in_a_cell_is_apart_from_its_number():
    sheet = begin()
    grid(sheet, ("Site", "Use"), ("Oslo", "41"), ("Rome", "37"))
    sheet.put(204 + width_of("37"), 150, "2", size=6)  # behind the last cell that was drawn
    assert sheet.tables()[0] == [["Site: Oslo; Use: 41", "Site: Rome; Use: 37 [2]"]]


R_OUTPUT = """               coef     se  t.stat pval
(Intercept) 53.2180 1.7343 30.6849  0.0
male         4.8675 6.0042  0.8107  0.4
geno.100    27.7784 0.3228 86.0564  0.0"""


def test_columns_a_space_apart_as_r_prints_them_have_their_names():
    """Only the gaps of a word's width and more were columns: no row had a name."""
    sheet = begin()
    for i, line in enumerate(R_OUTPUT.split("\n")):  # as pdfTeX sets it: words, no spaces
        for match in re.finditer(r"\S+", line):
            sheet.put(76 + 6 * match.start(), 120 + 12 * i, match[0], font="cour")
    assert sheet.tables()[0] == [
        [
            "(Intercept); coef: 53.2180; se: 1.7343; t.stat: 30.6849; pval: 0.0",
            "male; coef: 4.8675; se: 6.0042; t.stat: 0.8107; pval: 0.4",
            "geno.100; coef: 27.7784; se: 0.3228; t.stat: 86.0564; pval: 0.0",
        ]
    ]


def test_rows_of_words_below_numbers_name_other_values():
    """As R prints a vector of several lines."""
    rows = [("alpha", "beta", "gamma"), ("0.12", "0.57", "0.33"), ("delta", "zeta", "eta"), ("0.61", "0.76", "0.85")]
    tables, _ = read(*rows)
    assert "alpha: delta" not in str(tables)


def test_words_of_a_row_that_have_no_place_of_their_own_stay():
    """A raised mark makes two words of MuPDF's one: nothing of such a row is divided, or lost."""
    sheet = begin()
    for i, row in enumerate([("Oslo", "41", "12"), ("Rome a", "37", "11"), ("Bern", "22", "13")]):
        sheet.row(120 + 16 * i, *row)
    sheet.put(76 + width_of("Rome a"), 132, "b", size=6)
    text = "\n".join(sheet.texts())
    assert all(word in text for word in ("Oslo", "Rome a", "37", "11", "Bern"))
