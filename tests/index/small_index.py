"""Small documents, an encoder out of hashes, and the index job in a few lines."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from kohaku_ray.documents.model import Attachment, Document, Paragraph, Section, Sentence
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.build import (
    REJECT_SCHEMA,
    IndexSettings,
    build_shard,
    content_of,
    publish_shards,
    unchanged_shard,
    views_with_old,
)
from kohaku_ray.index.flatten import document_table, flatten
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.known import known_vectors
from kohaku_ray.index.layout import shard_number
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.propagate import unit_rows
from kohaku_ray.index.settings import Bm25Config, IndexConfig
from kohaku_ray.index.store import all_files
from kohaku_ray.index.terms import Statistics, TermCounts
from kohaku_ray.index.views import View

NODES = ("sentence", "paragraph")
VIEWS = (View(NODES, dense=True), View(("paragraph",), lexical=True))
IDENTITY = {"model": "fake", "sha256": "0" * 64, "dim": None, "query_prompt": None, "passage_prompt": None}


def paragraph(*sentences: str, attachment: Attachment | None = None) -> Paragraph:
    text, spans = "", []
    for sentence in sentences:
        text += " " if text else ""
        spans.append(Sentence(len(text), len(text) + len(sentence)))
        text += sentence
    return Paragraph(text=text, sentences=tuple(spans), attachment=attachment)


def make_documents(*doc_ids: str) -> list[Document]:
    return [
        Document(
            doc_id,
            f"Report {doc_id}",
            (
                Section("Energy", (paragraph(f"{doc_id} used 5 kWh.", "Page 3"), paragraph("Page 3", "It rose."))),
                Section("Pictures", (Paragraph("", attachment=Attachment("image", "Im0.jpg")),)),
                Section("More", (Paragraph("", attachment=Attachment("image", caption=f"Chart of {doc_id}")),)),
            ),
            {"url": "https://example.org/x", "year": "2024"},
        )
        for doc_id in doc_ids
    ]


class FakeEncoder:
    """Vectors out of hashes; counts what it is asked."""

    def __init__(self, identity=IDENTITY, d: int = 12):
        self.identity, self.d, self.asked = identity, d, []

    def encode_passages(self, texts):
        self.asked += texts
        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) for text in texts]
        rows = [np.random.default_rng(seed).normal(size=self.d) for seed in seeds]
        return unit_rows(np.array(rows).reshape(-1, self.d))

    def encode_queries(self, texts):
        return self.encode_passages(texts)


def build_whole(path, *, settings, views, rejects=(), sources=None, images=None, **parts):
    """An index of one shard; arguments as of ``build_shard`` and ``publish_shards``."""
    shard = build_shard(str(path), 0, "", settings=settings, views=views, **parts)
    listed = pa.Table.from_pylist([{"file": f, "reason": r} for f, r in rejects], schema=REJECT_SCHEMA)
    return publish_shards(
        str(path), [shard], rejects=listed, settings=settings, views=views, sources=sources, images=images
    )


def index_documents(path, documents, encoder=None, rejects=(), views=VIEWS, n_shards=1, **more):
    """What the engine's index job does, in a few lines."""
    encoder, path = encoder or FakeEncoder(), str(path)
    bm25 = Bm25Config(**{key: more.pop(key) for key in ("language",) if key in more})
    images = more.pop("images", None)
    settings = IndexSettings(encoder.identity, IndexConfig(bm25=bm25, **more), images)
    documents = sorted(documents, key=lambda document: document.doc_id)
    keys, vectors = _encoded(path, documents, encoder, settings)
    listed = pa.Table.from_pylist([{"file": f, "reason": r} for f, r in rejects], schema=REJECT_SCHEMA)
    views = views_with_old(path, settings, views)
    shards, kept = [], []
    for number in range(n_shards):
        of_shard = [document for document in documents if shard_number(document.doc_id, n_shards) == number]
        content = content_of({document.doc_id: repr(document) for document in of_shard}, settings, views)
        if of_shard and (entry := unchanged_shard(path, number, content)) is not None:
            shards.append(entry)
            kept.append(number)
        elif of_shard:
            parts = {
                "nodes": pa.concat_tables([flatten(item, settings.index.chunks) for item in of_shard]),
                "documents": document_table(of_shard),
            }
            more = {"keys": keys, "vectors": vectors, "settings": settings, "views": views}
            shards.append(build_shard(path, number, content, **parts, **more))
    counts = publish_shards(path, shards, kept, rejects=listed, settings=settings, views=views)
    return counts if n_shards == 1 else {**counts, "n_shards_kept": len(kept)}


def files_of(path) -> dict[str, dict]:
    """The files that a manifest lists, by role."""
    listed = all_files(json.loads((Path(path) / "manifest.json").read_text()))
    return {role.removesuffix(" of shard 0"): entry for role, entry in listed.items()}


def _encoded(path, documents, encoder, settings):
    """Keys and vectors of the texts that the index lacks."""
    nodes = pa.concat_tables([flatten(document, settings.index.chunks) for document in documents])
    _, texts = texts_to_encode(NodeTable(nodes), settings.index)
    texts = list(dict.fromkeys(texts))
    keys = vector_keys(settings.encoder, texts)
    known = known_vectors(path, settings.encoder).has(keys)
    return keys[~known], encoder.encode_passages([text for text, has in zip(texts, known, strict=True) if not has])


def term_index(texts, rows, k1=1.5, b=0.75, language="en"):
    """BM25 over texts that are all there are."""
    counts = TermCounts.build(texts, language)
    return counts.weighted(Statistics.of([(counts, rows)]), rows, k1, b, language)
