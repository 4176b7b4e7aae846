"""Runs of capitalised words in a novel, and what stands around them: what names of people and places are read from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from kohaku_ray.index.terms import stop_words
from kohaku_ray.systems.narrative.reasoning.spelling import unaccent


def words_in(text: str) -> frozenset[str]:
    """The words of a list."""
    return frozenset(text.split())


FEMALE_TITLES = words_in(
    """madame mme mademoiselle mlle miss mrs ms lady dame countess baroness viscountess duchess marchioness marquise
    princess queen empress signora signorina ladyship"""
)
NOBLE_RANKS = words_in("count comte viscount vicomte baron duke marquis prince king")
"""Of two men of one surname and different ranks, neither is meant by the surname alone."""

TITLES = (
    FEMALE_TITLES
    | NOBLE_RANKS
    | words_in(
        """m mm mr monsieur messieurs monseigneur sir lord master mister emperor captain major colonel general
        lieutenant sergeant corporal admiral commander commandant abbe father brother uncle doctor dr professor signor
        don senor citizen bishop cardinal chevalier governor president judge lordship excellency majesty"""
    )
)
"""Words that stand in front of a person's name, unaccented and in small letters."""

PLAIN_TITLES = words_in("""m mm mr monsieur messieurs monseigneur sir master don signor senor citizen""")
"""Titles that any man may bear: they tell nobody apart."""

PARTICLES = words_in("""de la du des d von van della di da of the le l""")
"""Words inside a name that tell no two people apart."""

NOT_NAMES = words_in(
    """english french spanish italian german latin greek greeks arabic turkish russian dutch portuguese maori
    chinese roman romans corsican irish scotch indian indians englishman frenchman scotchman irishman spaniard
    catholic christian american european god heaven providence paradise hell january february march april may
    june july august september october november december monday tuesday wednesday thursday friday saturday
    sunday christmas easter chapter volume part winter summer spring autumn"""
)
"""Capitalised words that name neither a person nor a place."""

_TELL_NOTHING = TITLES | PARTICLES | NOT_NAMES
_GEOGRAPHIC = (
    "Cape|Mount|Fort|Port|Lake|River|Rio|Island|Islands|Isle|Isles|Gulf|Bay|Straits?|Sea|Rue|Place|Chateau|City|Coast|"
    "Ocean|Mountains?|Channel|Street|Bridge|Peninsula|Province|Pampas|Cordilleras?|Gate|Point|Sierra|Valley|Faubourg"
)
_RANKS = "Count|Countess|Duke|Duchess|Prince|Princess|Marquis|Marquise|Baron|Baroness|Viscount|King|Queen|Bishop"
_CAP = r"(?:[dDlLO]')?[A-Z][a-z]+(?:[A-Z][a-z]+)?(?:-[A-Za-z]+|'(?!s\b)[A-Za-z]{2,})*"
_JOIN = r"\s+(?:(?:de\s+la|de\s+l'|de|du|des|della|di|da|von|van)\s+)?"
_OPENERS = (
    "The|This|That|These|Those|His|Her|My|Our|Your|When|While|But|And|If|In|On|At|As|For|To|From|With|After|Before|Then|"
    "There|He|She|It|They|We|You|Now|So|Oh|Ah|Yes|No|Well"
)
_RUN = re.compile(
    rf"\b(?!(?:{_OPENERS})\b)(?:(?:M|MM|Mr|Mrs|Dr|Mme|Mlle)\.\s+(?:de\s+(?:la\s+)?|du\s+|d')?)?"
    rf"(?:(?:{_GEOGRAPHIC}|{_RANKS})\s+(?:of|de)\s+(?:the\s+|la\s+)?)?{_CAP}(?:{_JOIN}{_CAP}){{0,4}}"
)
_SMALL = re.compile(r"\b[a-z]+\b")
_OPENING = re.compile(r"(?:\A|[.!?:;\"“”—_(\[]|\n\s*\n)[\s\"“'‘_(]*\Z")
_SPOKE = (
    "said|replied|cried|asked|answered|exclaimed|continued|added|murmured|whispered|inquired|returned|observed|remarked|"
    "repeated|resumed|shouted|muttered|interrupted"
)
_ACTED = (
    "thought|smiled|bowed|rose|looked|turned|entered|took|saw|heard|felt|knew|stood|sat|began|shook|seized|uttered|"
    "wished|seemed|could|would|did|advanced|approached|listened|opened|gave|ran|threw|wrote|told|died|married|loved"
)
_BEFORE_PERSON = re.compile(rf"\b(?:{_SPOKE}|who|dear|young|old|poor)\s+\Z")
_AFTER_PERSON = re.compile(
    rf",?\"?\s+(?:{_SPOKE}|{_ACTED})\b|'s\s+(?:eyes?|face|heart|voice|hands?|arm|head|father|mother)\b"
)
_BEFORE_PLACE = re.compile(
    r"\b(?:in|into|near|off|across|throughout|towards?|reach(?:ed|ing)|le(?:ft|ave|aving)|quit(?:ted)?|visited|"
    r"(?:sail(?:ed|ing)|travell?(?:ed|ing)|return(?:ed|ing)?|[wg]ent|voyage|journey|road|way|arriv(?:ed|ing)|bound|born|"
    r"lived|living|stayed|imprisoned)\s+(?:to|at|for|from)|"
    r"(?:island|isle|city|town|village|port|coast|shores?|gulf|bay|cape|river|lake|province|streets?|harbou?r|country|"
    r"forest|desert|colony|plains?|prison|kingdom|capital|south|north|east|west|parallel|latitude)\s+of)\s+(?:the\s+)?\Z",
    re.IGNORECASE,
)
_AFTER_PLACE = re.compile(r"\s+(?:island|islands|river|road|street|harbou?r|coast|mountains|prison|docks?)\b")
_GEOGRAPHIC_RUN = re.compile(rf"(?:{_GEOGRAPHIC})\s|.*\s(?:{_GEOGRAPHIC})\Z", re.DOTALL)
_LONGEST_BEFORE = 40


@dataclass(slots=True)
class Run:
    """One spelling of what may be a name.

    Attributes:
        text: As the book writes it, on one line, with its titles.
        n: How often it stands in the book.
        person: How often what stands around it speaks for a person.
        place: How often it speaks for a place.
        initial: How often it begins a sentence.
    """

    text: str
    n: int = 0
    person: int = 0
    place: int = 0
    initial: int = 0


@dataclass(slots=True)
class Capitals:
    """The capitalised runs of a text and its other words.

    Attributes:
        runs: By text without accents, on one line.
        small: How often each word stands in small letters.
    """

    runs: dict[str, Run] = field(default_factory=dict)
    small: Counter[str] = field(default_factory=Counter)


def read_capitals(texts: Iterable[str]) -> Capitals:
    """Count the capitalised runs of texts; one that begins a sentence loses words that are common in small letters."""
    capitals = Capitals()
    pieces = list(texts)
    for text in pieces:
        capitals.small.update(_SMALL.findall(unaccent(text)))
    for text in pieces:
        _count(text, capitals)
    return capitals


@lru_cache(maxsize=1 << 16)
def name_words(text: str) -> tuple[str, ...]:
    """A name's words that tell people apart: no titles, particles and `NOT_NAMES`; unaccented, in small letters."""
    words = re.findall(r"[a-z]+", unaccent(text).lower().replace("'s ", " "))
    return tuple(word for word in words if len(word) > 1 and word not in _TELL_NOTHING)


def title_of(text: str) -> str:
    """The title that a name begins with, unaccented, in small letters; empty without one."""
    first = re.match(r"[a-z]+", unaccent(text).lower())
    return first[0] if first and first[0] in TITLES else ""


def _count(text: str, capitals: Capitals) -> None:
    plain = unaccent(text)
    for match in _RUN.finditer(plain):
        start, end = match.span()
        before = plain[max(0, start - _LONGEST_BEFORE) : start]
        initial = _OPENING.search(before) is not None
        for word in re.finditer(r"\S+\s*", plain[start:end]):
            small = word[0].strip().lower()
            if small in TITLES or not (small in stop_words() or (initial and capitals.small[small])):
                break
            start += word.end() - word.start()
        if start >= end:
            continue
        trimmed = start > match.start()
        key = " ".join(plain[start:end].split())
        run = capitals.runs.setdefault(key, Run(" ".join(text[start:end].split())))
        run.n += 1
        run.initial += initial and not trimmed
        after = plain[end : end + _LONGEST_BEFORE]
        run.person += bool(title_of(key) or _BEFORE_PERSON.search(before) or _AFTER_PERSON.match(after))
        run.place += bool(
            _GEOGRAPHIC_RUN.match(key) or (not trimmed and _BEFORE_PLACE.search(before)) or _AFTER_PLACE.match(after)
        )


def solid_runs(capitals: Capitals) -> Iterator[tuple[str, Run]]:
    """Yield the runs that are no ordinary words: not only at the start of sentences, or never in small letters."""
    for key, run in capitals.runs.items():
        words = name_words(key)
        if words and (run.initial < run.n or not any(capitals.small[word] for word in words)):
            yield key, run
