"""Find what a text says that a person did, or that befell a person: when, where, and until when in prison.

Only what is plain is read: a clause that begins with the person's name, or a pronoun for it, and goes on with a verb.
Quotations, questions, and sentences that deny, suppose or report are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from kohaku_ray.documents.text.sentences import split_sentences
from kohaku_ray.systems.narrative.names import CAPITALISED_RUN, MALE_TITLES, BookNames, Person, unaccent

EventKind = Literal["born", "died", "acted"]
Deed = Literal["", "arrested", "held", "freed", "married", "travelled", "stayed"]

_QUOTED = re.compile(r"“[^”]*(?:”|\Z)|\"[^\"]*(?:\"|\Z)|«[^»]*(?:»|\Z)")
_PARAGRAPH = re.compile(r"\S(?:.|\n(?!\s*\n))*")
_UNCERTAIN = re.compile(
    r"\b(?:not|n't|never|no|nor|or|if|whether|would|could|might|may|should|perhaps|probably|almost|nearly|least|dream\w*|"
    r"suppos\w*|imagin\w*|pretend\w*|sa(?:id|ys?)|told|heard|thought|believ\w*|claim\w*|report\w*|rumou?r\w*)\b|\?"
)
_DATE = (
    r"(?:(?:the|of|year|early|late|spring|summer|autumn|winter|beginning|end|\d{1,2}(?:st|nd|rd|th)?\b|"
    r"(?:Jan|Feb|Mar|Apr|May|Ju[nl]|Aug|Sep|Oct|Nov|Dec)[a-z]*|,)\s*)*"
)
_YEAR = r"(?:1\d{3}|20\d\d)\b(?![.,]\d|\s+(?!was\b|is\b|his\b|as\b)[a-z]+s\b)"  # no "1800 francs"
_WHEN = re.compile(
    rf"\b(?:(?i:from)\s+{_DATE}(?P<first>{_YEAR})\s*,?\s*(?:to|until|till|through|–|-)\s*{_DATE}(?P<last>{_YEAR})|"
    rf"(?P<word>(?i:in|on|since|until|till|by))\s+{_DATE}(?P<year>{_YEAR}))"
)
_PLACE = re.compile(
    r"\b(?:in|at|into|to|for|near|reached|visited)\s+(?:the\s+)?(?:[a-z]+\s+of\s+(?:the\s+)?)?"
    rf"(?P<name>{CAPITALISED_RUN.pattern})"
)
_CLAUSE = re.compile(r"[;:—]|,?\s{1,3}(?:and|but)\s(?:then\s)?|,(?!\s*\d{4}\b)")  # bounded: scans stay linear
_GAP = re.compile(r"[,\s]*")
_ADDS = re.compile(r"\s*(?:in|at|on|of|near|from|to|until|till|since|during|for|\d)")
_SUBORDINATE = re.compile(r"\b(?:who|which|that|when|while|whose|where|because|before|after)\b")
_LEAD = re.compile(rf"(?:the\s+)?(?:(?:young|poor|good|{'|'.join(sorted(MALE_TITLES))})\.?\s+)*", re.IGNORECASE)
_PRONOUN = re.compile(r"(?:he|she)\b", re.IGNORECASE)
_NAME = re.compile(r"\b[A-Z][a-z]\w*")
_AT = re.compile(r"\b(?:in|at|near|from|to|into|of)\s+(?:the\s+)?\Z")
_JAIL = r"(?:(?:a|the|his|her)\s+)?(?:prison|jail|dungeons?|captivity)\b"
_CAPTIVE = rf"(?:in\s+{_JAIL}|(?:a\s+)?(?:prisoner|captive)\b(?!'s))"
_BEFELL = {  # behind a form of "be"
    "born": r"born",
    "died": r"killed|murdered|executed|hanged|shot|beheaded|dead",
    "arrested": r"(?:re-?)?arrested|captured|taken\s+prisoner",
    "held": rf"imprisoned|jailed|confined|detained|(?:(?:held|kept)\s+)?{_CAPTIVE}|\w+\s+(?:in|to|into)\s+{_JAIL}",
    "freed": r"freed|released|pardoned|liberated",
}
_DID = {
    "died": r"died|perished|drowned|passed\s+away",
    "held": rf"(?:remained|stayed|lay|languished)\s+{_CAPTIVE}|went\s+to\s+{_JAIL}",
    "freed": r"escaped",
    "married": r"married",
    "travelled": r"travell?ed|sailed|journeyed|emigrated|fled|returned|went|came|moved|left|arrived|landed|reached",
    "stayed": r"lived|settled|stayed|resided|worked|served|studied|taught",
    "acted": r"\w+ed|took|met|saw|wrote|began",
}
_ADVERBS = r"(?:\w+ly\s+|(?:then|also|soon|again|once|first|later|now|finally)\s+)*"
_VERB = re.compile(
    rf"\s*{_ADVERBS}(?:(?P<be>(?:(?:has|have|had)\s+been|was|were|is|got)\s+)|(?:has|have|had)\s+)?{_ADVERBS}"
    + f"(?:(?(be)(?:{'|'.join(f'(?P<be_{name}>{words})' for name, words in _BEFELL.items())})|"
    + rf"(?:{'|'.join(f'(?P<do_{name}>{words})' for name, words in _DID.items())})))\b"
)


class Event(NamedTuple):
    """What a sentence, ``text``, asserts that the story's character did, or that befell it.

    Attributes:
        year: None where only the place of a birth or death is known.
        until: Last year of a stay or captivity that the text itself gives.
    """

    kind: EventKind
    year: int | None
    text: str
    deed: Deed = ""
    place: str | None = None
    until: int | None = None

    @property
    def summary(self) -> str:
        """What was read of the sentence: ``held 1811–1816 · Château d’If``."""
        years = "–".join(str(year) for year in (self.year, self.until) if year is not None)
        return " · ".join(filter(None, (f"{self.deed or self.kind} {years}".strip(), self.place)))


def find_events(text: str, names: BookNames, person: Person, *, is_story: bool = False) -> tuple[Event, ...]:
    """Find what a text asserts of a person, in reading order.

    A pronoun means the person where nobody else has been named since: in a story from its start, in a passage from the
    person's name on, until a blank line.
    """
    plain = _QUOTED.sub(lambda quoted: "\0" * len(quoted[0]), unaccent(text))
    events: list[Event] = []
    for paragraph in _PARAGRAPH.finditer(plain):
        is_topic = is_story
        for span in split_sentences(paragraph[0]):
            start, end = paragraph.start() + span.start, paragraph.start() + span.end
            if not _UNCERTAIN.search(plain, start, end):
                events += _read_sentence(plain[start:end], text[start:end], names, person, is_topic)
            rest = person.pattern.sub(lambda named: " " * len(named[0]), plain[start:end])
            others = (name for name in _NAME.finditer(rest) if names.is_name(name[0], is_initial=not name.start()))
            is_alone = all(_AT.search(rest[: name.start()]) and names.is_known_place(name[0]) for name in others)
            is_topic = is_alone and (is_topic or rest != plain[start:end])
    return tuple(events)


def _read_sentence(sentence: str, text: str, names: BookNames, person: Person, is_topic: bool) -> Iterator[Event]:
    """Read piece by piece: one without a subject goes on with the last, one without a verb belongs to the last verb."""
    read: list[tuple[str, int, int, int]] = []  # what the person did; where its scope starts, its verb and scope end
    first, is_subject, be = -1, False, ""
    for begin, end in pairwise([0, *(cut.end() for cut in _CLAUSE.finditer(sentence)), len(sentence)]):
        start = _GAP.match(sentence, begin).end()  # type: ignore[union-attr]
        if opened := _WHEN.match(sentence, start, end):
            start = _GAP.match(sentence, opened.end()).end()  # type: ignore[union-attr]
        if start >= end and not read:  # "In 1811," opens the sentence
            first = begin
            continue
        name = person.pattern.search(sentence, start, end)
        who = name if name and _LEAD.fullmatch(sentence, start, name.start()) else None
        who = who or (_PRONOUN.match(sentence, start, end) if is_topic else None)
        if who is not None:
            is_subject, start = not sentence.startswith("'s", who.end()), who.end()
            be = "was " if start >= len(sentence[:end].rstrip(", \n")) else ""  # "Faria, born at Rome, smiled"
        tries = (_VERB.match(prefix + sentence[start:end]) for prefix in dict.fromkeys((be, "")))
        if is_subject and (verb := next(filter(None, tries), None)):
            did = next(key for key, words in verb.groupdict().items() if words and key != "be")[3:]
            verb_end = start + verb.end() - len(verb.string) + end - start
            read.append((did, begin if first < 0 else first, verb_end, end))
            first, be = -1, "was " if verb["be"] else ""
        elif read and (start >= end or _ADDS.match(sentence, begin)):
            read[-1] = (*read[-1][:3], end)
        else:
            is_subject = is_subject and who is not None
        is_subject = is_subject and not _SUBORDINATE.search(sentence, start, end)
    for did, begin, verb_end, end in read:
        aside = _SUBORDINATE.search(sentence, verb_end, end)
        reach = aside.start() if aside else end
        places = (
            found.span("name") for found in _PLACE.finditer(sentence, verb_end, reach) if names.is_place(found["name"])
        )
        place = next((re.sub(r"\s+", " ", text[slice(*span)]) for span in places), None)
        if event := _date_event(did, text, list(_WHEN.finditer(sentence, begin, reach)), place):
            yield event


def _date_event(did: str, text: str, dates: Sequence[re.Match[str]], place: str | None) -> Event | None:
    """Date what a verb says; None where it is neither a birth or death at a place nor dated by one year or period."""
    kind: EventKind = "born" if did == "born" else "died" if did == "died" else "acted"
    deed: Deed = next((deed for deed in get_args(Deed) if deed == did), "")
    date = dates[0] if len(dates) == 1 else None
    year, until = (int(date["year"] or date["first"]), int(date["last"] or 0) or None) if date else (None, None)
    is_held = deed in ("held", "stayed")
    if date and (date["word"] in ("until", "till", "by") or (date["word"] == "since" and deed != "held")):
        year = None
    elif until is not None and year is not None and (until < year or not is_held):
        year = until = None
    if year is None and (kind == "acted" or place is None):
        return None
    return Event(kind, year, text, deed, place, until)
