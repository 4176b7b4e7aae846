"""Which part of a ranking a member of an ensemble is shown (``ensemble.evidence``); the search is the same for all."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from kohaku_ray.retrieval.fusion import Ranked

Division = Literal["same", "rotated", "split"]

HEAD = 3
"""Best matches that ``split`` shows to every member."""


def part_of(ranked: Ranked, how: Division, number: int, n: int) -> Ranked:
    """Return what member ``number`` of ``n`` is shown of a ranking, best first.

    Args:
        ranked: Matches of vector search, then those of BM25; either is divided by itself.
        how: ``same``: all of it. ``rotated``: all of it in another order: the first ``n`` matches begin with the
            member's own place, the others a further n-th of them on; each has the score of the place that it takes.
            ``split``: the first ``HEAD`` and every n-th of the others, those that no other member is shown.
        number: From 0.
        n: Members of the ensemble.
    """
    if how == "same" or n == 1:
        return ranked
    places = np.arange(len(ranked))
    dense, lexical = places[: ranked.n_dense], places[ranked.n_dense :]
    if how == "split":
        dense = np.concatenate([dense[:HEAD], dense[HEAD + number :: n]])
        order = np.concatenate([dense, lexical[number::n]])
        return replace(ranked.take(order), n_dense=len(dense))
    tail, further = dense[n:], lexical
    order = np.concatenate(
        [np.roll(dense[:n], -number), np.roll(tail, -(len(tail) * number // n)), np.roll(further, -number)]
    )
    return replace(ranked.take(order), score=ranked.score, n_dense=ranked.n_dense)
