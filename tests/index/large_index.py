"""Synthetic documents with ready vectors, built shard by shard as the engine's tasks do, in one process."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from kohaku_ray.documents.model import Document, Paragraph, Section, Sentence
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.build import REJECT_SCHEMA, IndexSettings, build_shard, content_of, publish_shards
from kohaku_ray.index.flatten import document_table, flatten
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.layout import shard_number
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.propagate import unit_rows
from kohaku_ray.index.settings import IndexConfig
from kohaku_ray.index.views import View

DIM = 384
IDENTITY = {"model": "ready", "sha256": "0" * 64, "dim": None, "query_prompt": None, "passage_prompt": None}
VIEWS = (View(("sentence", "paragraph"), dense=True), View(("paragraph",), lexical=True))
SENTENCES = 200
"""Sentences per document."""


def document(number: int) -> Document:
    paragraphs = []
    for first in range(0, SENTENCES, 5):
        text, spans = "", []
        for k in range(first, first + 5):
            sentence = f"Sentence {k} of report {number} gives {number * k % 997} kWh and {k % 13} litres. "
            spans.append(Sentence(len(text), len(text) + len(sentence) - 1))
            text += sentence
        paragraphs.append(Paragraph(text.rstrip(), tuple(spans)))
    return Document(f"r{number:06}", f"Report {number}", (Section("All", tuple(paragraphs)),))


def ready(nodes: pa.Table):
    """Keys and vectors of the texts of some nodes."""
    _, texts = texts_to_encode(NodeTable(nodes), IndexConfig())
    texts = list(dict.fromkeys(texts))
    vectors = np.random.default_rng(len(texts)).standard_normal((len(texts), DIM), dtype=np.float32)
    return {"keys": vector_keys(IDENTITY, texts), "vectors": unit_rows(vectors)}


def trees(numbers: range, n_shards: int, shard: int) -> Iterator[Document]:
    return (document(number) for number in numbers if shard_number(f"r{number:06}", n_shards) == shard)


def build(path: str, n_sentences: int, n_shards: int) -> dict:
    """Build an index of synthetic documents, one shard after the other."""
    settings, numbers = IndexSettings(encoder=IDENTITY), range(n_sentences // SENTENCES)
    rejects, shards = pa.Table.from_pylist([], REJECT_SCHEMA), []
    for shard in range(n_shards):
        tables = [(flatten(tree), document_table([tree])) for tree in trees(numbers, n_shards, shard)]
        nodes, documents = (pa.concat_tables(part) for part in zip(*tables, strict=True))
        del tables
        parts = {"nodes": nodes, "documents": documents, "settings": settings, "views": VIEWS, **ready(nodes)}
        content = content_of(dict.fromkeys(documents["doc_id"].to_pylist(), "-"), settings, VIEWS)
        shards.append(build_shard(path, shard, content, **parts))
    return publish_shards(path, shards, rejects=rejects, settings=settings, views=VIEWS)
