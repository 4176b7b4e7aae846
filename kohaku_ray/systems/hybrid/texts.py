"""The texts that the stages speak of: read once from the node table, with what their articles say of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from kohaku_ray.arrays import I64
from kohaku_ray.tree.nodes import PARAGRAPH, SENTENCE, NodeTable

_ROUND = str.maketrans("[];", "(),")
"""What marks a citation goes out of ids and texts: no text may pose as another's heading."""


@dataclass(frozen=True, slots=True)
class Text:
    """A node that may be shown and cited.

    Attributes:
        node_id: The node.
        doc_id: Its document.
        kind: Its kind.
        text: What it says.
        ref_id: What it is cited by: its paragraph's ``par_id``, or the node's id where the corpus has none.
        netloc: The site; None where it is not known.
        date: The day; empty where it is not known.
        url: The address.
        title: The article's title.
    """

    node_id: str
    doc_id: str
    kind: str
    text: str
    ref_id: str
    netloc: str | None = None
    date: str = ""
    url: str = ""
    title: str = ""

    @property
    def mark(self) -> str:
        """Its heading, and the form of its citations: ``[id / netloc / date]``."""
        parts = (plain(self.ref_id), plain(self.netloc or "") or "?", plain(self.date) or "?")
        return f"[{' / '.join(parts)}]"


def plain(text: str) -> str:
    """Write brackets round and white space single, so that the text holds no citation."""
    return " ".join(text.translate(_ROUND).split())


def read_texts(nodes: NodeTable, source_rows: Sequence[int]) -> dict[int, Text]:
    """Read nodes by their rows of the whole index: whole columns at once, for there are a thousand per question."""
    at = nodes.local(source_rows)
    kind = nodes.kind[at]
    paragraph = np.where(kind == PARAGRAPH, at, np.where(kind == SENTENCE, nodes.parent[at], -1))
    names = ("node_id", "doc_id", "kind", "text")
    columns = [*(_column(nodes, name, at) for name in names), _column(nodes, "attributes", paragraph)]
    return {row: _text(*cells) for row, cells in zip(source_rows, zip(*columns, strict=True), strict=True)}


def with_neighbours(nodes: NodeTable, source_row: int) -> str:
    """A paragraph's text between those of the paragraphs that its article has directly before and after it."""
    [at] = nodes.local([source_row]).tolist()
    own = nodes.attributes_of(at)
    siblings = {nodes.attributes_of(row).get("par_id"): row for row in nodes.children(int(nodes.parent[at]))}
    around = [siblings.get(own[name]) if own.get(name) else None for name in ("prev_par_id", "next_par_id")]
    return "\n".join(nodes.text_of(row) for row in (around[0], at, around[1]) if row is not None)


def _column(nodes: NodeTable, name: str, rows: I64) -> list[Any]:
    """A column's values at some rows; None where the row is negative."""
    values: list[Any] = nodes.table[name].take(pa.array(rows, mask=rows < 0)).to_pylist()
    return values


@lru_cache(maxsize=2**16)
def _text(node_id: str, doc_id: str, kind: str, text: str, attributes: str | None) -> Text:
    """Put a node's cells together; kept, for questions on one subject see the same paragraphs."""
    known = json.loads(attributes) if attributes else {}
    said = [str(known.get(name) or "") for name in ("par_id", "document_netloc", "document_date")]
    more = [str(known.get(name) or "") for name in ("document_url", "document_title")]
    return Text(node_id, doc_id, kind, text, said[0] or node_id, said[1] or None, said[2], *more)
