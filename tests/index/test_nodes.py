import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.documents.model import Attachment, Document, Paragraph, Section, Sentence
from kohaku_ray.errors import DataError, TreeError
from kohaku_ray.index.nodes import DOCUMENT_SCHEMA, KINDS, NODE_SCHEMA, NodeTable, document_table, flatten


def paragraph(*sentences: str, **more) -> Paragraph:
    text, spans = "", []
    for sentence in sentences:
        text += " " if text else ""
        spans.append(Sentence(len(text), len(text) + len(sentence)))
        text += sentence
    return Paragraph(text=text, sentences=tuple(spans), **more)


def make_document(doc_id: str = "amazon2023", title: str = "Report") -> Document:
    return Document(
        doc_id=doc_id,
        title=title,
        sections=(
            Section("Carbon", (paragraph("It fell.", "By 3 %.", page=4, bbox=(1, 2, 3, 4)), paragraph("It rose."))),
            Section("Figures", (Paragraph("", page=9, attachment=Attachment("image", "Im0.jpg")),), page=9),
            Section("", (paragraph("Water use.", "In litres.", "Per day."),)),
        ),
        metadata={"url": "https://www.example.org/a.pdf", "year": "2023", "pages": "82"},
    )


@pytest.fixture
def nodes() -> NodeTable:
    return NodeTable(pa.concat_tables([flatten(make_document("a")), flatten(make_document("b"))]))


def test_flatten_lays_nodes_out_in_preorder_with_path_ids():
    table = flatten(make_document())
    assert table.schema == NODE_SCHEMA
    places = " :sec0 :sec0:p0 :sec0:p0:s0 :sec0:p0:s1 :sec0:p1 :sec0:p1:s0 :sec1 :sec1:p0"
    places += " :sec2 :sec2:p0 :sec2:p0:s0 :sec2:p0:s1 :sec2:p0:s2"
    assert table["node_id"].to_pylist() == [f"amazon2023{suffix}" for suffix in places.split(" ")]
    assert table["ordinal"].to_pylist() == [0, 0, 0, 0, 1, 1, 0, 1, 0, 2, 0, 0, 1, 2]
    assert table["text"].to_pylist()[:5] == ["", "", "It fell. By 3 %.", "It fell.", "By 3 %."]
    assert table["title"].to_pylist()[:3] == ["Report", "Carbon", ""]
    assert table["page"].to_pylist()[2:5] == [4, 4, 4]
    assert table["bbox"][2].as_py() == [1, 2, 3, 4]
    assert (table["attachment_kind"][8].as_py(), table["attachment_path"][8].as_py()) == ("image", "Im0.jpg")
    assert (table["start"][4].as_py(), table["end"][4].as_py()) == (9, 16)
    assert set(table["n_tokens"].to_pylist()) == {0}


def test_a_sections_text_is_its_title_and_body(nodes):
    assert nodes.text_of(1) == "Carbon\n\nIt fell. By 3 %.\n\nIt rose."
    assert nodes.text_of(7) == "Figures"
    assert nodes.text_of(9) == "Water use. In litres. Per day."
    assert nodes.text_of(0) == "Report"
    assert nodes.table["n_chars"].to_pylist() == [len(nodes.text_of(row)) for row in range(len(nodes))]
    assert (nodes.attachment_kind(nodes.row_of("b:sec1:p0")), nodes.attachment_kind(24)) == ("image", None)


def test_a_span_outside_its_paragraph_is_named():
    document = Document("d", "t", (Section("s", (Paragraph("short", (Sentence(2, 9),)),)),))
    with pytest.raises(TreeError, match=r"d:sec0:p0:s0 spans characters 2 to 9 of a paragraph of 5"):
        flatten(document)


def test_document_table_keeps_metadata_and_reads_the_host():
    table = document_table([make_document(), Document("x", "X", (), {"url": "http://[bad"})])
    assert table.schema == DOCUMENT_SCHEMA
    first, second = table.to_pylist()
    named = tuple(first[name] for name in ("title", "netloc", "year", "type"))
    assert named == ("Report", "www.example.org", "2023", None)
    assert '"pages": "82"' in first["metadata"]
    assert second["netloc"] is None


def test_relations(nodes):
    row = nodes.row_of("b:sec2:p0:s1")
    assert row == 26
    assert [nodes.node_id(above) for above in nodes.ancestors(row)] == ["b:sec2:p0", "b:sec2", "b"]
    assert nodes.doc_id(row) == "b"
    assert nodes.children(14) == [15, 21, 23]
    assert nodes.children(row) == []
    assert (nodes.section_of(row), nodes.paragraph_of(row)) == (23, 24)
    assert (nodes.section_of(14), nodes.paragraph_of(15), nodes.section_of(15)) == (-1, -1, 15)
    assert nodes.title_of(nodes.row_of("b:sec0:p1:s0")) == "Carbon"
    assert nodes.title_of(14) == "Report"
    assert nodes.end[:3].tolist() == [14, 7, 5]


def test_with_tokens_leaves_the_first_table_alone(nodes):
    assert nodes.tokens.sum() == sum(nodes.lists.tokens) == 0  # what was read once must not stick to the copy
    counted = nodes.with_tokens(np.arange(len(nodes)))
    assert counted.tokens.tolist() == counted.lists.tokens == list(range(28))
    assert nodes.tokens.sum() == sum(nodes.lists.tokens) == 0
    assert counted.table.schema == NODE_SCHEMA


def test_only_the_rows_of_a_part_travel(nodes):
    counted = nodes.with_tokens(np.arange(len(nodes)))
    part = counted.neighbourhood([25], 5)
    again = pickle.loads(pickle.dumps(part))
    assert again.table.equals(part.table)
    assert again.table.equals(counted.table.take(part.source_row))
    assert again.tokens.tolist() == part.source_row.tolist()
    assert len(pickle.dumps(part)) < len(pickle.dumps(nodes))
    assert [again.text_of(row) for row in range(len(again))] == [part.text_of(row) for row in range(len(part))]
    assert again.neighbourhood([4], 0).table.equals(part.table)


def test_the_rows_travel_as_one_buffer_beside_the_arrays(nodes):
    buffers = []
    data = pickle.dumps(nodes, 5, buffer_callback=buffers.append)
    assert len(buffers) == len(("parent", "kind", "end", "source_row", "tokens", "rows"))
    assert pickle.loads(data, buffers=buffers).table.equals(nodes.table)


def test_an_unknown_node_is_named(nodes):
    with pytest.raises(DataError, match="no node 'b:sec9' among 28"):
        nodes.row_of("b:sec9")
    with pytest.raises(DataError, match="row 3 of the index is not among the 6 nodes"):
        nodes.neighbourhood([25], 0).local([25, 3])
    with pytest.raises(DataError, match="row 99 of the index"):
        nodes.neighbourhood([25], 0).local([99])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.slice(1), "node 'a:sec0', row 0, is not below its parent 'a'"),
        (lambda t: t.take([0, 1, 2, 5, 3, 4]), "node 'a:sec0:p0:s0', row 4, is not below its parent 'a:sec0:p0'"),
        (lambda t: t.take([0, 1, 2, 3, 2, 3]), "node 'a:sec0:p0' occurs twice"),
    ],
)
def test_what_is_no_tree_is_refused(change, message):
    with pytest.raises(TreeError, match=message):
        NodeTable(change(flatten(make_document("a"))))


def ids(nodes: NodeTable) -> list[str]:
    return nodes.table["node_id"].to_pylist()


def test_neighbourhood_brings_the_paragraph_the_ancestors_and_the_section(nodes):
    sentence = nodes.row_of("a:sec0:p0:s1")
    assert ids(nodes.neighbourhood([sentence], 0)) == ["a", "a:sec0", "a:sec0:p0", "a:sec0:p0:s0", "a:sec0:p0:s1"]
    whole = nodes.neighbourhood([sentence], 1)
    assert ids(whole)[-2:] == ["a:sec0:p1", "a:sec0:p1:s0"]
    assert whole.local([sentence]).tolist() == [4]
    assert whole.neighbourhood([4], 0).source_row.tolist() == [0, 1, 2, 3, 4]
    assert ids(nodes.neighbourhood([0], 99)) == ["a"]
    assert ids(nodes.neighbourhood([nodes.row_of("a:sec0")], 1)) == ids(nodes)[:7]


@st.composite
def documents(draw) -> list[Document]:
    shape = draw(st.lists(st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=3), min_size=1, max_size=3))
    return [
        Document(
            f"d{d}",
            "t",
            tuple(Section("s", tuple(paragraph(*["Word."] * n) for n in section)) for section in sections),
        )
        for d, sections in enumerate(shape)
    ]


@given(documents())
def test_the_shape_is_that_of_the_ids(parsed):
    nodes = NodeTable(pa.concat_tables([flatten(document) for document in parsed]))
    names = ids(nodes)
    for row, name in enumerate(names):
        above = name.rpartition(":")[0]
        assert nodes.parent[row] == (names.index(above) if above else -1)
        assert KINDS[nodes.kind[row]] == KINDS[name.count(":")]
        below = [other for other in names if other == name or other.startswith(f"{name}:")]
        assert nodes.end[row] - row == len(below)
        assert nodes.children(row) == [
            position for position, other in enumerate(names) if other.rpartition(":")[0] == name
        ]


@given(documents(), st.data())
def test_a_neighbourhood_holds_what_its_definition_says(parsed, data):
    nodes = NodeTable(pa.concat_tables([flatten(document) for document in parsed]))
    nodes.neighbourhood([0], 1)  # sums of other counts must not stick to the copy
    nodes = nodes.with_tokens(
        np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(nodes), max_size=len(nodes))))
    )
    rows = data.draw(st.lists(st.integers(0, len(nodes) - 1), max_size=4))
    budget = data.draw(st.integers(0, 6))
    wanted = {row for start in rows for row in (start, *nodes.ancestors(start))}
    for start in rows:
        for paragraph in section_around(nodes, start, budget):
            wanted.update(range(paragraph, nodes.end[paragraph]))
    part = nodes.neighbourhood(rows, budget)
    assert part.source_row.tolist() == sorted(wanted)
    assert part.local(rows).tolist() == [sorted(wanted).index(row) for row in rows]
    shape = NodeTable(part.table)
    for name in ("kind", "parent", "end", "tokens"):
        assert getattr(part, name).tolist() == getattr(shape, name).tolist()


def section_around(nodes: NodeTable, row: int, budget: int) -> list[int]:
    """Walk outward from a row's paragraph, either way, as long as the budget is not full."""
    if nodes.section_of(row) < 0:
        return []
    paragraphs, anchor = nodes.children(nodes.section_of(row)), nodes.paragraph_of(row)
    index = paragraphs.index(anchor) if anchor >= 0 else -1
    rows = [anchor] if anchor >= 0 else []
    for way in (paragraphs[index + 1 :], paragraphs[: max(index, 0)][::-1]):
        used = 0
        for paragraph in way:
            if used >= budget:
                break
            rows.append(paragraph)
            used += int(nodes.tokens[paragraph])
    return rows
