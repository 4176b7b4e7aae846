"""Turn the vectors of texts into vectors of nodes, in the order in which a search reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kohaku_ray.documents.text.plain import PATH
from kohaku_ray.errors import DataError
from kohaku_ray.index.arrays import F32, F64, I64, Keys, Mask
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.images import ImagePlan, ImageVectors, image_rows, put_into_tree
from kohaku_ray.index.known import FoundVectors, KnownVectors
from kohaku_ray.index.nodes import CHUNK, PARAGRAPH, SECTION, SENTENCE, NodeTable
from kohaku_ray.index.propagate import fill_inner
from kohaku_ray.index.settings import ChildWeights, IndexConfig, ParagraphVectors
from kohaku_ray.records import pluralize


@dataclass(frozen=True)
class Encoded:
    """The texts of an index and their vectors, each distinct text once.

    Attributes:
        rows: Shape ``(m,)``; nodes with a text of their own to encode, increasing.
        which: Shape ``(m,)``; the distinct text of each.
        keys: Shape ``(u,)``; sorted keys of the distinct texts.
        first: Shape ``(u,)``; the first of ``rows`` with each.
        vectors: Of the ``u`` texts; they are copied once, to where they stay.
        n_reused: How many of the ``u`` an earlier index had.
    """

    rows: I64
    which: I64
    keys: Keys
    first: I64
    vectors: FoundVectors
    n_reused: int

    def copy_to(self, target: F32, numbers: I64, rows: I64) -> None:
        """Copy the vectors of some of ``rows``, by their numbers among these, to rows of a matrix."""
        self.vectors.copy_to(target, self.which[numbers], rows)


@dataclass(frozen=True)
class Layout:
    """All vectors of an index, searched ones first.

    Attributes:
        matrix: Shape ``(v, d)``; searched nodes in node order, second vectors of ``both``, then all other nodes.
        rows: Shape ``(v,)``; node of each.
        matrix_rows: Shape ``(u,)``; row in ``matrix`` of the vector of each distinct text.
        n_kept: How many of the ``v``, the last ones, are in no view: vectors of captions whose paragraphs have others.
    """

    matrix: F32
    rows: I64
    matrix_rows: I64
    n_kept: int = 0


def texts_to_encode(nodes: NodeTable, index: IndexConfig, *, captions: bool = True) -> tuple[I64, list[str]]:
    """Find the nodes that need a vector of their own text, and that text.

    Sentences and chunks do; paragraphs without sentences, captions, and with ``full`` or ``both`` every paragraph's
    text; the title of a section with nothing else below it. Without ``captions``, images that have a file do not.

    With ``context_header`` each text is one line, and its header a line before it (``chunks.without_header``); a title
    has none.

    Returns:
        Rows, shape ``(m,)``, increasing, and their ``m`` texts, which may repeat.
    """
    has_text = nodes.table["n_chars"].to_numpy() > 0
    own_text = _has_own_vector(nodes) | (index.paragraph_vectors != "averaged")
    chosen = has_text & ((nodes.kind == SENTENCE) | ((nodes.kind == PARAGRAPH) & own_text))
    if not captions:
        chosen[image_rows(nodes)[0]] = False
    before = np.r_[0, np.cumsum(chosen)]
    is_bare = before[nodes.end] == before[:-1]
    chosen |= has_text & (((nodes.kind == SECTION) & is_bare) | (nodes.kind == CHUNK))
    rows = np.flatnonzero(chosen).astype(np.int64)
    picked = nodes.table.select(["title", "text"]).take(pa.array(rows))
    texts: list[str] = pc.if_else(pa.array(nodes.kind[rows] == SECTION), picked["title"], picked["text"]).to_pylist()
    if index.context_header:
        texts = [header + " ".join(text.split()) for header, text in zip(_headers(nodes, rows), texts, strict=True)]
    return rows, texts


def _headers(nodes: NodeTable, rows: I64) -> list[str]:
    """Name the document and section that each row lies in, as a line of its own; empty for a section itself."""
    section = np.where(nodes.kind[rows] > SECTION, nodes.parent[rows], -1)
    while (is_below := (section >= 0) & (nodes.kind[section] > SECTION)).any():
        section[is_below] = nodes.parent[section[is_below]]
    document = np.where((section >= 0) & (nodes.kind[section] == SECTION), nodes.parent[section], section)
    headers = []
    for titles in zip(nodes.column("title", document), nodes.column("title", section), strict=True):
        lines = dict.fromkeys(" ".join(title.split()) for title in titles if title)
        header = PATH.join(line for line in lines if line)
        headers.append(f"{header}:\n" if header else "")
    return headers


def collect(
    nodes: NodeTable,
    index: IndexConfig,
    identity: Mapping[str, Any],
    fresh: tuple[Keys, F32],
    known: KnownVectors,
    *,
    captions: bool = True,
) -> Encoded:
    """Find every text's vector: encoded for this build (keys and vectors in any order), or known from before.

    Raises:
        DataError: A text has no vector.
    """
    rows, texts = texts_to_encode(nodes, index, captions=captions)
    keys, first, which = np.unique(vector_keys(identity, texts), return_index=True, return_inverse=True)
    new = KnownVectors.of(*fresh)
    vectors = known.behind(new).locate(keys)
    if not vectors.is_known.all():
        missing = np.flatnonzero(~vectors.is_known)
        raise DataError(
            f"{pluralize(len(missing), 'text')} without a vector, the first is that of "
            f"{nodes.node_id(rows[first[missing[0]]])}: encode all texts"
        )
    if not len(keys):  # documents without text: of the others' length
        vectors = replace(vectors, dim=known.dim or fresh[1].shape[1])
    n_reused = len(keys) - int(new.has(keys).sum())
    return Encoded(rows, which.astype(np.int64), keys, first.astype(np.int64), vectors, n_reused)


def lay_out(
    nodes: NodeTable,
    encoded: Encoded,
    weights: ChildWeights,
    paragraph_vectors: ParagraphVectors,
    plan: ImagePlan,
    images: ImageVectors | None = None,
) -> Layout:
    """Propagate the texts' vectors up the tree and put them in the order they are searched.

    Searched are sentences, paragraphs and chunks with a vector; an image without a caption has none. A chunk's vector
    is its own text's, and no part of its parent's. Images' paragraphs have the vectors that ``plan`` says; without it,
    their captions'.
    """
    searched_alone = (
        _has_own_vector(nodes)[encoded.rows] | (nodes.kind[encoded.rows] != PARAGRAPH) | (paragraph_vectors != "both")
    )
    fixed: Mask = np.zeros(len(nodes), dtype=bool)
    fixed[encoded.rows[searched_alone]] = True
    vectors = np.zeros((len(nodes), encoded.vectors.dim), dtype=np.float32)
    encoded.copy_to(vectors, np.flatnonzero(searched_alone), encoded.rows[searched_alone])
    given_others = put_into_tree(vectors, nodes, plan, images)
    fixed[given_others] = True
    kept = np.flatnonzero(searched_alone & np.isin(encoded.rows, given_others))
    parent = np.where(nodes.kind == CHUNK, -1, nodes.parent)
    fill_inner(vectors, parent, _child_weights(nodes, weights), fixed)
    searched = (nodes.kind >= PARAGRAPH) & vectors.any(axis=1)
    order, others, second = np.flatnonzero(searched), np.flatnonzero(~searched), encoded.rows[~searched_alone]
    ends = np.cumsum([len(order), len(second), len(others), len(kept)])
    matrix = np.empty((ends[-1], vectors.shape[1]), np.float32)
    # A row of a view at a time, without a copy between: ``take`` writes where it says.
    np.take(vectors, order, axis=0, out=matrix[: ends[0]], mode="clip")
    encoded.copy_to(matrix, np.flatnonzero(~searched_alone), np.arange(ends[0], ends[1]))
    np.take(vectors, others, axis=0, out=matrix[ends[1] : ends[2]], mode="clip")
    encoded.copy_to(matrix, kept, np.arange(ends[2], ends[3]))
    del vectors
    _check_finite(nodes, encoded, matrix, np.concatenate([order, second, others, encoded.rows[kept]]))
    n_searched = len(order) + len(second)
    matrix_row = np.empty(len(nodes), dtype=np.int64)
    matrix_row[order], matrix_row[others] = np.arange(len(order)), np.arange(n_searched, n_searched + len(others))
    matrix_rows = matrix_row[encoded.rows]
    matrix_rows[~searched_alone] = np.arange(len(order), n_searched)
    matrix_rows[kept] = np.arange(len(matrix) - len(kept), len(matrix))
    rows = np.concatenate([order, second, others, encoded.rows[kept]]).astype(np.int64)
    return Layout(matrix, rows, matrix_rows[encoded.first], len(kept))


def _check_finite(nodes: NodeTable, encoded: Encoded, matrix: F32, rows: I64) -> None:
    """Raise a ``DataError`` for the first text whose vector is not finite; ``rows`` are the nodes of the matrix's."""
    sums = matrix.sum(axis=1)  # not finite where a number is not, and never too large: they are of unit rows
    odd = rows[~np.isfinite(sums)]
    if len(odd):
        own = odd[np.isin(odd, encoded.rows)]  # an inner node has it from a text below it
        node_id = nodes.node_id(int((own if len(own) else odd).min()))
        raise DataError(f"the vector of {node_id} is not finite: encode with precision float32")


def _has_own_vector(nodes: NodeTable) -> Mask:
    """Mark rows that keep their own vector: leaves, and images and tables, which have their caption's."""
    is_leaf = nodes.end == np.arange(1, len(nodes) + 1)
    attached: Mask = nodes.table["attachment_kind"].is_valid().to_numpy()
    mask: Mask = is_leaf | attached
    return mask


def _child_weights(nodes: NodeTable, weights: ChildWeights) -> F64 | I64:
    """Weigh each node in its parent, at least 1: a text of no tokens must not leave its parent without a vector."""
    if weights == "uniform":
        return np.ones(len(nodes))
    if weights == "chars":
        chars: I64 = nodes.table["n_chars"].to_numpy()
        return chars.clip(1)
    tokens = nodes.tokens
    if len(nodes) and not tokens.any():
        raise DataError("weights is 'tokens' but no tokens were counted: fill n_tokens of the nodes, or use chars")
    return tokens.clip(1)
