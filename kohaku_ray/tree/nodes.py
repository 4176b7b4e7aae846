"""The four-level node table in memory: who is whose parent, what each node says, what stands around it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kohaku_ray.arrays import I64
from kohaku_ray.errors import DataError, TreeError
from kohaku_ray.tree.flatten import DOCUMENT_SCHEMA, NODE_SCHEMA, PARAGRAPH_BREAK, document_table, flatten

__all__ = ["DOCUMENT_SCHEMA", "KINDS", "NODE_SCHEMA", "NodeTable", "document_table", "flatten"]

KINDS = ("document", "section", "paragraph", "sentence")
"""The levels of the tree, from the root; a node's kind code is its place here."""

DOCUMENT, SECTION, PARAGRAPH, SENTENCE = range(4)

I8 = npt.NDArray[np.int8]


class NodeTable:
    """Nodes in preorder, with the tree's shape as arrays. Picklable; never changed once made.

    Attributes:
        table: Rows of ``NODE_SCHEMA``.
        parent: Shape ``(n,)``; row of each node's parent, -1 for a document.
        kind: Shape ``(n,)``; place of each node's kind in ``KINDS``.
        end: Shape ``(n,)``; one past the last row of each node's subtree.
        source_row: Shape ``(n,)``; which row of the whole index each row is, increasing.
    """

    def __init__(self, table: pa.Table) -> None:
        """Read the tree's shape off the rows.

        Args:
            table: The whole index's rows of ``NODE_SCHEMA``, in preorder.

        Raises:
            TreeError: A kind is unknown, an id occurs twice, or a node does not stand under its parent.
        """
        self.table = table.combine_chunks()  # one chunk a column, so that taking rows is cheap
        self.kind = _kind_codes(self.table)
        self.parent = _parents(self.kind)
        _check_tree(self.table, self.kind, self.parent)
        self.end = _subtree_ends(self.kind)
        self.source_row = np.arange(len(self), dtype=np.int64)

    def __len__(self) -> int:
        """Count the nodes."""
        return int(self.table.num_rows)

    @functools.cached_property
    def tokens(self) -> I64:
        """Token count of each node's text, shape ``(n,)``; 0 where nobody has counted."""
        counts: I64 = self.table["n_tokens"].to_numpy().astype(np.int64)
        return counts

    def with_tokens(self, counts: I64) -> NodeTable:
        """Copy the table with other token counts, shape ``(n,)``, such as the serving model's."""
        if len(counts) != len(self):
            raise TreeError(f"{len(counts)} token counts for {len(self)} nodes: give one a node")
        at = self.table.schema.get_field_index("n_tokens")
        field = NODE_SCHEMA.field("n_tokens")
        copy = NodeTable.__new__(NodeTable)
        copy.__dict__.update(self.__dict__)
        copy.__dict__.pop("tokens", None)
        copy.table = self.table.set_column(at, field, pa.array(counts, pa.int32()))
        return copy

    def node_id(self, row: int) -> str:
        """Name the node: ``doc``, ``doc:sec0``, ``doc:sec0:p2`` or ``doc:sec0:p2:s5``."""
        return self._value("node_id", row)

    def doc_id(self, row: int) -> str:
        """Name the document the node belongs to."""
        return self._value("doc_id", row)

    def row_of(self, node_id: str) -> int:
        """Find a node by its id.

        Raises:
            DataError: No such node is here.
        """
        row = int(pc.index(self.table["node_id"], pa.scalar(node_id, pa.string())).as_py())
        if row < 0:
            raise DataError(f"no node {node_id!r} among {len(self):,}: ids read doc:sec0:p2:s5, counted from zero")
        return row

    def local(self, source_rows: Sequence[int] | I64) -> I64:
        """Find rows of the whole index here: shape ``(k,)``.

        Raises:
            DataError: One of them is not in this part of the index.
        """
        wanted = np.asarray(source_rows, dtype=np.int64)
        found = np.searchsorted(self.source_row, wanted)
        missing = found == len(self)
        missing[~missing] = self.source_row[found[~missing]] != wanted[~missing]
        if missing.any():
            raise DataError(f"row {wanted[missing][0]} of the index is not among the {len(self):,} nodes fetched")
        return found.astype(np.int64)

    def ancestors(self, row: int) -> list[int]:
        """Climb from a node to its document: nearest first, without the node itself."""
        return ancestors_of(row, self.parent)

    def children(self, row: int) -> list[int]:
        """List a node's children in reading order."""
        below: list[int] = self._children(row).tolist()
        return below

    def section_of(self, row: int) -> int:
        """Row of the section a node is or lies in; -1 for a document."""
        return self._climb(row, SECTION)

    def paragraph_of(self, row: int) -> int:
        """Row of the paragraph a node is or lies in; -1 for a document or a section."""
        return self._climb(row, PARAGRAPH)

    def title_of(self, row: int) -> str:
        """Title of a document; of anything else, the title of its section."""
        return self._value("title", row if self.kind[row] == DOCUMENT else self.section_of(row))

    def text_of(self, row: int) -> str:
        """What a node says: a section its title and the paragraphs that are here, a document its title."""
        if self.kind[row] == DOCUMENT:
            return self.title_of(row)
        if self.kind[row] != SECTION:
            return self._value("text", row)
        body = (self._value("text", child) for child in self.children(row))
        return PARAGRAPH_BREAK.join(text for text in (self.title_of(row), *body) if text)

    def neighbourhood(self, rows: Sequence[int] | I64, section_tokens: int) -> NodeTable:
        """Cut out what a context needs: each row, its ancestors, its whole paragraph and its section around it.

        Args:
            rows: Rows of this table.
            section_tokens: Paragraphs of the section are taken either way until so many tokens are full; the last
                one taken may run over. A section itself is read from its start, a document brings nothing.

        Returns:
            A tree of its own; ``source_row`` says where its rows come from, ``local`` finds them.
        """
        distinct = {int(row) for row in rows}
        wanted = {row for start in distinct for row in (start, *self.ancestors(start))}
        anchors = {(self.section_of(row), self.paragraph_of(row)) for row in distinct}
        near = {row for section, anchor in anchors for row in self._section_around(section, anchor, section_tokens)}
        for paragraph in near:
            wanted.update(range(paragraph, self.end[paragraph]))
        return self._cut(np.array(sorted(wanted), dtype=np.int64))

    def _cut(self, rows: I64) -> NodeTable:
        """Keep these rows, increasing and with all their ancestors: the cut of a checked tree needs no check."""
        cut = NodeTable.__new__(NodeTable)
        cut.table = self.table.take(rows)
        cut.kind = self.kind[rows]
        cut.parent, cut.end = _parents(cut.kind), _subtree_ends(cut.kind)
        cut.source_row = self.source_row[rows]
        return cut

    def _section_around(self, section: int, anchor: int, section_tokens: int) -> list[int]:
        if section < 0:
            return []
        paragraphs = self._children(section)
        at = int(np.searchsorted(paragraphs, anchor)) if anchor >= 0 else -1
        after = _until_full(paragraphs[at + 1 :], self.tokens, section_tokens)
        before = _until_full(paragraphs[: max(at, 0)][::-1], self.tokens, section_tokens)
        return [*before, *([anchor] if anchor >= 0 else []), *after]

    def _children(self, row: int) -> I64:
        below = np.flatnonzero(self.parent[row + 1 : self.end[row]] == row)
        return below.astype(np.int64) + row + 1

    def _climb(self, row: int, kind: int) -> int:
        while row >= 0 and self.kind[row] > kind:
            row = int(self.parent[row])
        return row if row >= 0 and self.kind[row] == kind else -1

    def _value(self, column: str, row: int) -> str:
        return str(self.table[column][int(row)].as_py())


def ancestors_of(row: int, parent: I64) -> list[int]:
    """Climb from a node to its document, nearest first, without the node itself; ``parent`` as in ``NodeTable``."""
    above = []
    while (row := int(parent[row])) >= 0:
        above.append(row)
    return above


def _until_full(paragraphs: I64, tokens: I64, budget: int) -> list[int]:
    """Keep paragraphs from the first on, while those before leave something of the budget."""
    counts = tokens[paragraphs]
    kept: list[int] = paragraphs[np.cumsum(counts) - counts < budget].tolist()
    return kept


def _kind_codes(table: pa.Table) -> I8:
    codes = pc.index_in(table["kind"], pa.array(KINDS))
    if codes.null_count:
        row = int(pc.index(codes.is_null(), True).as_py())
        node_id, kind = table["node_id"][row].as_py(), table["kind"][row].as_py()
        raise TreeError(f"node {node_id!r} is of kind {kind!r}: the kinds are {', '.join(KINDS)}")
    numbers: I8 = codes.to_numpy().astype(np.int8)
    return numbers


def _parents(kind: I8) -> I64:
    """In preorder a node's parent is the last row before it of a higher kind."""
    parent = np.full(len(kind), -1, dtype=np.int64)
    rows = np.arange(len(kind), dtype=np.int64)
    for code in range(SECTION, len(KINDS)):
        latest = np.maximum.accumulate(np.where(kind < code, rows, -1))
        own = kind == code
        parent[own] = latest[own]
    return parent


def _subtree_ends(kind: I8) -> I64:
    """A subtree ends before the next row of the same or a higher kind."""
    n = len(kind)
    end = np.full(n, n, dtype=np.int64)
    rows = np.arange(n, dtype=np.int64)
    for code in range(len(KINDS)):
        coming = np.minimum.accumulate(np.where(kind <= code, rows, n)[::-1])[::-1]
        own = np.flatnonzero(kind[:-1] == code)
        end[own] = coming[own + 1]
    return end


def _check_tree(table: pa.Table, kind: I8, parent: I64) -> None:
    ids, claimed = table["node_id"], table["parent_id"]
    named = pc.take(ids, pa.array(parent, mask=parent < 0))
    agrees = pc.fill_null(pc.equal(named, claimed), False).to_numpy()
    is_root = pc.is_null(claimed).to_numpy() & (kind == DOCUMENT)
    one_up = (parent >= 0) & (kind[parent] == kind - 1)
    wrong = np.flatnonzero(~(is_root | (agrees & one_up)))
    if len(wrong):
        raise TreeError(_what_is_wrong(ids, claimed, int(wrong[0]), kind))
    if pc.count_distinct(ids).as_py() != len(kind):
        counts = pc.value_counts(ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids)
        twice = counts.field("values")[int(np.argmax(counts.field("counts").to_numpy()))].as_py()
        raise TreeError(f"node {twice!r} occurs twice: two documents with one id? rename one of them")


def _what_is_wrong(ids: pa.ChunkedArray, claimed: pa.ChunkedArray, row: int, kind: I8) -> str:
    node_id, parent_id = ids[row].as_py(), claimed[row].as_py()
    where = f"node {node_id!r} ({KINDS[kind[row]]}, row {row})"
    if parent_id is None:
        return f"{where} has no parent: only documents have none"
    at = int(pc.index(ids, pa.scalar(parent_id, pa.string())).as_py())
    if at < 0:
        return f"{where} names the parent {parent_id!r}, which is missing"
    if at > row:
        return f"{where} stands before its parent {parent_id!r} (row {at}): rows must be in preorder"
    if kind[at] != kind[row] - 1:
        return f"{where} hangs on {parent_id!r}, a {KINDS[kind[at]]}: a child is exactly one level down"
    return f"{where} does not stand in the subtree of its parent {parent_id!r} (row {at}): rows must be in preorder"
