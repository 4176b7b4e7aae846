"""The node table in memory: parents, texts and neighbourhoods of nodes."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kohaku_ray.errors import DataError, TreeError
from kohaku_ray.index.arrays import I64
from kohaku_ray.index.chunks import PARAGRAPH_BREAK
from kohaku_ray.index.flatten import DOCUMENT_SCHEMA, NODE_SCHEMA, document_table, flatten

__all__ = ["DOCUMENT_SCHEMA", "KINDS", "NODE_SCHEMA", "NodeTable", "document_table", "flatten"]

KINDS = ("document", "section", "paragraph", "sentence", "chunk")
"""The levels of the tree, from the root, then chunks, which are beside it; a node's kind code is its index here."""

DOCUMENT, SECTION, PARAGRAPH, SENTENCE, CHUNK = range(5)

MOST_LISTED = 8192
"""Most rows of a table whose columns are read as lists: those of a question's evidence, not those of an index."""

I8 = npt.NDArray[np.int8]


class Columns:
    """A table's columns, looked up once: Arrow wraps a column at every access, which takes longer than reading it."""

    def __init__(self, table: pa.Table) -> None:
        """Hold a table."""
        self.table = table
        self._arrays: dict[str, pa.Array | pa.ChunkedArray] = {}
        self._lists: dict[str, list[Any]] = {}

    def __getitem__(self, name: str) -> pa.Array | pa.ChunkedArray:
        """Return a column, unwrapped from its one chunk."""
        if name not in self._arrays:
            column = self.table[name]
            self._arrays[name] = column.chunk(0) if column.num_chunks == 1 else column
        return self._arrays[name]

    def value(self, name: str, row: int) -> Any:
        """Read a value; a small table's columns are lists, whose items are read in a hundredth of the time."""
        if self.table.num_rows > MOST_LISTED:
            return self[name][row].as_py()
        if name not in self._lists:
            self._lists[name] = self[name].to_pylist()
        return self._lists[name][row]


class Lists(NamedTuple):
    """The arrays of a ``NodeTable`` as lists: to read a few rows at a time, they are several times faster."""

    parent: list[int]
    kind: list[int]
    end: list[int]
    tokens: list[int]
    chars: list[int]


class NodeTable:
    """Nodes in preorder, with the tree's structure as arrays. Immutable and picklable.

    A part cut out of a table shares its rows: they are copied when the part is pickled, or its ``table`` asked for.

    Attributes:
        parent: Shape ``(n,)``; row of each node's parent, -1 for a document.
        kind: Shape ``(n,)``; index of each node's kind in ``KINDS``.
        end: Shape ``(n,)``; one past the last row of each node's subtree.
        source_row: Shape ``(n,)``; row of each node in the whole index, increasing.
        tokens: Shape ``(n,)``; token count of each node's text; 0 where not counted.
    """

    def __init__(self, table: pa.Table, *, is_checked: bool = False) -> None:
        """Read the tree's structure from rows of ``NODE_SCHEMA`` in preorder.

        ``is_checked``: they were a tree when they were written, and are the same by their checksum.

        Raises:
            TreeError: An id occurs twice, or a node is not under its parent.
        """
        table = table.combine_chunks()  # one chunk per column, so that taking rows is cheap
        self._columns = Columns(table)
        self.kind: I8 = pc.index_in(table["kind"], pa.array(KINDS)).to_numpy().astype(np.int8)
        level = _levels(table, self.kind)
        self.parent = _parents(level)
        if not is_checked:
            _check_tree(table, self.parent)
        self.end = _subtree_ends(level)
        self.source_row = self._held_rows = np.arange(len(self), dtype=np.int64)
        self.tokens: I64 = table["n_tokens"].to_numpy().astype(np.int64)

    def __len__(self) -> int:
        """Count the nodes."""
        return len(self.kind)

    def __getstate__(self) -> dict[str, Any]:
        """Copy the rows: only they are pickled, not the table they were cut from.

        As one Arrow stream: for a table of a question's evidence, Ray's own reducer, which goes through every column's
        buffers in Python, takes 0.9 ms where this takes 0.1 (`benchmarks/results/flow.md`).
        """
        arrays = {name: self.__dict__[name] for name in ("parent", "kind", "end", "source_row", "tokens")}
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, self.table.schema) as writer:
            writer.write_table(self.table)
        return {**arrays, "stream": stream.getvalue()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Read the rows, which stay in the pickle's buffer."""
        table = pa.ipc.open_stream(state.pop("stream")).read_all()
        self.__dict__.update(state, _columns=Columns(table), _held_rows=np.arange(len(table), dtype=np.int64))

    @functools.cached_property
    def table(self) -> pa.Table:
        """Rows of ``NODE_SCHEMA``."""
        held = self._columns.table
        rows = held if len(self) == held.num_rows else held.take(self._held_rows)
        column, field = NODE_SCHEMA.get_field_index("n_tokens"), NODE_SCHEMA.field("n_tokens")
        return rows.set_column(column, field, pa.array(self.tokens, field.type))

    @functools.cached_property
    def chars(self) -> I64:
        """Length of each node's text in characters, shape ``(n,)``."""
        lengths: I64 = self._columns["n_chars"].to_numpy()[self._held_rows]
        return lengths

    @functools.cached_property
    def lists(self) -> Lists:
        """The arrays as lists; for parts that are read row by row, not for whole indexes."""
        return Lists(*(array.tolist() for array in (self.parent, self.kind, self.end, self.tokens, self.chars)))

    def with_tokens(self, counts: I64) -> NodeTable:
        """Copy the table with other token counts, shape ``(n,)``, such as the serving model's."""
        read_once = ("table", "lists", "_paragraphs")
        state = {name: value for name, value in self.__dict__.items() if name not in read_once}
        return _made(**state | {"tokens": counts.astype(np.int64)})

    def node_id(self, row: int) -> str:
        """Name the node: ``doc``, ``doc:sec0``, ``doc:sec0:p2``, ``doc:sec0:p2:s5``, ``doc:c0`` or ``doc:sec0:c0``."""
        return self._value("node_id", row)

    def doc_id(self, row: int) -> str:
        """Name the document the node belongs to."""
        return self._value("doc_id", row)

    def row_of(self, node_id: str) -> int:
        """Find a node by its id; without it, ``DataError``."""
        if len(self) <= MOST_LISTED:
            row = self._rows.get(node_id, -1)
        else:
            row = int(pc.index(self.table["node_id"], pa.scalar(node_id, pa.string())).as_py())
        if row < 0:
            raise DataError(f"no node {node_id!r} among {len(self):,}: ids read doc:sec0:p2:s5, counted from zero")
        return row

    def rows_of(self, node_ids: Sequence[str]) -> I64:
        """Find many nodes by their ids: shape ``(k,)``; without one of them, ``DataError``."""
        positions = pc.index_in(pa.array(node_ids, pa.string()), value_set=self.table["node_id"].combine_chunks())
        if positions.null_count:
            return np.array([self.row_of(node_id) for node_id in node_ids], np.int64)
        rows: I64 = positions.to_numpy().astype(np.int64)
        return rows

    def local(self, source_rows: Sequence[int] | I64) -> I64:
        """Find rows of the whole index here: shape ``(k,)``; without one of them, ``DataError``."""
        wanted = np.asarray(source_rows, dtype=np.int64)
        positions = np.searchsorted(self.source_row, wanted)
        missing = positions == len(self)
        missing[~missing] = self.source_row[positions[~missing]] != wanted[~missing]
        if missing.any():
            raise DataError(f"row {wanted[missing][0]} of the index is not among the {len(self):,} nodes fetched")
        return positions.astype(np.int64)

    def ancestors(self, row: int) -> list[int]:
        """Climb from a node to its document: nearest first, without the node itself."""
        return ancestors_of(row, self.parent)

    def children(self, row: int) -> list[int]:
        """List a node's children in reading order, without its chunks."""
        inside = slice(row + 1, self.end[row])
        below = np.flatnonzero((self.parent[inside] == row) & (self.kind[inside] != CHUNK)) + row + 1
        children: list[int] = below.tolist()
        return children

    def section_of(self, row: int) -> int:
        """Row of the section a node is or lies in; -1 for a document and its chunks."""
        return self._climb(row, SECTION)

    def paragraph_of(self, row: int) -> int:
        """Row of the paragraph a node is or lies in; -1 for a document, a section or a chunk."""
        return self._climb(row, PARAGRAPH)

    def title_of(self, row: int) -> str:
        """Title of a document or of one of its chunks; of anything else, the title of its section."""
        section = self.section_of(row)
        return self._value("title", section if section >= 0 else self._climb(row, DOCUMENT))

    def attributes_of(self, row: int) -> dict[str, str | float | int | None]:
        """A paragraph's own columns, such as ``par_id`` or ``chapter``; a chunk's index and total; else nothing."""
        return json.loads(self._read("attributes", row) or "{}")  # type: ignore[no-any-return]

    def text_of(self, row: int) -> str:
        """Text of a node: of a section its title and the paragraphs in this table, of a document its title."""
        if self.kind[row] == DOCUMENT:
            return self.title_of(row)
        if self.kind[row] != SECTION:
            return self._value("text", row)
        body = (self._value("text", child) for child in self.children(row))
        return PARAGRAPH_BREAK.join(text for text in (self.title_of(row), *body) if text)

    def column(self, name: str, rows: I64) -> list[Any]:
        """Values of a column of ``NODE_SCHEMA`` at some rows; None where the row is negative."""
        held_rows = pa.array(np.where(rows < 0, 0, self._held_rows[rows]), mask=rows < 0)
        values: list[Any] = self._columns[name].take(held_rows).to_pylist()
        return values

    def text_between(self, first: int, last: int) -> str:
        """A paragraph's own characters from one of its sentences to another."""
        return self._value("text", int(self.parent[first]))[self._read("start", first) : self._read("end", last)]

    def attachment_kind(self, row: int) -> str | None:
        """Kind of a paragraph's attachment: ``image`` or ``table``; None for plain text."""
        kind: str | None = self._read("attachment_kind", row)
        return kind

    def attachment_path(self, row: int) -> str | None:
        """Path of a paragraph's attachment, of a kept image relative to the index; None where there is none."""
        path: str | None = self._read("attachment_path", row)
        return path

    def neighbourhood(self, rows: Sequence[int] | I64, section_tokens: int) -> NodeTable:
        """Cut out what a context needs: each row, its ancestors, its whole paragraph and its section around it.

        Paragraphs of the section are taken on both sides up to ``section_tokens``; the last may exceed them. A section
        itself is read from its start; a document or a chunk adds nothing.

        Returns:
            A tree of its own; ``source_row`` gives the rows in the whole index, ``local`` finds them.
        """
        matches = _distinct(np.asarray(rows, dtype=np.int64))
        above = [matches]
        while len(above[-1]):
            parents = self.parent[above[-1]]
            above.append(parents[parents >= 0])
        return self._cut(_distinct(np.concatenate([self._sections_around(matches, section_tokens), *above])))

    def _cut(self, rows: I64) -> NodeTable:
        """Keep these rows, increasing and with all their ancestors: a part of a checked tree needs no check."""
        parent = self.parent[rows]
        return _made(
            _columns=self._columns,
            _held_rows=self._held_rows[rows],
            kind=self.kind[rows],
            tokens=self.tokens[rows],
            source_row=self.source_row[rows],
            parent=np.where(parent < 0, -1, np.searchsorted(rows, parent)),
            end=np.searchsorted(rows, self.end[rows]),
        )

    def _sections_around(self, matches: I64, section_tokens: int) -> I64:
        """Rows that the matches add of their sections, no row twice."""
        paragraphs, before = self._paragraphs
        anchor = _distinct(np.where(self.kind[matches] == SENTENCE, self.parent[matches], matches))
        anchor = anchor[(self.kind[anchor] != DOCUMENT) & (self.kind[anchor] != CHUNK)]
        section = np.where(self.kind[anchor] == SECTION, anchor, self.parent[anchor])
        first, stop = np.searchsorted(paragraphs, section), np.searchsorted(paragraphs, self.end[section])
        start = np.searchsorted(paragraphs, anchor)  # for a section, its first paragraph; no paragraph of it is a match
        past = start + (self.kind[anchor] == PARAGRAPH)
        low = np.searchsorted(before, before[start] - section_tokens, side="right") - 1
        high = np.searchsorted(before, before[past] + section_tokens)
        highest = high.clip(past, stop)
        done = np.maximum.accumulate(np.concatenate([[0], highest]))[:-1]
        lowest = np.maximum(low.clip(first, start), done)
        adds = highest > lowest
        return _runs(paragraphs[lowest[adds]], self.end[paragraphs[highest[adds] - 1]])

    @functools.cached_property
    def _paragraphs(self) -> tuple[I64, I64]:
        """Rows of all paragraphs, and the tokens of those before each; after the last, of all."""
        rows = np.flatnonzero(self.kind == PARAGRAPH).astype(np.int64)
        return rows, np.concatenate([[0], np.cumsum(self.tokens[rows])])

    def _climb(self, row: int, kind: int) -> int:
        while row >= 0 and self.kind[row] > kind:
            row = int(self.parent[row])
        return row if row >= 0 and self.kind[row] == kind else -1

    def _value(self, column: str, row: int) -> str:
        return str(self._read(column, row))

    def _read(self, column: str, row: int) -> Any:
        return self._columns.value(column, int(self._held_rows[row]))

    @functools.cached_property
    def _rows(self) -> dict[str, int]:
        ids = self._columns["node_id"].take(pa.array(self._held_rows)).to_pylist()
        return {node_id: row for row, node_id in enumerate(ids)}


def _made(**state: Any) -> NodeTable:
    """Make a table of parts that are known to be a tree."""
    made = NodeTable.__new__(NodeTable)
    made.__dict__.update(state)
    return made


def renumbered(nodes: NodeTable, source_row: I64) -> NodeTable:
    """Copy a part with other row numbers of the whole index: shape ``(n,)``, increasing."""
    return _made(**nodes.__dict__ | {"source_row": source_row})


def join_nodes(parts: Sequence[NodeTable]) -> NodeTable:
    """Join parts of different documents in the order of ``source_row``, their rows in the whole index."""
    if len(parts) == 1:
        return parts[0]
    offsets = np.cumsum([0, *map(len, parts)])
    source_row = np.concatenate([part.source_row for part in parts])
    order = np.argsort(source_row, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    parents = [np.where(part.parent < 0, -1, part.parent + first) for part, first in zip(parts, offsets, strict=False)]
    last = np.concatenate([part.end - 1 + first for part, first in zip(parts, offsets, strict=False)])
    parent = np.concatenate(parents)[order]
    table = pa.concat_tables([part.table for part in parts]).take(pa.array(order)).combine_chunks()
    return _made(
        _columns=Columns(table),
        _held_rows=np.arange(len(table), dtype=np.int64),
        parent=np.where(parent < 0, -1, rank[parent]),
        # A document's rows are all in one part, so they stay side by side, and so does every subtree.
        end=(rank[last] + 1)[order],
        kind=np.concatenate([part.kind for part in parts])[order],
        tokens=np.concatenate([part.tokens for part in parts])[order],
        source_row=source_row[order],
    )


def ancestors_of(row: int, parent: I64) -> list[int]:
    """Climb from a node to its document, nearest first, without the node itself; ``parent`` as in ``NodeTable``."""
    above = []
    while (row := int(parent[row])) >= 0:
        above.append(row)
    return above


def _runs(first: I64, stop: I64) -> I64:
    """Count from each first row to before its stop, run by run."""
    lengths = stop - first
    ends = np.cumsum(lengths)
    counted: I64 = np.arange(lengths.sum()) + np.repeat(first - ends + lengths, lengths)
    return counted


def _distinct(rows: I64) -> I64:
    """Sort rows and drop repeats; ``np.unique`` hashes and takes three times as long for nearly sorted rows."""
    ordered = np.sort(rows)
    is_new = np.ones(len(ordered), bool)
    is_new[1:] = ordered[1:] != ordered[:-1]
    distinct: I64 = ordered[is_new]
    return distinct


def _levels(table: pa.Table, kind: I8) -> I8:
    """Level of each node: its kind's; for a chunk of a document a section's, for a chunk of a section a paragraph's."""
    of_document = pc.fill_null(pc.equal(table["parent_id"], table["doc_id"]), False).to_numpy()
    return np.where(kind == CHUNK, np.where(of_document, SECTION, PARAGRAPH), kind).astype(np.int8)


def _parents(level: I8) -> I64:
    """In preorder a node's parent is the last row before it of a higher level."""
    parent = np.full(len(level), -1, dtype=np.int64)
    rows = np.arange(len(level), dtype=np.int64)
    for code in range(SECTION, CHUNK):
        latest = np.maximum.accumulate(np.where(level < code, rows, -1))
        of_level = level == code
        parent[of_level] = latest[of_level]
    return parent


def _subtree_ends(level: I8) -> I64:
    """A subtree ends before the next row of the same or a higher level."""
    n = len(level)
    end = np.full(n, n, dtype=np.int64)
    rows = np.arange(n, dtype=np.int64)
    for code in range(CHUNK):
        coming = np.minimum.accumulate(np.where(level <= code, rows, n)[::-1])[::-1]
        of_level = np.flatnonzero(level[:-1] == code)
        end[of_level] = coming[of_level + 1]
    return end


def _check_tree(table: pa.Table, parent: I64) -> None:
    ids, claimed = table["node_id"], table["parent_id"]
    named = pc.take(ids, pa.array(parent, mask=parent < 0))
    agrees = pc.fill_null(pc.equal(named, claimed), False).to_numpy() | (pc.is_null(claimed).to_numpy() & (parent < 0))
    if not agrees.all():
        row = int(np.flatnonzero(~agrees)[0])
        raise TreeError(f"node {ids[row].as_py()!r}, row {row}, is not below its parent {claimed[row].as_py()!r}")
    if pc.count_distinct(ids).as_py() != len(ids):
        counts = pc.value_counts(ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids)
        twice = counts.field("values")[int(np.argmax(counts.field("counts").to_numpy()))].as_py()
        raise TreeError(f"node {twice!r} occurs twice: two documents with one id? rename one of them")
