"""What document parsers write is read as they write it: pages, boxes, tables; nothing of a page's furniture.

The files in ``parser_outputs`` are from parsers themselves:

- side_headings.json: docling-project/docling@cecbbcc7, tests/data/groundtruth/docling_v2
- test.pptx.json, tables.docx.json, simple-list.docx.json: written by Docling 2.143 from markitdown's test.pptx
  (without its images) and mammoth 1.11's test files
- demo1_content_list.json, test_rearch_report_content_list.json: blocks of opendatalab/MinerU@b1adde8e, demo/demo1, and
  @54c23a53, tests/test_cli/pdf_dev/mineru
- switch_trans.json: blocks of two pages of datalab-to/marker@6442c1a2, data/examples/json
- output_78fb4cdf.jsonl: the first line of allenai/olmocr@3670b208, localworkspace2/results
"""

import json
import sys
from pathlib import Path

import pytest
from kit.rows import check_rows

from kohaku_ray.documents.parse import parse_documents, parse_file
from kohaku_ray.errors import DataError

OUTPUTS = Path(__file__).parent / "parser_outputs"


def read_output(name):
    return parse_file(name, (OUTPUTS / name).read_bytes())


def read(name, root):
    return parse_file(name, json.dumps(root).encode())


def tree(document):
    return {
        section.title: [(paragraph.text, paragraph.page) for paragraph in section.paragraphs]
        for section in document.sections
    }


class TestDocling:
    def test_headings_pages_and_boxes_from_the_top_left_corner(self):
        document = read_output("side_headings.json")
        assert (document.doc_id, document.title, document.n_pages) == ("side_headings", "side_headings", 1)
        assert [section.title for section in document.sections] == [
            "side_headings", "FIELD SERVICE SUPPLEMENT", "Requirements", "Setup and Checks"
        ]  # fmt: skip
        assert tree(document)["side_headings"] == [("Package List", 1)]
        assert document.sections[0].paragraphs[0].bbox == pytest.approx((120.52, 118.67, 200, 130.69))
        assert len(document.sections[2].paragraphs[0].sentences) == 3
        assert document.dropped == ("2 page footers",)

    def test_tables_charts_and_lists_within_lists_of_slides(self):
        document = read_output("test.pptx.json")
        texts = {title.rpartition(" › ")[2]: paragraphs for title, paragraphs in tree(document).items()}
        assert texts["A table to test parsing:"] == [
            ("ColA: 1; ColB: 2; ColC: 3; ColD: 4; ColE: 5; ColF: 6\n"
             "ColA: 7; ColB: 8; ColC: 9; ColD: 1b92870d-e3b5-4e65-8153-919f4ff45592; ColE: 11; ColF: 12\n"
             "ColA: 13; ColB: 14; ColC: 15; ColD: 16; ColE: 17; ColF: 18", 3)
        ]  # fmt: skip
        caption, chart = texts["A chart to test parsing:"]
        assert caption == ("a3f6004b-6f4f-4ea8-bee3-3741f4dc385f", 4)
        assert chart[0].startswith("2000; Series 1: 2000\n")
        assert texts["A Nested Shape parsing"][-1] == ("- Comment 1\n- Comment 2:\n  - Sub comment 2", 5)
        assert (document.n_pages, document.dropped) == (6, ("2 uncaptioned pictures",))
        (picture,) = [
            paragraph
            for section in document.sections
            for paragraph in section.paragraphs
            if paragraph.attachment is not None and paragraph.attachment.kind == "image"
        ]
        assert picture.text == caption[0]

    def test_tables_and_lists_of_word(self):
        assert tree(read_output("tables.docx.json")) == {
            "tables.docx": [("Above", None), ("Top left: Bottom left; Top right: Bottom right", None), ("Below", None)]
        }
        assert tree(read_output("simple-list.docx.json")) == {"simple-list.docx": [("- Apple\n- Banana", None)]}

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"version": "2.0.0"}, r"version: Doc version 2\.0\.0 incompatible with SDK schema version 1"),
            ({"body": 5}, "body: Input should be an object"),
            ({"body": {"self_ref": "#/body", "children": [{"$ref": "#/texts/99"}]}}, "refers to one that is not there"),
            ({"body": {"self_ref": "#/body", "children": [{"$ref": "#/body"}]}}, "Document hierarchy is inconsistent"),
        ],
    )
    def test_what_its_model_refuses_is_a_reject(self, change, reason):
        root = {**json.loads((OUTPUTS / "side_headings.json").read_text()), **change}
        with pytest.raises(DataError, match=rf"p\.json is no DoclingDocument that .*{reason}.*: upgrade docling-core"):
            read("p.json", root)

    def test_a_table_that_claims_too_many_cells_is_a_reject(self):
        root = json.loads((OUTPUTS / "test.pptx.json").read_text())
        root["tables"][0]["data"]["num_rows"] = 10**9
        with pytest.raises(DataError, match="1000000000x6 cells exceeds the limit of 1000000 cells"):
            read("p.json", root)

    def test_without_docling_core_a_file_is_named_with_its_way_out(self, monkeypatch):
        for module in [
            module for module in sys.modules if module.startswith(("docling_core", "kohaku_ray.documents.data.docling"))
        ]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, "docling_core", None)
        with pytest.raises(
            DataError, match=r"needs the package docling_core.*: pip install 'kohaku-ray\[docling\]', or export"
        ):
            read_output("side_headings.json")


class TestMinerU:
    def test_a_content_list(self):
        document = read_output("demo1_content_list.json")
        assert (document.doc_id, document.n_pages) == ("demo1", 4)
        (title, first), (section, second) = tree(document).items()
        assert title == document.title == "The response of flow duration curves to afforestation"
        caption = "Fig. 1. Annual flow duration curves of daily flows from Pine Creek, Australia, 1989–2000."
        assert first == [
            ("Received 1 October 2003; revised 22 December 2004; accepted 3 January 2005", 1),
            (caption, 2),
        ]
        assert section == "2.1. Characterisation of flow regime"
        assert second[0] == ("Q_(I_θ) = f(P) + g(T)", 3)
        assert "Δ P = 0 and T = 0, N_zero approximately equals a. Y gives" in second[1][0]

    def test_its_tables_notes_and_tables_without_cells(self):
        document = read_output("test_rearch_report_content_list.json")
        sections = tree(document)
        assert sections["增持 （维持）"][2:] == [
            (
                "沪深300对比: 绝对涨幅(%); 1M: 7.18; 2M: 32.88; 3M: 80.86\n"
                "沪深300对比: 相对涨幅(%); 1M: 8.10; 2M: 25.93; 3M: 78.39",
                1,
            ),
            ("资料来源：德邦研究所，聚源数据", 1),
        ]
        assert sections["投资要点"][1] == ("财务报表分析和预测", 3)
        assert document.sections[1].paragraphs[1].attachment.kind == "image"
        assert [section.page for section in document.sections] == [1, 1, 4]

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

    def test_the_file_beside_it_is_a_reject_that_names_the_right_one(self):
        with pytest.raises(
            DataError, match=r"x_middle\.json is what MinerU writes beside NAME_content_list\.json: give"
        ):
            read("x_middle.json", {"pdf_info": [], "_backend": "pipeline"})


class TestMarker:
    def test_blocks_of_pages(self):
        document = read_output("switch_trans.json")
        title = "Switch Transformers: Scaling to Trillion Parameter Models with Simple and Efficient Sparsity"
        assert (document.doc_id, document.title, document.n_pages) == ("switch_trans", title, 9)
        (texts,) = tree(document).values()
        assert [page for _, page in texts] == [1, 9, 9]
        assert "(refer to Code Block 15 in the Appendix for details)" in texts[2][0]
        assert document.dropped == ("1 page header",)
        assert document.sections[0].paragraphs[0].bbox == pytest.approx((108.92, 508.11, 502.63, 530.19), abs=0.01)

    def test_a_table_is_grouped_with_its_caption_and_a_list_refers_to_its_items(self):
        """The nesting of Marker's TableGroup and ListGroup, in blocks as those of switch_trans.json."""

        def block(number, kind, html, children=None):
            bbox = [10, 20, 300, 40]
            return {
                "id": f"/page/1/{kind}/{number}",
                "block_type": kind,
                "html": html,
                "children": children,
                "bbox": bbox,
            }

        items = [block(4, "ListItem", "<li>PUE of 1.12</li>"), block(5, "ListItem", "<li>PUE of 1.4</li>")]
        links = "".join(f"<content-ref src='{item['id']}'></content-ref>" for item in items)
        table = block(2, "Table", "<table><tr><th>Site</th><th>PUE</th></tr><tr><td>A</td><td>1.12</td></tr></table>")
        caption = block(1, "Caption", "<p>Table 1: Sites &amp; PUE</p>")
        blocks = [
            block(3, "ListGroup", f"<ul>{links}</ul>", items),
            block(6, "TableGroup", "<content-ref src='x'></content-ref>", [caption, table]),
        ]
        document = read("d/x.json", {"block_type": "Document", "children": [block(9, "Page", "", blocks)]})
        assert tree(document) == {
            "x": [("- PUE of 1.12\n- PUE of 1.4", 2), ("Table 1: Sites & PUE\nSite: A; PUE: 1.12", 2)]
        }


class TestOlmOCR:
    def line(self, source, *pages, **more):
        """Write a line with the keys of the real one for other pages."""
        spans, text = [], ""
        for number, page in enumerate(pages, 1):
            page = page if number == len(pages) else page + "\n"
            spans.append([len(text), len(text) + len(page), number])
            text += page
        real = json.loads((OUTPUTS / "output_78fb4cdf.jsonl").read_text())
        metadata = {**real["metadata"], "Source-File": source, "pdf-total-pages": len(pages)}
        row = {**real, "id": "3f" * 20, "text": text, "metadata": metadata, "attributes": {"pdf_page_numbers": spans}}
        return json.dumps({**row, **more}) + "\n"

    def test_a_line_of_its_own_is_a_document(self):
        (document,) = parse_documents("o.jsonl", (OUTPUTS / "output_78fb4cdf.jsonl").read_bytes()).documents
        assert (document.doc_id, document.n_pages) == ("ambiguous", 1)
        (texts,) = tree(document).values()
        assert texts == [("Hello", 1), ("Apples and Bananas", 1), ("Read this first", 1), ("Greek Yogurt", 1)]

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
        [{"page_idx": "x", "type": 5, "table_body": [], "bbox": "x"}],
        {"block_type": "Document", "children": [{"block_type": "Page", "children": [1, {"html": 3}]}]},
    ],
)
def test_what_is_malformed_is_a_reject(root):
    with pytest.raises(DataError, match=r"^x\.json(?!.*cannot be parsed)"):
        read("x.json", root)
