"""Vectors that an index holds, found by the key of their text: indexing again encodes only new texts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kohaku_ray.errors import DataError, StorageError
from kohaku_ray.index.arrays import F32, I64, Keys, Mask, as_keys, column_keys, column_matrix
from kohaku_ray.index.identity import passage_part
from kohaku_ray.index.store import Index, all_files, read_manifest, read_table
from kohaku_ray.records import plain
from kohaku_ray.store.storage import Directory

IMAGE_VECTORS = "image-vectors"
"""File of a shard: the node row of each image paragraph, the key and the vector of its image."""


@dataclass(frozen=True)
class VectorPart:
    """Vectors by the key of their text, which are read when one is wanted: a shard of an index on S3 has gigabytes.

    Attributes:
        keys: Sorted; shape ``(n,)``.
        rows: The row of each in the matrix.
        dim: Length of a vector.
        read: Read the matrix, shape ``(m, dim)``.
    """

    keys: Keys
    rows: I64
    dim: int
    read: Callable[[], F32]

    @functools.cached_property
    def matrix(self) -> F32:
        """The vectors."""
        return self.read()

    def find(self, keys: Keys) -> tuple[Mask, I64]:
        """Tell which of ``k`` keys it has, shape ``(k,)``, and their rows in the matrix."""
        position = np.searchsorted(self.keys, keys)
        is_held = position < len(self.keys)
        is_held[is_held] = self.keys[position[is_held]] == keys[is_held]
        return is_held, self.rows[position[is_held]]


_ROWS_AT_ONCE = 16_384
"""Vectors that are copied together: 24 MiB at 384 numbers each."""


@dataclass(frozen=True)
class FoundVectors:
    """Where the vectors of ``k`` keys are.

    Attributes:
        parts: Matrices that hold them.
        part: Shape ``(k,)``; number of each one's matrix; -1: it is not known.
        row: Shape ``(k,)``; its row there.
        dim: Length of a vector.
    """

    parts: tuple[VectorPart, ...]
    part: npt.NDArray[np.int32]
    row: I64
    dim: int

    @property
    def is_known(self) -> Mask:
        """Tell which keys are known: shape ``(k,)``."""
        mask: Mask = self.part >= 0
        return mask

    def copy_to(self, target: F32, numbers: I64, rows: I64) -> None:
        """Copy vectors of known keys, by their numbers, into rows of a matrix, a few thousand at a time.

        Raises:
            DataError: A file of vectors is damaged.
        """
        for number, part in enumerate(self.parts):
            mine = np.flatnonzero(self.part[numbers] == number)
            for first in range(0, len(mine), _ROWS_AT_ONCE):
                chosen = mine[first : first + _ROWS_AT_ONCE]
                target[rows[chosen]] = part.matrix[self.row[numbers[chosen]]]


class KnownVectors:
    """Vectors by the key of their text, in several matrices; memory-mapped when the index is local.

    Attributes:
        dim: Length of a vector; 0: there are none.
    """

    def __init__(self, parts: Sequence[VectorPart] = ()) -> None:
        """Combine matrices: the first that has a key gives its vector."""
        self._parts = [part for part in parts if len(part.keys)]
        self.dim = next((part.dim for part in self._parts), 0)

    def __len__(self) -> int:
        """Count the vectors; a text in several shards counts in each."""
        return sum(len(part.keys) for part in self._parts)

    @classmethod
    def of(cls, keys: Keys, vectors: F32) -> KnownVectors:
        """Hold vectors with their keys, in any order."""
        return cls([_sorted(as_keys(keys), vectors)])

    def behind(self, others: KnownVectors) -> KnownVectors:
        """Return vectors that are looked up among others first, then here."""
        return KnownVectors([*others._parts, *self._parts])

    def lookup(self, keys: Keys) -> tuple[Mask, F32]:
        """Tell which keys are known, shape ``(k,)``, and return the vectors of those, in the order of the keys."""
        found = self.locate(keys)
        vectors = np.empty((int(found.is_known.sum()), self.dim), np.float32)
        found.copy_to(vectors, np.flatnonzero(found.is_known), np.arange(len(vectors)))
        return found.is_known, vectors

    def locate(self, keys: Keys) -> FoundVectors:
        """Find the vectors of keys without reading one."""
        keys = as_keys(keys)
        part_of, row_of = np.full(len(keys), -1, np.int32), np.zeros(len(keys), np.int64)
        for number, part in enumerate(self._parts):
            missing = np.flatnonzero(part_of < 0)
            is_held, rows = part.find(keys[missing])
            part_of[missing[is_held]], row_of[missing[is_held]] = number, rows
        return FoundVectors(tuple(self._parts), part_of, row_of, self.dim)

    def has(self, keys: Keys) -> Mask:
        """Tell which keys are known, shape ``(k,)``, without reading a vector."""
        return self.locate(keys).is_known


def known_vectors(path: str, identity: Mapping[str, Any], shard: int | None = None) -> KnownVectors:
    """Map the vectors that an index holds; none for a missing index, or one of another encoder.

    Those of ``shard`` come first: it needs hardly one of another's.

    Raises:
        DataError: A file of keys is damaged. A damaged file of vectors is found when one of them is read.
    """
    try:
        index = Index.open(path)
    except StorageError:
        raise  # not to be taken for an index without vectors
    except DataError:
        return KnownVectors()
    if index.manifest["passage_identity"] != plain(passage_part(identity)):
        return KnownVectors()
    shards = sorted(index.manifest["shards"], key=lambda entry: entry["number"] != shard)
    return KnownVectors(list(index.directory.map_items(lambda entry: _part(index, entry["files"]), shards)))


def known_image_vectors(path: str) -> KnownVectors:
    """Map the vectors of images that an index holds; none for a missing one.

    Keys hold the encoder's identity: those of another encoder are not found.

    Raises:
        DataError: A file of them is damaged.
    """
    directory = Directory(path)
    try:
        files = all_files(read_manifest(directory))
        roles = [role for role in files if role.split()[0] == IMAGE_VECTORS]
    except StorageError:
        raise
    except DataError:
        return KnownVectors()
    tables = [read_table(directory, files[role]) for role in roles]
    return KnownVectors([_sorted(column_keys(table["key"]), column_matrix(table["vector"])) for table in tables])


def _part(index: Index, files: Mapping[str, Mapping[str, Any]]) -> VectorPart:
    table = read_table(index.directory, files["keys"])

    def matrix() -> F32:  # its checksum is compared here, where vectors are taken over for good
        return column_matrix(read_table(index.directory, files["vectors"])["vector"])

    return VectorPart(column_keys(table["key"]), table["place"].to_numpy(), index.manifest["dim"], matrix)


def _sorted(keys: Keys, vectors: F32) -> VectorPart:
    order = np.argsort(keys, kind="stable")
    return VectorPart(keys[order], order, vectors.shape[1], lambda: vectors)
