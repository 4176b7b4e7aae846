"""Locate a match: its path in the tree, and the paragraph around it with the match marked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from kohaku_ray.errors import KohakuRayError
from kohaku_ray.index.nodes import KINDS, NodeTable
from kohaku_ray.index.store import Index
from kohaku_ray.pages.text import cut


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A match in its context.

    Attributes:
        before: Text before it in the paragraph.
        match: The match's own text.
        after: Text after it.
        is_whole: Only the match is shown: a paragraph, or a match whose context is not known.
        has_rows: Its line breaks are rows of a table, not wrapped lines.
    """

    before: str
    match: str
    after: str
    is_whole: bool
    has_rows: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a node.

    Attributes:
        path: Titles and ordinals from the document down.
        page: Page of the source, where it has pages.
        paragraph: Text of its paragraph; None where it is not known.
        start: Offset of its first character in the paragraph.
        end: Offset one past its last character.
        is_table: The paragraph is a table.
    """

    path: tuple[str, ...]
    page: int | None = None
    paragraph: str | None = None
    start: int = 0
    end: int = 0
    is_table: bool = False


class Places:
    """Looks nodes up in the index that a run used; without an index, a node's id gives its place."""

    def __init__(self, nodes: NodeTable | None, node_ids: Iterable[str], titles: Mapping[str, str]) -> None:
        """Find all nodes at once.

        Args:
            nodes: The index's nodes; None: there is no index.
            node_ids: Every node that will be looked up.
            titles: Title by document, where the index has none.
        """
        self._nodes, self._titles = nodes, titles
        self._rows = {} if nodes is None else _rows_of(nodes, node_ids)

    def find(self, node_id: str, text: str) -> Place:
        """Return a node's place.

        Args:
            node_id: The node.
            text: Its text in the run, or the beginning of it; an index with another text has changed since and is not
                used.
        """
        row = self._rows.get(node_id)
        if self._nodes is None or row is None or not _begins(self._nodes.text_of(row), text):
            return Place(self._path_of_id(node_id))
        return self._place(self._nodes, row)

    def _place(self, nodes: NodeTable, row: int) -> Place:
        line = [*reversed(nodes.ancestors(row)), row]
        # A section may be named as its document: said once.
        path = tuple(label for label, _ in groupby(self._label(nodes, at) for at in line))
        page = nodes.table["page"][row].as_py()
        paragraph = nodes.paragraph_of(row)
        if paragraph < 0:
            return Place(path, page)
        text = nodes.text_of(paragraph)
        is_table = nodes.table["attachment_kind"][paragraph].as_py() == "table"
        start, end = (
            (nodes.table[name][row].as_py() for name in ("start", "end")) if paragraph != row else (0, len(text))
        )
        return Place(path, page, text, start, end, is_table)

    def _label(self, nodes: NodeTable, row: int) -> str:
        kind = KINDS[nodes.kind[row]]
        if kind == "document":
            doc_id = nodes.doc_id(row)
            return nodes.title_of(row) or self._titles.get(doc_id) or doc_id
        ordinal = f"{kind} {nodes.table['ordinal'][row].as_py()}"
        return (nodes.title_of(row) if kind == "section" else "") or ordinal

    def _path_of_id(self, node_id: str) -> tuple[str, ...]:
        doc_id, *below = node_id.split(":")
        return (self._titles.get(doc_id) or doc_id, *below)


def _begins(whole: str, text: str) -> bool:
    return whole.startswith(text) if text else not whole


def open_index(paths: Iterable[str]) -> tuple[Index | None, str]:
    """Open the first of these indexes that can be read.

    Returns:
        The index, and the reason where there is none.
    """
    reason = "the configuration names no index"
    for path in paths:
        try:
            index = Index.open(path)
            len(index.nodes), len(index.documents)  # read now: a damaged table is as bad as none
        except (KohakuRayError, OSError, pa.ArrowException) as error:
            reason = str(error)
        else:
            return index, ""
    return None, reason


def excerpt(place: Place, text: str, match_chars: int, around_chars: int) -> Excerpt:
    """Mark a match in its paragraph; long texts are cut.

    Args:
        place: Its place.
        text: The match's own text, or the beginning of it.
        match_chars: Characters of the match shown.
        around_chars: Characters shown on either side.
    """
    paragraph = place.paragraph
    if paragraph is None or not _begins(paragraph[place.start : place.end], text):
        return Excerpt("", cut(text, match_chars), "", True, place.is_table)
    match = cut(paragraph[place.start : place.end], match_chars)
    before, after = paragraph[: place.start], paragraph[place.end :]
    if len(before) > around_chars:
        before = f"… {before[len(before) - around_chars :].lstrip()}"
    if len(after) > around_chars:
        after = f"{after[:around_chars].rstrip()} …"
    return Excerpt(before, match, after, place.start == 0 and place.end == len(paragraph), place.is_table)


def _rows_of(nodes: NodeTable, node_ids: Iterable[str]) -> dict[str, int]:
    wanted = list(dict.fromkeys(node_ids))
    found = pc.index_in(pa.array(wanted, pa.string()), value_set=nodes.table["node_id"].combine_chunks())
    return {node_id: row for node_id, row in zip(wanted, found.to_pylist(), strict=True) if row is not None}
