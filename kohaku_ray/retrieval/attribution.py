"""Which document a model's words come from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence, Set

from kohaku_ray.index.terms import tokenise

Passages = Sequence[tuple[str, Set[str]]]
"""Document id and terms of each passage, best first."""


def terms_of(passages: Iterable[tuple[str, str]]) -> Passages:
    """Read the terms of passages, of each its document id and text: once for all texts that may come from them."""
    return [(doc_id, frozenset(tokenise(text))) for doc_id, text in passages]


def attribute(text: str, passages: Passages) -> str | None:
    """Return the document of the passage that holds most of a text's terms; None where no passage holds one.

    A term that n of N passages hold weighs ``ln((N + 1) / (n + ½))``, as in BM25: what all of them say tells nothing.

    Args:
        text: An explanation, which a small model quotes more reliably than it copies an id.
        passages: Result of ``terms_of``: of equals the first counts.
    """
    wanted = set(tokenise(text))
    found = Counter(term for _, terms in passages for term in terms & wanted)
    weight = {term: math.log((len(passages) + 1) / (n + 0.5)) for term, n in found.items()}
    shares = [sum(weight[term] for term in sorted(terms & wanted)) for _, terms in passages]
    best = max(range(len(passages)), key=shares.__getitem__, default=None)
    return None if best is None or not shares[best] else passages[best][0]
