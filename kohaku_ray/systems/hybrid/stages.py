"""What the nine stages share: their names, their texts, read once from the node table, and their trace."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from kohaku_ray.index.arrays import F64, I64, Hits
from kohaku_ray.index.nodes import PARAGRAPH, SENTENCE, NodeTable
from kohaku_ray.models.prompts import Prompt, Prompts, asked
from kohaku_ray.records import Question, TraceRow

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

FEW = 3
"""Fewer texts than this are worth a warning."""

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
        note_text = f"in {n_in}, out {n_out}" + (f"; {note}" if note else "")
        self.rows.append(TraceRow(stage, scores={"in": n_in, "out": n_out}, note=note_text, error=error))

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
            shown = text.text if stage == STAGES[-1] else text.text[:SHOWN_CHARS]
            ids = (text.node_id, text.doc_id, text.kind)
            self.rows.append(TraceRow(stage, rank, shown, *ids, scores[row], text.label))


def _by_row(hits: Hits) -> Iterable[tuple[int, float]]:
    return zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)


def united(rankings: Sequence[Hits]) -> Hits:
    """Every row once, in order of first occurrence, with its score there."""
    rows = np.concatenate([hits.rows for hits in rankings])
    _, first = np.unique(rows, return_index=True)
    return take(Hits(rows, np.concatenate([hits.scores for hits in rankings])), np.sort(first))


def take(hits: Hits, positions: I64, scores: F64 | None = None) -> Hits:
    """Keep hits by their places, with their own scores or, by the same places, other ones."""
    return Hits(hits.rows[positions], (hits.scores if scores is None else scores)[positions])


_SAMPLE = Question("q", "?", answer_unit="u", answer_type="t")
_TEXT = {"ref_id": "1", "mark": "[1 / s / d]", "title": "t", "text": "t"}

EXPAND_EXAMPLES: tuple[dict[str, Any], ...] = tuple(
    {**asked(_SAMPLE), "context": context, "n_queries": 2} for context in ((), ("t",))
)
ANSWER_EXAMPLES: tuple[dict[str, Any], ...] = ({**asked(_SAMPLE), "texts": (_TEXT,)},)


def answer_prompt(prompts: Prompts, question: Question, texts: Sequence[Text]) -> Prompt:
    """Ask for the answer; a text holds no brackets, so that it cannot pose as another's heading."""
    shown = tuple(
        {"ref_id": text.ref_id, "mark": text.mark, "title": plain(text.title), "text": plain(text.text)}
        for text in texts
    )
    return prompts.render("answer", {**asked(question), "texts": shown})


@dataclass(frozen=True, slots=True)
class HybridEvidence:
    """Texts of the corpus on one question.

    Attributes:
        queries: The sub-queries, the question first.
        texts: What is shown to the model, best first; none: the corpus holds no information on the question.
        why_nothing: Why there is none.
        measures: Named numbers: items after each stage, distinct sites and documents of the texts.
        warning: What a reader should know of the texts; empty: nothing.
    """

    question: Question
    queries: tuple[str, ...]
    texts: tuple[Text, ...]
    why_nothing: str = ""
    measures: Mapping[str, float] = field(default_factory=dict)
    warning: str = ""
    trace: tuple[TraceRow, ...] = ()


_ROUND = str.maketrans("[];", "(),")
"""What marks a citation goes out of ids and texts: no text may pose as another's heading."""

_ATTRIBUTES = ("par_id", "document_netloc", "document_date", "document_url", "document_title")


class Text(NamedTuple):
    """A node that may be shown and cited.

    Attributes:
        ref_id: What it is cited by: its paragraph's ``par_id``, or the node's id where the corpus has none.
        netloc: The site; None where it is not known.
        date: The day; empty where it is not known, as are ``url`` and ``title``.
    """

    node_id: str
    doc_id: str
    kind: str
    text: str
    ref_id: str
    netloc: str | None = None
    date: str = ""
    url: str = ""
    title: str = ""

    @property
    def label(self) -> str:
        """Its name in the trace: ``ref_id``, and of a sentence the published pipeline's id too: ``s{par_id}_{i}``."""
        if self.kind != "sentence" or self.ref_id == self.node_id:
            return self.ref_id
        return f"{self.ref_id}; s{self.ref_id}_{self.node_id.rpartition(':s')[2]}"

    @property
    def mark(self) -> str:
        """Its heading, and the form of its citations: ``[id / netloc / date]``."""
        parts = (plain(self.ref_id), plain(self.netloc or "") or "?", plain(self.date) or "?")
        return f"[{' / '.join(parts)}]"


def plain(text: str) -> str:
    """Write brackets round and white space single, so that the text holds no citation."""
    return " ".join(text.translate(_ROUND).split())


def read_texts(nodes: NodeTable, source_rows: Sequence[int]) -> dict[int, Text]:
    """Read nodes by their rows of the whole index, whole columns at once."""
    rows = nodes.local(source_rows)
    kind = nodes.kind[rows]
    paragraph = np.where(kind == PARAGRAPH, rows, np.where(kind == SENTENCE, nodes.parent[rows], -1))
    columns = [nodes.column(name, rows) for name in ("node_id", "doc_id", "kind", "text")]
    texts = {}
    cells = zip(source_rows, *columns, nodes.column("attributes", paragraph), strict=True)
    for row, node_id, doc_id, kind_name, content, attributes in cells:
        known = json.loads(attributes) if attributes else {}
        ref_id, netloc, date, url, title = [str(known.get(name) or "") for name in _ATTRIBUTES]
        texts[row] = Text(node_id, doc_id, kind_name, content, ref_id or node_id, netloc or None, date, url, title)
    return texts
