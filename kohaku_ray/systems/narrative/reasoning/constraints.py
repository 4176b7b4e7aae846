"""ConstraintRules: what no prisoner and no dead person does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kohaku_ray.systems.narrative.reasoning.events import Event
from kohaku_ray.systems.narrative.reasoning.timeline import Clash, Rule

_DEEDS = frozenset(("imprisoned", "freed", "married", "travelled", "stayed", "acted"))


def travel_while_imprisoned(claims: Sequence[Event], facts: Sequence[Event]) -> Iterator[Clash]:
    """Yield journeys and weddings in a year between an arrest and the next release that the other side gives."""
    for ours, theirs in ((claims, facts), (facts, claims)):
        for arrest, release in _captivities(theirs):
            for deed in ours:
                if deed.kind not in ("travelled", "married") or deed.person != arrest.person or deed.year is None:
                    continue
                if (arrest.year or deed.year) < deed.year < release:
                    pair = (deed, arrest) if ours is claims else (arrest, deed)
                    captivity = f"imprisoned from {arrest.year} to {release} ({'book' if ours is claims else 'story'})"
                    yield Clash(*pair, f"{deed.person} {deed.kind} in {deed.year}, but was {captivity}")


def act_after_death(claims: Sequence[Event], facts: Sequence[Event]) -> Iterator[Clash]:
    """Yield deeds of the dead: in a later year, or, where the story has somebody dead before the book begins, in it.

    Without years the second holds of others than the story's character alone, whose own death may follow the book.
    """
    for ours, theirs in ((claims, facts), (facts, claims)):
        for death in theirs:
            if death.kind != "died":
                continue
            for deed in ours:
                if deed.kind not in _DEEDS or deed.person != death.person:
                    continue
                pair = (deed, death) if ours is claims else (death, deed)
                if death.year is not None and deed.year is not None:
                    if deed.year > death.year:
                        yield Clash(*pair, f"{deed.person} {deed.kind} in {deed.year}, but died in {death.year}")
                elif theirs is claims and "'s " in death.person and deed.year is None and deed.kind == "acted":
                    yield Clash(*pair, f"{deed.person} died before the book begins, but acts in it", certain=False)


CONSTRAINT_RULES: Mapping[str, Rule] = {
    "act_after_death": act_after_death,
    "travel_while_imprisoned": travel_while_imprisoned,
}


def _captivities(events: Sequence[Event]) -> Iterator[tuple[Event, int]]:
    """Yield arrests with the year of the next release of the same person."""
    for arrest in events:
        if arrest.kind == "imprisoned" and arrest.year is not None:
            releases = [
                event.year
                for event in events
                if event.kind == "freed" and event.person == arrest.person and (event.year or 0) >= arrest.year
            ]
            if years := [year for year in releases if year is not None]:
                yield arrest, min(years)
