"""The places of a novel: a gazetteer read from the book without a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from kohaku_ray.systems.narrative.reasoning.capitals import (
    NOT_NAMES,
    PARTICLES,
    Capitals,
    read_capitals,
    solid_runs,
    title_of,
    words_in,
)
from kohaku_ray.systems.narrative.reasoning.spelling import words_of

_CONTINENTS = words_in("""europe asia africa america oceania indies orient east west""")
_COUNTRIES = words_in(
    """france italy spain england scotland ireland britain portugal germany prussia austria russia poland turkey
    greece egypt algeria morocco india china japan persia arabia syria australia zealand tasmania chili chile
    argentina patagonia brazil peru mexico canada states corsica sardinia sicily tuscany provence normandy
    brittany catalonia switzerland holland belgium sweden norway denmark hungary albania malta cuba victoria"""
)
_KINDS = words_in(
    """island isle cape mount fort port lake river gulf bay strait straits sea rue place chateau city coast ocean
    street north south northern southern eastern western new great house castle town village prison"""
)
_ADJECTIVE = re.compile(r"(?:an|ans|ese|ish)\Z")
_SHARE = 0.15
"""Least share of a name's mentions that speak for a place: "in Faria" is no city."""


def build_gazetteer(texts: Iterable[str] | Capitals, min_count: int = 2) -> tuple[str, ...]:
    """Find a book's places.

    Args:
        texts: The book's paragraphs, or their capitalised runs.
        min_count: Fewest mentions of a place.

    Returns:
        The spellings of names that stand behind words of place (``in``, ``sailed for``, ``the island of``) or hold one
        themselves (Cape Horn), more often than a person's name would; without adjectives (Parisian); longest first.
    """
    capitals = texts if isinstance(texts, Capitals) else read_capitals(texts)
    place: Counter[str] = Counter()
    person: Counter[str] = Counter()
    n: Counter[str] = Counter()
    for key, run in solid_runs(capitals):
        if not title_of(key) and key.lower() not in NOT_NAMES:
            place[run.text] += run.place
            person[run.text] += run.person
            n[run.text] += run.n
    found = [name for name in n if n[name] >= min_count and place[name] > max(person[name], _SHARE * n[name] - 1)]
    stems = {name[:5] for name in found if not _ADJECTIVE.search(name)}
    kept = [name for name in found if not (_ADJECTIVE.search(name) and name[:5] in stems)]
    return tuple(sorted(kept, key=lambda name: (-len(name), name)))


def are_apart(place: str, other: str) -> bool:
    """Whether two places certainly are not one, nor one in the other: both towns, both countries or both continents."""
    words, others = _place_words(place), _place_words(other)
    return bool(words and others) and not words & others and _level(words) == _level(others)


def _place_words(place: str) -> frozenset[str]:
    return frozenset(word for word in words_of(place) if word not in _KINDS and word not in PARTICLES)


def _level(words: frozenset[str]) -> int:
    return next((level for level, names in enumerate((_CONTINENTS, _COUNTRIES)) if words & names), 2)
