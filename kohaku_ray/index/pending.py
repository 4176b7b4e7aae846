"""Vectors of an unfinished build: written as they are computed, so that an interrupted job repeats none of them.

Those that another index of the same model holds are put there too: no text is encoded twice for a shorter dimension.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kohaku_ray.errors import DataError, StorageError
from kohaku_ray.index.arrays import F32
from kohaku_ray.index.assemble import ParagraphVectors, texts_to_encode
from kohaku_ray.index.columns import column_keys, column_matrix, matrix_column
from kohaku_ray.index.identity import KEY_BYTES, Keys, no_keys, passage_part, vector_keys
from kohaku_ray.index.known import KnownVectors, known_vectors
from kohaku_ray.index.store import Index, fingerprint
from kohaku_ray.storage import Directory

FOLDER = "pending"

SHORT_TOKENS = 96
"""Most tokens of a text that fits every encoder's window. Longer texts may have been encoded in windows, which are cut
before they are averaged."""


class PendingVectors:
    """Segments of keyed vectors beside an index; each is written whole or not at all."""

    def __init__(self, path: str) -> None:
        """Open the directory of an index, on any pyarrow filesystem."""
        self._directory = Directory(path)

    def check_writable(self) -> None:
        """Write a file and remove it, so that an error comes before hours of encoding.

        Raises:
            DataError: The directory cannot be written.
        """
        name = f"{FOLDER}/{uuid.uuid4().hex}.probe"
        self._directory.write(name, b"probe")
        self._directory.remove(name)

    def write(self, identity: Mapping[str, Any], keys: Sequence[bytes], vectors: F32) -> None:
        """Write vectors of shape ``(n, d)`` of an encoder with their ``n`` keys.

        Raises:
            DataError: The directory cannot be written.
        """
        # Named by content, so that the first vector of a repeated text is the same in every run.
        content = hashlib.blake2b(b"".join(keys), digest_size=16).hexdigest()
        name = f"{FOLDER}/{_stem(identity)}-{content}.arrow"
        columns = {"key": pa.array(keys, pa.binary(KEY_BYTES)), "vector": matrix_column(vectors)}
        temporary = f"{name}.{uuid.uuid4().hex[:8]}.tmp"
        self._directory.write_arrow(temporary, pa.table(columns))
        self._directory.rename(temporary, name)

    def keys(self, identity: Mapping[str, Any]) -> set[bytes]:
        """List the keys of the vectors that an interrupted job of this encoder left."""
        return {key for table in self._tables(identity) for key in table["key"].to_pylist()}

    def load(self, identity: Mapping[str, Any], wanted: Keys | None = None) -> tuple[Keys, F32]:
        """Read vectors of an encoder, of the wanted keys or all: ``n`` keys, which may repeat, and shape ``(n, d)``."""
        keys: list[Keys] = [no_keys()]
        vectors: list[F32] = []
        for table in self._tables(identity):
            found, matrix = column_keys(table["key"]), column_matrix(table["vector"])
            if wanted is not None:
                chosen = np.isin(found, wanted)
                found, matrix = found[chosen], matrix[chosen]
            keys.append(found)
            vectors.append(matrix)
        return np.concatenate(keys), np.concatenate(vectors) if vectors else np.empty((0, 0), np.float32)

    def clear(self) -> None:
        """Remove every segment: the index holds their vectors now."""
        for name in self._names():
            self._directory.remove(name)

    def _names(self) -> list[str]:
        return [name for name in self._directory.names() if name.startswith(f"{FOLDER}/")]

    def _tables(self, identity: Mapping[str, Any]) -> Iterator[pa.Table]:
        for name in self._names():
            if name.startswith(f"{FOLDER}/{_stem(identity)}-") and name.endswith(".arrow"):
                try:
                    yield self._directory.read_arrow(name)
                except StorageError:
                    raise
                except DataError:
                    continue  # truncated by a crash: its texts are encoded again


def without_vectors(
    texts: Sequence[str], identity: Mapping[str, Any], known: KnownVectors, left: set[bytes]
) -> dict[str, bytes]:
    """Return the distinct texts, or digests of images, whose vectors are neither known nor left, with their keys."""
    distinct = list(dict.fromkeys(texts))
    keys = vector_keys(identity, distinct)
    found = zip(distinct, keys.tolist(), known.has(keys), strict=True)
    return {text: key for text, key, is_known in found if not is_known and key not in left}


def can_reuse(source: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
    """Tell whether the vectors of one encoder give those of another; both are ``encoder_identity``.

    They do when both are the same, or when the target cuts the source's full vectors (Matryoshka): a cut vector has
    lost its length and cannot be cut again without rounding twice.
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
    if dim is not None:
        short = np.asarray(vectors[:, :dim], np.float32)
        vectors = short / np.maximum(np.linalg.norm(short, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    PendingVectors(target_path).write(target, vector_keys(target, there).tolist(), vectors)
    return len(there)


def _stem(identity: Mapping[str, Any]) -> str:
    return fingerprint(passage_part(identity))[:16]
