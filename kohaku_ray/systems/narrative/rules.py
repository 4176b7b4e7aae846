"""Where a story contradicts excerpts of its book by the years of a life; without a model.

Only what is certain is read: a sentence that opens with a person, or a year and a person, and goes on with a verb.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from kohaku_ray.documents.novel import CARDINAL, number_of
from kohaku_ray.documents.sentences import split_sentences
from kohaku_ray.systems.narrative.names import MALE_TITLES, BookNames, Person, unaccent

FIRST_YEAR, LAST_YEAR = 1700, 1999

_NO_YEAR_BEFORE = r"(?<![\d.,/£$#°])(?<!No\. )(?<!number )(?<!page )"
_NO_YEAR_AFTER = (
    r"(?!\d|s\b|[’']s\b|[.,]\d|°|\s*(?:francs?|piastres?|livres?|crowns?|louis|pounds?|dollars?|ducats?|men|miles?|feet|"
    r"foot|leagues?|tons?|toises?|fathoms?|paces|kilometers?|square|houses|inhabitants|souls|guns|steps|years))"
)
_STATED = re.compile(rf"{_NO_YEAR_BEFORE}(?P<year>1[789]\d\d)\b{_NO_YEAR_AFTER}")
_CENTURIES = {"seventeen": 1700, "eighteen": 1800, "nineteen": 1900}
_SPELLED = re.compile(
    rf"\b(?P<century>seventeen|eighteen|nineteen)[\s-](?:hundred(?:\s+and)?[\s-](?P<rest>{CARDINAL})|(?P<tens>"
    r"(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)(?:[\s-](?:one|two|three|four|five|six|seven|eight|nine))?|"
    r"(?:ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen)))\b(?!\s+(?:francs|men|years|miles))",
    re.IGNORECASE,
)
_ANY_YEAR = re.compile(r"1[789]\d\d|[Yy]ear|[Dd]ecade|teen")
_COUNT = rf"(?P<count>\d{{1,2}}|{CARDINAL}|an?)"
_RELATIVE = re.compile(
    rf"\b{_COUNT}\s+(?P<unit>years?|decades?)\s+(?P<way>later|afterwards?|after(?=\s*[,.;:)])|earlier|previously|"
    r"before(?=\s*[,.;:)]))\b|\b(?P<next>the\s+(?:following|next)\s+year|the\s+year\s+after|next\s+year)\b|"
    r"\b(?P<last>the\s+(?:previous|preceding)\s+year|the\s+year\s+before)\b|\b(?P<same>(?:that|the)\s+same\s+year|that\s+year)\b",
    re.IGNORECASE,
)


class YearMention(NamedTuple):
    """A year, from `FIRST_YEAR` to `LAST_YEAR`, as a span of a text."""

    start: int
    end: int
    year: int


def find_years(text: str, anchor: int | None = None) -> tuple[YearMention, ...]:
    """Find the years of a text, in reading order.

    Years are stated, in digits or words, or relative (``ten years later``): these count from the last year before
    them. Sums of money, numbers of houses and decades (1790s) are none.

    Args:
        text: A paragraph or several of one chapter.
        anchor: The last year that the chapter names before this text.
    """
    if not _ANY_YEAR.search(text):
        return ()
    found = sorted(
        [(match, _stated(match)) for match in (*_STATED.finditer(text), *_SPELLED.finditer(text))]
        + [(match, None) for match in _RELATIVE.finditer(text)],
        key=lambda pair: pair[0].start(),
    )
    mentions: list[YearMention] = []
    for match, stated in found:
        year = _counted(match, anchor) if stated is None else stated
        if year is not None and FIRST_YEAR <= year <= LAST_YEAR:
            mentions.append(YearMention(match.start(), match.end(), year))
            anchor = year
    return tuple(mentions)


def year_anchors(paragraphs: Iterable[tuple[str, str]]) -> list[int | None]:
    """For each paragraph (chapter, text), in reading order, the last year that its chapter names before it."""
    anchors: list[int | None] = []
    chapter, anchor = "", None
    for name, text in paragraphs:
        if name != chapter:
            chapter, anchor = name, None
        anchors.append(anchor)
        years = find_years(text, anchor)
        anchor = years[-1].year if years else anchor
    return anchors


def _stated(match: re.Match[str]) -> int | None:
    parts = match.groupdict()
    if "century" not in parts:
        return int(parts["year"])
    rest = number_of(parts["rest"] or parts["tens"])
    return None if rest is None or rest > 99 else _CENTURIES[parts["century"].lower()] + rest


def _counted(match: re.Match[str], anchor: int | None) -> int | None:
    """The year of a relative time."""
    if anchor is None or match.re is not _RELATIVE:
        return None
    if match["same"]:
        return anchor
    if match["next"] or match["last"]:
        return anchor + (1 if match["next"] else -1)
    count = 1 if match["count"].lower() in ("a", "an") else number_of(match["count"]) or 0
    years = count * (10 if match["unit"].lower().startswith("decade") else 1)
    return anchor + (years if match["way"].lower().startswith(("later", "after")) else -years)


Kind = Literal["born", "died", "acted"]
_KINDS: tuple[Kind, ...] = ("born", "died", "acted")

_QUOTED = re.compile(r"“[^”]*(?:”|\Z)|\"[^\"]*(?:\"|\Z)|«[^»]*(?:»|\Z)")
_UNSAID = re.compile(
    r"(?<!')\b(?:if|unless|whether|would|could|might|may|should|suppos\w+|dream\w*|nightmare\w*|vision\w*|fancied|imagin\w+|"
    r"deliri\w+|said|says?|told|heard|believ\w+|thought|claim\w*|rumou?r\w*|report\w*|alleg\w+|pretend\w*|according|"
    r"presum\w+|perhaps|possibly|probably|doubt\w*|declar\w+|insist\w*|legends?|gossip|lied|false(?:ly)?|feign\w*|"
    r"suppos\w*|apparently|seemingly|ostensibly|as\s+it\s+seemed|almost|nearly)\b|\?",
    re.IGNORECASE,
)
_PARAGRAPH = re.compile(r"\S(?:.|\n(?!\s*\n))*")
_TIME = re.compile(
    r"(?:(?:in|on|at|by|during|about|the|that|of|and|year|early|late|spring|summer|autumn|winter|end|beginning|day|then|"
    r"\d+\w*|january|february|march|april|may|june|july|august|september|october|november|december)[\s,]+)*",
    re.IGNORECASE,
)
_LEAD = re.compile(rf"(?:the\s+)?(?:(?:young|poor|good|{'|'.join(sorted(MALE_TITLES))})\.?\s+)*", re.IGNORECASE)
_NAME = re.compile(r"\b[A-Z][a-z]\w*")
_IN = re.compile(r"\b(?:in|near)\s+(?:the\s+)?\Z")
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
        anchor: The last year that the chapter names before it (`year_anchors`).
        score: Of the fusion by rank.
        similarity: Highest cosine with a query that found it; None where only BM25 did.
    """

    node_id: str
    doc_id: str
    chapter: str
    progress_pct: float | None
    text: str
    n_tokens: int
    anchor: int | None = None
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
    chapter: str
    node_id: str
    reason: str


def _twice(kind: Kind, claim: Event, fact: Event) -> str | None:
    if claim.kind == fact.kind == kind and claim.year != fact.year:
        return f"{kind} in {claim.year} in the story, in {fact.year} in the book"
    return None


def _act_after_death(claim: Event, fact: Event) -> str | None:
    """Exclude deeds in a year after the death that the other side gives."""
    for death, deed in ((claim, fact), (fact, claim)):
        if (death.kind, deed.kind) == ("died", "acted") and deed.year > death.year:
            sides = ("story", "book") if death is claim else ("book", "story")
            return f"died in {death.year} in the {sides[0]}, but is alive in {deed.year} in the {sides[1]}"
    return None


RULES: Mapping[str, Callable[[Event, Event], str | None]] = {
    "act_after_death": _act_after_death,
    "born_twice": partial(_twice, "born"),
    "died_twice": partial(_twice, "died"),
}
"""Every rule by name: why a story's event and the book's exclude each other; None where they do not."""


def find_contradictions(
    story: str, character: str, passages: Sequence[Passage], names: BookNames, rules: Iterable[str] = tuple(RULES)
) -> tuple[Finding, ...]:
    """Check what a story claims of a character (disguises behind a slash) against passages of its book.

    Returns:
        One finding per rule, claim and sentence of the book, in the order of passages.
    """
    person = names.person(character)
    claims = find_events(story, names, person, is_story=True)
    found = [
        Finding(rule, claim.text, fact.text, part.chapter, part.node_id, f"{character} {reason}")
        for part in (passages if claims else ())
        for fact in find_events(part.text, names, person, part.anchor)
        for rule in sorted(rules)
        for claim in claims
        if (reason := RULES[rule](claim, fact)) is not None
    ]
    return tuple(dict.fromkeys(found))


def find_events(
    text: str, names: BookNames, person: Person, anchor: int | None = None, *, is_story: bool = False
) -> tuple[Event, ...]:
    """Find what a text asserts of a person, in reading order.

    Quoted, reported, dreamt, supposed and denied events are left out, and those whose subject is not certain. In a
    story a pronoun means the person before anybody is named; in a passage a blank line ends what it may refer to, and
    ``anchor`` is the last year that the chapter names before it.
    """
    plain = _QUOTED.sub(lambda match: " " * len(match[0]), unaccent(text))
    years = find_years(plain, anchor)
    events: list[Event] = []
    is_topic = is_story
    for paragraph in _PARAGRAPH.finditer(plain):
        is_topic = is_topic if is_story else False
        for span in split_sentences(paragraph[0]):
            start, end = paragraph.start() + span.start, paragraph.start() + span.end
            inside = [year for year in years if start <= year.start and year.end <= end]
            sentence = plain[start:end]
            subject = _after_time(plain, start, inside[0].start, inside[0].end) if inside else start
            who = _subject(plain, subject, person, is_topic)
            verb = who and _VERB.match(plain, who.end(), end)
            if verb and len(inside) == 1 and not _UNSAID.search(sentence):
                (year,) = inside
                if year.end <= subject or not _BREAK.search(plain, verb.end(), year.start):
                    kind = next(kind for kind in _KINDS if verb[kind])
                    events.append(Event(kind, year.year, text[start:end]))
            is_topic = _goes_on(sentence, names, person, is_topic)
    return tuple(events)


def _after_time(plain: str, start: int, first: int, last: int) -> int:
    """Where the subject may stand: behind a year that opens the sentence, else at its start."""
    if not _TIME.fullmatch(plain, start, first):
        return start
    return last + len(plain[last:]) - len(plain[last:].lstrip(" ,\n"))


def _subject(plain: str, start: int, person: Person, is_topic: bool) -> re.Match[str] | None:
    """The person's name, or a pronoun for it, that stands there; None: somebody else's."""
    lead = _LEAD.match(plain, start)
    name = person.pattern.match(plain, start) or person.pattern.match(plain, lead.end() if lead else start)
    return name or (_PRONOUN.match(plain, start) if is_topic else None)


def _goes_on(sentence: str, names: BookNames, person: Person, is_topic: bool) -> bool:
    """Whether a pronoun in the next sentence means the person: nobody else is named, and it is named or was meant."""
    rest, n_named = person.pattern.subn(" ", sentence)
    others = (match for match in _NAME.finditer(rest) if not _IN.search(rest[: match.start()]))
    if any(names.is_name(match[0], is_initial=not rest[: match.start()].strip()) for match in others):
        return False
    return is_topic or n_named > 0
