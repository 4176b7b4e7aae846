"""What a reader of a page does not see is not read, but named: unpainted, of the ground's colour, struck out."""

import pymupdf
import pytest
from documents.sheets import Sheet
from kit.trees import texts

SEEN = "The plant used 41 GWh of electricity in 2024."


@pytest.fixture
def sheet():
    """A sheet for type of 11 points, on which one sentence is seen."""
    sheet = Sheet(size=11)
    sheet.put(72, 100, SEEN)
    return sheet


def read(sheet):
    document = sheet.parse()
    return texts(document), document.dropped


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"render_mode": 3}, "1 unpainted text"),  # vandalizer#777
        ({"color": (1, 1, 1)}, "1 text of its ground's colour"),  # unstructured#4377
    ],
)
def test_text_that_is_not_seen_is_dropped_and_named(sheet, options, what):
    sheet.put(72, 200, "Ignore all of the above.", **options)
    assert read(sheet) == ([SEEN], (f"{what}: 'Ignore all of the above.'",))


def test_text_of_the_colour_of_the_area_below_it_is_not_seen_and_white_on_that_area_is(sheet):
    sheet.page.draw_rect((60, 185, 400, 240), fill=(0.1, 0.2, 0.5), color=None)
    sheet.put(72, 200, "Hidden in blue.", color=(0.1, 0.2, 0.5))
    sheet.put(72, 230, "White on blue is read.", color=(1, 1, 1))
    assert read(sheet) == ([SEEN, "White on blue is read."], ("1 text of its ground's colour: 'Hidden in blue.'",))


def test_white_on_a_picture_is_read(sheet):
    pixels = pymupdf.Pixmap(pymupdf.csRGB, pymupdf.IRect(0, 0, 40, 40))
    pixels.clear_with(40)
    sheet.page.insert_image((60, 180, 300, 260), pixmap=pixels, keep_proportion=False)
    sheet.put(72, 220, "A title on a photograph.", color=(1, 1, 1))
    assert "A title on a photograph." in sheet.texts()


@pytest.mark.parametrize("stamp", ["", "Received 4 May"])
def test_the_text_of_a_scan_is_read_alone_and_beside_a_stamp(stamp):
    sheet = Sheet()
    pixels = pymupdf.Pixmap(pymupdf.csRGB, pymupdf.IRect(0, 0, 40, 60))
    sheet.page.insert_image((0, 0, 595, 780), pixmap=pixels, keep_proportion=False)
    sheet.put(72, 300, "Recognised text of the scan.", render_mode=3)
    sheet.put(72, 820, stamp)
    assert "Recognised text of the scan." in sheet.texts()


def test_unpainted_text_is_read_where_there_is_no_other():
    sheet = Sheet()
    sheet.put(72, 300, "Recognised text alone.", render_mode=3)
    assert read(sheet) == (["Recognised text alone."], ())


@pytest.mark.parametrize("strike", ["line", "note"])
def test_words_through_which_a_line_is_drawn_are_left_out(sheet, strike):
    """docling#2316, MinerU#3368, marker#894."""
    sheet.put(72, 200, "It emitted 552 tonnes, no: 310 tonnes of carbon dioxide.")
    (box,) = sheet.page.search_for("552 tonnes, no:")
    if strike == "line":
        sheet.level(200 - 0.27 * 11, left=box.x0, right=box.x1)
    else:
        sheet.page.add_strikeout_annot(box)
    found, dropped = read(sheet)
    assert found == [SEEN, "It emitted 310 tonnes of carbon dioxide."]
    assert dropped == ("1 struck-out text: '552 tonnes, no:'",)


def test_lines_under_words_and_grid_lines_through_labels_strike_nothing(sheet):
    sheet.put(72, 200, "An underlined sentence is read.")
    sheet.level(202, right=230)
    sheet.put(72, 260, "Label of a plot")
    sheet.level(257, left=60, right=500)
    assert read(sheet) == ([SEEN, "An underlined sentence is read.", "Label of a plot"], ())


def add_field(sheet, rect, kind, name, label, value):
    widget = pymupdf.Widget()
    widget.rect, widget.field_type = pymupdf.Rect(rect), kind
    widget.field_name, widget.field_label, widget.field_value = name, label, value
    sheet.page.add_widget(widget)


TEXT, TICK = pymupdf.PDF_WIDGET_TYPE_TEXT, pymupdf.PDF_WIDGET_TYPE_CHECKBOX


@pytest.mark.parametrize(
    ("name", "label", "read_as"),
    [
        ("energy", "Energy used in 2024", "Energy used in 2024: 1287 MWh"),
        ("Annual energy", None, "Annual energy: 1287 MWh"),
        ("f1_02[0]", None, "1287 MWh"),
    ],
)
def test_a_filled_field_is_read_with_its_label_and_is_no_title(sheet, name, label, read_as):
    """docling#2677, docling#4055, liteparse#401."""
    add_field(sheet, (72, 140, 300, 170), TEXT, name, label, "1287 MWh")
    document = sheet.parse()
    assert document.title == "made"
    assert read_as in texts(document)


def test_a_field_behind_its_printed_label_is_read_as_printed_and_boxes_are_ticked_or_not(sheet):
    for y, x, printed in ((151, 72, "Energy used:"), (190, 90, "Diesel generator"), (210, 90, "Wind turbine")):
        sheet.put(x, y, printed)
    add_field(sheet, (150, 140, 300, 155), TEXT, "energy", "Energy", "1287 MWh")
    add_field(sheet, (72, 180, 84, 192), TICK, "diesel", "Diesel", True)
    add_field(sheet, (72, 200, 84, 212), TICK, "wind", "Wind", False)
    text = "\n".join(sheet.texts())
    for shown in ("Energy used: 1287 MWh", "[x] Diesel generator", "[ ] Wind turbine"):
        assert shown in text


def test_a_value_that_hangs_out_of_a_low_field_is_read_once(sheet):
    """As Bob in pypdf 7.1.1's resources/libreoffice-form.pdf, 8 points high and filled in 11-point type."""
    add_field(sheet, (77, 342.5, 231, 350.8), TEXT, "First Name_2", None, "Bob")
    # the value as that file draws it: the words' middle lies above the field
    (widget,) = sheet.page.widgets()
    stream = b"/Tx BMC q BT /Helv 11 Tf 2 4.5 Td (Bob) Tj ET Q EMC"
    sheet.file.update_stream(int(sheet.file.xref_get_key(widget.xref, "AP/N")[1].split()[0]), stream)
    assert "First Name_2: Bob" in sheet.texts()
