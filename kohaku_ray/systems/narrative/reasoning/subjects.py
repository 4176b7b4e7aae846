"""Whom a verb is about: the person that certainly is its subject, or nobody."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kohaku_ray.systems.narrative.reasoning.assertion import Span
from kohaku_ray.systems.narrative.reasoning.entities import BookNames, Entity

_PRONOUN = re.compile(r"\b(?P<he>he)\b|\b(?P<she>she)\b|\b(?P<his>his|her)(?=\s+[a-z])", re.IGNORECASE)
_KIN = re.compile(
    r"(?:['’]s)?\s+(?:(?:own|late|old|dear|poor|young|aged|elder|younger)\s+)*(?:(?P<parent>mother|father)|brother|sister|wife|"
    r"husband|son|daughter|uncle|aunt|grandfather|grandmother|cousin|friend|colleague|companion|master|servant)\b"
)
_RELATIVE_OF = re.compile(r"\b(?:old|elder|older|younger|late)\s+\Z", re.IGNORECASE)
_POSSESSIVE = re.compile(r"['’]s?\b|['’](?=\s)")
_NOT_SUBJECT = re.compile(
    r"\b(?:of|to|with|from|by|for|at|against|upon|on|than|like|about|between|toward|towards|after|before|without|beside|in|"
    r"near|behind|under|over|saw|met|loved|married|killed|arrested|denounced|heard|found|left|told|asked)\s+(?:the\s+|old\s+|young\s+)?\Z",
    re.IGNORECASE,
)
_SOFT = re.compile(
    r"(?:had|has|have|was|were|is|be|been|being|got|also|then|soon|once|again|at\s+last|finally|first|later|afterwards?|thus|"
    r"himself|herself|who|that|\w+ly|at\s+once|at\s+length|in\s+turn|there|both|too|still|already|just|now|in\s+the\s+end|"
    r"at\s+the\s+time|that\s+day|one\s+day|next|long)"
)
_ALL_SOFT = re.compile(rf"[\s,(]*(?:{_SOFT.pattern}[\s,]+)*", re.IGNORECASE)
_OPENING = re.compile(
    rf"[\s,“\"'(]*(?:(?:{_SOFT.pattern}|in|on|at|by|during|after|since|meanwhile|so|the|that|same|year|month|spring|summer|"
    r"autumn|winter|end|beginning|of|day|night|morning|evening|moment|\d+\w*|[A-Z][a-z]+uary|March|April|May|June|July|"
    r"August|[A-Z][a-z]+ember|October|and|but|old|young|the|poor)[\s,]+)*",
    re.IGNORECASE,
)
_BOUNDARY = re.compile(r"\s*(?:,|;|—|\s(?:and|but|or|then)\s)+\s*")
_SUBORDINATE = re.compile(
    r"\b(?:when|while|because|since|as|where|until|that|which|who|whose|after|before|though|if)\b", re.I
)
_NEW_SUBJECT = re.compile(
    r"(?:the|an?|his|her|their|its|my|our|your|this|these|those|some|all|one|two|many|several|no|both|it|they|we|you|I|"
    r"[A-Z]\w+|\w+\s+(?:had|was|were|is))\b"
)
_APPOSITION = re.compile(r"\A,\s*(?:an?|then)\s[^,;]*,")
_RELATIVE = re.compile(r",\s*(?:who|whom)\s[^,;]*,")
_SEGMENT = re.compile(r"[;:—]")


@dataclass(frozen=True, slots=True)
class Mention:
    """A person, or words for one, as a span of a sentence; without a name when nobody knows who is meant."""

    start: int
    end: int
    name: str | None
    pronoun: bool = False


@dataclass(slots=True)
class Topic:
    """Whom pronouns mean as a text is read; None: nobody certain.

    Attributes:
        name: Of the last sentence's only person.
        about: Whom a pronoun falls back to when its gender does not fit: of a story, its character.
    """

    name: str | None
    about: str | None = None
    female: bool | None = None

    def resolve(self, female: bool) -> str | None:
        """Whom ``she`` or ``he`` means."""
        if self.name is None or self.female in (None, female):
            return self.name
        return self.about

    def follow(self, mentions: Sequence[Mention], names: BookNames) -> None:
        """Take in the people of a sentence that has been read."""
        named = dict.fromkeys(mention.name for mention in mentions if not mention.pronoun)
        if len(named) > 1 or None in named:
            self.name, self.female = None, None
        elif named:
            self.name = next(iter(named))
            self.female = _gender(self.name or "", names)


def find_mentions(sentence: str, entities: Sequence[Entity], topic: Topic) -> tuple[Mention, ...]:
    """Find the people of a sentence: names, pronouns, and fathers and mothers of either.

    Args:
        sentence: Its text.
        entities: Its people, as spans of it.
        topic: Whom pronouns mean.
    """
    mentions = [_of_name(sentence, entity) for entity in entities if entity.kind == "person"]
    for match in _PRONOUN.finditer(sentence):
        if any(mention.start <= match.start() < mention.end for mention in mentions):
            continue
        female = match[0].lower() in ("she", "her")
        who = topic.resolve(female)
        named_before = {mention.name for mention in mentions if mention.end <= match.start() and not mention.pronoun}
        if named_before - {who}:
            who = named_before.pop() if len(named_before) == 1 and topic.name is None else None
        if not match["his"]:
            mentions.append(Mention(match.start(), match.end(), who, pronoun=True))
        elif kin := _KIN.match(sentence, match.end()):
            whose = (who or "").partition("'s ")[0]
            name = f"{whose}'s {kin['parent']}" if whose and kin["parent"] else None
            mentions.append(Mention(match.start(), kin.end(), name))
    return tuple(sorted(mentions, key=lambda mention: mention.start))


def subject_of(sentence: str, start: int, mentions: Sequence[Mention], times: Sequence[Span]) -> str | None:
    """Find the subject of a verb.

    Args:
        sentence: Its text.
        start: Where the verb, with its auxiliary, begins.
        mentions: The sentence's people.
        times: Spans of years and ages, which may stand between a subject and its verb.

    Returns:
        The nearest person before the verb when nothing but auxiliaries, adverbs, times and a coordinated verb stands
        between; None when somebody or something else may be the subject.
    """
    before = [mention for mention in mentions if mention.end <= start]
    if not before:
        return None
    plain = _without_times(sentence, times)
    last = before[-1]
    if _ALL_SOFT.fullmatch(plain[last.end : start]) and may_be_subject(plain, last):
        return last.name
    segment = max((cut.end() for cut in _SEGMENT.finditer(plain, 0, start)), default=0)
    for mention in reversed(before):
        if mention.start >= segment and _opens_clause(plain, segment, mention):
            return mention.name if _coordinates(plain[mention.end : start]) else None
    return None


def participle_subject(
    sentence: str, start: int, end: int, mentions: Sequence[Mention], times: Sequence[Span]
) -> str | None:
    """Find the subject of a participle that opens a sentence: the person behind the next comma."""
    plain = _without_times(sentence, times)
    if not _OPENING.fullmatch(plain[:start] + " "):
        return None
    comma = plain.find(",", end)
    following = next((mention for mention in mentions if mention.start > comma), None)
    if comma < 0 or following is None or not _OPENING.fullmatch(plain[comma : following.start]):
        return None
    if _POSSESSIVE.match(plain, following.end) or "'s " in (following.name or ""):
        return None  # "Born in Calcutta, his father kept the books": whose birth is meant is not certain
    return following.name


def _of_name(sentence: str, entity: Entity) -> Mention:
    kin = _KIN.match(sentence, entity.end) if _POSSESSIVE.match(sentence, entity.end) else None
    if kin is None:
        relative = _RELATIVE_OF.search(sentence[: entity.start])
        return Mention(entity.start, entity.end, None if relative else entity.name)
    return Mention(entity.start, kin.end(), f"{entity.name}'s {kin['parent']}" if kin["parent"] else None)


def may_be_subject(plain: str, mention: Mention) -> bool:
    """Whether a mention is neither a possessor nor an object."""
    if _POSSESSIVE.match(plain, mention.end):
        return False
    return mention.pronoun or not _NOT_SUBJECT.search(plain[: mention.start])


def _opens_clause(plain: str, segment: int, mention: Mention) -> bool:
    """Whether a mention stands where a clause begins."""
    first = max((cut.end() for cut in _BOUNDARY.finditer(plain, segment, mention.start)), default=segment)
    return _OPENING.fullmatch(plain[first : mention.start] + " ") is not None and may_be_subject(plain, mention)


def _coordinates(between: str) -> bool:
    """Whether the words between a subject and a verb go on about the subject: "... sold his ship and then was"."""
    between = _RELATIVE.sub(", ", _APPOSITION.sub(", ", between))
    _, *pieces = _BOUNDARY.split(between)
    if not pieces or not _ALL_SOFT.fullmatch(pieces[-1] + " ") or _SUBORDINATE.search(between):
        return False
    return not any(_NEW_SUBJECT.match(piece) for piece in pieces)


def _without_times(sentence: str, times: Sequence[Span]) -> str:
    """Blank years and ages, with the preposition and date in front of them."""
    plain = sentence
    for start, end in times:
        lead = re.search(
            r",?\s*(?:\b(?:in|on|at|by|during|about|around|since)\s+)?(?:the\s+)?(?:\w+\s+of\s+)?(?:the\s+year\s+|\w+,\s+|"
            r"(?:early|late|January|February|March|April|May|June|July|August|September|October|November|December),?\s+)?"
            r"(?:an?\s+|of\s+)?\Z",
            plain[:start],
            re.IGNORECASE,
        )
        first = lead.start() if lead else start
        plain = plain[:first] + " " * (end - first) + plain[end:]
    return plain


def _gender(name: str, names: BookNames) -> bool | None:
    if name.endswith(("'s mother", "'s father")):
        return name.endswith("mother")
    person = next((person for person in names.cast.people if person.name == name), None)
    return True if person and person.is_female else None
