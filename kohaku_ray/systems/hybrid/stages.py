"""What the nine stages share: their names, their trace, and scores and vectors that are asked for once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kohaku_ray.index.arrays import F32, F64, I64, Hits
from kohaku_ray.records import TraceRow
from kohaku_ray.systems.hybrid.texts import Text
from kohaku_ray.systems.tools import Tools

STAGES = (
    "initial_context",
    "expansion",
    "search",
    "subquery_ranking",
    "fusion",
    "clustering",
    "mmr",
    "netloc_cap",
    "final_ranking",
)
"""Names of the stages, of their switches and of their steps in the trace."""

SHOWN_CHARS = 160
"""Characters of an item's text in the trace; those of the last stage stand whole."""

TRACED = 200
"""Items per stage that stand in the trace: stages 3 and 4 may hold ten times as many."""


class Steps:
    """The trace of one question, as it grows."""

    def __init__(self, texts: Mapping[int, Text]) -> None:
        """Start empty; ``texts`` says what each node row says."""
        self.texts = texts
        self.rows: list[TraceRow] = []
        self.pools: dict[str, float] = {}

    def count(self, stage: str, n_in: int, n_out: int, note: str = "", error: str | None = None) -> None:
        """Begin a stage's rows with how many items came in and how many go on."""
        said = f"in {n_in}, out {n_out}" + (f"; {note}" if note else "")
        self.rows.append(TraceRow(stage, scores={"in": n_in, "out": n_out}, note=said, error=error))
        self.pools[f"pool_{stage}"] = float(n_out)

    def skip(self, stage: str, n: int) -> None:
        """Say that a stage is switched off: its items pass."""
        self.count(stage, n, n, "off")

    def items(
        self,
        stage: str,
        n_in: int,
        hits: Hits,
        note: str = "",
        named: Mapping[str, Hits] | None = None,
        label: str = "score",
    ) -> None:
        """Record the items that go on, best first, ranks from 1.

        ``label`` names the scores of ``hits``; ``named`` has further ones.
        """
        if len(hits) > TRACED:
            note = f"{note}; first {TRACED} shown".removeprefix("; ")
        self.count(stage, n_in, len(hits), note)
        scores = {row: {label: score} for row, score in _by_row(hits.prefix(TRACED))}
        for name, of in (named or {}).items():
            for row, score in _by_row(of):
                if row in scores:
                    scores[row][name] = score
        for rank, row in enumerate(scores, 1):
            text = self.texts[row]
            said = text.text if stage == STAGES[-1] else text.text[:SHOWN_CHARS]
            ids = (text.node_id, text.doc_id, text.kind)
            self.rows.append(TraceRow(stage, rank, said, *ids, scores[row], text.ref_id))


def _by_row(hits: Hits) -> Iterable[tuple[int, float]]:
    return zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)


class Relevance:
    """Scores of one question's pairs, and the vectors they were taken from; nothing is asked twice."""

    def __init__(self, tools: Tools, has_cross_encoder: bool) -> None:
        """Start with nothing known; without the run's cross-encoder the cosine of vectors scores pairs."""
        self._tools, self._has_cross_encoder = tools, has_cross_encoder
        self._scores: dict[tuple[str, str], float] = {}
        self._queries: dict[str, F32] = {}
        self._rows: dict[int, F32] = {}

    async def embed(self, queries: Sequence[str]) -> F32:
        """Encode queries: shape ``(len(queries), d)``."""
        if missing := [query for query in dict.fromkeys(queries) if query not in self._queries]:
            self._queries.update(zip(missing, await self._tools.embed(missing), strict=True))
        return np.stack([self._queries[query] for query in queries])

    async def vectors(self, rows: Sequence[int] | I64) -> F32:
        """Fetch nodes' own vectors: shape ``(len(rows), d)``; at least one row."""
        wanted = [int(row) for row in rows]
        if missing := [row for row in dict.fromkeys(wanted) if row not in self._rows]:
            self._rows.update(zip(missing, await self._tools.vectors(missing), strict=True))
        return np.stack([self._rows[row] for row in wanted])

    async def cosines(self, queries: Sequence[str], rows: Sequence[int] | I64) -> F64:
        """Cosine of each query with its node: shape ``(len(rows),)``; the same whatever other rows there are."""
        vectors = await self.vectors(rows)
        cosines: F64 = np.einsum("ij,ij->i", await self.embed(queries), vectors, dtype=np.float64)
        return cosines

    async def scores(self, queries: Sequence[str], rows: Sequence[I64], texts: Mapping[int, str]) -> list[F64]:
        """Score each query's rows, whose texts are given: shape ``(n_rows,)`` per query, higher is better."""
        wanted = [[(query, texts[row]) for row in of.tolist()] for query, of in zip(queries, rows, strict=True)]
        missing: dict[tuple[str, str], int] = {}
        for pairs, of in zip(wanted, rows, strict=True):
            for pair, row in zip(pairs, of.tolist(), strict=True):
                if pair not in self._scores:
                    missing.setdefault(pair, row)
        if missing:
            if self._has_cross_encoder:
                found = await self._tools.rank_pairs(list(missing))
            else:
                found = await self.cosines([query for query, _ in missing], list(missing.values()))
            self._scores.update(zip(missing, found.tolist(), strict=True))
        return [np.array([self._scores[pair] for pair in pairs], np.float64) for pairs in wanted]


def united(rankings: Sequence[Hits]) -> Hits:
    """Every row once, in order of first occurrence, with its score there."""
    rows = np.concatenate([hits.rows for hits in rankings])
    _, first = np.unique(rows, return_index=True)
    return take(Hits(rows, np.concatenate([hits.scores for hits in rankings])), np.sort(first))


def take(found: Hits, places: I64, scores: F64 | None = None) -> Hits:
    """Keep hits by their places, with their own scores or, by the same places, other ones."""
    return Hits(found.rows[places], (found.scores if scores is None else scores)[places])
