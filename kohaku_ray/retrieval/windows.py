"""Choose a context within a token budget: windows around the matches grow while the budget lasts."""

from __future__ import annotations

import heapq
import math

import numpy as np

from kohaku_ray.index.arrays import F64, I64
from kohaku_ray.index.nodes import SECTION, SENTENCE, NodeTable
from kohaku_ray.retrieval.context import Context, MatchGroup, context_match, group_snippets
from kohaku_ray.retrieval.fusion import Ranked

DECAY = 0.5
"""Relevance of a sentence beside a match, as a share of the match's; of the next one again as much of that."""

REACH = 6
"""Sentences on either side of a match that are relevant by it: the farthest one has 1/64 of its score."""

BESIDE = DECAY ** np.arange(REACH, 0, -1.0)
"""What a match gives to the sentences before it, in reading order."""

SATURATION = 500
"""Relevant tokens after which another one of the same document counts 1/√2 of the first."""


def choose(nodes: NodeTable, ranked: Ranked, *, budget: int | None) -> Context:
    """Choose the sentences S that maximise ``F(S) = Σ_d √(500 + Σ_{s ∈ S ∩ d} t_s · r_s)``, ``Σ t_s`` in the budget.

    d is a document, t_s a sentence's tokens and r_s its relevance. The root makes F submodular: every further sentence
    of a document adds less, so that documents with weaker matches have their turn (Lin & Bilmes, ACL 2011). The
    algorithm is theirs, greedy by gain per token: next is always the sentence of largest ``r_s / √(500 + Σ_d)``.

    r_s is the sum over matches of ``score · 0.5^n``, n counting the sentences from the match to s in their section: 0
    in the match itself, at most 6. So a window opens at its match and grows to neighbours, paragraph and section while
    no other document's sentence is worth more. The first sentence of a section brings the title, whose tokens count in
    the budget but not in the choice. A sentence that does not fit is passed over.

    Args:
        nodes: The matches and the text around them.
        ranked: Sentences, paragraphs or sections, best first. Their scores count as shares of the largest; if one is
            not positive, as a cross-encoder's may be, their ranks count instead. A lexical match counts as the weakest
            dense one, for BM25's scores are on another scale.
        budget: Most tokens; None: no limit, all relevant sentences.

    Returns:
        One snippet per section, best first, in reading order inside. All text is in snippets, captions among it.
    """
    relevance = _relevance(nodes, ranked)
    roots = np.flatnonzero(nodes.parent < 0)
    order = np.lexsort((np.arange(len(nodes)), -relevance))
    order = order[relevance[order] > 0]
    queues: dict[int, list[tuple[int, int]]] = {}
    documents = np.searchsorted(roots, order, side="right").tolist()
    for row, above, root in zip(order.tolist(), _sections_of(nodes, order).tolist(), documents, strict=True):
        queues.setdefault(root, []).append((row, above))
    shown, costs, is_cut = _greedy(nodes, relevance, list(queues.values()), math.inf if budget is None else budget)
    return _context(nodes, ranked, shown, costs, is_cut)


def _sections_of(nodes: NodeTable, rows: I64) -> I64:
    """Rows of the sections that sentences, paragraphs or sections are or lie in; as ``NodeTable.section_of``."""
    sections = np.flatnonzero(nodes.kind == SECTION)
    section_rows: I64 = sections[np.searchsorted(sections, rows, side="right") - 1]
    return section_rows


def _relevance(nodes: NodeTable, ranked: Ranked) -> F64:
    """Relevance of every sentence, 0 of other nodes; shape ``(n_nodes,)``."""
    rows = np.flatnonzero(nodes.kind == SENTENCE)
    first, past = np.searchsorted(rows, ranked.rows), np.searchsorted(rows, nodes.end[ranked.rows])
    section = _sections_of(nodes, ranked.rows)
    low = np.maximum(np.searchsorted(rows, section), first - REACH)
    high = np.minimum(np.searchsorted(rows, nodes.end[section]), past + REACH)
    score = np.ones(len(ranked))
    dense = ranked.score[: ranked.n_dense]
    score[: len(dense)] = (
        dense / dense.max(initial=1e-9) if dense.min(initial=1) > 0 else 1 - np.arange(len(dense)) / len(dense)
    )
    score[len(dense) :] = score[: len(dense)].min(initial=1.0)
    row_relevance = np.zeros(len(rows))
    for match_start, after, start, stop, worth in zip(
        *(x.tolist() for x in (first, past, low, high, score)), strict=True
    ):
        row_relevance[start:match_start] += worth * BESIDE[REACH - (match_start - start) :]
        row_relevance[match_start:after] += worth
        row_relevance[after:stop] += worth * BESIDE[::-1][: stop - after]
    relevance = np.zeros(len(nodes))
    relevance[rows] = row_relevance
    return relevance


def _greedy(
    nodes: NodeTable, relevance: F64, queues: list[list[tuple[int, int]]], budget: float
) -> tuple[dict[int, list[int]], dict[int, int], bool]:
    """Take sentences by gain per token; a document's own come by relevance, so that its first one is all to compare.

    ``queues`` are each document's sentences, most relevant first, with the row of their section.

    Returns:
        The sentences shown and the tokens taken, by section in the order of choice, and whether any was left out.
    """
    tokens, chars, worth = nodes.lists.tokens, nodes.lists.chars, relevance.tolist()
    shown: dict[int, list[int]] = {}
    costs: dict[int, int] = {}
    mass, used, is_cut = [float(SATURATION)] * len(queues), 0, False
    heap = [(-worth[queue[0][0]], document, 0) for document, queue in enumerate(queues)]
    heapq.heapify(heap)
    while heap:
        _, document, position = heapq.heappop(heap)
        row, section = queues[document][position]
        cost = tokens[row]
        if section not in shown and used + cost <= budget:
            cost += math.ceil(cost * len(nodes.title_of(section)) / max(chars[row], 1))
        if used + cost <= budget:
            used += cost
            shown.setdefault(section, []).append(row)
            costs[section] = costs.get(section, 0) + cost
            mass[document] += tokens[row] * worth[row]
        else:
            is_cut = True
        for later in range(position + 1, len(queues[document])):
            row = queues[document][later][0]
            if used + tokens[row] <= budget:  # what does not fit now never will
                heapq.heappush(heap, (-worth[row] / math.sqrt(mass[document] / SATURATION), document, later))
                break
            is_cut = True
    return shown, costs, is_cut


def _context(
    nodes: NodeTable, ranked: Ranked, shown: dict[int, list[int]], costs: dict[int, int], is_cut: bool
) -> Context:
    """Show each section once, under its best match, which bears its tokens."""
    is_shown = np.zeros(len(nodes) + 1, np.int64)
    is_shown[[row + 1 for rows in shown.values() for row in rows]] = 1
    before: I64 = np.cumsum(is_shown)
    lead: dict[int, int] = {}
    matches = []
    for rank, row in enumerate(ranked.rows.tolist()):
        section = nodes.section_of(row)
        is_first = section in shown and section not in lead
        if is_first:
            lead[section] = row
        if is_first or before[nodes.end[row]] > before[row]:
            matches.append(context_match(nodes, ranked, rank, costs[section] if is_first else 0))
    snippets = [
        part
        for section, rows in shown.items()
        for part in group_snippets(nodes, MatchGroup(lead[section], rows, {}, section))
    ]
    doc_ids = dict.fromkeys(part.doc_id for part in snippets)
    return Context(tuple(snippets), (), tuple(matches), tuple(doc_ids), sum(costs.values()), is_cut)
