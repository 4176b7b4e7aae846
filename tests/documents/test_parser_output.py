"""What document parsers write is read as they write it: pages, boxes, tables; nothing of a page's furniture."""

import json

import pytest

from kohaku_ray.documents.parse import parse_documents, parse_file
from kohaku_ray.errors import DataError


def read(name, root):
    return parse_file(name, json.dumps(root).encode())


def tree(document):
    return {section.title: [(one.text, one.page) for one in section.paragraphs] for section in document.sections}


def prov(page, left, top, right, bottom):
    box = {"l": left, "t": top, "r": right, "b": bottom, "coord_origin": "BOTTOMLEFT"}
    return [{"page_no": page, "bbox": box, "charspan": [0, 9]}]


def text(number, label, words, page=1, **more):
    layer = "furniture" if label.startswith("page_") else "body"
    place = prov(page, 72, 700, 300, 680)
    return {"self_ref": f"#/texts/{number}", "label": label, "text": words, "orig": words, "content_layer": layer,
            "children": [], "prov": place, **more}  # fmt: skip


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
        assert document.dropped == ("1 page headers", "1 texts inside pictures")
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

    @pytest.mark.parametrize("n_rows", [10**9, -5])
    def test_a_table_that_claims_too_many_cells(self, n_rows):
        root = docling()
        root["tables"][0]["data"]["num_rows"] = n_rows
        with pytest.raises(DataError, match=rf"a table has {n_rows:,} × 2 cells, at most 1,000,000 are allowed"):
            read("p.json", root)


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
        assert document.dropped == ("1 page headers", "1 page numbers")
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
    links = "".join(f"<content-ref src='{one['id']}'></content-ref>" for one in items)
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
        assert document.dropped == ("1 page headers",)
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
        assert [one.doc_id for one in parsed.documents] == ["1a", "2b"]

    def test_a_page_without_text_is_skipped(self):
        line = self.line("x.pdf", "One.", "", "Three.")
        assert tree(parse_documents("o.jsonl", line.encode()).documents[0]) == {"x": [("One.", 1), ("Three.", 3)]}

    @pytest.mark.parametrize("spans", [[], [["a", 1, 2]], [[5, 2, 1]], [[0, 10**9, 7]], [None]])
    def test_spans_that_are_none(self, spans):
        row = {"text": "Some text.", "attributes": {"pdf_page_numbers": spans}}
        (document,) = parse_documents("o.jsonl", json.dumps(row).encode()).documents
        assert [one.text for one in document.sections[0].paragraphs] == ["Some text."]


class TestDataCSV:
    def test_a_row_names_its_columns(self):
        document = parse_file("d/gdp.csv", b"country,Year,GDP (USD bn)\nFrance,2023,3030.9\nChad,2023,\n")
        assert (document.doc_id, document.title) == ("gdp", "gdp")
        assert [one.text for one in document.sections[0].paragraphs] == [
            "country: France; Year: 2023; GDP (USD bn): 3030.9",
            "country: Chad; Year: 2023",
        ]
        assert [len(one.sentences) for one in document.sections[0].paragraphs] == [1, 1]

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
