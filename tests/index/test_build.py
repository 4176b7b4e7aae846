import numpy as np
import pyarrow as pa
import pytest
from small_index import FakeEncoder, build_whole, files_of, index_documents

from kohaku_ray.documents.model import Document, Paragraph, Section
from kohaku_ray.errors import DataError, TreeError
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.build import IndexSettings, views_with_old
from kohaku_ray.index.chunks import Chunks
from kohaku_ray.index.flatten import document_table, flatten
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.known import known_vectors
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.propagate import unit_rows
from kohaku_ray.index.settings import IndexConfig
from kohaku_ray.index.store import Index
from kohaku_ray.index.views import View

NODES, PARAGRAPHS = ("sentence", "paragraph"), ("paragraph",)
VIEWS = (View(NODES, dense=True), View(PARAGRAPHS, lexical=True))


def contents(path) -> dict[str, bytes]:
    """Files of an index by role, whatever the build is called."""
    return {role: (path / entry["name"]).read_bytes() for role, entry in files_of(path).items()}


def test_texts_to_encode(documents):
    nodes = NodeTable(flatten(documents("a")[0]))
    names = nodes.table["node_id"].to_pylist()

    def chosen(how):
        rows, texts = texts_to_encode(nodes, IndexConfig(paragraph_vectors=how))
        return dict(zip([names[row] for row in rows], texts, strict=True))

    averaged = {
        "a:sec0:p0:s0": "a used 5 kWh.",
        "a:sec0:p0:s1": "Page 3",
        "a:sec0:p1:s0": "Page 3",
        "a:sec0:p1:s1": "It rose.",
        "a:sec1": "Pictures",
        "a:sec2:p0": "Chart of a",
    }
    assert chosen("averaged") == averaged
    full = averaged | {"a:sec0:p0": "a used 5 kWh. Page 3", "a:sec0:p1": "Page 3 It rose."}
    assert chosen("full") == chosen("both") == full


def test_summary_and_what_is_searched(tmp_path, build, documents):
    summary = build(tmp_path, documents("b", "a"), rejects=[("bad.md", "not text")])
    expected = {"n_documents": 2, "n_sections": 6, "n_paragraphs": 8, "n_sentences": 8, "n_nodes": 24, "n_rejects": 1}
    expected |= {"n_vectors": 8 + 6, "n_encoded": 2 + 2 + 1 + 2, "n_reused": 0}
    assert summary.items() >= expected.items()
    index = Index.open(str(tmp_path))
    assert index.documents["doc_id"].to_pylist() == ["a", "b"]
    assert index.rejects.to_pylist() == [{"file": "bad.md", "reason": "not text"}]
    searched = {index.nodes.node_id(row) for row in index.shards[0].vectors(NODES).rows}
    assert not any(name.count(":") < 2 for name in searched)
    assert "a:sec1:p0" not in searched
    assert "a:sec2:p0" in searched
    assert index.manifest["dim"] == 12
    assert index.manifest["counts"] == summary


def test_vectors_go_up_the_tree_by_characters(tmp_path, build, documents, fake_encoder):
    build(tmp_path, documents("a"))
    index = Index.open(str(tmp_path))
    first, page, rose, title, chart = (
        fake_encoder().encode_passages(["a used 5 kWh.", "Page 3", "It rose.", "Pictures", "Chart of a"]).astype(float)
    )
    p0 = unit_rows((13 * first + 6 * page)[None])[0]
    p1 = unit_rows((6 * page + 8 * rose)[None])[0]
    sec0 = unit_rows((20 * p0 + 15 * p1)[None])[0]
    nodes = index.nodes
    n_chars = nodes.table["n_chars"].to_numpy()[[1, 8, 10]]
    whole = unit_rows((n_chars[:, None] * [sec0, title, chart]).sum(0)[None])[0]
    rows = [nodes.row_of(name) for name in ("a:sec0:p0", "a:sec0:p1", "a:sec0", "a:sec1", "a:sec2", "a", "a:sec1:p0")]
    expected = [p0, p1, sec0, title, chart, whole, np.zeros(12)]
    np.testing.assert_allclose(index.node_vectors(np.array(rows)), expected, atol=1e-6)


def test_token_weights_need_counts(tmp_path, build, documents):
    with pytest.raises(DataError, match="weights is 'tokens' but no tokens were counted"):
        build(tmp_path, documents("a"), weights="tokens")


def test_full_paragraph_vectors_stand(tmp_path, build, documents, fake_encoder):
    build(tmp_path, documents("a"), paragraph_vectors="full")
    index = Index.open(str(tmp_path))
    vector = fake_encoder().encode_passages(["a used 5 kWh. Page 3"])
    assert (index.node_vectors(np.array([index.nodes.row_of("a:sec0:p0")])) == vector).all()
    assert len(index.shards[0].vectors(NODES)) == 7


def test_both_paragraph_vectors_are_searched_as_one_node(tmp_path, build, documents, fake_encoder):
    build(tmp_path / "averaged", documents("a"))
    build(tmp_path / "both", documents("a"), paragraph_vectors="both")
    plain, both = (Index.open(str(tmp_path / name)) for name in ("averaged", "both"))
    assert len(both.shards[0].vectors(NODES)) == len(plain.shards[0].vectors(NODES)) + 2
    every = np.arange(len(plain.nodes))
    np.testing.assert_array_equal(both.node_vectors(every), plain.node_vectors(every))
    query = fake_encoder().encode_passages(["Page 3 It rose."])
    hits = both.shards[0].vectors(NODES).search(query, 7)[0]
    assert both.nodes.node_id(hits.rows[0]) == "a:sec0:p1"
    assert hits.scores[0] == pytest.approx(1)
    assert len(set(hits.rows.tolist())) == 7


def test_indexing_again_encodes_only_what_is_new_and_leaves_nothing_stale(tmp_path, build, documents, fake_encoder):
    build(tmp_path, documents("a", "b"))
    encoder = fake_encoder()
    summary = build(tmp_path, documents("b", "c"), encoder)
    assert sorted(encoder.asked) == ["Chart of c", "c used 5 kWh."]
    assert (summary["n_encoded"], summary["n_reused"]) == (2, 5)
    build(tmp_path / "fresh", documents("b", "c"))
    assert contents(tmp_path) == contents(tmp_path / "fresh")
    assert "a" not in {index.nodes.doc_id(0) for index in [Index.open(str(tmp_path))]}
    is_known, _ = known_vectors(str(tmp_path), encoder.identity).lookup(
        vector_keys(encoder.identity, ["a used 5 kWh."])
    )
    assert not is_known.any()


def test_another_encoder_knows_nothing_but_another_query_prompt_does(tmp_path, build, documents, fake_encoder):
    build(tmp_path, documents("a"))
    other = {**fake_encoder().identity, "passage_prompt": "passage: "}
    assert len(known_vectors(str(tmp_path), other)) == 0
    same = {**fake_encoder().identity, "query_prompt": "query: ", "model": "elsewhere"}
    assert len(known_vectors(str(tmp_path), same)) == 5
    assert len(known_vectors(str(tmp_path / "none"), same)) == 0


@pytest.mark.parametrize("factory", ["Flat", "HNSW4", "IVF2,Flat", "PQ4x4"])
def test_building_twice_gives_the_same_bytes(tmp_path, build, documents, factory):
    many = documents(*(f"d{i:02}" for i in range(20)))
    for name in ("one", "two"):
        build(tmp_path / name, many, factory=factory, paragraph_vectors="both")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def call(tmp_path, parsed, encoder, **changes):
    nodes = pa.concat_tables([flatten(document) for document in parsed])
    texts = sorted({*texts_to_encode(NodeTable(nodes), IndexConfig())[1]})
    arguments = {
        "nodes": nodes,
        "documents": document_table(parsed),
        "keys": vector_keys(encoder.identity, texts),
        "vectors": encoder.encode_passages(texts),
        "settings": IndexSettings(encoder=encoder.identity),
        "views": VIEWS,
    }
    return build_whole(tmp_path, **(arguments | changes))


def test_bad_input_is_refused_and_names_the_node(tmp_path, documents, fake_encoder):
    encoder = fake_encoder()
    two = documents("a", "b")
    texts = ["a used 5 kWh.", "Page 3", "It rose.", "Pictures", "Chart of a"]
    keys, vectors = vector_keys(encoder.identity, texts), encoder.encode_passages(texts)
    with pytest.raises(DataError, match="2 texts without a vector, the first is that of"):
        call(tmp_path, two, encoder, keys=keys, vectors=vectors)
    vectors[0, 0] = np.nan
    with pytest.raises(DataError, match="the vector of a:sec0:p0:s0 is not finite"):
        call(tmp_path, two[:1], encoder, keys=keys, vectors=vectors)
    with pytest.raises(TreeError, match="occurs twice"):
        call(tmp_path, [two[0], two[0]], encoder)
    with pytest.raises(DataError, match="no document has any text to search"):
        call(tmp_path, [Document("x", "X", (Section("", (Paragraph(""),)),))], encoder)
    assert not (tmp_path / "manifest.json").exists()


CHUNKS = ("chunk",)
CHUNK_VIEWS = (*VIEWS, View(CHUNKS, dense=True, lexical=True))
SMALL = Chunks(size=24, overlap=6)


def chunked(path, parsed, chunks, encoder):
    return index_documents(path, parsed, encoder, views=CHUNK_VIEWS, chunks=chunks)


def test_chunks_are_searched_by_vectors_and_terms_and_within_documents(tmp_path, documents, fake_encoder):
    counts = chunked(tmp_path, documents("a", "b"), SMALL, fake_encoder())
    index = Index.open(str(tmp_path))
    rows = index.shards[0].vectors(CHUNKS).rows.tolist()
    names = [index.nodes.node_id(row) for row in rows]
    assert names == [f"{name}:c{i}" for name in "ab" for i in range(counts["n_chunks"] // 2)]
    texts = [index.nodes.text_of(row) for row in rows]
    assert "".join([texts[0], *(text[6:] for text in texts[1 : len(texts) // 2])]) == (
        "a used 5 kWh. Page 3\n\nPage 3 It rose.\n\nChart of a"
    )
    vectors = fake_encoder().encode_passages(texts)
    assert index.node_vectors(np.array(rows)).tobytes() == vectors.tobytes()
    hits = index.shards[0].vectors(CHUNKS).search(vectors[-1:], 3, index.ranges(["b"]))[0]
    assert (hits.rows[0], {index.nodes.doc_id(row) for row in hits.rows}) == (rows[-1], {"b"})
    matches = index.shards[0].terms(CHUNKS).search(["chart"], 9)[0]
    assert {index.nodes.text_of(row) for row in matches.rows} >= {texts[-1], texts[len(texts) // 2 - 1]}
    within = index.shards[0].terms(CHUNKS).search(["chart"], 9, index.ranges(["a"]))[0]
    assert {index.nodes.doc_id(row) for row in within.rows} == {"a"}


def test_an_index_of_other_chunks_is_refused_and_one_with_chunks_serves_who_asks_for_none(tmp_path, documents):
    encoder = FakeEncoder()
    chunked(tmp_path, documents("a"), SMALL, encoder)
    plain = IndexSettings(encoder=encoder.identity)
    assert Index.open(str(tmp_path), plain.as_mapping()).nodes.text_of(0) == "Report a"
    other = IndexSettings(encoder.identity, IndexConfig(chunks=Chunks(size=30, overlap=6)))
    with pytest.raises(DataError, match=r"built with chunks\.size 24 but the configuration says 30"):
        Index.open(str(tmp_path), other.as_mapping())
    same = IndexSettings(encoder.identity, IndexConfig(chunks=SMALL))
    assert any(view.kinds == CHUNKS for view in views_with_old(str(tmp_path), same, VIEWS))
    assert not any("chunk" in view.kinds for view in views_with_old(str(tmp_path), plain, VIEWS))
