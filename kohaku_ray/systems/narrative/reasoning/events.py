"""Who was born, imprisoned, freed, married, travelled, stayed, acted or died, where and when, as a text asserts it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from kohaku_ray.documents.sentences import split_sentences
from kohaku_ray.systems.narrative.reasoning.assertion import Span, is_asserted, overlaps, unasserted
from kohaku_ray.systems.narrative.reasoning.entities import BookNames, Entity
from kohaku_ray.systems.narrative.reasoning.names import Person
from kohaku_ray.systems.narrative.reasoning.spelling import unaccent
from kohaku_ray.systems.narrative.reasoning.subjects import (
    Mention,
    Topic,
    find_mentions,
    may_be_subject,
    participle_subject,
    subject_of,
)
from kohaku_ray.systems.narrative.reasoning.verbs import OBJECT_TRIGGER, TRIGGER
from kohaku_ray.systems.narrative.reasoning.years import AgeMention, YearMention, find_ages, find_years

_LIKENESS = re.compile(r"\b(?:like|than)\s+an?\s+\Z", re.IGNORECASE)
_PARAGRAPH = re.compile(r"\S(?:.|\n(?!\s*\n))*")
_YEAR_BREAK = re.compile(r"[;:—]|\s(?:and|but|then|when|while|until|where|who|before|after)\s", re.IGNORECASE)
_SEGMENT = re.compile(r"[;:—]")
_BE_BEFORE = re.compile(r"\b(?:was|were|been|being|be)\b(?:\s+\w+)*\s*\Z", re.IGNORECASE)
_TO_PLACE = re.compile(
    r"(?:\b(?:in|at|to|for|into|near|on|through|across)\s+(?:the\s+)?|\A\s+(?:the\s+)?)\Z", re.IGNORECASE
)
_AWAY = re.compile(r"\bfrom\b")
_MAX_TO_PLACE = 60


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a text asserts to have happened to somebody.

    Attributes:
        kind: ``born``, ``aged``, ``imprisoned``, ``freed``, ``married``, ``travelled``, ``stayed``, ``acted``, ``died``
        person: Whose; the fullest name, or ``NAME's mother``.
        text: The sentence, as it stands in the text.
        start: Its first character in the text.
        year: When, if the clause says so.
        place: Where, if the clause says so.
        age: In years, of ``aged``.
    """

    kind: str
    person: str
    text: str
    start: int
    year: int | None = None
    place: str | None = None
    age: int | None = None


def find_events(
    text: str,
    names: BookNames,
    person: Person | None = None,
    anchor: int | None = None,
    *,
    story: bool = False,
    naming: re.Pattern[str] | None = None,
) -> tuple[Event, ...]:
    """Find what a text asserts of people.

    Negated, hypothetical, dreamt, reported and quoted events are left out, and those whose subject is not certain.

    Args:
        text: A story or an excerpt; in an excerpt a blank line ends what a pronoun may refer to.
        names: The book's.
        person: Whose names all count as one (`Cast.resolve`): a story's character.
        anchor: The last year that the chapter names before the text.
        story: Whether a pronoun means that person before anybody is named.
        naming: Only paragraphs that match it, without accents, are read.

    Returns:
        In reading order.
    """
    events: list[Event] = []
    years, unsaid = find_years(text, anchor), unasserted(text)
    about = person.name if person and story else None
    topic = Topic(about, about)
    for paragraph in _PARAGRAPH.finditer(text):
        if naming is not None and not naming.search(unaccent(paragraph[0])):
            continue
        if not story:
            topic = Topic(None)
        entities = [
            replace(entity, name=person.name) if person and entity.name in person.aliases else entity
            for entity in names.entities(paragraph[0], fuzzy=story)
        ]
        ages = find_ages(paragraph[0])
        for span in split_sentences(paragraph[0]):
            start, end = paragraph.start() + span.start, paragraph.start() + span.end
            sentence = _Sentence(
                text[start:end],
                start,
                _within(entities, span.start, span.end),
                _within(years, start, end),
                _within(ages, span.start, span.end),
            )
            mentions = find_mentions(sentence.text, sentence.entities, topic)
            if mentions:
                events += _asserted(sentence, mentions, unsaid)
                topic.follow(mentions, names)
    return tuple(events)


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence and what is known of it, as spans of it; ``start`` in its text."""

    text: str
    start: int
    entities: tuple[Entity, ...]
    years: tuple[YearMention, ...]
    ages: tuple[AgeMention, ...]

    @property
    def times(self) -> list[Span]:
        """Spans of years and ages."""
        return [(year.start, year.end) for year in self.years] + [(age.start, age.end) for age in self.ages]


_Placed = TypeVar("_Placed", Entity, YearMention, AgeMention)


def _within(mentions: Sequence[_Placed], start: int, end: int) -> tuple[_Placed, ...]:
    """Those inside a span, as spans of it."""
    return tuple(
        replace(mention, start=mention.start - start, end=mention.end - start)
        for mention in mentions
        if start <= mention.start and mention.end <= end
    )


def _asserted(sentence: _Sentence, mentions: Sequence[Mention], unsaid: Sequence[Span]) -> Iterator[Event]:
    """Yield the events of a sentence that it asserts of somebody certain."""
    found = [
        (start, end, kind, person)
        for start, end, kind, person in _raw(sentence, mentions)
        if not overlaps(unsaid, sentence.start + start, sentence.start + end) and is_asserted(sentence.text, start, end)
    ]
    triggers = [(start, end) for start, end, _, _ in found]
    dated = _years_of(sentence, triggers)
    for i, (start, end, kind, person) in enumerate(found):
        place = None if kind == "aged" else _place_of(sentence, end, _next_start(triggers, i, len(sentence.text)))
        if kind in ("travelled", "stayed") and place is None:
            continue
        ages = [mention.age for mention in sentence.ages if kind == "aged" and mention.start == start]
        yield Event(kind, person, sentence.text, sentence.start, dated[i], place, *ages)


def _raw(sentence: _Sentence, mentions: Sequence[Mention]) -> list[tuple[int, int, str, str]]:
    """Every trigger with its person, in reading order."""
    text, found = sentence.text, []
    for match in TRIGGER.finditer(text):
        voice, _, kind = (match.lastgroup or "").partition("_")
        start, end = match.span()
        person = subject_of(text, start, mentions, sentence.times)
        if voice == "bare":
            person = person if _is_passive(text, start, end, mentions) else None
            person = person or participle_subject(text, start, end, mentions, sentence.times)
        if person is not None:
            found.append((start, end, kind, person))
    for match in OBJECT_TRIGGER.finditer(text):
        kind = match.lastgroup or ""
        target = next((mention for mention in mentions if mention.start > match.end()), None)
        if target is None or target.name is None or target.pronoun or re.match(r"['’]s", text[target.end :]):
            continue
        if text[match.end() : target.start].strip() or (_BE_BEFORE.search(text[: match.start()]) and kind != "married"):
            continue
        found.append((*match.span(), kind, target.name))
    for age in sentence.ages:
        person = _whose_age(sentence, age, mentions)
        if person is not None:
            found.append((age.start, age.end, "aged", person))
    return sorted(found)


def _is_passive(text: str, start: int, end: int, mentions: Sequence[Mention]) -> bool:
    """Whether a participle without auxiliary is passive: ", arrested", "was tried and imprisoned", "had Faria shot"."""
    if re.match(r"\s+(?:the|an?|his|her|him|them|their|it|one|two|many|several|[A-Z])\b", text[end:]):
        return False
    before = text[:start].rstrip()
    if before.endswith((",", "(")):
        return True
    last = max((mention for mention in mentions if mention.end <= start), key=lambda mention: mention.end, default=None)
    if last is None:
        return False
    if not text[last.end : start].strip():
        return re.search(r"\b(?:had|saw)\s+\Z", text[: last.start]) is not None
    return _BE_BEFORE.search(text[last.end : start]) is not None


def _whose_age(sentence: _Sentence, age: AgeMention, mentions: Sequence[Mention]) -> str | None:
    """The only person of a sentence, or the one whose verb or comma the age stands at."""
    if _LIKENESS.search(sentence.text[: age.start]):
        return None
    if len({mention.name for mention in mentions}) == 1 and may_be_subject(sentence.text, mentions[0]):
        return mentions[0].name
    return subject_of(sentence.text, age.start, mentions, sentence.times)


def _years_of(sentence: _Sentence, triggers: Sequence[Span]) -> list[int | None]:
    """The year of each event: the one behind it in its clause, else one before it that no other event has."""
    dated: list[int | None] = []
    taken: set[int] = set()
    for i, (start, end) in enumerate(triggers):
        limit = _next_start(triggers, i, len(sentence.text))
        behind = next((mention for mention in sentence.years if end <= mention.start <= limit), None)
        if behind is not None and _YEAR_BREAK.search(sentence.text[end : behind.start]):
            behind = None
        if behind is not None and start not in {age.start for age in sentence.ages}:
            taken.add(behind.start)
        dated.append(behind.year if behind else None)
    for i, (start, _) in enumerate(triggers):
        before = [mention for mention in sentence.years if mention.end <= start]
        if dated[i] is None and before and before[-1].start not in taken:
            dated[i] = None if _SEGMENT.search(sentence.text[before[-1].end : start]) else before[-1].year
    return dated


def _place_of(sentence: _Sentence, end: int, limit: int) -> str | None:
    """The first place behind an event, before the next one and unless the event leads away from it."""
    first = end
    for entity in sentence.entities:
        if entity.kind == "place" and end <= entity.start < min(limit, end + _MAX_TO_PLACE):
            before = sentence.text[first : entity.start]
            if not _AWAY.search(before):
                return entity.name if _TO_PLACE.search(before) else None
            first = entity.end
    return None


def _next_start(triggers: Sequence[Span], i: int, default: int) -> int:
    """Where the next trigger begins that does not stand at the same words."""
    return next((start for start, _ in triggers[i + 1 :] if start >= triggers[i][1]), default)
