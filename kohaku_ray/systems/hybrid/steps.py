"""What a question's stages leave in the trace: a row that counts, then a row per item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kohaku_ray.index.arrays import F64
from kohaku_ray.index.hits import Hits
from kohaku_ray.records import TraceRow
from kohaku_ray.systems.hybrid.settings import COSINE
from kohaku_ray.systems.hybrid.stages import STAGES
from kohaku_ray.systems.hybrid.texts import Text

SHOWN_CHARS = 160
"""Characters of an item's text in the trace; those of the last stage stand whole."""

TRACED = 200
"""Items per stage that stand in the trace: stages 3 and 4 may hold ten times as many."""

STAND_IN = f"{COSINE}, no cross-encoder"
"""What every stage that ranks pairs says where no cross-encoder does."""

Named = Mapping[str, Mapping[int, float]]
"""Further scores by name, then by node row."""


class Steps:
    """The trace of one question, as it grows."""

    def __init__(self) -> None:
        """Start empty."""
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

    def queries(self, stage: str, n_in: int, queries: Sequence[str], error: str | None) -> None:
        """Record sub-queries."""
        self.count(stage, n_in, len(queries), error=error)
        self.rows += [TraceRow(stage, rank, query) for rank, query in enumerate(queries, 1)]

    def items(
        self,
        stage: str,
        n_in: int,
        hits: Hits,
        texts: Mapping[int, Text],
        note: str = "",
        named: Named | None = None,
        label: str = "score",
    ) -> None:
        """Record the items that go on, best first, ranks from 1.

        Args:
            stage: Which stage.
            n_in: Items that came in.
            hits: Items that go on, with their scores.
            texts: What they say.
            note: What is to be said of the stage.
            named: Further scores.
            label: Name of the scores of ``hits``.
        """
        n_out = len(hits)
        if len(hits) > TRACED:
            hits = hits.prefix(TRACED)
            note = f"{note}; first {TRACED} shown".removeprefix("; ")
        self.count(stage, n_in, n_out, note)
        scores = {row: {label: score} for row, score in by_row(hits).items()}
        for name, of in (named or {}).items():
            for row, score in of.items():
                if row in scores:
                    scores[row][name] = score
        for rank, row in enumerate(scores, 1):
            text = texts[row]
            said = text.text if stage == STAGES[-1] else text.text[:SHOWN_CHARS]
            ids = (text.node_id, text.doc_id, text.kind)
            self.rows.append(TraceRow(stage, rank, said, *ids, scores[row], text.ref_id))


def by_row(hits: Hits, scores: F64 | None = None) -> dict[int, float]:
    """Scores by node row."""
    values = hits.scores if scores is None else np.asarray(scores)
    return dict(zip(hits.rows.tolist(), values.tolist(), strict=True))
