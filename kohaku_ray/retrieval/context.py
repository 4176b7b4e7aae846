"""Turn ranked matches into the text that a model reads: groups in rank order, within a budget, no text twice."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Literal

from kohaku_ray.index.nodes import KINDS, SENTENCE, NodeTable
from kohaku_ray.retrieval.fusion import Ranked

GAP = " … "
"""Marks sentences that are left out."""


@dataclass(frozen=True, slots=True)
class ContextSnippet:
    """One match's text, the part of its group that no earlier snippet holds, and the document it may be cited by.

    Before a paragraph it begins with the section's title; sentences are in reading order.
    """

    doc_id: str
    node_id: str
    text: str


@dataclass(frozen=True, slots=True)
class NearCaption:
    """The caption of an image or a table near a match."""

    doc_id: str
    node_id: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Match:
    """A match in the context, with the numbers that ranked it.

    Attributes:
        rank: Place among the ranked matches, from 0.
        score: The score it was sorted by; for a lexical match, the BM25 score.
        frequency: How many queries returned it.
        similarity: Sum of its similarities over those queries; ``highest`` is the largest.
        n_tokens: Tokens it added to the context; 0 when earlier groups hold all its text.
    """

    rank: int
    node_id: str
    doc_id: str
    kind: str
    source: Literal["dense", "lexical"]
    score: float
    frequency: int
    similarity: float
    highest: float
    n_tokens: int


@dataclass(frozen=True, slots=True)
class FoundImage:
    """An image that belongs to a context.

    Attributes:
        path: Its file, relative to the index.
        caption: Its paragraph's text, of ``n_tokens`` tokens; may be empty.
        similarity: Largest similarity to a query; None: found beside a match alone.
    """

    doc_id: str
    node_id: str
    path: str
    caption: str
    n_tokens: int
    similarity: float | None
    source: Literal["dense", "near"]


@dataclass(frozen=True, slots=True)
class Context:
    """The context that one attempt shows the model.

    Attributes:
        snippets: In rank order, as the captions of images and tables around the matches, and the matches.
        doc_ids: Documents that may be cited, by first appearance.
        n_tokens: Tokens of titles, snippets and captions, as counted in the node table.
        is_cut: The budget left matches or sentences out.
        images: Best first.
    """

    snippets: tuple[ContextSnippet, ...]
    captions: tuple[NearCaption, ...]
    matches: tuple[Match, ...]
    doc_ids: tuple[str, ...]
    n_tokens: int
    is_cut: bool
    images: tuple[FoundImage, ...] = ()

    @property
    def texts(self) -> list[str]:
        """The texts of all snippets and captions."""
        return [part.text for part in self.snippets] + [part.text for part in self.captions]

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
    """Fill a context rank by rank with whole groups; the first that does not fit is cut after a sentence and ends it.

    A cut keeps the match and drops the sentences farthest from it. A group whose first sentence alone exceeds the
    budget is skipped, so that one endless "sentence" does not exclude every other match. With ``once`` a group shows
    only the sentences and the title that no earlier group has shown. The other limits are those of ``expand``.
    """
    held: set[int] = set()
    snippets: list[ContextSnippet] = []
    captions: list[NearCaption] = []
    matches: list[Match] = []
    used, is_cut = 0, False
    for rank, row in enumerate(ranked.rows.tolist()):
        group = expand(nodes, row, paragraph_tokens=paragraph_tokens, siblings=siblings, section_tokens=section_tokens)
        if once:
            group = _without(group, held)
        shown, n_tokens = _within(nodes, group, None if budget is None else budget - used)
        is_whole = len(shown.leaves) == len(group.leaves)
        if is_whole or shown.leaves:
            snippets += group_snippets(nodes, shown)
            captions += _captions(nodes, shown)
            matches.append(context_match(nodes, ranked, rank, n_tokens))
        held.update(shown.leaves)
        if shown.title is not None:
            held.add(shown.title)
        used += n_tokens
        is_cut |= not is_whole
        if snippets and not is_whole:
            break
    doc_ids = dict.fromkeys([*(part.doc_id for part in snippets), *(part.doc_id for part in captions)])
    return Context(tuple(snippets), tuple(captions), tuple(matches), tuple(doc_ids), used, is_cut)


def _without(group: MatchGroup, held: AbstractSet[int]) -> MatchGroup:
    """Leave out the rows that earlier groups have shown."""
    is_new = group.leaves and not group.captions and held.isdisjoint(group.leaves)
    left = group if is_new else group.only([leaf for leaf in group.leaves if leaf not in held])
    return replace(left, title=None) if left.title in held else left


def _within(nodes: NodeTable, group: MatchGroup, room: int | None) -> tuple[MatchGroup, int]:
    """Keep the longest prefix of sentences that fits; returns its tokens too."""
    every, chars = nodes.lists.tokens, nodes.lists.chars
    tokens = [every[leaf] for leaf in group.leaves]
    title_tokens = 0
    if group.title is not None:  # estimated by the tokens per character of its text: only nodes are counted
        n_chars = sum(chars[leaf] for leaf in group.leaves)
        title_tokens = math.ceil(sum(tokens) * len(nodes.title_of(group.title)) / n_chars)
    costs = list(accumulate(tokens, initial=title_tokens))[1:]
    n = len(costs) if room is None else bisect_right(costs, room)
    return group if n == len(costs) else group.only(group.leaves[:n]), costs[n - 1] if n else 0


def group_snippets(nodes: NodeTable, group: MatchGroup) -> list[ContextSnippet]:
    """The group's text as one snippet; none when it has no text."""
    text = _text(nodes, group.text)
    if not text:
        return []
    title = "" if group.title is None else nodes.title_of(group.title).strip()
    return [
        ContextSnippet(nodes.doc_id(group.match), nodes.node_id(group.match), f"{title}\n{text}" if title else text)
    ]


def _captions(nodes: NodeTable, group: MatchGroup) -> list[NearCaption]:
    """The captions around the match, one per paragraph."""
    leaves_by_caption: dict[int, list[int]] = {}
    for leaf in sorted(leaf for leaf in group.leaves if leaf in group.captions):
        leaves_by_caption.setdefault(group.captions[leaf], []).append(leaf)
    return [
        NearCaption(nodes.doc_id(row), nodes.node_id(row), str(nodes.attachment_kind(row)), _text(nodes, leaves))
        for row, leaves in leaves_by_caption.items()
    ]


def _text(nodes: NodeTable, leaves: Sequence[int]) -> str:
    """Join sentences in reading order: a paragraph's own characters where they run on, a gap where some are missing."""
    parts: list[str] = []
    end = -1
    for first, last in _runs(leaves):
        if parts:  # the document's next sentence, in a neighbourhood that left nothing out between
            is_gapless = nodes.source_row[first] - nodes.source_row[end] == first - end
            runs_on = is_gapless and not (nodes.kind[end + 1 : first] == SENTENCE).any()
            parts.append("\n" if runs_on else GAP)
        parts.append(nodes.text_between(first, last))
        end = last
    return "".join(parts)


def _runs(leaves: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of rows; sentences of a run are neighbours in one paragraph."""
    opens = [position for position, leaf in enumerate(leaves) if not position or leaf != leaves[position - 1] + 1]
    return [(leaves[start], leaves[past - 1]) for start, past in pairwise([*opens, len(leaves)])]


def context_match(nodes: NodeTable, ranked: Ranked, rank: int, n_tokens: int) -> Match:
    """Describe one of the ranked matches."""
    row = int(ranked.rows[rank])
    return Match(
        rank=rank,
        node_id=nodes.node_id(row),
        doc_id=nodes.doc_id(row),
        kind=KINDS[int(nodes.kind[row])],
        source="dense" if ranked.frequency[rank] else "lexical",
        score=float(ranked.score[rank]),
        frequency=int(ranked.frequency[rank]),
        similarity=float(ranked.total[rank]),
        highest=float(ranked.highest[rank]),
        n_tokens=n_tokens,
    )


# Groups are small and many: lists of rows are several times faster here than arrays.


@dataclass(frozen=True, slots=True)
class MatchGroup:
    """A match and its context.

    Attributes:
        leaves: Rows of its sentences, the match's own first, then outward: a shorter group is a prefix.
        captions: Sentences that are the caption of an image or table around the match, each with the row of its
            paragraph.
        title: Row of the section whose title precedes the text; None before a sentence, or when no text is left.
    """

    match: int
    leaves: Sequence[int]
    captions: Mapping[int, int]
    title: int | None

    @property
    def text(self) -> list[int]:
        """Its sentences in reading order, without captions."""
        return sorted(leaf for leaf in self.leaves if leaf not in self.captions)

    def only(self, leaves: Sequence[int]) -> MatchGroup:
        """Keep these leaves, and the title if any text is left after it."""
        title = None if all(leaf in self.captions for leaf in leaves) else self.title
        return MatchGroup(self.match, leaves, self.captions, title)


def expand(nodes: NodeTable, row: int, *, paragraph_tokens: int, siblings: int, section_tokens: int) -> MatchGroup:
    """Collect a match, a sentence or a paragraph, and its context.

    A sentence adds its paragraph; of a paragraph over ``paragraph_tokens``, only ``siblings`` sentences either side.
    A paragraph adds its section's title and the sentences around it, nearest first, up to ``section_tokens`` on top of
    its own.
    """
    if nodes.lists.kind[row] == SENTENCE:
        parent, _, end, tokens, _ = nodes.lists
        run = range(parent[row] + 1, end[parent[row]])
        before, after = run[: row - run.start][::-1], run[row - run.start + 1 :]
        if sum(tokens[run.start : run.stop]) > paragraph_tokens:
            before, after = before[:siblings], after[:siblings]
        return MatchGroup(row, [row, *_in_turns(after, before)], {}, None)
    return _around_paragraph(nodes, row, section_tokens)


def _around_paragraph(nodes: NodeTable, row: int, section_tokens: int) -> MatchGroup:
    parent, _, end, tokens, _ = nodes.lists
    sentences, section = range(row + 1, end[row]), parent[row]
    run = [below for below in range(section, end[section]) if nodes.lists.kind[below] == SENTENCE]
    start = bisect_left(run, row)
    near, used = [], 0
    for leaf in _in_turns(run[start + len(sentences) :], run[:start][::-1]):
        used += tokens[leaf]
        if used > section_tokens:
            break
        near.append(leaf)
    paragraphs = {parent[leaf] for leaf in near}
    attached = {paragraph for paragraph in paragraphs if nodes.attachment_kind(paragraph) is not None}
    captions = {leaf: parent[leaf] for leaf in near if parent[leaf] in attached}
    return MatchGroup(row, [*sentences, *near], captions, section)


def _in_turns(after: Sequence[int], before: Sequence[int]) -> list[int]:
    """Both sides of a match, nearest first; of two equally near ones, the following one first."""
    n = min(len(after), len(before))
    return [*chain.from_iterable(zip(after[:n], before[:n], strict=True)), *after[n:], *before[n:]]
