"""Trees small enough to count in the head: one token a word, a sentence ends with a full stop."""

import re

import numpy as np
import pyarrow as pa

from kohaku_ray.documents.model import Attachment, Document, Paragraph, Section, Sentence
from kohaku_ray.index.arrays import Hits
from kohaku_ray.index.nodes import NodeTable, flatten
from kohaku_ray.retrieval.fusion import Ranked


def paragraph(text, attachment=None):
    spans = [Sentence(*match.span()) for match in re.finditer(r"[^\s.][^.]*\.", text)]
    return Paragraph(text, tuple(spans), attachment=attachment)


def image(caption=None):
    return paragraph(caption or "", Attachment("image", "figure.png", caption))


def tree(**documents):
    """Build ``name=[(title, [paragraph or text, …]), …]`` into a node table with word counts for tokens."""
    built = [
        Document(
            name,
            name.title(),
            tuple(
                Section(title, tuple(paragraph(part) if isinstance(part, str) else part for part in parts))
                for title, parts in sections
            ),
        )
        for name, sections in documents.items()
    ]
    nodes = NodeTable(pa.concat_tables([flatten(document) for document in built]))
    return nodes.with_tokens(np.array([len(nodes.text_of(row).split()) for row in range(len(nodes))], np.int64))


def hits(*pairs):
    return Hits(np.array([row for row, _ in pairs], np.int64), np.array([score for _, score in pairs], np.float64))


def ranked(nodes, *node_ids):
    """Matches in this order, as if one query had found them."""
    n = len(node_ids)
    rows = np.array([nodes.row_of(node_id) for node_id in node_ids], np.int64)
    return Ranked(rows, np.linspace(1, 0.5, n), np.ones(n, np.int64), np.linspace(1, 0.5, n), np.linspace(1, 0.5, n), n)
