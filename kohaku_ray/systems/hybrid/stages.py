"""What the nine stages share: their names, and their trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kohaku_ray.index.arrays import F64, I64
from kohaku_ray.index.hits import Hits
from kohaku_ray.records import TraceRow
from kohaku_ray.systems.hybrid.texts import Text

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

    def count(self, stage: str, n_in: int, n_out: int, note: str = "", error: str | None = None) -> None:
        """Begin a stage's rows with how many items came in and how many go on."""
        said = f"in {n_in}, out {n_out}" + (f"; {note}" if note else "")
        self.rows.append(TraceRow(stage, scores={"in": n_in, "out": n_out}, note=said, error=error))

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


def united(rankings: Sequence[Hits]) -> Hits:
    """Every row once, in order of first occurrence, with its score there."""
    rows = np.concatenate([hits.rows for hits in rankings])
    _, first = np.unique(rows, return_index=True)
    return take(Hits(rows, np.concatenate([hits.scores for hits in rankings])), np.sort(first))


def take(found: Hits, places: I64, scores: F64 | None = None) -> Hits:
    """Keep hits by their places, with their own scores or, by the same places, other ones."""
    return Hits(found.rows[places], (found.scores if scores is None else scores)[places])
