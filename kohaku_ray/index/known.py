"""Vectors that an index holds, found by the key of their text: indexing again encodes only new texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kohaku_ray.errors import DataError, StorageError
from kohaku_ray.index.arrays import F32, I64, Keys, Mask, as_keys, column_keys, column_matrix
from kohaku_ray.index.identity import passage_part
from kohaku_ray.index.store import Index, all_files, read_manifest, read_table
from kohaku_ray.records import plain
from kohaku_ray.storage import Directory

IMAGE_VECTORS = "image-vectors"
"""File of a shard: the node row of each image paragraph, the key and the vector of its image."""

Part = tuple[Keys, I64, F32]
"""Sorted keys, shape ``(n,)``; the row of each in a matrix; the matrix, shape ``(m, d)``."""


class KnownVectors:
    """Vectors by the key of their text, in several matrices; memory-mapped when the index is local.

    Attributes:
        dim: Length of a vector; 0: there are none.
    """

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        """Combine matrices: the first that has a key gives its vector."""
        self._parts = [part for part in parts if len(part[0])]
        self.dim = next((matrix.shape[1] for _, _, matrix in self._parts), 0)

    def __len__(self) -> int:
        """Count the vectors; a text in several shards counts in each."""
        return sum(len(keys) for keys, _, _ in self._parts)

    @classmethod
    def of(cls, keys: Keys, vectors: F32) -> KnownVectors:
        """Hold vectors with their keys, in any order."""
        return cls([_sorted(as_keys(keys), vectors)])

    def behind(self, others: KnownVectors) -> KnownVectors:
        """Look keys up among others first, then here."""
        return KnownVectors([*others._parts, *self._parts])

    def lookup(self, keys: Keys) -> tuple[Mask, F32]:
        """Tell which keys are known, shape ``(k,)``, and return the vectors of those, in the order of the keys."""
        keys = as_keys(keys)
        found, vectors = np.zeros(len(keys), bool), np.empty((len(keys), self.dim), np.float32)
        for part in self._parts:
            missing = np.flatnonzero(~found)
            there, rows = _find(part, keys[missing])
            vectors[missing[there]] = part[2][rows]
            found[missing[there]] = True
        return found, vectors if found.all() else vectors[found]

    def has(self, keys: Keys) -> Mask:
        """Tell which keys are known, shape ``(k,)``, without reading a vector."""
        keys = as_keys(keys)
        found = np.zeros(len(keys), bool)
        for part in self._parts:
            found |= _find(part, keys)[0]
        return found


def known_vectors(path: str, identity: Mapping[str, Any]) -> KnownVectors:
    """Map the vectors that an index holds; none for a missing or damaged index, or one of another encoder."""
    try:
        index = Index.open(path)
        if index.manifest["passage_identity"] == plain(passage_part(identity)):
            return KnownVectors([_part(index, shard["files"]) for shard in index.manifest["shards"]])
    except StorageError:
        raise  # not to be taken for an index without vectors
    except DataError:
        pass
    return KnownVectors()


def known_image_vectors(path: str) -> KnownVectors:
    """Map the vectors of images that an index holds; none for a missing or damaged one.

    Keys hold the encoder's identity: those of another encoder are not found.
    """
    directory = Directory(path)
    try:
        files = all_files(read_manifest(directory))
        roles = [role for role in files if role.split()[0] == IMAGE_VECTORS]
        tables = [read_table(directory, files[role], mapped=True) for role in roles]
    except StorageError:
        raise
    except DataError:
        return KnownVectors()
    return KnownVectors([_sorted(column_keys(table["key"]), column_matrix(table["vector"])) for table in tables])


def _part(index: Index, files: Mapping[str, Mapping[str, Any]]) -> Part:
    # Large and mapped: a job compares their checksums once, before it starts.
    table = read_table(index.directory, files["keys"], mapped=True)
    matrix = column_matrix(read_table(index.directory, files["vectors"], mapped=True)["vector"])
    return column_keys(table["key"]), table["place"].to_numpy(), matrix


def _sorted(keys: Keys, vectors: F32) -> Part:
    order = np.argsort(keys, kind="stable")
    return keys[order], order, vectors


def _find(part: Part, keys: Keys) -> tuple[Mask, I64]:
    """Tell which of ``k`` keys a part has, shape ``(k,)``, and their rows in its matrix."""
    sorted_keys, rows, _ = part
    at = np.searchsorted(sorted_keys, keys)
    there = at < len(sorted_keys)
    there[there] = sorted_keys[at[there]] == keys[there]
    return there, rows[at[there]]
