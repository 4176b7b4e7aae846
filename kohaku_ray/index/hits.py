"""The result of a search for one query."""

from __future__ import annotations

from dataclasses import dataclass

from kohaku_ray.index.arrays import F64, I64


@dataclass(frozen=True, slots=True)
class Hits:
    """The nodes one query found, best first.

    Attributes:
        rows: Shape ``(k,)``; row of each node in the node table.
        scores: Shape ``(k,)``; cosine similarity or BM25 score, never increasing.
    """

    rows: I64
    scores: F64

    def __len__(self) -> int:
        """Count the hits."""
        return len(self.rows)

    def prefix(self, k: int) -> Hits:
        """Keep the ``k`` best: the same list a search for ``k`` would have returned."""
        return Hits(self.rows[:k], self.scores[:k])
