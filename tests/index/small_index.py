"""Small documents, an encoder out of hashes, and the index job in a few lines."""

import hashlib

import numpy as np
import pyarrow as pa

from kohaku_ray.documents.model import Attachment, Document, Paragraph, Section, Sentence
from kohaku_ray.index.build import REJECT_SCHEMA, IndexSettings, build_index, texts_to_encode, views_with_old
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.store import known_vectors
from kohaku_ray.index.views import View
from kohaku_ray.tree.flatten import document_table, flatten
from kohaku_ray.tree.nodes import NodeTable
from kohaku_ray.tree.propagate import unit_rows

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


def index_documents(path, documents, encoder=None, rejects=(), views=VIEWS, **more):
    """What the engine's index job does, in a few lines."""
    encoder = encoder or FakeEncoder()
    settings = IndexSettings(encoder=encoder.identity, **more)
    documents = sorted(documents, key=lambda document: document.doc_id)
    nodes = pa.concat_tables([flatten(document) for document in documents])
    _, texts = texts_to_encode(NodeTable(nodes), settings.paragraph_vectors)
    texts = list(dict.fromkeys(texts))
    keys = vector_keys(settings.encoder, texts)
    found, _ = known_vectors(str(path), settings.encoder).lookup(keys)
    new = [text for text, known in zip(texts, found, strict=True) if not known]
    return build_index(
        str(path),
        nodes=nodes,
        documents=document_table(documents),
        rejects=pa.Table.from_pylist([{"file": f, "reason": r} for f, r in rejects], schema=REJECT_SCHEMA),
        keys=keys[~found],
        vectors=encoder.encode_passages(new),
        settings=settings,
        views=views_with_old(str(path), settings, views),
    )
