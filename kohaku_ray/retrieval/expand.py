"""From a match to the text that makes it readable: its paragraph, or the section around it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kohaku_ray.arrays import I64, Mask
from kohaku_ray.tree.nodes import SENTENCE, NodeTable


@dataclass(frozen=True, slots=True)
class Group:
    """A match and its context.

    Attributes:
        match: Row of the match.
        leaves: Shape ``(n,)``; rows of its sentences, the match's own first, then outward: to cut the group short is
            to keep a prefix.
        is_caption: Shape ``(n,)``; sentences that are the caption of an image or table around the match.
        title: Row of the section whose title precedes the text; None before a sentence, or when no text is left.
    """

    match: int
    leaves: I64
    is_caption: Mask
    title: int | None

    def only(self, keep: Mask) -> Group:
        """Keep these leaves, and the title as long as there is text for it to precede."""
        has_text = bool((keep & ~self.is_caption).any())
        return Group(self.match, self.leaves[keep], self.is_caption[keep], self.title if has_text else None)


def expand(nodes: NodeTable, row: int, *, paragraph_tokens: int, siblings: int, section_tokens: int) -> Group:
    """Put a match into its context.

    A sentence brings its paragraph; of a paragraph over ``paragraph_tokens``, only ``siblings`` sentences either side.
    A paragraph brings its section's title and the sentences around it, nearest first, up to ``section_tokens``.

    Args:
        nodes: The match and everything around it.
        row: The match, a sentence or a paragraph.
        paragraph_tokens: Longest paragraph that a sentence brings whole.
        siblings: Sentences either side of a match in a longer one.
        section_tokens: Most tokens of the section around a paragraph, on top of its own.
    """
    if nodes.kind[row] == SENTENCE:
        return _around_sentence(nodes, row, paragraph_tokens, siblings)
    return _around_paragraph(nodes, row, section_tokens)


def sentences_under(nodes: NodeTable, row: int) -> I64:
    """Rows of the sentences in a node's subtree, in reading order."""
    return (row + np.flatnonzero(nodes.kind[row : nodes.end[row]] == SENTENCE)).astype(np.int64)


def _around_sentence(nodes: NodeTable, row: int, paragraph_tokens: int, siblings: int) -> Group:
    run = sentences_under(nodes, int(nodes.parent[row]))
    rest, distance = _outward(run, int(np.searchsorted(run, row)), 1)
    if nodes.tokens[run].sum() > paragraph_tokens:
        rest = rest[distance <= siblings]
    leaves = np.concatenate([np.array([row], np.int64), rest])
    return Group(row, leaves, np.zeros(len(leaves), bool), None)


def _around_paragraph(nodes: NodeTable, row: int, section_tokens: int) -> Group:
    own = sentences_under(nodes, row)
    section = int(nodes.parent[row])
    run = sentences_under(nodes, section)
    rest, _ = _outward(run, int(np.searchsorted(run, row)), len(own))
    rest = rest[np.cumsum(nodes.tokens[rest]) <= section_tokens]
    is_caption = np.concatenate([np.zeros(len(own), bool), _is_attachment(nodes, nodes.parent[rest])])
    return Group(row, np.concatenate([own, rest]), is_caption, section)


def _outward(run: I64, start: int, length: int) -> tuple[I64, I64]:
    """Members of ``run`` outside ``run[start : start + length]`` and how far off they are.

    Nearest first; of two equally near, the following one.
    """
    place = np.arange(len(run))
    before, after = start - place, place - (start + length - 1)
    distance = np.maximum(before, after)
    outside = np.flatnonzero(distance > 0)
    order = outside[np.lexsort((before[outside] > 0, distance[outside]))]
    return run[order], distance[order].astype(np.int64)


def _is_attachment(nodes: NodeTable, rows: I64) -> Mask:
    """Which of these paragraphs stand for an image or a table."""
    kinds = nodes.table["attachment_kind"]
    distinct, place = np.unique(rows, return_inverse=True)
    return np.array([kinds[int(row)].is_valid for row in distinct], bool)[place]
