"""What document parsers write is read as they write it: pages, boxes, tables; nothing of a page's furniture."""

import json

import pytest
from kit.rows import check_rows

from kohaku_ray.documents.parse import parse_documents, parse_file
from kohaku_ray.errors import DataError


def read(name, root):
    return parse_file(name, json.dumps(root).encode())


def tree(document):
    return {
        section.title: [(paragraph.text, paragraph.page) for paragraph in section.paragraphs]
        for section in document.sections
    }


def prov(page, left, top, right, bottom):
    box = {"l": left, "t": top, "r": right, "b": bottom, "coord_origin": "BOTTOMLEFT"}
    return [{"page_no": page, "bbox": box, "charspan": [0, 9]}]


def text(number, label, words, page=1, **more):
    layer = "furniture" if label.startswith("page_") else "body"
    provenance = prov(page, 72, 700, 300, 680)
    return {"self_ref": f"#/texts/{number}", "label": label, "text": words, "orig": words, "content_layer": layer,
            "children": [], "prov": provenance, **more}  # fmt: skip


def cell(words, row, column, n_rows=1, n_columns=1, header=False):
    return {
        "text": words, "row_span": n_rows, "col_span": n_columns, "start_row_offset_idx": row,
        "end_row_offset_idx": row + n_rows, "start_col_offset_idx": column, "end_col_offset_idx": column + n_columns,
        "column_header": header, "row_header": False, "row_section": False,
    }  # fmt: skip


def refs(*names):
    return [{"$ref": f"#/{name}"} for name in names]


def docling():
    texts = [
        text(0, "page_header", "Journal of Energy"),
        text(1, "title", "Energy of models"),
        text(2, "section_header", "1 Results", level=1),
        text(3, "text", "It takes 1,287 MWh. That is much."),
        text(4, "list_item", "first", page=2, enumerated=True, marker="1."),
        text(5, "list_item", "second", page=2, enumerated=True, marker="2."),
        text(6, "caption", "Table 1: Energy per model.", page=2),
        text(7, "caption", "Figure 1: Energy over time.", page=3),
        text(8, "text", "0 100 200", page=3),
        text(9, "section_header", "1.1 Cost", page=3, level=2),
        text(10, "code", "x = 1", page=3),
        text(11, "text", "The cost of", page=3),
        text(12, "text", "$4.6 M", page=3),
    ]
    cells = [cell("Model", 0, 0, header=True), cell("Energy, MWh", 0, 1, header=True), cell("GPT-3", 1, 0),
             cell("1,287", 1, 1), cell("BLOOM", 2, 0), cell("433", 2, 1)]  # fmt: skip
    table = {"label": "table", "prov": prov(2, 72, 500, 400, 300), "captions": refs("texts/6"), "footnotes": [],
             "children": refs("texts/6"), "data": {"table_cells": cells, "num_rows": 3, "num_cols": 2}}  # fmt: skip
    picture = {"label": "picture", "prov": prov(3, 72, 500, 400, 300), "captions": refs("texts/7"),
               "children": refs("texts/7", "texts/8")}  # fmt: skip
    groups = [
        {"label": "ordered_list", "children": refs("texts/4", "texts/5")},
        {"label": "inline", "children": refs("texts/11", "texts/12")},
    ]
    body = refs("texts/0", "texts/1", "texts/2", "texts/3", "groups/0", "tables/0", "pictures/0", "texts/9", "texts/10")
    return {
        "schema_name": "DoclingDocument",
        "version": "1.8.0",
        "name": "paper",
        "body": {"self_ref": "#/body", "children": [*body, *refs("groups/1")]},
        "texts": texts,
        "tables": [table],
        "pictures": [picture],
        "groups": groups,
        "pages": {str(n): {"page_no": n, "size": {"width": 612, "height": 792}} for n in (1, 2, 3)},
    }


class TestDocling:
    def test_headings_lists_tables_and_pages(self):
        document = read("d/paper.json", docling())
        assert (document.doc_id, document.title, document.n_pages) == ("paper", "Energy of models", 3)
        assert tree(document) == {
            "1 Results": [
                ("It takes 1,287 MWh. That is much.", 1),
                ("1. first\n2. second", 2),
                (
                    "Table 1: Energy per model.\nModel: GPT-3; Energy, MWh: 1,287\nModel: BLOOM; Energy, MWh: 433",
                    2,
                ),
                ("Figure 1: Energy over time.", 3),
            ],
            "1 Results › 1.1 Cost": [("x = 1", 3), ("The cost of $4.6 M", 3)],
        }
        assert document.dropped == ("1 page header", "1 text block inside a picture")
        assert [section.page for section in document.sections] == [1, 3]

    def test_boxes_are_from_the_top_left_corner(self):
        first, items, table, figure = read("d/paper.json", docling()).sections[0].paragraphs
        assert (first.bbox, items.bbox, table.bbox) == ((72, 92, 300, 112), (72, 92, 300, 112), (72, 292, 400, 492))
        assert (table.attachment.kind, table.attachment.caption) == ("table", "Table 1: Energy per model.")
        assert (figure.attachment.kind, len(first.sentences)) == ("image", 2)

    @pytest.mark.parametrize("version", ["2.0.0", "", None])
    def test_an_unknown_version_is_a_reject(self, version):
        with pytest.raises(
            DataError, match=rf"p\.json is a DoclingDocument of version {version or '.none.'}; versions 1"
        ):
            read("p.json", {**docling(), "version": version})

    def test_a_reference_to_nothing_is_a_reject(self):
        with pytest.raises(DataError, match=r"p\.json: '#/texts/99' is no item of the document: export it again"):
            read("p.json", {**docling(), "body": {"children": refs("texts/99")}})

    def test_a_circle_of_references_ends(self):
        root = docling()
        root["texts"][3]["children"] = refs("texts/3", "texts/2")
        assert read("p.json", root).sections

    def test_a_table_that_claims_too_many_cells(self):
        root = docling()
        root["tables"][0]["data"]["num_rows"] = 10**9
        with pytest.raises(DataError, match=r"a table has 1,000,000,000 × 2 cells, at most 1,000,000 are allowed"):
            read("p.json", root)
        root["tables"][0]["data"]["table_cells"][0]["start_col_offset_idx"] = 10**9
        with pytest.raises(DataError, match=r"a table has 1,000,000,000 × 1,000,000,001 cells"):
            read("p.json", root)

    @check_rows(
        ("cells", "n_rows", "rows"),
        [
            ([("A", 1, 0), ("12", 1, 1), ("B", 2, 0), ("13", 2, 1)], 2, ["Model: A; MWh: 12", "Model: B; MWh: 13"]),
            ([("A", 1, 0), ("12", 1, 1)], -5, ["Model: A; MWh: 12"]),
            ([("A", 1, 0, 1, 2), ("12", 1, 1)], 2, ["Model: A; MWh: 12"]),
            ([("A", 1, 0), ("12", 1, 1), ("13", 1, 1)], 2, ["Model: A; MWh: 12 13"]),
            ([("A", 1, 0, 2, 1), ("12", 1, 1), ("13", 2, 1, 9, 9)], 3, ["Model: A; MWh: 12", "Model: A; MWh: 13"]),
            ([("A", 1, -3), ("12", 1, 1)], 2, ["Model: A; MWh: 12"]),
        ],
    )
    def test_no_cell_is_lost_beyond_a_tables_size_or_below_another(self, cells, n_rows, rows):
        header = [cell("Model", 0, 0, header=True), cell("MWh", 0, 1, header=True)]
        data = {"table_cells": [*header, *(cell(*arguments) for arguments in cells)], "num_rows": n_rows, "num_cols": 2}
        assert [lines.split("\n") for lines in body_of(tables=[{"label": "table", "data": data}])] == [rows]

    def test_a_list_keeps_the_numbers_of_its_items(self):
        def items(*markers):
            texts = [text(i, "list_item", "x", enumerated=True, marker=marker) for i, marker in enumerate(markers)]
            group = {"label": "list", "children": refs(*(f"texts/{i}" for i in range(len(texts))))}
            return body_of(groups=[group], texts=texts)

        assert items("3.", "5.", "6.") == ["3. x\n5. x\n6. x"]
        assert items("(a)", "(b)") == ["- (a) x\n- (b) x"]
        assert items("3.1", "3.2") == ["- 3.1 x\n- 3.2 x"]

    def test_raised_lowered_and_deleted_runs(self):
        runs = [("It was 1.58", None), ("2", "super"), ("and 10", None), ("9", "super"), ("t of CO", None),
                ("2", "sub"), ("in all", None)]  # fmt: skip
        texts = [text(i, "text", words, formatting={"script": script}) for i, (words, script) in enumerate(runs)]
        texts.append(text(7, "text", "or 5", formatting={"strikethrough": True}))
        inline = {"label": "inline", "children": refs(*(f"texts/{i}" for i in range(8)))}
        assert body_of(groups=[inline], texts=texts) == ["It was 1.58 [2] and 10^9 t of CO2 in all"]

    def test_fields_of_a_form_are_keys_with_values(self):
        cells = [{"cell_id": i, "text": words} for i, words in enumerate(["PUE", "1.12", "WUE", "0.2", "by site"])]
        links = [{"label": "to_value", "source_cell_id": i, "target_cell_id": i + 1} for i in (0, 2)]
        form = {"label": "form", "graph": {"cells": cells, "links": links}}
        assert body_of(form_items=[form]) == ["PUE: 1.12", "WUE: 0.2", "by site"]

    def test_a_pictures_description_values_and_notes(self):
        table = {"table_cells": [cell("Year", 0, 0, header=True), cell("MWh", 0, 1, header=True), cell("2020", 1, 0),
                                 cell("12", 1, 1)], "num_rows": 2, "num_cols": 2}  # fmt: skip
        texts = [text(0, "caption", "Figure 1."), text(1, "footnote", "Source: a survey of 2020.")]
        pictures = [
            {"label": "picture", "captions": refs("texts/0"), "footnotes": refs("texts/1"),
             "children": refs("texts/0", "texts/1"), "annotations": [{"kind": "description", "text": "A bar of 12."}]},
            {"label": "chart", "annotations": [{"title": "Energy", "chart_data": table}]},
            {"label": "picture", "meta": {"description": {"text": "A hall of 5 MW."}}},
        ]  # fmt: skip
        document = docling_of(pictures=pictures, texts=texts)
        assert [paragraph.text for paragraph in document.sections[0].paragraphs] == [
            "Figure 1.", "A bar of 12.", "Source: a survey of 2020.", "Energy\nYear: 2020; MWh: 12", "A hall of 5 MW.",
        ]  # fmt: skip
        assert document.dropped == ("1 uncaptioned picture",)

    def test_the_content_of_a_cell_is_read_once(self):
        rich = {**cell("It was 12.", 1, 1), "ref": {"$ref": "#/texts/0"}}
        data = {"table_cells": [cell("Model", 0, 0, header=True), cell("Energy", 0, 1, header=True), cell("A", 1, 0),
                                rich], "num_rows": 2, "num_cols": 2}  # fmt: skip
        table = {"label": "table", "data": data, "children": refs("texts/0")}
        (only,) = body_of(tables=[table], texts=[text(0, "text", "It was 12.")], order=["tables"])
        assert only == "Model: A; Energy: It was 12."

    def test_furniture_apart_from_the_body_is_named_and_a_sheet_is_a_section(self):
        texts = [text(0, "text", "It was 5."), text(1, "page_footer", "7"), text(2, "text", "Draft")]
        root = {"furniture": {"children": refs("texts/1", "texts/2")}}
        group = {"label": "section", "name": "sheet: Energy 2023", "children": refs("texts/0")}
        document = docling_of(groups=[group], texts=texts, order=["groups"], **root)
        assert (document.dropped, tree(document)) == (
            ("1 page footer", "1 furniture item"), {"Energy 2023": [("It was 5.", 1)]}
        )  # fmt: skip

    @pytest.mark.parametrize("version", ["1.0.0", "1.99.3"])
    def test_a_newer_minor_version_is_read_and_an_empty_document_is_a_reject(self, version):
        root = {"schema_name": "DoclingDocument", "version": version, "texts": [text(0, "text", "It was 5.")]}
        assert tree(read("p.json", {**root, "body": {"children": refs("texts/0")}})) == {"p": [("It was 5.", 1)]}
        with pytest.raises(DataError, match=r"p\.json has no text"):
            read("p.json", {**root, "body": {"children": []}})


def docling_of(order=("groups", "tables", "pictures", "form_items"), **more):
    body = refs(*(f"{kind}/{i}" for kind in order for i in range(len(more.get(kind, ())))))
    pages = {"1": {"page_no": 1, "size": {"width": 612, "height": 792}}}
    root = {"schema_name": "DoclingDocument", "version": "1.8.0", "body": {"children": body}, "pages": pages, **more}
    return read("p.json", root)


def body_of(**more):
    return [paragraph.text for section in docling_of(**more).sections for paragraph in section.paragraphs]


CONTENT_LIST = [
    {"type": "text", "text": "Flow of rivers ", "text_level": 1, "bbox": [100, 50, 900, 90], "page_idx": 0},
    {"type": "header", "text": "Journal of Rivers", "bbox": [0, 0, 900, 20], "page_idx": 0},
    {"type": "text", "text": "The mean is 3.2 m. It rose by 5 %.", "bbox": [100, 100, 900, 150], "page_idx": 0},
    {"type": "text", "text": "1. Data", "text_level": 2, "page_idx": 1},
    {"type": "list", "list_items": ["(a) rain", "(b) snow"], "page_idx": 1},
    {
        "type": "table",
        "img_path": "images/e3.jpg",
        "table_caption": ["Table 2 Days of flow "],
        "table_footnote": ["na: too few points."],
        "table_body": "<html><body><table><tr><td>Site</td><td>Days</td></tr><tr><td>Redhill</td><td>121</td></tr>"
        "<tr><td>Pine Ck</td><td>87</td></tr></table></body></html>",
        "bbox": [62, 480, 946, 904],
        "page_idx": 5,
    },
    {"type": "image", "img_path": "images/a8.jpg", "image_caption": ["Fig. 1. Flow since 1989."], "page_idx": 6},
    {"type": "code", "code_caption": ["Listing 1"], "code_body": "a = 1", "page_idx": 6},
    {"type": "page_number", "text": "7", "page_idx": 6},
]


class TestMinerU:
    def test_a_content_list(self):
        document = read("d/rivers_content_list.json", CONTENT_LIST)
        assert (document.doc_id, document.title, document.n_pages) == ("rivers", "Flow of rivers", 7)
        assert tree(document) == {
            "Flow of rivers": [("The mean is 3.2 m. It rose by 5 %.", 1)],
            "1. Data": [
                ("(a) rain", 2),
                ("(b) snow", 2),
                ("Table 2 Days of flow\nSite: Redhill; Days: 121\nSite: Pine Ck; Days: 87", 6),
                ("na: too few points.", 6),
                ("Fig. 1. Flow since 1989.", 7),
                ("Listing 1", 7),
                ("a = 1", 7),
            ],
        }
        assert document.dropped == ("1 page header", "1 page number")
        assert document.sections[0].paragraphs[0].bbox == (100, 100, 900, 150)

    def test_the_pages_of_blocks_of_its_third_release(self):
        """RAG-Anything#347, RAG-Anything#224; the blocks are as MinerU's make_blocks_to_content_list_v2 writes them."""

        def spans(*texts):
            kinds = ("text", "equation_inline")
            return [{"type": kinds[i % 2], "content": text} for i, text in enumerate(texts)]

        site = "<table><tr><td>Site</td><td>Days</td></tr><tr><td>Redhill</td><td>121</td></tr></table>"
        pages = [
            [
                {"type": "title", "content": {"title_content": spans("Flow of rivers"), "level": 1}},
                {"type": "page_header", "content": {"page_header_content": spans("Journal of Rivers")}},
                {
                    "type": "paragraph",
                    "content": {"paragraph_content": spans("The mean is ", "10^{9}", " m. It rose.")},
                    "bbox": [100, 100, 900, 150],
                },
                {"type": "index", "content": {"list_type": "text_list", "list_items": []}},
            ],
            [
                {"type": "title", "content": {"title_content": spans("1. Data"), "level": 2}},
                {
                    "type": "list",
                    "content": {"list_items": [{"item_type": "text", "item_content": spans(text)} for text in "ab"]},
                },
                {
                    "type": "table",
                    "content": {
                        "html": site,
                        "table_caption": spans("Table 2"),
                        "table_footnote": spans("A note."),
                        "table_type": "simple_table",
                    },
                },
                {"type": "equation_interline", "content": {"math_content": "E = mc^2", "math_type": "latex"}},
                {
                    "type": "image",
                    "content": {"image_source": {"path": "images/a8.jpg"}, "image_caption": spans("Fig. 1. Flow.")},
                },
                {"type": "code", "content": {"code_caption": spans("Listing 1"), "code_content": spans("a = 1")}},
            ],
        ]
        document = read("d/rivers_content_list_v2.json", pages)
        assert (document.doc_id, document.title, document.n_pages) == ("rivers", "Flow of rivers", 2)
        assert tree(document) == {
            "Flow of rivers": [("The mean is 10^9 m. It rose.", 1)],
            "1. Data": [
                ("a", 2),
                ("b", 2),
                ("Table 2\nSite: Redhill; Days: 121", 2),
                ("A note.", 2),
                ("E = mc^2", 2),
                ("Fig. 1. Flow.", 2),
                ("Listing 1", 2),
                ("a = 1", 2),
            ],
        }
        assert document.dropped == ("1 page header", "1 contents page")
        assert document.sections[0].paragraphs[0].bbox == (100, 100, 900, 150)

    def test_older_keys_of_captions(self):
        blocks = [{"type": "image", "img_caption": ["Fig. 1. Old."], "img_footnote": ["A note."], "page_idx": 0}]
        assert tree(read("x_content_list.json", blocks)) == {"x": [("Fig. 1. Old.", 1), ("A note.", 1)]}

    def test_the_file_beside_it_is_a_reject_that_names_the_right_one(self):
        with pytest.raises(
            DataError, match=r"x_middle\.json is what MinerU writes beside NAME_content_list\.json: give"
        ):
            read("x_middle.json", {"pdf_info": [], "_backend": "pipeline"})


def block(number, kind, html, page=0, **more):
    return {"id": f"/page/{page}/{kind}/{number}", "block_type": kind, "html": html, "children": None,
            "bbox": [10, 20, 300, 40], "polygon": [[10, 20], [300, 20], [300, 40], [10, 40]], **more}  # fmt: skip


def marker():
    items = [block(4, "ListItem", "<li>PUE of 1.12</li>"), block(5, "ListItem", "<li>PUE of 1.4</li>")]
    links = "".join(f"<content-ref src='{item['id']}'></content-ref>" for item in items)
    table = block(2, "Table", "<table><tr><th>Site</th><th>PUE</th></tr><tr><td>A</td><td>1.12</td></tr></table>", 1)
    caption = block(1, "Caption", "<p>Table 1: Sites &amp; PUE</p>", 1)
    first = [
        block(0, "PageHeader", "<p>A journal</p>"),
        block(1, "SectionHeader", "<h1>Power of <i>sites</i></h1>"),
        block(2, "Text", "<p>The sites use 3 MW. They grow.</p>"),
        block(3, "ListGroup", f"<ul>{links}</ul>", children=items),
    ]
    second = [
        block(0, "SectionHeader", "<h2>Sites</h2>", 1),
        block(3, "TableGroup", "<content-ref src='x'></content-ref>", 1, children=[caption, table]),
        block(4, "Footnote", "<p><sup>1</sup> Measured.</p>", 1),
    ]
    pages = [block(9, "Page", "", number, children=page) for number, page in enumerate((first, second))]
    return {"block_type": "Document", "children": pages, "metadata": {"page_stats": []}}


class TestMarker:
    def test_blocks_of_pages(self):
        document = read("d/sites.json", marker())
        assert (document.doc_id, document.title, document.n_pages) == ("sites", "Power of sites", 2)
        sections = tree(document)
        assert sections["Power of sites"] == [("The sites use 3 MW. They grow.", 1), ("- PUE of 1.12\n- PUE of 1.4", 1)]
        assert sections["Sites"][0] == ("Table 1: Sites & PUE\nSite: A; PUE: 1.12", 2)
        assert sections["Sites"][1][0].endswith("Measured.")
        assert document.dropped == ("1 page header",)
        assert document.sections[0].paragraphs[0].bbox == (10, 20, 300, 40)

    def test_chunks(self):
        blocks = [block(0, "SectionHeader", "<h1>A title</h1>"), block(1, "Text", "<p>Some text: 42.</p>", 3)]
        document = read("d/x.json", {"blocks": blocks, "page_info": {}, "metadata": {}})
        assert tree(document) == {"A title": [("Some text: 42.", 4)]}


class TestOlmOCR:
    def line(self, source, *pages, **more):
        spans, text = [], ""
        for number, page in enumerate(pages, 1):
            page = page if number == len(pages) else page + "\n"
            spans.append([len(text), len(text) + len(page), number])
            text += page
        metadata = {"Source-File": source, "olmocr-version": "0.4.2", "pdf-total-pages": len(pages)}
        row = {"id": "3f" * 20, "text": text, "source": "olmocr", "added": "2025-01-01", "created": "2025-01-01"}
        return json.dumps({**row, "metadata": metadata, "attributes": {"pdf_page_numbers": spans}, **more}) + "\n"

    def test_a_line_is_a_document_with_the_pages_of_its_pdf(self):
        pages = (
            "# Water of models\n\nIt takes 5.4 l. The rest of it evap-",
            "orates in towers.\n\n## Sites\n\n| Site | Litres |\n|---|---|\n| A | 700 |",
            "The last page.",
        )
        (document,) = parse_documents("out.jsonl", self.line("s3://bucket/pdfs/water.pdf", *pages).encode()).documents
        assert (document.doc_id, document.title, document.n_pages) == ("water", "Water of models", 3)
        assert tree(document) == {
            "Water of models": [("It takes 5.4 l. The rest of it evap- orates in towers.", 1)],
            "Sites": [("Site: A; Litres: 700", 2), ("The last page.", 3)],
        }

    def test_two_pdfs_of_one_name_keep_their_ids(self):
        lines = self.line("a/x.pdf", "First.", id="1a") + self.line("b/x.pdf", "Second.", id="2b")
        parsed = parse_documents("out.jsonl", lines.encode())
        assert [document.doc_id for document in parsed.documents] == ["1a", "2b"]

    def test_a_page_without_text_is_skipped(self):
        line = self.line("x.pdf", "One.", "", "Three.")
        assert tree(parse_documents("o.jsonl", line.encode()).documents[0]) == {"x": [("One.", 1), ("Three.", 3)]}

    @check_rows("spans", [[], [["a", 1, 2]], [[5, 2, 1]], [[0, 10**9, 7]], [None]])
    def test_spans_that_are_none(self, spans):
        row = {"text": "Some text.", "attributes": {"pdf_page_numbers": spans}}
        (document,) = parse_documents("o.jsonl", json.dumps(row).encode()).documents
        assert [paragraph.text for paragraph in document.sections[0].paragraphs] == ["Some text."]


class TestDataCSV:
    def test_a_row_names_its_columns(self):
        document = parse_file("d/gdp.csv", b"country,Year,GDP (USD bn)\nFrance,2023,3030.9\nChad,2023,\n")
        assert (document.doc_id, document.title) == ("gdp", "gdp")
        assert [paragraph.text for paragraph in document.sections[0].paragraphs] == [
            "country: France; Year: 2023; GDP (USD bn): 3030.9",
            "country: Chad; Year: 2023",
        ]
        assert [len(paragraph.sentences) for paragraph in document.sections[0].paragraphs] == [1, 1]

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"country,year\nFrance,2023,9\n", "line 2 has 3 cells, the header has 2"),
            (b"year,year\n1,2\n", "two columns called 'year'"),
            (b"country,year\n", "has no text"),
        ],
    )
    def test_what_cannot_be_read(self, data, message):
        with pytest.raises(DataError, match=message):
            parse_file("x.csv", data)

    def test_a_long_cell_is_cut_into_sentences(self):
        words = "This is a sentence of some length. " * 30
        (paragraph,) = parse_file("x.csv", f"id,body\n1,{words}\n".encode()).sections[0].paragraphs
        assert len(paragraph.sentences) == 30


@pytest.mark.parametrize(
    "root",
    [
        {"schema_name": "DoclingDocument", "version": "1.0.0", "body": 5},
        {"schema_name": "DoclingDocument", "version": "1.0.0", "body": {"children": [5, None]}},
        [{"page_idx": "x", "type": 5, "table_body": [], "bbox": "x"}],
        {"block_type": "Document", "children": [{"block_type": "Page", "children": [1, {"html": 3}]}]},
    ],
)
def test_what_is_malformed_is_a_reject(root):
    with pytest.raises(DataError, match=r"^x\.json(?!.*cannot be parsed)"):
        read("x.json", root)
