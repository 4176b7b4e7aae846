"""Expand a match to its context: its paragraph, or the section around it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from kohaku_ray.index.nodes import SENTENCE, NodeTable

# Groups are small and many: lists of rows are several times faster here than arrays.


@dataclass(frozen=True, slots=True)
class Group:
    """A match and its context.

    Attributes:
        match: Row of the match.
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

    def only(self, leaves: Sequence[int]) -> Group:
        """Keep these leaves, and the title if any text is left after it."""
        title = None if all(leaf in self.captions for leaf in leaves) else self.title
        return Group(self.match, leaves, self.captions, title)


def expand(nodes: NodeTable, row: int, *, paragraph_tokens: int, siblings: int, section_tokens: int) -> Group:
    """Collect a match and its context.

    A sentence adds its paragraph; of a paragraph over ``paragraph_tokens``, only ``siblings`` sentences either side.
    A paragraph adds its section's title and the sentences around it, nearest first, up to ``section_tokens``.

    Args:
        nodes: The match and everything around it.
        row: The match, a sentence or a paragraph.
        paragraph_tokens: Longest paragraph that a sentence adds whole.
        siblings: Sentences either side of a match in a longer paragraph.
        section_tokens: Most tokens of the section around a paragraph, on top of its own.
    """
    if nodes.lists.kind[row] == SENTENCE:
        return _around_sentence(nodes, row, paragraph_tokens, siblings)
    return _around_paragraph(nodes, row, section_tokens)


def sentences_under(nodes: NodeTable, row: int) -> list[int]:
    """Rows of the sentences in a node's subtree, in reading order."""
    kind = nodes.lists.kind
    return [below for below in range(row, nodes.lists.end[row]) if kind[below] == SENTENCE]


def _around_sentence(nodes: NodeTable, row: int, paragraph_tokens: int, siblings: int) -> Group:
    parent, _, end, tokens, _ = nodes.lists
    run = range(parent[row] + 1, end[parent[row]])
    before, after = run[: row - run.start][::-1], run[row - run.start + 1 :]
    if sum(tokens[run.start : run.stop]) > paragraph_tokens:
        before, after = before[:siblings], after[:siblings]
    return Group(row, [row, *_in_turns(after, before)], {}, None)


def _around_paragraph(nodes: NodeTable, row: int, section_tokens: int) -> Group:
    parent, _, end, tokens, _ = nodes.lists
    own, section = range(row + 1, end[row]), parent[row]
    run = sentences_under(nodes, section)
    start = bisect_left(run, row)
    near, used = [], 0
    for leaf in _in_turns(run[start + len(own) :], run[:start][::-1]):
        used += tokens[leaf]
        if used > section_tokens:
            break
        near.append(leaf)
    return Group(row, [*own, *near], _captions(nodes, near), section)


def _in_turns(after: Sequence[int], before: Sequence[int]) -> list[int]:
    """Both sides of a match, nearest first; of two equally near ones, the following one first."""
    n = min(len(after), len(before))
    return [*chain.from_iterable(zip(after[:n], before[:n], strict=True)), *after[n:], *before[n:]]


def _captions(nodes: NodeTable, leaves: Sequence[int]) -> dict[int, int]:
    """Map each caption among these sentences to its image's or table's paragraph."""
    parent = nodes.lists.parent
    paragraphs = {parent[leaf] for leaf in leaves}
    attached = {paragraph for paragraph in paragraphs if nodes.attachment_kind(paragraph) is not None}
    return {leaf: parent[leaf] for leaf in leaves if parent[leaf] in attached} if attached else {}
