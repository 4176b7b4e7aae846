"""Evidence as a page shows it: a match in its paragraph, its path in the tree, its document's title, its picture."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup

from kohaku_ray.errors import DataError, KohakuRayError
from kohaku_ray.index.images import Images
from kohaku_ray.index.nodes import KINDS, NodeTable
from kohaku_ray.index.store import Index
from kohaku_ray.pages.text import cut, web_link
from kohaku_ray.values.spelling import ref_key

MOST_LOCATED = 20_000
"""Most places of nodes that are kept: questions of one subject share most of them."""

PICTURE_SIDES, PICTURE_COLOURS = (240, 180), 64
"""Largest width and height of a picture in pixels, and its colours: charts need few."""

PICTURE_BYTES = 4_000_000
"""Largest size of all pictures of a page; further images are shown by their captions alone."""


@dataclass(frozen=True, slots=True)
class Citation:
    """A cited document."""

    doc_id: str
    title: str  # empty: not known
    link: str  # its address, when that is a plain http or https one
    address: str  # its address as text, when it is not


@dataclass(frozen=True, slots=True)
class Documents:
    """Titles and addresses by document id."""

    titles: Mapping[str, str]
    urls: Mapping[str, str]
    indexed: frozenset[str] | None = None  # ids, by ``ref_key``, that the index has; None: there is no index

    def has_any(self, doc_ids: Iterable[str]) -> bool:
        """Tell whether the index has one of these documents, or may have it."""
        return self.indexed is None or any(ref_key(doc_id) in self.indexed for doc_id in doc_ids)

    def cite(self, doc_ids: Sequence[str]) -> tuple[Citation, ...]:
        """Look up titles and addresses of cited documents."""
        return tuple(map(self._cite, doc_ids))

    def _cite(self, doc_id: str) -> Citation:
        url = self.urls.get(doc_id, "")
        link = web_link(url)
        return Citation(doc_id, self.titles.get(doc_id, ""), link, "" if link else url)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A match in its context."""

    before: str
    match: str
    after: str
    is_whole: bool  # only the match is shown: a paragraph, or a match whose context is not known
    has_rows: bool = False  # its line breaks are rows of a table, not wrapped lines


@dataclass(frozen=True, slots=True)
class NodeLocation:
    """The place of a node."""

    path: tuple[str, ...]  # titles and ordinals from the document down
    page: int | None = None
    paragraph: str | None = None  # text of its paragraph; None where it is not known
    start: int = 0  # offsets of the node in the paragraph
    end: int = 0
    is_table: bool = False


class NodeLocations:
    """Looks nodes up in the index that a run used; without an index, a node's id gives its place."""

    def __init__(self, nodes: NodeTable | None, node_ids: Iterable[str], titles: Mapping[str, str]) -> None:
        """Find all nodes that will be looked up; ``titles`` of documents stand in where the index has none."""
        self._nodes, self._titles = nodes, titles
        self._located: dict[int, NodeLocation] = {}
        self._rows: dict[str, int] = {}
        if nodes is not None:
            wanted = list(dict.fromkeys(node_ids))
            indices = pc.index_in(pa.array(wanted, pa.string()), value_set=nodes.table["node_id"].combine_chunks())
            self._rows = {key: row for key, row in zip(wanted, indices.to_pylist(), strict=True) if row is not None}

    def find(self, node_id: str, text: str) -> NodeLocation:
        """Return a node's place; an index where its text does not begin with ``text`` has changed and is not used."""
        row = self._rows.get(node_id)
        if self._nodes is None or row is None or not _begins(self._nodes.text_of(row), text):
            doc_id, *below = node_id.split(":")
            return NodeLocation((self._titles.get(doc_id) or doc_id, *below))
        if row not in self._located:
            if len(self._located) >= MOST_LOCATED:
                self._located.clear()
            self._located[row] = self._locate(self._nodes, row)
        return self._located[row]

    def _locate(self, nodes: NodeTable, row: int) -> NodeLocation:
        line = [*reversed(nodes.ancestors(row)), row]
        # A section may be named as its document: said once.
        path = tuple(label for label, _ in groupby(self._label(nodes, node_row) for node_row in line))
        page = nodes.table["page"][row].as_py()
        paragraph = nodes.paragraph_of(row)
        if paragraph < 0:
            return NodeLocation(path, page)
        text = nodes.text_of(paragraph)
        is_table = nodes.table["attachment_kind"][paragraph].as_py() == "table"
        if paragraph == row:
            return NodeLocation(path, page, text, 0, len(text), is_table)
        return NodeLocation(
            path, page, text, nodes.table["start"][row].as_py(), nodes.table["end"][row].as_py(), is_table
        )

    def _label(self, nodes: NodeTable, row: int) -> str:
        kind = KINDS[nodes.kind[row]]
        if kind == "document":
            doc_id = nodes.doc_id(row)
            return nodes.title_of(row) or self._titles.get(doc_id) or doc_id
        ordinal = f"{kind} {nodes.table['ordinal'][row].as_py()}"
        return (nodes.title_of(row) if kind == "section" else "") or ordinal


def _begins(whole: str, text: str) -> bool:
    return whole.startswith(text) if text else not whole


def open_index(paths: Iterable[str]) -> tuple[Index | None, str]:
    """Open the first of these indexes that can be read; else return the reason."""
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


def excerpt(location: NodeLocation, text: str, match_chars: int, around_chars: int) -> Excerpt:
    """Mark a match (``text`` is it, or its beginning) in its paragraph; long texts are cut, the sides by themselves."""
    paragraph = location.paragraph
    if paragraph is None or not _begins(paragraph[location.start : location.end], text):
        return Excerpt("", cut(text, match_chars), "", True, location.is_table)
    match = cut(paragraph[location.start : location.end], match_chars)
    before, after = paragraph[: location.start], paragraph[location.end :]
    if len(before) > around_chars:
        before = f"… {before[len(before) - around_chars :].lstrip()}"
    if len(after) > around_chars:
        after = f"{after[:around_chars].rstrip()} …"
    return Excerpt(before, match, after, location.start == 0 and location.end == len(paragraph), location.is_table)


class Pictures:
    """Small pictures of a run's images; each stands once on the page, in a style rule, however often it is shown."""

    def __init__(self, index: str | None, node_ids: Iterable[str]) -> None:
        """Read and scale the images of an index's paragraphs, those that matter most first; no index, no picture."""
        self._class_of: dict[str, str] = {}
        self._rules: list[str] = []
        wanted = list(dict.fromkeys(node_ids))
        if index is None or not wanted:
            return
        try:
            images = Images.open(index)
        except DataError:
            return
        from PIL import Image

        digests = {row["node_id"]: row["digest"] for row in images.rows}
        drawn: dict[str, str] = {}
        for node_id in wanted:
            digest = digests.get(node_id, "")
            if digest and digest not in drawn and sum(map(len, self._rules)) <= PICTURE_BYTES:
                written = io.BytesIO()
                try:
                    with Image.open(io.BytesIO(images.read(digest))) as opened:
                        small = opened.convert("RGB")
                    small.thumbnail(PICTURE_SIDES, Image.Resampling.LANCZOS)
                    small.quantize(PICTURE_COLOURS).save(written, "PNG", optimize=True)
                except (DataError, OSError, ValueError):
                    continue
                data, (width, height) = base64.b64encode(written.getvalue()).decode("ascii"), small.size
                name = f"pic-{len(drawn)}"
                drawn[digest] = f"pic {name}"
                look = f"width:{width}px;height:{height}px;background-image:url(data:image/png;base64,{data})"
                self._rules.append(f".{name}{{{look}}}")
            if digest in drawn:
                self._class_of[node_id] = drawn[digest]

    def of(self, node_id: str) -> str | None:
        """Return the classes of an element that shows a node's image; None: there is no picture of it."""
        return self._class_of.get(node_id)

    @property
    def css(self) -> Markup:
        """The rules that hold the pictures."""
        return Markup("\n".join(self._rules))  # noqa: S704 - numbers and base64
