"""Tables of PDFs, ruled and not: headers, spans, wrapped cells, marks in cells, tables that go on over a page."""

import pytest
from documents.sheets import BOLD, Sheet, width_of

BEFORE = "The table below was made by hand, and this sentence stands above it."
AFTER = "After the table the prose goes on to the end of the page."


def begin():
    """A sheet on which a sentence stands above the table."""
    sheet = Sheet()
    sheet.put(72, 80, BEFORE)
    return sheet


STACKED = [
    "Model: GPT-3; Energy, MWh: 1,287; Energy, kWh per query: 0.004",
    "Model: Gopher; Energy, MWh: 1,066; Energy, kWh per query: 0.003",
]


def test_stacked_headers_of_a_grid():
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
    sheet.put(72, 240, AFTER)
    assert sheet.tables() == ([STACKED], [BEFORE, AFTER])


@pytest.mark.parametrize("has_rule", [True, False], ids=["a rule below the name", "the name in the middle"])
def test_stacked_headers_between_rules(has_rule):
    sheet = begin()
    sheet.put(72, 112, "Table 1: Energy of training.", size=9)
    sheet.level(120, 160, 204)
    if has_rule:
        sheet.level(140, left=200)
    sheet.put(270, 134, "Energy")
    sheet.row(154, "Model", "MWh", "kWh per query")
    sheet.row(174, "GPT-3", "1,287", "0.004")
    sheet.row(194, "Gopher", "1,066", "0.003")
    sheet.put(72, 240, AFTER)
    assert sheet.tables() == ([["Table 1: Energy of training.", *STACKED]], [BEFORE, AFTER])


def test_a_name_that_goes_on_in_the_next_line_is_one():
    sheet = begin()
    sheet.level(120, 160, 204)
    sheet.row(134, "", "Energy", "Power")
    sheet.row(148, "Model", "(MWh)", "(W)")
    sheet.row(174, "GPT-3", "1,287", "300")
    sheet.row(194, "Gopher", "1,066", "280")
    (table,), _ = sheet.tables()
    assert table == [
        "Model: GPT-3; Energy (MWh): 1,287; Power (W): 300",
        "Model: Gopher; Energy (MWh): 1,066; Power (W): 280",
    ]


METHODS = [
    ("simplex", "fast in practice"),
    ("interior point", "polynomial time"),
    ("branch and cut", "for integers"),
    ("barrier", "for large problems"),
]


def methods(is_bold, has_header=True, has_grid=True):
    sheet = begin()
    rows = [("Method", "Remark"), *METHODS] if has_header else METHODS
    for i, row in enumerate(rows):
        sheet.row(114 + 20 * i, *row, font=BOLD if is_bold and not i else None)
    bottom = 100 + 20 * len(rows)
    if has_grid:
        sheet.level(*range(100, bottom + 1, 20))
        sheet.upright(72, 200, 420, top=100, bottom=bottom)
    else:
        sheet.level(100, 120, bottom)
    (table,), _ = sheet.tables()
    return table


def test_a_table_without_a_header_has_none():
    """Its first row, a remark on one method, was given to all of them."""
    assert methods(is_bold=False, has_header=False) == [f"{name} | {remark}" for name, remark in METHODS]


@pytest.mark.parametrize(("is_bold", "has_grid"), [(True, True), (False, False), (True, False)])
def test_a_row_that_its_type_or_a_rule_sets_apart_is_a_header(is_bold, has_grid):
    assert methods(is_bold, has_grid=has_grid) == [f"Method: {name}; Remark: {remark}" for name, remark in METHODS]


def test_years_name_columns_of_numbers():
    sheet = begin()
    sheet.row(114, "Scope", "2021", "2022")
    sheet.row(134, "Scope 1", "1,012", "998")
    sheet.row(154, "Scope 2", "512", "488")
    sheet.level(100, 120, 140, 160)
    sheet.upright(72, 200, 300, 420, top=100, bottom=160)
    (table,), _ = sheet.tables()
    assert table == ["Scope: Scope 1; 2021: 1,012; 2022: 998", "Scope: Scope 2; 2021: 512; 2022: 488"]


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
    (table,), _ = sheet.tables()
    assert table == [
        "Large models",
        "Model: GPT-3; Format: fp16; Energy, MWh: 1,287",
        "Model: GPT-3; Format: int8; Energy, MWh: 640",
    ]


WRAPPED = [
    "Model: GPT-3 of OpenAI; Energy, MWh: 1,287; Remark: measured at the data center",
    "Model: Gopher; Energy, MWh: 1,066; Remark: estimated by run-time",
]


@pytest.mark.parametrize("has_grid", [True, False])
def test_a_cell_of_several_lines_is_one_cell(has_grid):
    sheet = begin()
    sheet.level(*((100, 120, 160, 200) if has_grid else (100, 120, 200)))
    if has_grid:
        sheet.upright(72, 200, 300, 420, top=100, bottom=200)
    sheet.row(114, "Model", "Energy, MWh", "Remark", font=BOLD)
    sheet.row(134, "GPT-3 of", "1,287", "measured at the")
    sheet.row(146, "OpenAI", "", "data center")
    sheet.row(174, "Gopher", "1,066", "estimated by run-")
    sheet.row(186, "", "", "time")
    (table,), _ = sheet.tables()
    assert [row.replace("runtime", "run-time") for row in table] == WRAPPED


@pytest.mark.parametrize("is_last", [True, False], ids=["marks after the table", "marks in their place"])
@pytest.mark.parametrize("has_grid", [True, False])
def test_marks_in_cells_are_apart_and_the_notes_are_paragraphs(has_grid, is_last):
    sheet = begin()
    marks = []
    for i, (name, value, mark) in enumerate(
        [("Model", "Energy, MWh", ""), ("GPT-3", "1,287", "a"), ("Gopher", "1,066", "2")]
    ):
        y = 114 + 20 * i
        sheet.row(y, name, value)
        if mark:
            marks.append((204 + width_of(value), y - 4, mark))
            if not is_last:
                sheet.put(*marks[-1], size=6)
    for mark in marks if is_last else ():
        sheet.put(*mark, size=6)
    sheet.level(*((100, 120, 140, 160) if has_grid else (100, 120, 160)))
    if has_grid:
        sheet.upright(72, 200, 420, top=100, bottom=160)
    for i, (mark, note) in enumerate([("a", "Estimated from the hardware."), ("2", "Measured in 2021.")]):
        sheet.put(72, 171 + 12 * i, mark, size=6)
        sheet.put(77, 175 + 12 * i, note, size=8)
    sheet.put(72, 240, AFTER)
    (table,), texts = sheet.tables()
    assert table == ["Model: GPT-3; Energy, MWh: 1,287 [a]", "Model: Gopher; Energy, MWh: 1,066 [2]"]
    assert texts == [BEFORE, "[a] Estimated from the hardware.", "[2] Measured in 2021.", AFTER]


def over_two_pages(repeats, has_grid=True, caption="", width=420):
    sheet = Sheet()
    for page in range(2):
        if page:
            sheet.add_page()
        top = 80 if page else 700
        sheet.put(72, 60, "" if page else BEFORE)
        rows = [("Model", "Energy, MWh")] if repeats or not page else []
        rows += [(f"Model {3 * page + i}", f"{1000 + 3 * page + i}") for i in range(3)]
        right, bottom = width if page else 420, top + 20 * len(rows)
        if page and caption:
            sheet.put(72, top - 6, caption, size=9)
        elif caption:
            sheet.put(72, top - 6, "Table 3: Energy of six models.", size=9)
        for i, row in enumerate(rows):
            sheet.row(top + 14 + 20 * i, *row)
        sheet.level(*(range(top, bottom + 1, 20) if has_grid else (top, top + 20, bottom)), right=right)
        if has_grid:
            sheet.upright(72, 200, right, top=top, bottom=bottom)
    sheet.put(72, 300, AFTER)
    return sheet.tables()[0]


ROWS = [f"Model: Model {i}; Energy, MWh: {1000 + i}" for i in range(6)]


@pytest.mark.parametrize(("repeats", "has_grid"), [(True, True), (False, True), (True, False)])
def test_a_table_that_goes_on_over_a_page_is_one(repeats, has_grid):
    assert over_two_pages(repeats, has_grid) == [ROWS]


def test_another_caption_or_width_is_another_table():
    assert len(over_two_pages(True, caption="Table 4: Energy of three others.")) == 2
    assert len(over_two_pages(True, width=360)) == 2


def sites_below_a_page():
    """A sheet at whose foot a table between two rules begins, and its next page."""
    sheet = begin()
    sheet.level(640, 662, 752)
    sheet.row(655, "Site", "Use (MWh)", "PUE")
    for i in range(5):
        sheet.row(678 + 16 * i, f"Site {i}", f"{1000 + i:,}", f"1.{10 + i}")
    sheet.add_page()
    return sheet


def test_a_table_of_other_names_on_the_next_page_is_another_one():
    sheet = sites_below_a_page()
    sheet.row(76, "Model", "Power", "Hours", font=BOLD)
    for i in range(5):
        sheet.row(92 + 16 * i, f"Model {i}", f"{300 + i}", f"{10 + i}")
    tables, _ = sheet.tables()
    assert [table[0] for table in tables] == [
        "Site: Site 0; Use (MWh): 1,000; PUE: 1.10",
        "Model: Model 0; Power: 300; Hours: 10",
    ]
