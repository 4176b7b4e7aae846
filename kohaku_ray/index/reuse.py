"""Reuse vectors of another index of the same model: no text is encoded twice for a shorter dimension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kohaku_ray.index.arrays import F32
from kohaku_ray.index.assemble import ParagraphVectors, texts_to_encode
from kohaku_ray.index.identity import passage_part, vector_keys
from kohaku_ray.index.known import known_vectors
from kohaku_ray.index.pending import PendingVectors
from kohaku_ray.index.store import Index

SHORT_TOKENS = 96
"""Most tokens of a text that fits every encoder's window. Longer texts may have been encoded in windows, which are cut
before they are averaged."""


def can_reuse(source: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
    """Tell whether the vectors of one encoder give those of another.

    They do when both are the same, or when the target cuts the source's full vectors (Matryoshka): a cut vector has
    lost its length and cannot be cut again without rounding twice.

    Args:
        source: ``SentenceEncoder.identity``.
        target: The same of the other encoder.
    """
    one, other = passage_part(source), passage_part(target)
    return one == other or (one["dim"] is None and {**one, "dim": None} == {**other, "dim": None})


def reuse_vectors(
    path: str,
    source: Mapping[str, Any],
    target_path: str,
    target: Mapping[str, Any],
    paragraph_vectors: ParagraphVectors,
) -> int:
    """Write an index's vectors beside another index, as an interrupted job would: its build encodes the rest.

    Args:
        path: Directory of the index that has the vectors.
        source: Identity of its encoder.
        target_path: Directory of the index to be built.
        target: Identity of that one's encoder; see ``can_reuse``.
        paragraph_vectors: Setting of the source, which decides the texts it encoded.

    Returns:
        Number of vectors.

    Raises:
        DataError: There is no such index, or the target cannot be written.
    """
    nodes = Index.open(path).nodes
    rows, texts = texts_to_encode(nodes, paragraph_vectors)
    if passage_part(source) != passage_part(target):
        texts = [text for row, text in zip(rows, texts, strict=True) if nodes.tokens[row] <= SHORT_TOKENS]
    distinct = list(dict.fromkeys(texts))
    known = known_vectors(path, source)
    found, vectors = known.lookup(vector_keys(source, distinct))
    there = [text for text, is_known in zip(distinct, found, strict=True) if is_known]
    dim = target["dim"]
    if not there or (dim is not None and dim > known.dim):
        return 0
    PendingVectors(target_path).write(target, vector_keys(target, there).tolist(), _cut(vectors, dim))
    return len(there)


def _cut(vectors: F32, dim: int | None) -> F32:
    """Keep the first ``dim`` columns, and normalise the rows again."""
    if dim is None:
        return np.asarray(vectors, np.float32)
    short = np.asarray(vectors[:, :dim], np.float32)
    unit: F32 = short / np.maximum(np.linalg.norm(short, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return unit
