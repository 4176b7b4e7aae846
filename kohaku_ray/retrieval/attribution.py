"""Which document a model's words come from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from kohaku_ray.index.terms import tokenise


def attribute(text: str, passages: Iterable[tuple[str, str]]) -> str | None:
    """Return the document of the passage that holds most of a text's terms; None where no passage holds one.

    A term that n of N passages hold weighs ``ln((N + 1) / (n + ½))``, as in BM25: what all of them say tells nothing.

    Args:
        text: An explanation, which a small model quotes more reliably than it copies an id.
        passages: Document id and text of each, best first: of equals the first counts.
    """
    held = [(doc_id, set(tokenise(passage))) for doc_id, passage in passages]
    wanted = set(tokenise(text))
    found = Counter(term for _, terms in held for term in terms & wanted)
    weight = {term: math.log((len(held) + 1) / (n + 0.5)) for term, n in found.items()}
    shares = [sum(weight[term] for term in sorted(terms & wanted)) for _, terms in held]
    best = max(range(len(held)), key=shares.__getitem__, default=None)
    return None if best is None or not shares[best] else held[best][0]
