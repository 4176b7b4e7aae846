"""From ranked matches to the text a model reads: groups in rank order, within a budget, no text twice."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from kohaku_ray.arrays import I64, Mask
from kohaku_ray.retrieval.expand import Group, expand
from kohaku_ray.retrieval.rerank import Ranked
from kohaku_ray.tree.nodes import KINDS, SENTENCE, NodeTable

GAP = " … "
"""Stands for sentences left out."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """One match's text: what of its group no earlier snippet holds.

    Attributes:
        doc_id: Document it may be cited by.
        node_id: The match.
        text: Section title (before a paragraph), then sentences in reading order.
    """

    doc_id: str
    node_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Caption:
    """What an image or a table near a match says of itself."""

    doc_id: str
    node_id: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Match:
    """A match that reached the context, with the numbers that ranked it.

    Attributes:
        rank: Place among the ranked matches, from 0.
        node_id: The node.
        doc_id: Its document.
        kind: ``sentence`` or ``paragraph``.
        source: Vector search or BM25.
        score: What it was sorted by; BM25 score of a lexical match.
        frequency: How many queries returned it.
        similarity: Sum of its similarities over those queries.
        n_tokens: What it added to the context; 0 when earlier groups hold all its text.
    """

    rank: int
    node_id: str
    doc_id: str
    kind: str
    source: Literal["dense", "lexical"]
    score: float
    frequency: int
    similarity: float
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Context:
    """What one attempt shows the model.

    Attributes:
        snippets: In rank order.
        captions: Of the images and tables around the matches, in rank order.
        matches: Those that reached the context, in rank order.
        doc_ids: Documents that may be cited, by first appearance.
        n_tokens: Tokens of titles, snippets and captions, as counted in the node table.
        is_cut: Matches or sentences were left out for the budget.
    """

    snippets: tuple[Snippet, ...]
    captions: tuple[Caption, ...]
    matches: tuple[Match, ...]
    doc_ids: tuple[str, ...]
    n_tokens: int
    is_cut: bool

    @property
    def n_chars(self) -> int:
        """Characters of all snippets and captions."""
        return sum(len(part.text) for part in self.snippets) + sum(len(part.text) for part in self.captions)


def assemble(
    nodes: NodeTable,
    ranked: Ranked,
    *,
    budget: int | None,
    once: bool = True,
    paragraph_tokens: int = 2048,
    siblings: int = 3,
    section_tokens: int = 512,
) -> Context:
    """Fill a context rank by rank with whole groups; the first that does not fit is cut on a sentence and ends it.

    A cut keeps the match and drops what is farthest from it. A group of which not even the first sentence fits an
    empty context is passed over, so that one endless "sentence" does not shut out every other match.

    Args:
        nodes: The matches and the text around them.
        ranked: Matches, best first.
        budget: Most tokens; None: no bound.
        once: A group shows only the sentences and the title that no earlier group has shown.
        paragraph_tokens: See ``expand``.
        siblings: See ``expand``.
        section_tokens: See ``expand``.
    """
    held = np.zeros(len(nodes), bool)
    snippets: list[Snippet] = []
    captions: list[Caption] = []
    matches: list[Match] = []
    used, is_cut = 0, False
    for place, row in enumerate(ranked.rows):
        group = expand(
            nodes, int(row), paragraph_tokens=paragraph_tokens, siblings=siblings, section_tokens=section_tokens
        )
        if once:
            group = _without(group, held)
        shown, n_tokens = _within(nodes, group, None if budget is None else budget - used)
        is_whole = len(shown.leaves) == len(group.leaves)
        if is_whole or len(shown.leaves):
            snippets += _snippets(nodes, shown)
            captions += _captions(nodes, shown)
            matches.append(_match(nodes, ranked, place, n_tokens))
        held[shown.leaves] = True
        if shown.title is not None:
            held[shown.title] = True
        used += n_tokens
        is_cut |= not is_whole
        if snippets and not is_whole:
            break
    doc_ids = dict.fromkeys([*(part.doc_id for part in snippets), *(part.doc_id for part in captions)])
    return Context(tuple(snippets), tuple(captions), tuple(matches), tuple(doc_ids), used, is_cut)


def _without(group: Group, held: Mask) -> Group:
    """Leave out what earlier groups have shown."""
    left = group.only(~held[group.leaves])
    return replace(left, title=None) if left.title is not None and held[left.title] else left


def _within(nodes: NodeTable, group: Group, room: int | None) -> tuple[Group, int]:
    """Keep the longest prefix of sentences that fits, with its tokens."""
    cost = np.cumsum(nodes.tokens[group.leaves]) + _title_tokens(nodes, group)
    n = len(cost) if room is None else int(np.searchsorted(cost, room, side="right"))
    return group.only(np.arange(len(cost)) < n), int(cost[n - 1]) if n else 0


def _title_tokens(nodes: NodeTable, group: Group) -> int:
    """Estimate a title's tokens by its length and the rate of the text it precedes: only whole nodes are counted."""
    if group.title is None:
        return 0
    n_chars = int(nodes.table["n_chars"].to_numpy()[group.leaves].sum())
    return math.ceil(int(nodes.tokens[group.leaves].sum()) * len(nodes.title_of(group.title)) / n_chars)


def _snippets(nodes: NodeTable, group: Group) -> list[Snippet]:
    """The group's text as one snippet, or none when there is none."""
    text = _text(nodes, np.sort(group.leaves[~group.is_caption]))
    if not text:
        return []
    title = "" if group.title is None else nodes.title_of(group.title).strip()
    return [Snippet(nodes.doc_id(group.match), nodes.node_id(group.match), f"{title}\n{text}" if title else text)]


def _captions(nodes: NodeTable, group: Group) -> list[Caption]:
    """The captions around the match, one a paragraph."""
    leaves = np.sort(group.leaves[group.is_caption])
    found = []
    for paragraph in np.unique(nodes.parent[leaves]).tolist():
        kind = nodes.table["attachment_kind"][paragraph].as_py()
        text = _text(nodes, leaves[nodes.parent[leaves] == paragraph])
        found.append(Caption(nodes.doc_id(paragraph), nodes.node_id(paragraph), kind, text))
    return found


def _text(nodes: NodeTable, leaves: I64) -> str:
    """Join sentences in reading order: a paragraph's own characters where they run on, a gap where some are missing."""
    if not len(leaves):
        return ""
    runs_on = _runs_on(nodes, leaves)
    is_break = ~runs_on | (np.diff(nodes.parent[leaves]) != 0)
    opens = np.flatnonzero(np.concatenate([[True], is_break]))
    closes = np.append(opens[1:], len(leaves)) - 1
    parts = [_span(nodes, int(leaves[opens[0]]), int(leaves[closes[0]]))]
    for first, last in zip(opens[1:], closes[1:], strict=True):
        parts += ["\n" if runs_on[first - 1] else GAP, _span(nodes, int(leaves[first]), int(leaves[last]))]
    return "".join(parts)


def _runs_on(nodes: NodeTable, leaves: I64) -> Mask:
    """Whether each sentence is the document's next after the one before it: shape ``(len(leaves) - 1,)``."""
    n_sentences = np.cumsum(nodes.kind == SENTENCE)
    is_next = np.diff(n_sentences[leaves]) == 1
    is_gapless = np.diff(nodes.source_row[leaves]) == np.diff(leaves)  # the neighbourhood left nothing out
    runs_on: Mask = is_next & is_gapless
    return runs_on


def _span(nodes: NodeTable, first: int, last: int) -> str:
    """A paragraph's own characters from one of its sentences to another."""
    start, end = nodes.table["start"][first].as_py(), nodes.table["end"][last].as_py()
    return nodes.text_of(int(nodes.parent[first]))[start:end]


def _match(nodes: NodeTable, ranked: Ranked, place: int, n_tokens: int) -> Match:
    row = int(ranked.rows[place])
    return Match(
        rank=place,
        node_id=nodes.node_id(row),
        doc_id=nodes.doc_id(row),
        kind=KINDS[int(nodes.kind[row])],
        source="dense" if place < ranked.n_dense else "lexical",
        score=float(ranked.score[place]),
        frequency=int(ranked.frequency[place]),
        similarity=float(ranked.total[place]),
        n_tokens=n_tokens,
    )
