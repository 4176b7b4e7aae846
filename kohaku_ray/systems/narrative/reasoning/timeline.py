"""TimelineValidator: what no life allows of years, ages and places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from kohaku_ray.systems.narrative.reasoning.events import Event
from kohaku_ray.systems.narrative.reasoning.places import are_apart

AGE_SLACK = 1
"""Years by which a stated age may miss: birthdays, and "a man of thirty"."""

_PRESENT = frozenset(("born", "stayed", "imprisoned"))


@dataclass(frozen=True, slots=True)
class Clash:
    """Two events that exclude each other.

    Attributes:
        claim: The story's.
        fact: The book's.
        reason: Why, with both values.
        certain: Whether both sides state the values that exclude each other.
    """

    claim: Event
    fact: Event
    reason: str
    certain: bool = True


Rule = Callable[[Sequence[Event], Sequence[Event]], Iterator[Clash]]
"""A story's events and the book's in, pairs that exclude each other out."""


def born_twice(claims: Sequence[Event], facts: Sequence[Event]) -> Iterator[Clash]:
    """Yield births in two years, or in two places."""
    return _twice("born", claims, facts)


def died_twice(claims: Sequence[Event], facts: Sequence[Event]) -> Iterator[Clash]:
    """Yield deaths in two years, or in two places."""
    return _twice("died", claims, facts)


def age_against_birth(claims: Sequence[Event], facts: Sequence[Event]) -> Iterator[Clash]:
    """Yield an age at a year against a birth, or against another age at a year, over `AGE_SLACK` years apart."""
    for claim, fact in _of_one_person(claims, facts):
        born, other = birth_years(claim), birth_years(fact)
        if born and other and "aged" in (claim.kind, fact.kind):
            gap = max(born[0] - other[1], other[0] - born[1])
            if gap > AGE_SLACK:
                yield Clash(claim, fact, f"the story has {claim.person} {_born(born)}, the book {_born(other)}")


def event_before_birth(claims: Sequence[Event], facts: Sequence[Event]) -> Iterator[Clash]:
    """Yield events of a person in a year before the birth that the other side gives."""
    for claim, fact in _of_one_person(claims, facts):
        for birth, event in ((claim, fact), (fact, claim)):
            born = birth_years(birth)
            slack = 0 if birth.kind == "born" else AGE_SLACK
            if born and event.kind not in ("born", "aged") and event.year is not None and event.year < born[0] - slack:
                reason = f"{event.person} is {event.kind} in {event.year} ({_side(event is claim)}), but {_born(born)}"
                yield Clash(claim, fact, f"{reason} ({_side(event is fact)})")


def two_places(claims: Sequence[Event], facts: Sequence[Event]) -> Iterator[Clash]:
    """Yield stays of a person in two places that are apart, in one year."""
    for claim, fact in _of_one_person(claims, facts):
        if claim.year is None or claim.year != fact.year or not {claim.kind, fact.kind} <= _PRESENT:
            continue
        if claim.kind != "born" != fact.kind and claim.place and fact.place and are_apart(claim.place, fact.place):
            reason = f"in {claim.year} the story has {claim.person} at {claim.place}, the book at {fact.place}"
            yield Clash(claim, fact, reason)


TIMELINE_RULES: Mapping[str, Rule] = {
    "age_against_birth": age_against_birth,
    "born_twice": born_twice,
    "died_twice": died_twice,
    "event_before_birth": event_before_birth,
    "two_places": two_places,
}


def birth_years(event: Event) -> tuple[int, int] | None:
    """The first and last year in which somebody may have been born, by one event; None: it does not say."""
    if event.year is None:
        return None
    if event.kind == "aged" and event.age is not None:
        return event.year - event.age - 1, event.year - event.age
    return (event.year, event.year) if event.kind == "born" else None


def _twice(kind: str, claims: Sequence[Event], facts: Sequence[Event]) -> Iterator[Clash]:
    for claim, fact in _of_one_person(claims, facts):
        if claim.kind != kind or fact.kind != kind:
            continue
        if claim.year is not None and fact.year is not None and claim.year != fact.year:
            values = f"in {claim.year}", f"in {fact.year}"
        elif claim.place and fact.place and are_apart(claim.place, fact.place):
            values = f"at {claim.place}", f"at {fact.place}"
        else:
            continue
        yield Clash(claim, fact, f"{claim.person} {kind} {values[0]} in the story, {values[1]} in the book")


def _of_one_person(claims: Sequence[Event], facts: Sequence[Event]) -> Iterator[tuple[Event, Event]]:
    return ((claim, fact) for claim, fact in product(claims, facts) if claim.person == fact.person)


def _born(years: tuple[int, int]) -> str:
    return f"born in {years[0]}" if years[0] == years[1] else f"born in {years[0]} or {years[1]}"


def _side(is_claim: bool) -> str:
    return "story" if is_claim else "book"
