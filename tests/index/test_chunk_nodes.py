"""Chunks beside the tree, and attributes of nodes: nothing of the tree itself changes."""

import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_nodes import documents, ids, make_document, paragraph

from kohaku_ray.documents.model import Attachment, Document, Paragraph, Section
from kohaku_ray.index.chunks import PARAGRAPH_BREAK, Chunks
from kohaku_ray.index.nodes import NodeTable, flatten

SMALL = Chunks(size=16, overlap=4)
BY_SECTION = Chunks(size=16, overlap=4, over="section")


def n_words(texts):
    return np.array([len(text.split()) for text in texts], np.int64)


def chunk_rows(nodes: NodeTable) -> list[int]:
    return [row for row in range(len(nodes)) if nodes.table["kind"][row].as_py() == "chunk"]


def test_chunks_of_a_document_stand_behind_its_sections():
    nodes = NodeTable(pa.concat_tables([flatten(make_document(name), SMALL) for name in "ab"]))
    text = "It fell. By 3 %.\n\nIt rose.\n\nWater use. In litres. Per day."
    windows = range(0, len(text) - 4, 12)
    assert [name for name in ids(nodes) if name.startswith("a:c")] == [f"a:c{i}" for i in range(len(windows))]
    assert ids(nodes)[13:15] == ["a:sec2:p0:s2", "a:c0"]
    for number, row in enumerate(chunk_rows(nodes)[: len(windows)]):
        start = windows[number]
        record = nodes.table.slice(row, 1).to_pylist()[0]
        assert (record["start"], record["end"]) == (start, min(start + 16, len(text)))
        assert nodes.text_of(row) == text[start : start + 16]
        assert record["n_chars"] == len(nodes.text_of(row))
        assert (record["parent_id"], record["doc_id"], record["ordinal"], record["title"]) == ("a", "a", number, "")
        assert nodes.attributes_of(row) == {"index": number, "total": len(windows)}
        assert nodes.title_of(row) == "Report"


def test_chunks_of_a_section_stand_behind_its_paragraphs():
    nodes = NodeTable(flatten(make_document("a"), BY_SECTION))
    assert ids(nodes)[6:11] == ["a:sec0:p1:s0", "a:sec0:c0", "a:sec0:c1", "a:sec1", "a:sec1:p0"]
    assert [nodes.text_of(row) for row in chunk_rows(nodes)] == [
        "It fell. By 3 %.",
        " 3 %.\n\nIt rose."[1:],
        "Water use. In li",
        "n litres. Per da",
        "r day.",
    ]


def test_what_has_no_text_is_no_part_of_a_chunk():
    """Neither an image without a caption nor its breaks; a caption and a paragraph without sentences are."""
    mute = Paragraph("", attachment=Attachment("image", "a.jpg"))
    shown = Paragraph("", attachment=Attachment("image", caption="A chart"))
    document = Document("d", "t", (Section("s", (mute, paragraph("One."), mute, shown, Paragraph("Rest"))),))
    for chunks in (Chunks(), Chunks(unit="tokens", size=9, min_size=9), Chunks(over="section")):
        nodes = NodeTable(flatten(document, chunks, n_words))
        assert [nodes.text_of(row) for row in chunk_rows(nodes)] == ["One.\n\nA chart\n\nRest"]
    assert chunk_rows(NodeTable(flatten(Document("d", "t", (Section("s", (mute,)),)), Chunks()))) == []


def test_attributes_are_the_paragraphs_own_and_sorted():
    part = replace(paragraph("Été."), attributes={"par_id": "7", "document_score": 0.5, "next_par_id": None, "n": 3})
    nodes = NodeTable(flatten(Document("d", "t", (Section("s", (part, paragraph("None."))),))))
    assert nodes.attributes_of(2) == {"par_id": "7", "document_score": 0.5, "next_par_id": None, "n": 3}
    assert [nodes.attributes_of(row) for row in (0, 1, 3, 4, 5)] == [{}] * 5
    part = pickle.loads(pickle.dumps(nodes.neighbourhood([3], 0)))
    assert part.attributes_of(2)["par_id"] == "7"


def test_a_neighbourhood_of_a_chunk_is_the_chunk_and_its_ancestors():
    nodes = NodeTable(flatten(make_document("a"), BY_SECTION)).with_tokens(np.arange(19))
    assert ids(nodes.neighbourhood([nodes.row_of("a:sec2:c1")], 99)) == ["a", "a:sec2", "a:sec2:c1"]
    both = nodes.neighbourhood([nodes.row_of("a:sec0:p0"), nodes.row_of("a:sec0:c1")], 99)
    assert ids(both) == [*ids(nodes)[:7], "a:sec0:c1"]
    assert both.end.tolist() == [8, 8, 5, 4, 5, 7, 7, 8]


@given(documents(), st.sampled_from(["document", "section"]), st.integers(1, 30), st.data())
def test_the_tree_is_the_same_with_and_without_chunks(parsed, over, size, data):
    chunks = Chunks(size=size, overlap=data.draw(st.integers(0, size - 1)), over=over)
    plain = NodeTable(pa.concat_tables([flatten(document) for document in parsed]))
    nodes = NodeTable(pa.concat_tables([flatten(document, chunks) for document in parsed]))
    plain_row_of = {row: plain_row for plain_row, row in enumerate(nodes.row_of(name) for name in ids(plain))}
    rows = list(plain_row_of)
    assert nodes.table.take(rows).equals(plain.table)
    assert [plain_row_of.get(int(nodes.parent[row]), -1) for row in rows] == plain.parent.tolist()
    for row, plain_row in plain_row_of.items():
        assert [plain_row_of[child] for child in nodes.children(row)] == plain.children(plain_row)
        assert [plain_row_of[up] for up in nodes.ancestors(row)] == plain.ancestors(plain_row)
        assert plain_row_of.get(nodes.section_of(row), -1) == plain.section_of(plain_row)
        assert plain_row_of.get(nodes.paragraph_of(row), -1) == plain.paragraph_of(plain_row)
        assert nodes.text_of(row) == plain.text_of(plain_row)
        assert nodes.title_of(row) == plain.title_of(plain_row)
        assert [plain_row_of[number] for number in range(row, int(nodes.end[row])) if number in plain_row_of] == list(
            range(plain_row, int(plain.end[plain_row]))
        )
        assert ids(nodes.neighbourhood([row], 3)) == ids(plain.neighbourhood([plain_row], 3))
    for row in chunk_rows(nodes):
        above = int(nodes.parent[row])
        assert row < nodes.end[above]
        below = [
            number
            for number in range(above, int(nodes.end[above]))
            if nodes.table["kind"][number].as_py() == "paragraph"
        ]
        joined = PARAGRAPH_BREAK.join(text for child in below if (text := nodes.text_of(child)))
        span = slice(nodes.table["start"][row].as_py(), nodes.table["end"][row].as_py())
        assert nodes.text_of(row) == joined[span]
        assert not set(range(row + 1, int(nodes.end[above]))) & set(rows) or over == "section"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"size": 50}, r"chunks\.overlap is 50 but chunks\.size 50 characters: set overlap to 0 or more"),
        ({"overlap": -1}, r"(?s)overlap.*greater than or equal to 0.*input_value=-1"),
        ({"unit": "tokens", "size": 199}, r"chunks\.min_size is 200 but chunks\.size 199 tokens: set min_size to 1"),
        ({"unit": "tokens", "min_size": 0}, r"(?s)min_size.*greater than or equal to 1.*input_value=0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_both(sizes, message):
    with pytest.raises(ValueError, match=message):
        Chunks(**sizes)


def test_what_does_not_matter_to_a_unit_is_not_compared():
    assert Chunks(size=30, overlap=3).as_mapping() == {"unit": "chars", "size": 30, "over": "document", "overlap": 3}
    tokens = Chunks(unit="tokens", size=600, overlap=900, over="section")
    assert tokens.as_mapping() == {"unit": "tokens", "size": 600, "over": "section", "min_size": 200}
