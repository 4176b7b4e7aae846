"""Tables of PDFs without rules: gaps, wrapped cells, stacked names, labels of several rows, and what is no table."""

from textwrap import dedent

import pymupdf
import pytest
from documents.sheets import BOLD, Sheet, width_of
from documents.test_pdf_tables import AFTER, BEFORE, begin
from kit.rows import check_rows

COLUMNS = (76, 180, 260, 340)


def read(*rows, xs=COLUMNS, step=16, bold=0):
    """Tables and paragraphs of a page with rows of cells, None where there is no cell; ``bold``: rows of names."""
    sheet = begin()
    for i, row in enumerate(rows):
        for x, cell in zip(xs, row, strict=False):
            if cell:
                sheet.put(x, 120 + step * i, cell, font=BOLD if i < bold else None)
    sheet.put(72, 120 + step * len(rows) + 40, AFTER)
    return sheet.tables()


@check_rows(
    "drawing",
    [
        """\
        |-- bin            (tools)
        |   |-- ls         12
        |   `-- cat        14
        `-- etc            (settings)
            |-- hosts      7""",
        """\
        +-- main           100
        |   +-- read       60
        |   |   +-- parse  45
        |   +-- write      40
        +-- idle           3""",
        """\
        total
            /   \\
          left   right
            / \\   / \\
          12   7   9   4""",
        """\
        0.8 |-+       A          +-|
            |      A             |
        0.4 |-+        B       +-|
            |   A    B           |
            +----+-----+-----+---+""",
        """\
        +    +         +
             *    *
        +         *    +
        *    +""",
    ],
)
def test_a_tree_or_plot_drawn_in_characters_is_no_table(drawing):
    lines = dedent(drawing).split("\n")
    sheet = Sheet()
    sheet.put(76, 120, *lines, font="cour")
    sheet.put(72, 240, AFTER)
    tables, rest = sheet.tables()
    assert tables == []
    assert "".join("".join(rest).split()) == "".join([*drawing.split(), *AFTER.split()])


def test_signs_for_yes_and_no_are_the_values_of_a_table():
    rows = [("Model", "Open", "Small"), ("OPT", "+", "-"), ("GPT-3", "-", "-"), ("BLOOM", "+", "+/-")]
    tables, _ = read(*rows, bold=1)
    assert tables == [[f"Model: {model}; Open: {is_open}; Small: {small}" for model, is_open, small in rows[1:]]]


def test_a_row_with_an_empty_cell_stays_in_its_table():
    rows = [("Site", "Q1", "Q2", "Q3"), ("Dublin", "+3.1%", None, "2.2%"), ("Oslo", "-1.7%", "0.9%", None)]
    tables, rest = read(*rows, ("Paris", None, "12.0%", "1.0%"), ("Rome", "0.0%", "-2.3%", "4.4%"))
    assert tables == [
        [
            "Site: Dublin; Q1: +3.1%; Q3: 2.2%",
            "Site: Oslo; Q1: -1.7%; Q2: 0.9%",
            "Site: Paris; Q2: 12.0%; Q3: 1.0%",
            "Site: Rome; Q1: 0.0%; Q2: -2.3%; Q3: 4.4%",
        ]
    ]
    assert rest == [BEFORE, AFTER]


def test_the_lines_of_a_wrapped_cell_are_one():
    rows = [("Method", "What it measures", "Error (%)"), ("Meter", "Power at the wall", "1.5")]
    rows += [(None, "with all fans"), ("RAPL", "Power of the chip", "4.2"), (None, "and its memory")]
    tables, rest = read(*rows, ("NVML", "Power of the card", "5.0"), xs=(76, 180, 340))
    assert tables == [
        [
            "Method: Meter; What it measures: Power at the wall with all fans; Error (%): 1.5",
            "Method: RAPL; What it measures: Power of the chip and its memory; Error (%): 4.2",
            "Method: NVML; What it measures: Power of the card; Error (%): 5.0",
        ]
    ]
    assert rest == [BEFORE, AFTER]


@pytest.mark.parametrize("x", [180, 205], ids=["at the left of its columns", "in the middle of them"])
def test_a_name_over_two_columns_names_both(x):
    sheet = begin()
    sheet.put(76, 120, "Model")
    sheet.put(x, 120, "Energy")
    sheet.row(136, "MWh", "kWh", xs=(180, 260))
    sheet.row(152, "GPT-3", "1,287", "0.004", xs=COLUMNS)
    sheet.row(168, "Gopher", "1,066", "0.003", xs=COLUMNS)
    sheet.row(184, "OPT", "324", "0.002", xs=COLUMNS)
    tables, _ = sheet.tables()
    assert tables == [
        [
            "Model: GPT-3; Energy, MWh: 1,287; Energy, kWh: 0.004",
            "Model: Gopher; Energy, MWh: 1,066; Energy, kWh: 0.003",
            "Model: OPT; Energy, MWh: 324; Energy, kWh: 0.002",
        ]
    ]


def test_names_of_two_lines_are_no_name_over_two_columns():
    rows = [(None, "Energy", None, "Water"), ("Model", "(MWh)", "PUE", "(ML)"), ("GPT-3", "1,287", "1.10", "3.5")]
    tables, _ = read(*rows, ("Gopher", "1,066", "1.08", "2.5"), ("OPT", "324", "1.09", "1.5"))
    assert tables[0][0] == "Model: GPT-3; Energy (MWh): 1,287; PUE: 1.10; Water (ML): 3.5"


LABELLED = [
    "Region: Europe; Year: 2021; Use (TWh): 96.1",
    "Region: Europe; Year: 2022; Use (TWh): 99.8",
    "Region: Europe; Year: 2023; Use (TWh): 104.2",
    "Region: Asia; Year: 2021; Use (TWh): 140.5",
    "Region: Asia; Year: 2022; Use (TWh): 151.0",
]


def labelled(europe, asia):
    sheet = begin()
    sheet.row(120, "Region", "Year", "Use (TWh)", xs=COLUMNS, font=BOLD)
    values = [("2021", "96.1"), ("2022", "99.8"), ("2023", "104.2"), ("2021", "140.5"), ("2022", "151.0")]
    for i, row in enumerate(values):
        sheet.row(140 + 20 * i, *row, xs=COLUMNS[1:])
    sheet.put(76, 140 + 20 * europe, "Europe")
    sheet.put(76, 140 + 20 * asia, "Asia")
    return sheet.tables()[0]


def test_a_label_at_the_first_of_its_rows_is_that_of_all():
    assert labelled(0, 3) == [LABELLED]


def test_a_label_in_the_middle_of_its_rows_is_that_of_all():
    assert labelled(1, 3.5) == [LABELLED]


def test_a_sum_without_a_label_takes_none():
    rows = [("Site", "Use", "PUE"), ("Dublin", "120", "1.2"), ("Oslo", "80", "1.1"), (None, "200", "1.15")]
    tables, _ = read(*rows)
    assert tables[0][-1] == "Use: 200; PUE: 1.15"


def test_cells_set_apart_by_spaces_alone():
    sheet = begin()
    rows = [("Model", "Power", "PUE"), ("GPT-3", "300", "1.10"), ("OPT", "400", "1.09")]
    sheet.put(76, 120, *("".join(f"{cell:<16}" for cell in row) for row in rows), font="cour", step=16)
    assert sheet.tables()[0] == [["Model: GPT-3; Power: 300; PUE: 1.10", "Model: OPT; Power: 400; PUE: 1.09"]]


def test_the_first_row_of_every_page_is_no_running_head():
    sheet = Sheet()
    for page in range(3):
        if page:
            sheet.add_page()
        sheet.row(50, "Site", "Use (MWh)", "PUE", font=BOLD)
        for i in range(40):
            sheet.row(68 + 17 * i, f"Site {40 * page + i}", f"{1000 + 40 * page + i}", "1.10")
    [rows], rest = sheet.tables()
    assert rows == [f"Site: Site {i}; Use (MWh): {1000 + i}; PUE: 1.10" for i in range(120)]
    assert rest == []


def test_rows_below_the_last_background_belong_to_the_table():
    sheet = begin()
    rows = [("Model", "Power", "PUE"), ("GPT-3", "300", "1.10"), ("Gopher", "330", "1.08"), ("OPT", "400", "1.09")]
    for i, row in enumerate(rows):
        if i % 2 == 0:
            sheet.page.draw_rect(pymupdf.Rect(72, 108 + 18 * i, 420, 126 + 18 * i), fill=(0.9, 0.9, 0.9), color=None)
        sheet.row(120 + 18 * i, *row)
    tables, _ = sheet.tables()
    assert tables == [[f"Model: {model}; Power: {power}; PUE: {pue}" for model, power, pue in rows[1:]]]


def test_a_raised_number_nearly_as_large_as_the_text():
    sheet = Sheet()
    for y, text, raised in ((100, "The mean was 1.58", "2"), (140, "It has 1.3 x 10", "9")):
        sheet.put(72, y, text, size=11)
        sheet.put(72 + width_of(text, 11), y - 5.3, raised, size=10.7)
    assert sheet.tables()[1] == ["The mean was 1.58 [2]", "It has 1.3 x 10^9"]


def test_lines_of_code_with_their_numbers_are_no_table():
    lines = ["for (i = 0; i < n; i++) {", "sum += a[i];", "}", "return sum;"]
    tables, _ = read(*[(str(i), line) for i, line in enumerate(lines, 18)])
    assert tables in ([], [[f"{i} | {line}" for i, line in enumerate(lines, 18)]])
