"""Find where a story contradicts its book by the years, places and captivities of a life; without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kohaku_ray.documents.text.sentences import words_of
from kohaku_ray.systems.narrative.events import Event, EventKind, find_events
from kohaku_ray.systems.narrative.names import BookNames, folded_words, unaccent


@dataclass(frozen=True, slots=True)
class BookPassage:
    """A chunk of the book.

    Attributes:
        chapter: Title of the chapter it begins in.
        progress_pct: How far into the book that chapter is, in percent; None where the book does not say.
        text: Verbatim.
        score: Of the fusion by rank.
        similarity: Highest cosine with a query that found it; None where only BM25 did.
    """

    node_id: str
    doc_id: str
    chapter: str
    progress_pct: float | None
    text: str
    n_tokens: int
    score: float = 0.0
    similarity: float | None = None

    @property
    def scores(self) -> dict[str, float]:
        """The numbers of its row in the trace."""
        known = {"rrf": self.score, "similarity": self.similarity, "progress_pct": self.progress_pct}
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Finding:
    """A contradiction between a sentence of the story and one of the book, verbatim; the reason has both values."""

    rule: str
    claim: str
    excerpt: str
    chapter: str
    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class StoryCheck:
    """What the rules read, and what they found: events of the story, events of the book with their passages."""

    claims: tuple[Event, ...] = ()
    facts: tuple[tuple[Event, BookPassage], ...] = ()
    findings: tuple[Finding, ...] = ()


_CONTINENTS = words_of("europe asia africa america australia oceania")
_COUNTRIES = words_of(
    """france italy spain portugal germany austria russia turkey greece egypt morocco india china japan iran
    zealand chile argentina brazil peru mexico canada switzerland holland belgium sweden norway denmark
    england scotland ireland wales"""
)
_ANYWHERE = words_of(
    "britain kingdom state county district street road square quarter suburb house castle prison island sea river"
)


def are_apart(place: str | None, other: str | None) -> bool:
    """Tell whether two places are certainly two: two continents, two countries, or two others, of no common word."""
    words, others = ({word.rstrip("s") for word in folded_words(name or "")} for name in (place, other))
    if not (words and others) or words & others or (words | others) & _ANYWHERE:
        return False
    levels = [
        next((level for level in (_CONTINENTS, _COUNTRIES) if some & {word.rstrip("s") for word in level}), None)
        for some in (words, others)
    ]
    return levels[0] is levels[1]


def _twice(kind: EventKind, claim: Event, fact: Event) -> str | None:
    if not claim.kind == fact.kind == kind:
        return None
    if claim.year is not None and fact.year is not None and claim.year != fact.year:
        return f"{kind} in {claim.year} in the story, in {fact.year} in the book"
    if are_apart(claim.place, fact.place):
        return f"{kind} at {claim.place} in the story, at {fact.place} in the book"
    return None


def act_after_death(claim: Event, fact: Event) -> str | None:
    """Exclude deeds in a year after the death that the other side gives."""
    for death, deed, sides in ((claim, fact, ("story", "book")), (fact, claim, ("book", "story"))):
        if (death.kind, deed.kind) == ("died", "acted") and death.year and deed.year and deed.year > death.year:
            return f"died in {death.year} in the {sides[0]}, but is alive in {deed.year} in the {sides[1]}"
    return None


def travel_while_imprisoned(claim: Event, fact: Event) -> str | None:
    """Exclude journeys, weddings and arrests in a year between an arrest and a release that the other side gives."""
    for prison, deed, sides in ((claim, fact, ("story", "book")), (fact, claim, ("book", "story"))):
        is_excluded = prison.deed in ("arrested", "held") and deed.deed in ("travelled", "married", "arrested")
        if is_excluded and prison.year and prison.until and deed.year and prison.year < deed.year < prison.until:
            captivity = f"from {prison.year} to {prison.until} in the {sides[0]}"
            return f"{deed.deed} in {deed.year} in the {sides[1]}, but in prison {captivity}"
    return None


def two_places(claim: Event, fact: Event) -> str | None:
    """Exclude stays, in prison too, at two places that are apart in one year."""
    if not {claim.deed, fact.deed} <= {"stayed", "held"} or not are_apart(claim.place, fact.place):
        return None
    years = [range(event.year, (event.until or event.year) + 1) for event in (claim, fact) if event.year is not None]
    if len(years) == 2 and (common := sorted({*years[0]} & {*years[1]})):
        return f"at {claim.place} in {common[0]} in the story, at {fact.place} in the book"
    return None


RULES: Mapping[str, Callable[[Event, Event], str | None]] = {
    "act_after_death": act_after_death,
    "born_twice": partial(_twice, "born"),
    "died_twice": partial(_twice, "died"),
    "travel_while_imprisoned": travel_while_imprisoned,
    "two_places": two_places,
}
"""Every rule by name: why a story's event and the book's exclude each other; None where they do not."""


Fact = tuple[Event, BookPassage]


def read_facts(character: str, passages: Sequence[BookPassage], names: BookNames) -> tuple[Fact, ...]:
    """Read what passages of a book say of a character (disguises behind a slash), in their order.

    A captivity ends with the next release or death, unless its sentence says when.
    """
    person = names.person(character)
    read = [
        (part, find_events(part.text, names, person)) for part in passages if person.pattern.search(unaccent(part.text))
    ]
    events = _with_releases([event for _, events in read for event in events])
    return tuple(zip(events, (part for part, events in read for _ in events), strict=True))


def check_story(
    story: str,
    character: str,
    facts: Sequence[Fact],
    names: BookNames,
    rules: Iterable[str] = tuple(RULES),
) -> StoryCheck:
    """Check what a story claims of a character against what its book says (`read_facts`).

    Returns:
        What was read, and one finding per rule, claim and sentence of the book, in the order of facts.
    """
    person = names.person(character)
    claims = _with_releases(find_events(story, names, person, is_story=True))
    findings = [
        Finding(rule, claim.text, fact.text, part.chapter, part.node_id, f"{character} {reason}")
        for fact, part in facts
        for rule in sorted(rules)
        for claim in claims
        if (reason := RULES[rule](claim, fact)) is not None
    ]
    return StoryCheck(claims, tuple(facts), tuple(dict.fromkeys(findings)))


def _with_releases(events: Sequence[Event]) -> tuple[Event, ...]:
    """Let captivities whose end is not said last until the next release or death."""
    ends = sorted(
        event.year for event in events if event.year is not None and (event.deed == "freed" or event.kind == "died")
    )
    return tuple(
        event._replace(until=next((end for end in ends if event.year is not None and end >= event.year), None))
        if event.deed in ("arrested", "held") and event.until is None
        else event
        for event in events
    )
