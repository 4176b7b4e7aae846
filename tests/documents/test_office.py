"""Word, PowerPoint and Excel files: made by the libraries here, what is expected written by hand."""

import datetime as dt
import io
import re
import subprocess
import sys
import zipfile

import pytest
from docx import Document as Word
from docx.opc.constants import CONTENT_TYPE, RELATIONSHIP_TYPE
from docx.opc.packuri import PackURI
from docx.opc.part import Part
from docx.oxml import parse_xml
from kit.rows import check_rows
from kit.trees import outline, sentences, texts
from openpyxl import Workbook
from openpyxl.comments import Comment
from openpyxl.drawing.image import Image as Picture
from openpyxl.styles import Font
from PIL import Image as Pillow
from pptx import Presentation
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

from kohaku_ray.documents.figures import ImageSource
from kohaku_ray.documents.office import archive
from kohaku_ray.documents.office.sheets import write_value
from kohaku_ray.documents.parse import parse_documents, parse_file
from kohaku_ray.errors import DataError

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
M = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'


def saved(file):
    out = io.BytesIO()
    file.save(out)
    return out.getvalue()


def repacked(file, change):
    """The file with each of its parts as ``change`` returns it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(file))) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, change(old.read(name)))
    return out.getvalue()


def strict(file):
    """The file as Office saves it in strict Open XML."""
    kinds = rb"http://schemas.openxmlformats.org/(officeDocument|wordprocessingml|spreadsheetml|drawingml)/2006/"
    return repacked(file, lambda part: re.sub(kinds, rb"http://purl.oclc.org/ooxml/\1/", part))


def parse(name, file, **options):
    return parse_file(name, file if isinstance(file, bytes) else saved(file), **options)


def tree(name, file):
    """The sections of a file: title, and the texts of its paragraphs."""
    return dict(outline(parse(name, file)))


def word(text, *elements, then=""):
    """A Word file of one paragraph: a text, elements of XML, and what comes then."""
    file = Word()
    paragraph = file.add_paragraph(text)
    for element in elements:
        paragraph._p.append(parse_xml(element.replace(">", f" {W} {M}>", 1)))
    paragraph.add_run(then)
    return file


def workbook(*rows):
    """An Excel file of one sheet, and the sheet."""
    file = Workbook()
    for row in rows:
        file.active.append(row)
    return file, file.active


def png():
    out = io.BytesIO()
    Pillow.new("RGB", (80, 80), "red").save(out, "PNG")
    out.seek(0)
    return out


def fill(table, rows):
    for row, values in zip(table.rows, rows, strict=True):
        for cell, value in zip(row.cells, values, strict=True):
            cell.text = value
    return table


class TestWord:
    def test_headings_lists_and_tables(self):
        file = Word()
        file.add_heading("Energy report", 0)
        file.add_paragraph("We measured two sites.")
        file.add_heading("Results", 1)
        file.add_heading("Energy", 2)
        for text in ("first", "second"):
            file.add_paragraph(text, "List Number")
        file.add_paragraph("inner", "List Bullet 2")
        file.add_paragraph("Table 1. Energy per model.", "Caption")
        rows = [("Model", "Energy, MWh"), ("GPT-3", "1,287"), ("BLOOM", "433")]
        fill(file.add_table(3, 2), rows)
        file.add_heading("Annex", 0)
        file.add_paragraph("Of both sites.")
        document = parse("d/report.docx", file)
        assert (document.doc_id, document.title) == ("report", "Energy report")
        assert tree("d/report.docx", file) == {
            "Energy report": ["We measured two sites."],
            "Results › Energy": [
                "1. first\n2. second",
                "- inner",
                "Table 1. Energy per model.",
                "Model: GPT-3; Energy, MWh: 1,287\nModel: BLOOM; Energy, MWh: 433",
            ],
            "Annex": ["Of both sites."],
        }
        table = document.sections[1].paragraphs[-1]
        assert table.attachment.kind == "table"
        assert sentences(table)[0] == "Model: GPT-3; Energy, MWh: 1,287"

    def test_spans_of_cells_are_filled(self):
        file = Word()
        table = fill(
            file.add_table(4, 3),
            [["Site", "PUE", ""], ["A", "2021", "1.12"], ["", "2022", "1.10"], ["B", "2021", "1.4"]],
        )
        table.cell(1, 0).merge(table.cell(2, 0))
        lines = ["Site: A; PUE: 2021; 1.12", "Site: A; PUE: 2022; 1.10", "Site: B; PUE: 2021; 1.4"]
        assert tree("x.docx", file) == {"x": ["\n".join(lines)]}

    def test_a_first_row_in_bold_names_columns_of_words(self):
        file = Word()
        table = fill(file.add_table(3, 2), [["Site", "State"], ["Oslo", "on"], ["Rome", "off"]])
        for cell in table.rows[0].cells:
            cell.paragraphs[0].runs[0].bold = True
        assert tree("x.docx", file) == {"x": ["Site: Oslo; State: on\nSite: Rome; State: off"]}

    def test_a_table_in_a_table_keeps_its_numbers(self):
        file = Word()
        outer = fill(file.add_table(2, 2), [["Site", "Values"], ["A", ""]])
        fill(outer.cell(1, 1).add_table(1, 2), [["3.5", "4.5"]])
        assert "3.5 4.5" in " ".join(tree("x.docx", file)["x"])

    def test_raised_lowered_inserted_deleted_struck_and_hidden_runs(self):
        file = Word()
        paragraph = file.add_paragraph("It is 10")
        paragraph.add_run("9").font.superscript = True
        paragraph.add_run(" W of CO")
        paragraph.add_run("2").font.subscript = True
        paragraph.add_run(", not 5").font.strike = True
        paragraph.add_run(" secret 7").font.hidden = True
        for tag, kind, text in (("ins", "t", " and 12.5 more"), ("del", "delText", " and 99 less")):
            paragraph._p.append(
                parse_xml(f'<w:{tag} {W}><w:r><w:{kind} xml:space="preserve">{text}</w:{kind}></w:r></w:{tag}>')
            )
        document = parse("x.docx", file)
        assert texts(document) == ["It is 10^9 W of CO2 and 12.5 more"]
        assert document.dropped == ("2 deleted or struck runs", "1 hidden run")

    def test_what_is_hidden_in_strict_open_xml_is_left_out_too(self):
        """Mammoth reads Word's own option, as its test file strict-format.docx."""
        file = Word()
        file.add_heading("Report", 0)
        file.add_paragraph("It drew 4 MW.").add_run(" secret 7").font.hidden = True
        assert tree("x.docx", strict(file)) == {"Report": ["It drew 4 MW."]} == tree("x.docx", file)

    def test_entities_are_refused_by_name(self):
        """The text behind ``&x;`` was lost without a word."""
        declared = b"<!DOCTYPE d [<!ENTITY x '9'>]><w:document"
        data = repacked(
            word("start MARK end"), lambda part: part.replace(b"MARK", b"&x;").replace(b"<w:document", declared)
        )
        said = r"^x\.docx: its part word/document\.xml declares a document type, .* save it"
        with pytest.raises(DataError, match=said):
            parse("x.docx", data)

    def test_what_the_library_leaves_out_is_read(self):
        """Content controls, text boxes (once, though stored twice), and formulas."""
        control = "<w:sdtContent><w:p><w:r><w:t>In a control.</w:t></w:r></w:p></w:sdtContent>"
        box = "<w:txbxContent><w:p><w:r><w:t>In a box: 42.</w:t></w:r></w:p></w:txbxContent>"
        choice = f"<mc:Choice Requires='wps'><w:drawing>{box}</w:drawing></mc:Choice>"
        oval = f"<v:oval xmlns:v='urn:schemas-microsoft-com:vml'>{box}</v:oval>"  # LibreOffice's testWPGtextboxes.docx
        alternatives = f"{choice}<mc:Fallback><w:pict>{oval}</w:pict></mc:Fallback>"
        mc = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
        run = f"<w:p {W}><w:r><mc:AlternateContent {mc}>{alternatives}</mc:AlternateContent></w:r></w:p>"
        power = "<m:sSup><m:e><m:r><m:t>10</m:t></m:r></m:e><m:sup><m:r><m:t>9</m:t></m:r></m:sup></m:sSup>"
        fraction = "<m:f>{}<m:num><m:r><m:t>a+b</m:t></m:r></m:num><m:den><m:r><m:t>2</m:t></m:r></m:den></m:f>"
        plus, choose = "<m:r><m:t> + </m:t></m:r>", "<m:fPr><m:type m:val='noBar'/></m:fPr>"
        binomial = f"<m:d><m:e>{fraction.format(choose)}</m:e></m:d>".replace("a+b", "n").replace("2", "k")
        parts = plus.join((power, fraction.format(""), binomial))
        maths = f"<m:oMath><m:r><m:t>x = 1.3 × </m:t></m:r>{parts}</m:oMath>"
        file = word("So ", maths)
        for place, element in enumerate((f"<w:sdt {W}>{control}</w:sdt>", run)):
            file.element.body.insert(place, parse_xml(element))
        assert tree("x.docx", file)["x"] == [
            "In a control.",
            "In a box: 42.",
            "So x = 1.3 × 10^9 + (a + b)/2 + (n choose k)",
        ]

    def test_a_style_without_a_name_or_kind_is_passed_over(self):
        """POI's 60329.docx, which mammoth alone refuses."""
        file = word("It drew 4 MW.")
        file.styles.element.append(parse_xml(f"<w:style {W}><w:name w:val='Odd'/></w:style>"))
        assert tree("x.docx", file) == {"x": ["It drew 4 MW."]}

    def test_brackets_within_brackets_take_no_time(self):
        inside = "<m:r><m:t>x</m:t></m:r>"
        for _ in range(60):
            inside = f"<m:d><m:e>{inside}</m:e></m:d>"
        document = parse("x.docx", word("So ", f"<m:oMath>{inside}</m:oMath>"), timeout_s=30)
        (text,) = texts(document)
        assert text.startswith("So (((")
        assert "x" in text

    def test_pictures_are_named_and_their_alternative_texts_read(self):
        file = Word()
        for text in ("PUE falls to 1.12 in 2023.", "", "plot 7.png"):
            picture = file.add_paragraph("Before.").add_run().add_picture(png())
            picture._inline.docPr.set("descr", text)
        cell = file.add_table(1, 2).rows[0].cells[1]
        picture = cell.paragraphs[0].add_run("A cell.").add_picture(png())
        picture._inline.docPr.set("descr", "A pump of 3 kW.")
        file.add_paragraph("After.")
        document = parse("x.docx", file)
        pictured = ["Before.", "PUE falls to 1.12 in 2023.", "Before.", "Before.", "A cell.", "A pump of 3 kW."]
        assert texts(document) == [*pictured, "After."]
        image = document.sections[0].paragraphs[1].attachment
        assert (image.kind, image.path, image.caption) == ("image", None, "PUE falls to 1.12 in 2023.")
        assert document.dropped == ("4 images",)
        (parsed,) = parse_documents("x.docx", saved(file), images=ImageSource()).documents
        assert (parsed.image_rejects, parsed.dropped) == ((), document.dropped)

    def test_a_footnote_is_a_paragraph_with_its_mark(self):
        file = word("The PUE is 1.58", '<w:r><w:footnoteReference w:id="2"/></w:r>', then=" on average.")
        text = "<w:p><w:r><w:footnoteRef/><w:t> Measured in 2021.</w:t></w:r></w:p>"
        notes = f'<w:footnotes {W}><w:footnote w:id="2">{text}</w:footnote></w:footnotes>'
        place = PackURI("/word/footnotes.xml")
        part = Part(place, CONTENT_TYPE.WML_FOOTNOTES, notes.encode(), file.part.package)
        file.part.relate_to(part, RELATIONSHIP_TYPE.FOOTNOTES)
        assert tree("x.docx", file) == {"x": ["The PUE is 1.58 [1] on average.", "1. Measured in 2021."]}

    def test_contents_headers_and_footers_are_named_as_dropped(self):
        file = Word()
        file.styles.add_style("TOC 1", 1)
        file.add_paragraph("Results 7", "TOC 1")
        file.add_paragraph("A sentence of the report.")
        file.sections[0].header.paragraphs[0].text = "Confidential 2024"
        document = parse("x.docx", file)
        assert texts(document) == ["A sentence of the report."]
        assert document.dropped == ("1 contents line", "1 header or footer")

    def test_a_list_goes_on_over_what_interrupts_it(self):
        """LibreOffice's fdo79668.docx."""
        file = Word()
        for text, style in (("first", "List Number"), ("inner", "List Bullet 2"), ("second", "List Number")):
            file.add_paragraph(text, style)
        file.add_paragraph("Between them.")
        file.add_paragraph("third", "List Number")
        assert tree("x.docx", file)["x"] == ["1. first", "- inner", "2. second", "Between them.", "3. third"]

    def test_what_has_no_text_is_named(self):
        """Mammoth leaves charts, diagrams, embedded files and comments out without a word."""
        c, d = (f"http://schemas.openxmlformats.org/drawingml/2006/{kind}" for kind in ("chart", "diagram"))
        chart, diagram = f"<c:chart xmlns:c='{c}'/>", f"<d:relIds xmlns:d='{d}'/>"
        run = f"<w:r><w:drawing>{chart}</w:drawing><w:drawing>{diagram}</w:drawing><w:object/></w:r>"
        file = word("It is 5 MW.", run)
        file.add_comment(file.paragraphs[0].runs[0], "By whom?")
        said = ("1 chart", "1 diagram", "1 embedded file", "1 comment")
        assert sorted(parse("x.docx", file).dropped) == sorted(said)


class TestPowerPoint:
    def deck(self):
        file = Presentation()
        slide = file.slides.add_slide(file.slide_layouts[1])
        slide.shapes.title.text = "Power in 2024"
        frame = slide.placeholders[1].text_frame
        frame.text = "415 TWh in all"
        for text, level in (("a third in the US", 1), ("1.5 % of the world", 0)):
            paragraph = frame.add_paragraph()
            paragraph.text, paragraph.level = text, level
        slide.notes_slide.notes_text_frame.text = "Source: IEA, 2025."
        return file

    def test_a_slide_is_a_section_with_its_list_and_notes(self):
        document = parse("d/talk.pptx", self.deck())
        (section,) = document.sections
        assert (document.doc_id, document.title, document.n_pages) == ("talk", "Power in 2024", 1)
        assert (section.title, section.page) == ("Power in 2024", 1)
        assert [(paragraph.text, paragraph.page) for paragraph in section.paragraphs] == [
            ("- 415 TWh in all\n  - a third in the US\n- 1.5 % of the world", 1),
            ("Source: IEA, 2025.", 1),
        ]

    def test_tables_charts_and_groups(self):
        file = self.deck()
        slide = file.slides.add_slide(file.slide_layouts[6])
        rows = [("Model", "MWh"), ("GPT-3", "1,287")]
        fill(slide.shapes.add_table(2, 2, 0, Inches(3), Inches(4), Inches(1)).table, rows)
        slide.shapes.add_group_shape().shapes.add_textbox(0, 0, 9, 9).text_frame.text = "Above the table."
        chart = CategoryChartData()
        chart.categories = ["2021", "2022"]
        chart.add_series("PUE", (1.12, 0.1 + 0.2))
        file.slides.add_slide(file.slide_layouts[6]).shapes.add_chart(
            XL_CHART_TYPE.LINE, 0, 0, Inches(4), Inches(3), chart
        )
        sections = tree("x.pptx", file)
        assert sections["Slide 2"] == ["Above the table.", "Model: GPT-3; MWh: 1,287"]
        assert sections["Slide 3"] == ["2021; PUE: 1.12\n2022; PUE: 0.3"]

    def test_pictures_are_named_and_their_alternative_texts_read(self):
        file = Presentation()
        for text in ("Power doubles to 945 TWh by 2030.", None):
            picture = file.slides.add_slide(file.slide_layouts[6]).shapes.add_picture(png(), 0, 0)
            picture._element.nvPicPr.cNvPr.set("descr", text or "image.png")
        document = parse("x.pptx", file)
        ((paragraph,),) = [section.paragraphs for section in document.sections if section.paragraphs]
        assert (paragraph.text, paragraph.page) == ("Power doubles to 945 TWh by 2030.", 1)
        assert paragraph.attachment.kind == "image"
        assert document.dropped == ("2 images",)
        assert document.odd == ("slide 2: no text, but a picture",)

    def test_hidden_and_blank_slides_are_named(self):
        file = self.deck()
        file.slides.add_slide(file.slide_layouts[6]).shapes.add_textbox(0, 0, 9, 9).text_frame.text = "A secret."
        file.slides[1]._element.set("show", "0")
        file.slides.add_slide(file.slide_layouts[6])
        shape = file.slides[0].shapes.add_textbox(0, 0, 9, 9)
        shape.text_frame.text = "A secret."
        shape._element.nvSpPr.cNvPr.set("hidden", "1")
        document = parse("x.pptx", file)
        assert document.dropped == ("slide 1: 1 hidden shape", "slide 2: hidden")
        assert document.odd == ("slide 3: blank",)
        assert "secret" not in str(document.sections)

    def test_a_title_that_is_a_picture_names_nothing(self):
        """POI's 2411-Performance_Up.pptx, of which nothing was read."""
        file = self.deck()
        slide = file.slides.add_slide(file.slide_layouts[6])
        slide.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "It drew 4 MW."
        properties = slide.shapes.add_picture(png(), 0, 0)._element.nvPicPr.nvPr
        properties.append(properties.makeelement(f"{{{properties.nsmap['p']}}}ph", {"type": "title"}))
        assert tree("x.pptx", file)["Slide 2"] == ["It drew 4 MW."]

    def test_a_slide_of_a_title_alone_is_kept(self):
        file = self.deck()
        file.slides.add_slide(file.slide_layouts[5]).shapes.title.text = "Thank you for 99 questions"
        assert tree("x.pptx", file)["Thank you for 99 questions"] == ["Thank you for 99 questions"]


class TestExcel:
    def test_a_sheet_is_a_section_and_an_empty_row_ends_a_table(self):
        table = [["Country", "Year", "USD bn"], ["France", 2023, 3030.9], ["Chad", 2023, 12.5]]
        file, sheet = workbook(["GDP per country"], *table, ["Source: World Bank"], [], ["A remark alone."])
        sheet.title = "GDP"
        file.create_sheet("Empty")
        document = parse("d/data.xlsx", file)
        assert (document.doc_id, document.odd) == ("data", ("sheet 'Empty': empty",))
        assert tree("d/data.xlsx", file) == {
            "GDP": [
                "GDP per country\nCountry: France; Year: 2023; USD bn: 3030.9\nCountry: Chad; Year: 2023; USD bn: 12.5",
                "Source: World Bank",
                "A remark alone.",
            ]
        }

    def test_strict_open_xml_is_read(self):
        """POI's sample.strict.xlsx."""
        file, _ = workbook(["Site", "MWh"], ["Oslo", 12])
        assert tree("x.xlsx", strict(file)) == {"Sheet": ["Site: Oslo; MWh: 12"]} == tree("x.xlsx", file)

    def test_merged_cells_name_all_they_span(self):
        file, sheet = workbook(["Site", "Year", "PUE"], ["A", 2021, 1.12], [None, 2022, 1.1])
        sheet.merge_cells("A2:A3")
        assert tree("x.xlsx", file)["Sheet"] == ["Site: A; Year: 2021; PUE: 1.12\nSite: A; Year: 2022; PUE: 1.1"]

    def test_a_first_row_in_bold_names_columns_of_words(self):
        file, sheet = workbook(["Site", "State"], ["Oslo", "on"], ["Rome", "off"])
        for cell in sheet[1]:
            cell.font = Font(bold=True)
        assert tree("x.xlsx", file)["Sheet"] == ["Site: Oslo; State: on\nSite: Rome; State: off"]

    def test_formulas_are_their_values_and_those_without_are_named(self):
        file, _ = workbook(["Item", "kWh"], ["a", 2], ["b", "=B2*3"])
        said = "1 formula without a value: open and save the file in a spreadsheet program"
        assert parse("x.xlsx", file).odd == (said,)
        valued = repacked(file, lambda part: re.sub(rb"<v></v>|<v ?/>", b"<v>6</v>", part))
        document = parse("x.xlsx", valued)
        assert document.odd == ()
        assert texts(document) == ["Item: a; kWh: 2\nItem: b; kWh: 6"]

    def test_dates_truth_values_notes_and_hidden_sheets(self):
        file, sheet = workbook(["Day", "Open", "Share"], [dt.datetime(2024, 2, 29), True, 0.253])
        sheet["C2"].number_format = "0%"
        sheet["C2"].comment = Comment("Rounded in the sheet.", "me")
        file.create_sheet("Lists").append(["secret"])
        file["Lists"].sheet_state = "hidden"
        document = parse("x.xlsx", file)
        assert texts(document) == ["Day: 2024-02-29; Open: TRUE; Share: 25.3%", "C2: Rounded in the sheet."]
        assert document.dropped == ("sheet 'Lists': hidden",)

    @check_rows(
        ("value", "number_format", "text"),
        [
            (0.1 + 0.2, "General", "0.3"),
            (1234567, "#,##0", "1234567"),
            (0.253, "0%", "25.3%"),
            (-5.5, '"$"#,##0.00;[Red]("$"#,##0.00)', "-$5.5"),
            (3, "[$€-407] #,##0", "€3"),
            (7, "[$-409]#,##0", "7"),
        ],
    )
    def test_a_value_keeps_its_digits_and_takes_the_percent_sign_or_currency_of_its_format(
        self, value, number_format, text
    ):
        assert write_value(value, number_format) == text

    def test_hidden_rows_and_columns_are_left_out_and_named(self):
        """anydoc#112; a table goes on over them."""
        rows = [["Oslo", 2021, 1, 12], ["Rome", 2021, 2, 13], ["Oslo", 2022, 3, 14]]
        file, sheet = workbook(["Site", "Year", "Draft", "MWh"], *rows)
        sheet.row_dimensions[3].hidden = sheet.column_dimensions["C"].hidden = True
        sheet["A6"] = "Source: own count."
        document = parse("x.xlsx", file)
        seen = "Site: Oslo; Year: 2021; MWh: 12\nSite: Oslo; Year: 2022; MWh: 14"
        assert texts(document) == [seen, "Source: own count."]
        assert document.dropped == ("sheet 'Sheet': 7 cells in hidden rows or columns",)

    def test_pictures_are_named(self):
        file, sheet = workbook(["A sheet with a picture."])
        sheet.add_image(Picture(png()), "C3")
        assert parse("x.xlsx", file).dropped == ("1 image",)

    def test_a_long_table_is_cut_between_rows(self):
        file, _ = workbook(["Item", "Value"], *([f"item {i}", i * 10] for i in range(500)))
        parts = texts(parse("x.xlsx", file))
        assert "\n".join(parts).split("\n") == [f"Item: item {i}; Value: {i * 10}" for i in range(500)]
        assert max(map(len, parts)) <= 2000
        assert len(parts) < 10

    def test_a_cell_in_the_last_row_costs_no_empty_rows(self):
        file, sheet = workbook(["One sentence."])
        sheet["XFD1048576"] = "Far away."
        assert tree("x.xlsx", file)["Sheet"] == ["One sentence.", "Far away."]


def ole(stream):
    return b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504) + stream.encode("utf-16-le") + bytes(512)


def bomb(n_bytes):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("word/document.xml", bytes(n_bytes))
    return out.getvalue()


class TestBadInput:
    @check_rows(
        ("name", "data", "message"),
        [
            ("a.docx", ole("EncryptedPackage"), "a.docx is an old Office file, or one with a password: save a copy"),
            ("a.xlsx", ole("Workbook"), "a.xlsx is an old Office file, or one with a password: save a copy without"),
            ("a.doc", ole("WordDocument"), "a.doc is in an old Office format, which is not read: save it as .docx"),
            ("a.xls", ole("Workbook"), "a.xls is in an old Office format, which is not read: save it as .xlsx"),
            ("a.ppt", ole("PowerPoint Document"), "a.ppt is in an old Office format, which is not read: save it as .p"),
            ("a.xlsx", b"<html><body>Log in</body></html>", "a.xlsx is HTML, not XLSX: fetch the file again"),
            ("a.docx", b'{"error": 1}', "a.docx is JSON, not DOCX"),
            ("a.docx", b"Just text.", "a.docx is no Office file, or damaged or truncated after 10 bytes"),
        ],
    )
    def test_what_is_no_such_file_is_a_reject_that_says_so(self, name, data, message):
        with pytest.raises(DataError) as caught:
            parse_documents(name, data)
        assert str(caught.value).startswith(message)

    def test_a_file_of_another_kind_or_cut_off(self):
        with pytest.raises(DataError, match=r"a\.xlsx is DOCX, not XLSX"):
            parse("a.xlsx", Word())
        data = saved(Word())
        with pytest.raises(DataError, match=r"a\.docx is no Office file, or damaged or truncated after"):
            parse_file("a.docx", data[: len(data) // 2])

    def test_a_zip_bomb_is_not_unpacked(self, monkeypatch):
        assert archive.MAX_UNPACKED_BYTES == 2**30
        monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 2**20)  # a thousandth, as packing takes seconds
        data = bomb(2**20 + 1)
        monkeypatch.setattr(zipfile.ZipFile, "open", None)
        with pytest.raises(DataError, match=r"a\.docx unpacks from [\d,]+ to 1,048,577 bytes, at most 1,048,576"):
            parse_file("a.docx", data)

    def test_an_empty_file_of_each_kind_has_no_text(self):
        for name, file in (("a.docx", Word()), ("a.xlsx", Workbook()), ("a.pptx", Presentation())):
            with pytest.raises(DataError, match=rf"{name} has no text"):
                parse(name, file)

    def test_a_missing_library_is_named_with_its_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "mammoth", None)
        with pytest.raises(DataError, match=r"a\.docx needs the package mammoth: pip install 'kohaku-ray\[office\]'"):
            parse("a.docx", Word())

    def test_a_large_sheet_ends_in_time(self):
        rows = b'<row><c t="n"><v>1</v></c><c t="n"><v>2</v></c></row>' * 1_000_000
        data = repacked(Workbook(), lambda part: part.replace(b"<sheetData>", b"<sheetData>%s" % rows))
        assert len(data) > 100_000
        with pytest.raises(DataError, match=r"a\.xlsx: its [\d,]+ bytes are not parsed after 2 s of CPU time, "):
            parse("a.xlsx", data, timeout_s=2)

    @pytest.mark.slow
    def test_a_sheet_that_takes_too_much_memory_is_a_reject_that_says_so(self):
        code = (
            "import resource, sys, openpyxl; from kohaku_ray.documents.parse import parse_file\n"
            "n_pages = int(open('/proc/self/statm').read().split()[0])\n"
            "resource.setrlimit(resource.RLIMIT_AS, (n_pages * resource.getpagesize() + 40 * 2**20, -1))\n"
            "try: parse_file('a.xlsx', sys.stdin.buffer.read())\n"
            "except Exception as error: print(type(error).__name__, error)"
        )
        file = Workbook(write_only=True)
        sheet = file.create_sheet("Sheet")
        for i in range(60_000):
            sheet.append([f"item {i}", i, i * 1.5])
        done = subprocess.run([sys.executable, "-c", code], input=saved(file), capture_output=True, timeout=120)
        assert done.stdout.startswith(b"DataError a.xlsx takes more than 1.5 GiB of memory"), done.stderr[-500:]


def test_a_fraction_of_word_behind_a_number_is_no_part_of_it():
    run = "<m:r><m:t>{}</m:t></m:r>".format
    fraction = f"<m:f><m:num>{run(3)}</m:num><m:den>{run(4)}</m:den></m:f>"
    file = word("It took ", f"<m:oMath>{run(2)}{fraction}</m:oMath>")
    assert tree("a.docx", file) == {"a": ["It took 2 3/4"]}
