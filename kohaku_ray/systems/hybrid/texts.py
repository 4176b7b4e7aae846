"""The texts that the stages speak of: read once from the node table, with what their articles say of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from kohaku_ray.index.nodes import PARAGRAPH, SENTENCE, NodeTable
from kohaku_ray.models.prompts import Prompt, Prompts, asked
from kohaku_ray.records import Question, TraceRow

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
    """

    question: Question
    queries: tuple[str, ...]
    texts: tuple[Text, ...]
    why_nothing: str = ""
    measures: Mapping[str, float] = field(default_factory=dict)
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
    def mark(self) -> str:
        """Its heading, and the form of its citations: ``[id / netloc / date]``."""
        parts = (plain(self.ref_id), plain(self.netloc or "") or "?", plain(self.date) or "?")
        return f"[{' / '.join(parts)}]"


def plain(text: str) -> str:
    """Write brackets round and white space single, so that the text holds no citation."""
    return " ".join(text.translate(_ROUND).split())


def read_texts(nodes: NodeTable, source_rows: Sequence[int]) -> dict[int, Text]:
    """Read nodes by their rows of the whole index, whole columns at once."""
    at = nodes.local(source_rows)
    kind = nodes.kind[at]
    paragraph = np.where(kind == PARAGRAPH, at, np.where(kind == SENTENCE, nodes.parent[at], -1))
    columns = [nodes.column(name, at) for name in ("node_id", "doc_id", "kind", "text")]
    texts = {}
    cells = zip(source_rows, *columns, nodes.column("attributes", paragraph), strict=True)
    for row, node_id, doc_id, kind_name, said, attributes in cells:
        known = json.loads(attributes) if attributes else {}
        ref_id, netloc, date, url, title = [str(known.get(name) or "") for name in _ATTRIBUTES]
        texts[row] = Text(node_id, doc_id, kind_name, said, ref_id or node_id, netloc or None, date, url, title)
    return texts
