"""The texts that the stages speak of: read once from the node table, with what their articles say of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kohaku_ray.tree.nodes import KINDS, NodeTable

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


def read_texts(nodes: NodeTable, source_rows: Iterable[int]) -> dict[int, Text]:
    """Read nodes by their rows of the whole index."""
    rows = list(source_rows)
    return {row: _read(nodes, at) for row, at in zip(rows, nodes.local(rows).tolist(), strict=True)}


def with_neighbours(nodes: NodeTable, source_row: int) -> str:
    """A paragraph's text between those of the paragraphs that its article has directly before and after it."""
    [at] = nodes.local([source_row]).tolist()
    own = nodes.attributes_of(at)
    siblings = {nodes.attributes_of(row).get("par_id"): row for row in nodes.children(int(nodes.parent[at]))}
    around = [siblings.get(own[name]) if own.get(name) else None for name in ("prev_par_id", "next_par_id")]
    return "\n".join(nodes.text_of(row) for row in (around[0], at, around[1]) if row is not None)


def _read(nodes: NodeTable, at: int) -> Text:
    paragraph = nodes.paragraph_of(at)
    known = nodes.attributes_of(paragraph) if paragraph >= 0 else {}
    said = {name: str(known.get(f"document_{name}") or "") for name in ("netloc", "date", "url", "title")}
    return Text(
        node_id=nodes.node_id(at),
        doc_id=nodes.doc_id(at),
        kind=KINDS[nodes.kind[at]],
        text=nodes.text_of(at),
        ref_id=str(known.get("par_id") or nodes.node_id(at)),
        netloc=said.pop("netloc") or None,
        **said,
    )
