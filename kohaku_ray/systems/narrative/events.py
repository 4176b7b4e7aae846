"""Find what a text says that a person did, or that befell a person: when, where, and until when in prison.

Only what is certain is read: a clause that opens with a person, a pronoun for the person or nothing new, and goes on
with a verb; and what somebody says who introduces himself as the person.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kohaku_ray.documents.sentences import split_sentences
from kohaku_ray.systems.narrative.names import MALE_TITLES, BookNames, Person, unaccent
from kohaku_ray.systems.narrative.novel import CARDINAL, number_of
from kohaku_ray.systems.narrative.places import find_place
from kohaku_ray.systems.narrative.years import DATE_WORDS, YearMention, find_years, join_periods

EventKind = Literal["born", "died", "acted"]
Deed = Literal["", "arrested", "held", "freed", "married", "travelled", "stayed"]
_KINDS: tuple[EventKind, ...] = ("born", "died")
_DEEDS: tuple[Deed, ...] = ("arrested", "held", "freed", "married", "travelled", "stayed")

_QUOTED = re.compile(r"“[^”]*(?:”|\Z)|\"[^\"]*(?:\"|\Z)|«[^»]*(?:»|\Z)")
_UNSAID = re.compile(
    r"(?<!')\b(?:if|unless|whether|would|could|might|(?-i:may)|should|suppos\w+|dream\w*|nightmare\w*|vision\w*|fancied|imagin\w+|"
    r"deliri\w+|said|says?|told|heard|believ\w+|thought|claim\w*|rumou?r\w*|report\w*|alleg\w+|pretend\w*|according|"
    r"presum\w+|perhaps|possibly|probably|doubt\w*|declar\w+|insist\w*|legends?|gossip|lied|false(?:ly)?|feign\w*|"
    r"suppos\w*|apparently|seemingly|ostensibly|as\s+it\s+seemed|almost|nearly)\b|\?",
    re.IGNORECASE,
)
_PARAGRAPH = re.compile(r"\S(?:.|\n(?!\s*\n))*")
_DREAM = re.compile(r"\b(?:dream(?:s|t|ed|ing)?|nightmares?|visions?|deliri\w+)\b", re.IGNORECASE)
_AWAKE = re.compile(r"\b(?:awoke|woke|awakened|in\s+reality)\b", re.IGNORECASE)
_TIME = re.compile(DATE_WORDS, re.IGNORECASE)
_LEAD = re.compile(rf"(?:the\s+)?(?:(?:young|poor|good|{'|'.join(sorted(MALE_TITLES))})\.?\s+)*", re.IGNORECASE)
_NAME = re.compile(r"\b[A-Z][a-z]\w*")
_IN = re.compile(r"\b(?:in|near)\s+(?:the\s+)?\Z")
_AT = re.compile(r"\b(?:at|from|to|into|of)\s+(?:the\s+)?\Z")
_PRONOUN = re.compile(r"(?:he|she)\b", re.IGNORECASE)
_ADVERBS = r"(?:\w+ly\s+|(?:then|also|soon|thus|again|once|first|later|now|there|finally|at\s+last|at\s+length)\s+)*"
_PRISON = r"(?:prison|the\s+dungeons?|a\s+(?:dungeon|cell)|the\s+(?:fortress|Chateau)|irons)"
_JAIL = r"(?:(?:a|the)\s+)?(?:prison|jail|gaol|dungeons?|irons|captivity)\b"
_CAPTIVE = rf"(?:in\s+{_JAIL}|(?:a\s+)?(?:prisoner|captive)\b(?!'s))"
_VERB = re.compile(
    rf"(?:\s+|\s*,\s+(?=born\b)){_ADVERBS}(?:(?P<be>(?:(?P<perfect>ha(?:s|ve))\s+been|had\s+been|was|were|is|am|got)\s+)|"
    rf"(?:had|has|have)\s+)?{_ADVERBS}(?:(?P<born>born|came\s+into\s+the\s+world)|"
    r"(?P<died>died|dies|perished|expired|passed\s+away|drowned|breathed\s+(?:his|her)\s+last|(?(be)(?:killed|murdered|"
    r"executed|guillotined|hanged|shot\s+dead|slain|beheaded|assassinated|dead)|(?!)))|"
    r"(?P<arrested>(?(be)(?:(?:re-?)?arrested|captured|taken\s+prisoner)|(?!)))|"
    rf"(?P<held>(?(be)(?:imprisoned|incarcerated|jailed|confined|detained|locked\s+up|{_CAPTIVE}|"
    rf"(?:held|kept)(?:\s+{_CAPTIVE}|(?=\s+in\s+{_PRISON}))|(?P<put>(?:thrown|cast|flung)\s+into\s+{_PRISON}|"
    rf"(?:sent|taken|brought|led|put|thrown|cast)\s+(?:in|to|into)\s+{_JAIL}))|"
    rf"(?:languished|rotted|pined|(?:remained|stayed|lay|sat|lingered)\s+{_CAPTIVE}|went\s+to\s+{_JAIL})))|"
    r"(?P<freed>(?(be)(?:freed|released|pardoned|liberated)|escaped))|"
    r"(?P<married>married|wedded)|(?P<travelled>travell?ed|sailed|journeyed|emigrated|embarked|fled|returned|went|came|"
    r"moved|left|arrived|landed|visited|reached)|(?P<stayed>lived|dwelt|settled|stayed|resided|worked|served|studied|"
    r"taught)|(?P<acted>arrested|imprisoned|freed|released|wrote|took|met|saw|joined|watched|withdrew|began|burned|"
    r"shipped|transferred|seized|driven|expelled|banished))\b",
    re.IGNORECASE,
)
_BREAK = re.compile(
    r"[;:—]|\s(?:and|but|then|when|while|until|where|who|whose|that|which|before|after)\s", re.IGNORECASE
)
_PLACE_END = re.compile(r",\s+\w+ing\b")
_HEADING = re.compile(r"\*\*[^*]*\*\*:?")
_UNTIL = re.compile(rf"(?<!\bleast)\s(?:until|till)\s+{DATE_WORDS}\Z", re.IGNORECASE)
_SINCE = re.compile(r"\ssince\s", re.IGNORECASE)
_SINCE_THEN = re.compile(r"\b(?:since\s+then|ever\s+since)\b.*\bha(?:s|ve)\b", re.IGNORECASE | re.DOTALL)
_FOR_YEARS = re.compile(rf"\bfor\s+(?P<n>\d{{1,2}}|{CARDINAL})\s+years\b", re.IGNORECASE)
_SEGMENT = re.compile(r"[;:—]\s*")
_JOINT = re.compile(r",?\s+(?:and|but)\s+(?:then\s+|so\s+)?|(?P<comma>,\s+)")
_OPENING = re.compile(
    r"(?:To|In|At|On|During|Under|With|By|From|Through|Without|[A-Z]\w+(?:ing|ed))\b",
)
_NO_OPENING = re.compile(
    r"\b(?:he|she|it|they|we|I|who|which|that|when|while|after|before|since|until|as|if|because|though|although|whose|where)\b"
)
_NOUN_OPENS = re.compile(r"(?:he|she|it|they|we|I|an?|the|this|his|her|their|both|all|some\w*)\b")
_WAS = re.compile(r"(?:was|had\s+been)\s")
_OWNER = re.compile(r"'s\b|\s+n?or\b")
_SUBORDINATE = re.compile(r"\b(?:who|which|that|when|while|whose|where|because|if)\b")
_WORD = re.compile(r"[^\s,]+")
_BORN = re.compile(r"(?P<born>Born)\b[^,;:—.]*(?P<comma>,\s*)?")
_I_AM = re.compile(rf"\b(?:I\s+am|[Mm]y\s+name\s+is)\s+{_ADVERBS}")
_I = re.compile(r"I\b")


class Event(NamedTuple):
    """What a sentence, ``text``, asserts that the story's character did, or that befell it.

    Attributes:
        year: None where only the place of a birth or death is known.
        until: Last year of a captivity (`deed` ``arrested`` or ``held``) that the text itself gives.
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
        what = self.deed or self.kind
        return " · ".join(filter(None, (f"{what} {years}".strip(), self.place)))


def find_events(
    text: str,
    names: BookNames,
    person: Person,
    anchor: int | None = None,
    *,
    is_story: bool = False,
    pipeline: str | None = None,
) -> tuple[Event, ...]:
    """Find what a text asserts of a person, in reading order.

    Quoted, reported, dreamt, supposed and denied events are left out, and those whose subject is not certain; a
    quotation counts from where its speaker introduces himself as the person. In a story a pronoun means the person
    before anybody is named; in a passage a blank line ends what it may refer to, and ``anchor`` is the last year that
    the chapter names before it. ``pipeline``: see `find_place`.
    """
    plain = unaccent(text)
    told = _Reader(
        text, _HEADING.sub(_blank, _QUOTED.sub(_blank, plain)), names, person, anchor, pipeline, _PRONOUN, is_story
    )
    events = list(told.events(is_story))
    for quoted in () if is_story else _QUOTED.finditer(plain):
        for opening in _I_AM.finditer(plain, *quoted.span()):
            speech = " " * opening.start() + plain[opening.start() : quoted.end()].replace("“", " ").replace("”", " ")
            speaker = _Reader(text, speech.ljust(len(plain)), names, person, anchor, pipeline, _I)
            is_sentence = plain[: opening.start()].rstrip()[-1:] in tuple('“"«.,;:!?—')
            if is_sentence and speaker._subject(opening.start(), False):
                events += speaker.events(True)
                break
    return tuple(event for _, event in sorted(events, key=lambda pair: pair[0]))


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads ``plain``: ``text`` without accents and without what is not to be read; ``pronoun`` means the person."""

    text: str
    plain: str
    names: BookNames
    person: Person
    anchor: int | None
    pipeline: str | None
    pronoun: re.Pattern[str]
    is_story: bool = False

    def events(self, is_topic: bool) -> Iterator[tuple[int, Event]]:
        """Yield events with where they stand; ``is_topic``: a pronoun means the person from the start."""
        years, from_start = join_periods(self.plain, find_years(self.plain, self.anchor)), is_topic
        for paragraph in _PARAGRAPH.finditer(self.plain):
            is_topic, is_dream = is_topic and from_start, False
            for span in split_sentences(paragraph[0]):
                start, end = paragraph.start() + span.start, paragraph.start() + span.end
                sentence = self.plain[start:end]
                is_dream = (is_dream or bool(_DREAM.search(sentence))) and not _AWAKE.search(sentence)
                if not is_dream and not _UNSAID.search(sentence):
                    yield from self._sentence(start, end, years, is_topic)
                if self.pronoun is not _I:
                    is_topic = _goes_on(sentence, self.names, self.person, is_topic, self.is_story)

    def _sentence(
        self, start: int, end: int, years: Sequence[YearMention], is_topic: bool
    ) -> Iterator[tuple[int, Event]]:
        """Read a sentence part by part, between semicolons, colons and dashes: a year holds for its part alone.

        Of several years in a part, each holds for the clause of the verb that it stands with.
        """
        first = start
        for cut in (*_SEGMENT.finditer(self.plain, start, end), None):
            last = cut.start() if cut else end
            inside = [year for year in years if first <= year.start and year.end <= last]
            opening = self._subject_start(first, last, inside, is_topic)
            verbs = list(self._verbs(first, opening, last, is_topic, inside))
            ends = [*(clause for _, _, clause, _ in verbs[1:]), last]
            for (verb, verb_end, clause, subject), clause_end in zip(verbs, ends, strict=False):
                reach = verb.end() if verb.re is _BORN else clause_end
                before = [year for year in inside if year.end <= reach]
                near = before if len(before) == 1 else [year for year in before if clause <= year.start]
                year = near[0] if len(near) == 1 else None
                is_ahead = year is not None and (year.end <= opening or clause <= year.start < year.end <= subject)
                if event := self._event(verb, verb_end, (start, end), reach, year, is_ahead):
                    yield verb_end, event
            if cut and self.pronoun is not _I:
                is_topic = _goes_on(self.plain[first:last], self.names, self.person, is_topic, self.is_story)
            first = cut.end() if cut else end

    def _behind_year(self, first: int, years: Sequence[YearMention]) -> int:
        """Where a clause goes on behind a year that opens it, else its start."""
        for year in years:
            if first <= year.start and _TIME.fullmatch(self.plain, first, year.start):
                return len(self.plain) - len(self.plain[year.end :].lstrip(" ,\n"))
        return first

    def _subject_start(self, first: int, last: int, years: Sequence[YearMention], is_topic: bool) -> int:
        """Where the subject may stand: behind a year or a phrase that opens the part, else at its start."""
        if (behind := self._behind_year(first, years)) > first:
            return behind
        first_word = _OPENING.match(self.plain, first, last)
        if first_word is None:
            return first
        for word in _WORD.finditer(self.plain, first, last):
            if self._subject(word.start(), is_topic):
                opening = self.plain[first_word.end() : word.start()]
                return first if _names_another(opening, self.names, self.person, self.is_story) else word.start()
            if _NO_OPENING.match(word[0]):
                break
        return first

    def _subject(self, start: int, is_topic: bool) -> re.Match[str] | None:
        """The person's name, or a pronoun for it, that stands there; None: somebody else's."""
        opening = _I_AM.match(self.plain, start) if self.pronoun is _I else None
        lead = _LEAD.match(self.plain, opening.end() if opening else start)
        begins = (opening.end() if opening else start, lead.end() if lead else start)
        name = next(filter(None, (self.person.pattern.match(self.plain, begin) for begin in begins)), None)
        return name or (self.pronoun.match(self.plain, start) if is_topic else None)

    def _verbs(
        self, first: int, subject: int, last: int, is_topic: bool, years: Sequence[YearMention]
    ) -> Iterator[tuple[re.Match[str], int, int, int]]:
        """Yield what the person did, where the verb ends, and where its clause and behind its opening year that starts.

        A clause without a subject goes on with the last one.
        """
        born = _BORN.match(self.plain, first, last)
        if born and (self._subject(born.end(), is_topic) if born["comma"] else is_topic):
            yield born, first + len("Born"), first, first
        is_subject, be = False, ""
        for joint in (None, *_JOINT.finditer(self.plain, subject, last)):
            clause = text_start = joint.end() if joint else subject
            if joint and not joint["comma"]:
                text_start = self._behind_year(clause, years)
            if who := self._subject(text_start, is_topic):
                verb, verb_end = _VERB.match(self.plain, who.end(), last), 0
                is_subject = not _OWNER.match(self.plain, who.end())
            elif joint and joint["comma"] and not (be and _WAS.match(self.plain, text_start)):
                continue
            else:
                is_subject = is_subject and not _SUBORDINATE.search(self.plain, subject, text_start)
                tries = [f" {be}", " "] if be else [" "]
                rest = self.plain[text_start:last]
                verb, prefix = next(
                    ((match, text) for text in tries if is_subject and (match := _VERB.match(text + rest))), (None, "")
                )
                verb_end = text_start - len(prefix)
                if is_subject and verb is None:  # whoever else is named here is the subject of the clauses that follow
                    name = _NAME.match(self.plain, text_start)
                    is_subject = (
                        self.names.is_known_place(name[0]) if name else not _NOUN_OPENS.match(self.plain, text_start)
                    )
            if verb:
                be = "was " if verb["be"] else ""
                yield verb, verb_end + verb.end(), clause, text_start

    def _event(
        self,
        verb: re.Match[str],
        verb_end: int,
        sentence: tuple[int, int],
        last: int,
        year: YearMention | None,
        is_ahead: bool,
    ) -> Event | None:
        """Date and place what a verb says, ``is_ahead``: behind its year; None where neither is certain."""
        start, end = sentence
        name = next((name for name in (*_KINDS, *_DEEDS) if verb.groupdict().get(name)), "acted")
        deed: Deed = name if name in _DEEDS else ""
        kind: EventKind = name if name in _KINDS else "acted"
        is_behind = (
            year is not None and verb_end <= year.start < last and not _BREAK.search(self.plain, verb_end, year.start)
        )
        broken = _BREAK.search(self.plain, year.end if year and is_behind else verb_end, last)
        clause_end = broken.start() if broken else last
        is_dated = is_behind or is_ahead
        clause = self.plain[verb_end:clause_end]
        if _SINCE.search(clause) and deed not in ("arrested", "held"):
            is_dated = False
        if year and year.until is not None:  # "thrown into prison between 1811 and 1816" dates nothing
            is_point = verb.groupdict().get("put") and self.plain[year.start] in "bB"
            is_dated = is_dated and deed in ("held", "stayed") and not is_point
        when = year.year if year and is_dated else None
        aside = _PLACE_END.search(self.plain, verb_end, clause_end)
        reach = (aside.start() if aside else clause_end) - start
        event_place = find_place(self.text[start:end], verb_end - start, reach, self.names, self.pipeline)
        ending = _UNTIL.search(self.plain, verb_end, year.start) if year and deed == "held" else None
        if year and ending and not is_dated and not _BREAK.search(self.plain, verb_end, ending.start()):
            return Event(kind, year.year, self.text[start:end], "freed")
        if when is None and (kind == "acted" or event_place is None):
            return None
        until = year.until if year and is_dated else None
        if until is None and when is not None and deed in ("arrested", "held"):
            for_years = _FOR_YEARS.search(clause)
            if for_years:
                until = when + (number_of(for_years["n"]) or 0)
            elif self.anchor is not None and self.anchor > when:
                is_still = verb["perfect"] or _SINCE_THEN.search(self.plain, verb_end, end)
                until = self.anchor if is_still else None
        return Event(kind, when, self.text[start:end], deed, event_place, until)


def _names_another(text: str, names: BookNames, person: Person, is_story: bool) -> bool:
    """Whether a text names somebody but the person whom a pronoun may mean next: no place, and no owner in a story."""
    rest = person.pattern.sub(" ", text)
    for match in _NAME.finditer(rest):
        before = rest[: match.start()]
        is_owner = is_story and re.match(r"(?:\s+[A-Z]\w*)*'s\b", rest[match.end() :])
        is_where = _IN.search(before) or (_AT.search(before) and names.is_known_place(match[0]))
        if not (is_owner or is_where) and names.is_name(match[0], is_initial=not before.strip()):
            return True
    return False


def _goes_on(sentence: str, names: BookNames, person: Person, is_topic: bool, is_story: bool) -> bool:
    """Whether a pronoun in the next sentence means the person: nobody else is named, and it is named or was meant."""
    if _names_another(sentence, names, person, is_story):
        return False
    return is_topic or person.pattern.search(sentence) is not None
