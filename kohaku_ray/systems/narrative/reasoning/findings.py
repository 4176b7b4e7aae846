"""Where a story contradicts excerpts of its book by a rule."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kohaku_ray.errors import ConfigError
from kohaku_ray.systems.narrative.reasoning.constraints import CONSTRAINT_RULES
from kohaku_ray.systems.narrative.reasoning.entities import BookNames
from kohaku_ray.systems.narrative.reasoning.events import Event, find_events
from kohaku_ray.systems.narrative.reasoning.names import Person
from kohaku_ray.systems.narrative.reasoning.spelling import unaccent
from kohaku_ray.systems.narrative.reasoning.timeline import TIMELINE_RULES, Clash, Rule

Severity = Literal["high", "medium"]

RULES: Mapping[str, Rule] = {**TIMELINE_RULES, **CONSTRAINT_RULES}
"""Every rule by name: a story's events and an excerpt's, of one person, in; pairs that contradict each other out."""

DEFAULT_RULES = frozenset(RULES)
"""Rules that are on unless a configuration names others."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of the book.

    Attributes:
        node_id: Of the chunk.
        chapter: Its title.
        text: Verbatim.
        anchor: The last year that the chapter names before it (`years.year_anchors`).
    """

    node_id: str
    chapter: str
    text: str
    anchor: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A contradiction.

    Attributes:
        rule: A name in `RULES`.
        severity: ``high`` when both sides give years, places or ages that exclude each other.
        claim: The story's sentence.
        excerpt: The book's sentence, verbatim.
        chapter: Where it stands.
        node_id: Of the excerpt.
        reason: In words, with both values.
    """

    rule: str
    severity: Severity
    claim: str
    excerpt: str
    chapter: str
    node_id: str
    reason: str


def find_contradictions(
    story: str,
    character: str,
    excerpts: Sequence[Excerpt],
    names: BookNames,
    rules: Iterable[str] = DEFAULT_RULES,
) -> tuple[Finding, ...]:
    """Check a story against excerpts of its book.

    Args:
        story: What it claims of the character.
        character: Its name; disguises behind a slash.
        excerpts: In rank order.
        names: The book's (`entities.read_names`).
        rules: Names in `RULES`.

    Returns:
        One finding per rule, claim and sentence of the book, in the order of excerpts. An excerpt that names nobody
        whom a claim is about gives none.

    Raises:
        ConfigError: A rule is unknown.
    """
    on = sorted(rules)
    if unknown := [rule for rule in on if rule not in RULES]:
        raise ConfigError(f"narrative.rules names {unknown[0]!r}, known are {', '.join(sorted(RULES))}: correct it.")
    person = names.person(character)
    claims = find_events(story, names, person, story=True)
    if not claims:
        return ()
    named = _naming(person, claims, names)
    facts: list[Event] = []
    sources: list[Excerpt] = []
    for excerpt in excerpts:
        events = find_events(excerpt.text, names, person, excerpt.anchor, naming=named)
        facts += events
        sources += [excerpt] * len(events)
    source = {id(fact): excerpt for fact, excerpt in zip(facts, sources, strict=True)}
    clashes = [(rule, clash) for rule in on for clash in RULES[rule](claims, facts)]
    found = dict.fromkeys(_finding(rule, clash, source[id(clash.fact)]) for rule, clash in clashes)
    ranks = {excerpt.node_id: rank for rank, excerpt in enumerate(excerpts)}
    return tuple(sorted(found, key=lambda finding: ranks[finding.node_id]))


def _finding(rule: str, clash: Clash, excerpt: Excerpt) -> Finding:
    severity: Severity = "high" if clash.certain else "medium"
    claim, fact = clash.claim.text, clash.fact.text
    return Finding(rule, severity, claim, fact, excerpt.chapter, excerpt.node_id, clash.reason)


def _naming(person: Person, claims: Sequence[Event], names: BookNames) -> re.Pattern[str]:
    """A pattern of every name of those whom claims are about."""
    wanted = {claim.person.partition("'s ")[0] for claim in claims}
    people = [other for other in names.cast.people if other.name in wanted] + [person]
    return re.compile("|".join(rf"\b{re.escape(unaccent(alias))}\b" for who in people for alias in who.aliases))
