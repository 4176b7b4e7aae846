"""Synthetic documents with ready vectors, for ``growth.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from kohaku_ray.documents.model import Document, Paragraph, Section, Sentence
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.layout import shard_number
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.propagate import unit_rows
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
        for at in range(first, first + 5):
            one = f"Sentence {at} of report {number} gives {number * at % 997} kWh and {at % 13} litres. "
            spans.append(Sentence(len(text), len(text) + len(one) - 1))
            text += one
        paragraphs.append(Paragraph(text.rstrip(), tuple(spans)))
    return Document(f"r{number:06}", f"Report {number}", (Section("All", tuple(paragraphs)),))


def ready(nodes: pa.Table) -> dict[str, Any]:
    """Keys and vectors of the texts of some nodes."""
    _, texts = texts_to_encode(NodeTable(nodes), "averaged")
    texts = list(dict.fromkeys(texts))
    vectors = np.random.default_rng(len(texts)).standard_normal((len(texts), DIM), dtype=np.float32)
    return {"keys": vector_keys(IDENTITY, texts), "vectors": unit_rows(vectors)}


def trees(numbers: range, n_shards: int, shard: int) -> Iterator[Document]:
    return (document(number) for number in numbers if shard_number(f"r{number:06}", n_shards) == shard)
