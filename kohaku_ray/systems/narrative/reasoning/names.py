"""The people of a novel: who is who under which spellings, read from the book without a model."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kohaku_ray.systems.narrative.reasoning.capitals import (
    FEMALE_TITLES,
    NOBLE_RANKS,
    PLAIN_TITLES,
    TITLES,
    Capitals,
    name_words,
    read_capitals,
    solid_runs,
    title_of,
)
from kohaku_ray.systems.narrative.reasoning.spelling import similar

DOMINANT = 5
"""A surname means the one who bears it this many times as often, by full name, as the next; else nobody by itself."""

Key = tuple[str, ...]
_SAME_RANK = {"comte": "count", "vicomte": "viscount"}
_ALIASES = re.compile(r"\s*(?:/|\(|\)|,? alias |,? a\.?k\.?a\.? |,? or )\s*")


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody in a book.

    Attributes:
        name: The fullest name.
        aliases: Every spelling that means this person alone, longest first.
        n_mentions: How often the book writes one of them; 0: the book does not know this name.
    """

    name: str
    aliases: tuple[str, ...]
    n_mentions: int = 0

    @property
    def is_female(self) -> bool:
        """Whether a title says so; False: unknown."""
        return any(title_of(alias) in FEMALE_TITLES for alias in self.aliases)


@dataclass(frozen=True, slots=True)
class Cast:
    """The people of a book; nobody shares an alias with another."""

    people: tuple[Person, ...]

    def resolve(self, name: str) -> Person:
        """Find who a name means, under whatever spelling; disguises (``Tom Ayrton/Ben Joyce``) are one person.

        Args:
            name: Of a character, such as a story's row gives it.

        Returns:
            That person, or one that the book does not mention (``n_mentions`` 0), known by the given name alone. A name
            that several people bear means none of them.
        """
        parts = [part for part in _ALIASES.split(name) if part.strip()]
        found = [person for part in parts for person in (self._find(part),) if person is not None]
        spellings = {alias for person in found for alias in person.aliases} | set(parts)
        mentions = sum(person.n_mentions for person in dict.fromkeys(found))
        return Person(name, _longest_first(spellings), mentions)

    def _find(self, name: str) -> Person | None:
        wanted, title = name_words(name), title_of(name)
        if not wanted:
            return None
        for fits in (_exact, _same, _within, _holds, _alike):
            found = [person for person in self.people if any(fits(wanted, title, alias) for alias in person.aliases)]
            if found:
                return found[0] if len(found) == 1 else None
        return None


def build_cast(texts: Iterable[str] | Capitals, min_count: int = 3) -> Cast:
    """Find a book's people.

    A name is a person's when what stands around it says so (a title, a verb of saying) at least as often as it speaks
    for a place. Spellings are one person when one's words are among the other's (Dantès, Edmond Dantès) and nobody else
    fits; a surname that several bear stands for itself. Titles of women are part of the name: Madame Danglars is not
    Danglars.

    Args:
        texts: The book's paragraphs, or their capitalised runs.
        min_count: Fewest mentions of a person.
    """
    capitals = texts if isinstance(texts, Capitals) else read_capitals(texts)
    spellings: dict[Key, Counter[str]] = defaultdict(Counter)
    evidence: Counter[Key] = Counter()
    for key, run in solid_runs(capitals):
        identity = _identity(key)
        spellings[identity][run.text] += run.n
        evidence[identity] += run.person - run.place
    known = {word for identity, score in evidence.items() if score > 0 for word in identity}
    people = {
        identity: counts
        for identity, counts in spellings.items()
        if evidence[identity] > 0 or (len(identity) > 1 and evidence[identity] == 0 and known & set(identity))
        if not _is_plural(identity, spellings)
    }
    cast = []
    for members in _merge(people):
        counts: Counter[str] = Counter()
        for member in members:
            counts.update(people[member])
        if counts.total() >= min_count:
            best = max(counts, key=lambda spelling: (len(name_words(spelling)), counts[spelling], -len(spelling)))
            cast.append(Person(best, _longest_first(counts), counts.total()))
    return Cast(tuple(sorted(cast, key=lambda person: (-person.n_mentions, person.name))))


def _is_plural(identity: Key, spellings: Mapping[Key, Counter[str]]) -> bool:
    """Whether a name is a rarer name's plural: the Villeforts, but not Dantès where Dante is mentioned."""
    singular = spellings.get((*identity[:-1], identity[-1][:-1])) if identity[-1][-1] == "s" else None
    return singular is not None and singular.total() > spellings[identity].total()


def _identity(name: str) -> Key:
    """What tells a person apart: the name's words, behind a title that is a woman's or a man's rank."""
    words, title = name_words(name), title_of(name)
    ranked = title in FEMALE_TITLES or (len(words) == 1 and title and title not in PLAIN_TITLES)
    return (title, *words) if ranked else words


def _merge(people: Mapping[Key, Mapping[str, int]]) -> list[list[Key]]:
    """Group identities by person, the fullest first."""
    counts = {identity: sum(spellings.values()) for identity, spellings in people.items()}
    titles = {identity: {title_of(spelling) for spelling in spellings} for identity, spellings in people.items()}
    of_men = {identity[-1:] for identity in people if identity[0] in TITLES - FEMALE_TITLES} | {
        identity for identity in people if titles[identity] - FEMALE_TITLES - {""}
    }
    ranks: dict[Key, set[str]] = defaultdict(set)
    for rank in people:
        if rank[0] in NOBLE_RANKS:
            ranks[rank[1:]].add(_SAME_RANK.get(rank[0], rank[0]))
    owner: dict[Key, Key] = {}
    initials: dict[str, list[Key]] = defaultdict(list)
    order = sorted(people, key=lambda identity: (identity[0] in TITLES, -len(identity), -counts[identity], identity))
    for identity in order:
        title, words = (identity[0], identity[1:]) if identity[0] in TITLES else ("", identity)
        near = list(dict.fromkeys(other for word in words for other in initials[word[:1]]))
        same = {owner[other] for other in near if _spelled_alike(words, other) and counts[identity] <= counts[other]}
        wider = {owner[other] for other in near if set(words) < set(other)}
        if title in FEMALE_TITLES:
            wider = {other for other in wider if other[0] == words[0]}  # Miss Mary is Mary Grant, Mrs. Grant is not
            found = None if words in of_men else _dominant(wider or same, counts)
        elif title:
            found = _dominant({other for other in wider if title in titles[other]} or same or wider, counts)
        else:
            found = _dominant(same or (wider if len(ranks[words]) < 2 else ()), counts)
        owner[identity] = found or identity
        for word in () if title else words:
            initials[word[:1]].append(identity)
    groups: dict[Key, list[Key]] = defaultdict(list)
    for identity in order:
        groups[owner[identity]].append(identity)
    return list(groups.values())


def _spelled_alike(identity: Key, other: Key) -> bool:
    return len(identity) == len(other) and all(map(similar, identity, other))


def _dominant(owners: Iterable[Key], counts: Mapping[Key, int]) -> Key | None:
    """The one owner, or the one that is named `DOMINANT` times as often as any other."""
    ranked = sorted(owners, key=lambda owner: (-counts[owner], owner))
    if len(ranked) > 1 and counts[ranked[0]] < DOMINANT * counts[ranked[1]]:
        return None
    return ranked[0] if ranked else None


def _exact(wanted: Key, title: str, alias: str) -> bool:
    return wanted == name_words(alias) and title == title_of(alias)


def _same(wanted: Key, title: str, alias: str) -> bool:
    words = name_words(alias)
    return wanted == words and (title in FEMALE_TITLES) == (title_of(alias) in FEMALE_TITLES)


def _within(wanted: Key, title: str, alias: str) -> bool:
    """The book's name is fuller: Noirtier, and Noirtier de Villefort."""
    return title not in FEMALE_TITLES and set(wanted) < set(name_words(alias))


def _holds(wanted: Key, title: str, alias: str) -> bool:
    """The book's name is shorter: Jacques Paganel, and Paganel."""
    words = name_words(alias)
    return bool(words) and title_of(alias) not in FEMALE_TITLES and set(words) < set(wanted) and words[-1] == wanted[-1]


def _alike(wanted: Key, title: str, alias: str) -> bool:
    words = name_words(alias)
    if (title in FEMALE_TITLES) > (title_of(alias) in FEMALE_TITLES):
        return False
    return similar("".join(wanted), "".join(words)) or (len(words) == 1 < len(wanted) and similar(wanted[-1], words[0]))


def _longest_first(spellings: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(spellings), key=lambda spelling: (-len(spelling), spelling)))
