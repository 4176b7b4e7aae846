"""Where a story contradicts excerpts of its book by the years of a life; without a model.

Only what is certain is read: a sentence that opens with a person's name, or a date and the name, and goes on with a
verb.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kohaku_ray.documents.sentences import split_sentences
from kohaku_ray.systems.narrative.questions import named, unaccent

Kind = Literal["born", "died", "acted"]
_KINDS: tuple[Kind, ...] = ("born", "died", "acted")

_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_YEAR = re.compile(r"\b1[789]\d\d\b(?![.,]\d|['’]?s\b)")
_DATED = re.compile(rf"\b(?:in|of|by|year|(?:{_MONTHS}),?|\d\d?,)\s+\Z", re.IGNORECASE)
_QUOTED = re.compile(r"“[^”]*(?:”|\Z)|\"[^\"]*(?:\"|\Z)|«[^»]*(?:»|\Z)")
_UNSAID = re.compile(
    r"(?<!')\b(?:if|unless|whether|would|could|might|may|should|suppos\w+|dream\w*|nightmare\w*|vision\w*|fancied|imagin\w+|"
    r"deliri\w+|said|says?|told|heard|believ\w+|thought|claim\w*|rumou?r\w*|report\w*|alleg\w+|pretend\w*|according|"
    r"presum\w+|perhaps|possibly|probably|doubt\w*|declar\w+|insist\w*|legends?|gossip|lied|false(?:ly)?|feign\w*|"
    r"apparently|seemingly|ostensibly|as\s+it\s+seemed|almost|nearly)\b|\?",
    re.IGNORECASE,
)
_PARAGRAPH = re.compile(r"\S(?:.|\n(?!\s*\n))*")
_TIME = re.compile(
    r"(?:(?:in|on|at|by|during|about|the|that|of|and|year|early|late|spring|summer|autumn|winter|end|beginning|day|then|"
    rf"\d+\w*|{_MONTHS})[\s,]+)*",
    re.IGNORECASE,
)
_RANK = re.compile(r"(?:(?:young|poor|abbe|captain|colonel|count|doctor|dr|m|major|mr|sir)\.?\s+)*", re.IGNORECASE)
_PRONOUN = re.compile(r"(?:he|she)\b", re.IGNORECASE)
_ADVERBS = r"(?:\w+ly\s+|(?:then|also|soon|thus|again|once|first|later|now|there|finally|at\s+last|at\s+length)\s+)*"
_VERB = re.compile(
    rf"\s+{_ADVERBS}(?:(?P<be>(?:had\s+been|has\s+been|was|is|got)\s+)|(?:had|has)\s+)?{_ADVERBS}"
    r"(?:(?P<born>born|came\s+into\s+the\s+world)|"
    r"(?P<died>died|dies|perished|expired|passed\s+away|drowned|breathed\s+(?:his|her)\s+last|(?(be)(?:killed|murdered|"
    r"executed|guillotined|hanged|shot\s+dead|slain|beheaded|assassinated|dead)|(?!)))|"
    r"(?P<acted>married|wedded|escaped|arrested|imprisoned|freed|released|(?(be)(?:jailed|pardoned|captured)|(?:travell?ed|"
    r"sailed|journeyed|emigrated|embarked|fled|returned|went|came|moved|left|arrived|landed|lived|dwelt|settled|stayed|"
    r"worked|served|studied|taught|visited|reached|wrote|took|met|saw))))\b",
    re.IGNORECASE,
)
_BREAK = re.compile(
    r"[;:—]|\s(?:and|but|then|when|while|until|where|who|whose|that|which|before|after|since)\s|['’]s\s", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Passage:
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
    score: float = 0.0
    similarity: float | None = None


class Event(NamedTuple):
    """What a sentence, ``text``, asserts that the story's character did, or that befell it, in a year."""

    kind: Kind
    year: int
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A contradiction between a sentence of the story and one of the book, verbatim; the reason has both values."""

    rule: str
    claim: str
    excerpt: str
    node_id: str
    reason: str


def clash(claim: Event, fact: Event) -> tuple[str, str] | None:
    """The rule by which a story's event and the book's exclude each other, and why; None where they do not."""
    if claim.kind == fact.kind != "acted" and claim.year != fact.year:
        return f"{claim.kind}_twice", f"{claim.kind} in {claim.year} in the story, in {fact.year} in the book"
    for death, deed, places in ((claim, fact, ("story", "book")), (fact, claim, ("book", "story"))):
        if (death.kind, deed.kind) == ("died", "acted") and deed.year > death.year:
            said = f"died in {death.year} in the {places[0]}, but is alive in {deed.year} in the {places[1]}"
            return "act_after_death", said
    return None


def find_contradictions(story: str, character: str, passages: Sequence[Passage]) -> tuple[Finding, ...]:
    """Check what a story claims of a character (disguises behind a slash) against passages of its book.

    Returns:
        One finding per claim and sentence of the book, in the order of passages.
    """
    person = named(character)
    claims = find_events(story, person, is_story=True)
    findings = [
        Finding(found[0], claim.text, fact.text, part.node_id, f"{character} {found[1]}")
        for part in (passages if claims else ())
        for fact in find_events(part.text, person)
        for claim in claims
        if (found := clash(claim, fact))
    ]
    return tuple(dict.fromkeys(findings))


def find_events(text: str, person: re.Pattern[str], *, is_story: bool = False) -> tuple[Event, ...]:
    """Find what a text asserts of a person (``named``), in reading order.

    Quoted, reported, dreamt, supposed and denied events are left out, and sentences of more than one year. In a story a
    pronoun means the person until a sentence opens with anything else.
    """
    plain = _QUOTED.sub(lambda match: " " * len(match[0]), unaccent(text))
    events: list[Event] = []
    is_topic = is_story
    for paragraph in _PARAGRAPH.finditer(plain):
        for span in split_sentences(paragraph[0]):
            start, end = paragraph.start() + span.start, paragraph.start() + span.end
            sentence = plain[start:end]
            subject = _subject(sentence, person, is_topic)
            is_topic = is_story and subject is not None
            if subject and not _UNSAID.search(sentence) and (event := _event(sentence, subject)):
                events.append(Event(*event, text[start:end]))
    return tuple(events)


def _subject(sentence: str, person: re.Pattern[str], is_topic: bool) -> re.Match[str] | None:
    """The person's name, or a pronoun for it, that opens a sentence or follows its date."""
    dated = _TIME.match(sentence)
    at = dated.end() if dated else 0
    rank = _RANK.match(sentence, at)
    name = person.match(sentence, at) or person.match(sentence, rank.end() if rank else at)
    return name or (_PRONOUN.match(sentence, at) if is_topic else None)


def _event(sentence: str, subject: re.Match[str]) -> tuple[Kind, int] | None:
    """What the verb after the subject says, in the sentence's one year: before the subject, or of the same clause."""
    verb, years = _VERB.match(sentence, subject.end()), list(_YEAR.finditer(sentence))
    if verb is None or len(years) != 1 or not _DATED.search(sentence[: years[0].start()]):
        return None
    if years[0].start() > verb.end() and _BREAK.search(sentence, verb.end(), years[0].start()):
        return None
    return next(kind for kind in _KINDS if verb[kind]), int(years[0][0])
