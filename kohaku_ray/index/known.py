"""Vectors that an index holds, found by the key of their text: indexing again encodes only new texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kohaku_ray.errors import DataError, StorageError
from kohaku_ray.index.arrays import F32, I64, Mask
from kohaku_ray.index.columns import column_keys, column_matrix
from kohaku_ray.index.identity import Keys, as_keys, passage_part
from kohaku_ray.index.store import Index, read_table
from kohaku_ray.records import plain


@dataclass(frozen=True)
class _Part:
    """Sorted keys, shape ``(n,)``, the row of each in a matrix, and the matrix, shape ``(m, d)``."""

    keys: Keys
    places: I64
    matrix: F32

    def find(self, keys: Keys) -> tuple[Mask, I64]:
        """Tell which of ``k`` keys are here, shape ``(k,)``, and the rows of ``matrix`` of those."""
        at = np.searchsorted(self.keys, keys)
        there = at < len(self.keys)
        there[there] = self.keys[at[there]] == keys[there]
        return there, self.places[at[there]]


class KnownVectors:
    """Vectors by the key of their text, in one matrix or in one per shard; memory-mapped when the index is local.

    Attributes:
        dim: Length of a vector; 0: there are none.
    """

    def __init__(self, parts: Sequence[tuple[Keys, I64, F32]] = ()) -> None:
        """Combine matrices.

        Args:
            parts: Of each: sorted keys, shape ``(n,)``; the row of each in the matrix; the matrix, shape ``(m, d)``.
        """
        self._parts = [_Part(*part) for part in parts if len(part[0])]
        self.dim = next((part.matrix.shape[1] for part in self._parts), 0)

    def __len__(self) -> int:
        """Count the vectors; a text in several shards counts in each."""
        return sum(len(part.keys) for part in self._parts)

    def lookup(self, keys: Keys) -> tuple[Mask, F32]:
        """Find vectors by key.

        Returns:
            Which keys are known, shape ``(k,)``, and the vectors of those, in the order of the keys.
        """
        keys = as_keys(keys)
        found, vectors = np.zeros(len(keys), bool), np.empty((len(keys), self.dim), np.float32)
        for part in self._parts:
            missing = np.flatnonzero(~found)
            there, rows = part.find(keys[missing])
            vectors[missing[there]] = part.matrix[rows]
            found[missing[there]] = True
        return found, vectors[found]

    def has(self, keys: Keys) -> Mask:
        """Tell which keys are known, shape ``(k,)``, without reading a vector."""
        keys = as_keys(keys)
        found = np.zeros(len(keys), bool)
        for part in self._parts:
            found |= part.find(keys)[0]
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


def _part(index: Index, files: Mapping[str, Mapping[str, Any]]) -> tuple[Keys, I64, F32]:
    # Large and mapped: a job compares their checksums once, before it starts.
    table = read_table(index.directory, files["keys"], mapped=True)
    matrix = column_matrix(read_table(index.directory, files["vectors"], mapped=True)["vector"])
    return column_keys(table["key"]), table["place"].to_numpy(), matrix
