"""Vectors of an unfinished build: written as they are computed, so that an interrupted job repeats none of them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kohaku_ray.errors import DataError, StorageError
from kohaku_ray.index.arrays import F32
from kohaku_ray.index.columns import column_keys, column_matrix, matrix_column
from kohaku_ray.index.identity import KEY_BYTES, Keys, no_keys, passage_part
from kohaku_ray.index.store import fingerprint
from kohaku_ray.storage import Directory

FOLDER = "pending"


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
        """Write some vectors.

        Args:
            identity: Of the encoder that made them.
            keys: ``n`` vector keys.
            vectors: Shape ``(n, d)``.

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
        """Read vectors of this encoder: ``n`` keys, which may repeat, and vectors of shape ``(n, d)``.

        Args:
            identity: Of the encoder.
            wanted: Keys whose vectors are read, one segment after the other; None: all.
        """
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


def _stem(identity: Mapping[str, Any]) -> str:
    return fingerprint(passage_part(identity))[:16]
