"""Find the book that a story names, and every spelling under which that book has the character; without a model."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property, lru_cache

from kohaku_ray.documents.text.sentences import words_of
from kohaku_ray.index.terms import stop_words

FUZZY_RATIO = 0.8
"""Least similarity (`difflib.SequenceMatcher.ratio`) of two spellings of one name."""

FUZZY_CHARS = 5
"""Shorter names are compared letter by letter: Grant and Brant would be one."""

DOMINANT = 5
"""A surname means the one who bears it this many times as often, by full name, as the next; else nobody by itself."""

Key = tuple[str, ...]

_ARTICLES = frozenset(("a", "an", "the", "le", "la", "les"))
_WORD = re.compile(r"[^\W_]+")


_DECOMPOSED = {code: unicodedata.normalize("NFKD", chr(code))[0] for code in range(0xC0, 0x250)}
_BASES = {code: base for code, base in _DECOMPOSED.items() if base.isalpha()} | {ord("’"): "'", ord("‘"): "'"}


def unaccent(text: str) -> str:
    """Take accents off and write apostrophes straight, one character for one: spans still fit."""
    return text if text.isascii() else text.translate(_BASES)


def folded_words(text: str) -> tuple[str, ...]:
    """A name's words without case, accents and punctuation."""
    return tuple(_WORD.findall(unaccent(unicodedata.normalize("NFC", text)).casefold()))


def similar(word: str, other: str) -> bool:
    """Whether two words may be spellings of one name; Louis and Louise, Mario and Maria are two."""
    if word == other:
        return True
    if min(len(word), len(other)) < FUZZY_CHARS or word[0] != other[0] or word.rstrip("aeo") == other.rstrip("aeo"):
        return False
    matcher = SequenceMatcher(None, word, other, autojunk=False)
    return matcher.real_quick_ratio() >= FUZZY_RATIO and matcher.ratio() >= FUZZY_RATIO


def match_book(book_name: str, known: Mapping[str, str]) -> str | None:
    """Find the book that a story names among books' ids and titles; None: not one such book.

    It is the one whose id or title has the same words, whatever their case, accents, articles and punctuation, or, if
    none has, the same words before a subtitle (``;``, ``:``, ``(``).
    """
    for cut in (str, lambda title: re.split(r"[;:(]", title)[0]):
        wanted = _title_words(cut(book_name))
        ids = [id_ for id_, title in known.items() if wanted in (_title_words(cut(id_)), _title_words(cut(title)))]
        if wanted and ids:
            return ids[0] if len(ids) == 1 else None
    return None


def _title_words(title: str) -> Key:
    words = folded_words(title)
    return tuple(word for word in words if word not in _ARTICLES) or words


FEMALE_TITLES = words_of(
    """madame mme mademoiselle mlle miss mrs ms lady dame countess baroness viscountess duchess marchioness marquise
    princess queen empress signora signorina ladyship"""
)
_PLAIN_TITLES = words_of("m mm mr monsieur messieurs monseigneur sir master don signor senor citizen")
MALE_TITLES = _PLAIN_TITLES | words_of(
    """count comte viscount vicomte baron duke marquis prince king lord mister emperor captain major colonel general
    lieutenant sergeant corporal admiral commander commandant abbe father brother uncle doctor dr professor bishop
    cardinal chevalier governor president judge lordship excellency majesty"""
)
"""Words that stand in front of a person's name, unaccented and in small letters."""

_TITLES = FEMALE_TITLES | MALE_TITLES
_TELL_NOTHING = _TITLES | words_of(
    """de la du des d von van della di da of the le l english french spanish italian german latin greek greeks arabic
    turkish russian dutch portuguese maori chinese roman romans corsican irish scotch indian indians englishman
    frenchman scotchman irishman spaniard catholic christian american european god heaven providence paradise hell
    january february march april may june july august september october november december monday tuesday wednesday
    thursday friday saturday sunday christmas easter chapter volume part winter summer spring autumn"""
)
_RANKS = "Count|Countess|Duke|Duchess|Prince|Princess|Marquis|Marquise|Baron|Baroness|Viscount|King|Queen|Bishop"
_CAP = r"(?:[dDlLO]')?[A-Z][a-z]+(?:[A-Z][a-z]+)?(?:-[A-Za-z]+|'(?!s\b)[A-Za-z]{2,})*"
_JOIN = r"\s+(?:(?:de\s+la|de\s+l'|de|du|des|della|di|da|von|van)\s+)?"
CAPITALISED_RUN = re.compile(
    rf"\b(?:(?:M|MM|Mr|Mrs|Dr|Mme|Mlle)\.\s+(?:de\s+(?:la\s+)?|du\s+|d')?)?"
    rf"(?:(?:{_RANKS})\s+(?:of|de)\s+(?:the\s+|la\s+)?)?{_CAP}(?:{_JOIN}{_CAP}){{0,4}}"
)
"""A name as novels write it, unaccented: capitalised words with titles and particles."""

_SMALL = re.compile(r"\b[a-z]+\b")
_IN_PLACE = re.compile(r"\b(?:[Ii]n|[Aa]t|[Nn]ear|[Ff]rom|[Ii]nto|[Tt]owards?)\s+(?:the\s+)?\Z")
_PLACE_SHARE, _FEWEST = 0.15, 3
_OPENING = re.compile(r"(?:\A|[.!?:;\"“”—_(\[]|\n\s*\n)[\s\"“'‘_(]*\Z")
_LONGEST_BEFORE = 12
_ALIASES = re.compile(r"\s*(?:/|\(|\)|,? alias |,? a\.?k\.?a\.? |,? or )\s*")


@lru_cache(maxsize=1 << 16)
def name_words(text: str) -> Key:
    """A name's words that tell people apart, without titles, particles and peoples; unaccented, in small letters."""
    words = re.findall(r"[a-z]+", unaccent(text).lower().replace("'s ", " "))
    return tuple(word for word in words if len(word) > 1 and word not in _TELL_NOTHING)


def title_of(text: str) -> str:
    """The title that a name begins with, unaccented, in small letters; empty without one."""
    first = re.match(r"[a-z]+", unaccent(text).lower())
    return first[0] if first and first[0] in _TITLES else ""


@dataclass(frozen=True)
class Person:
    """Somebody whom a story is about.

    Attributes:
        aliases: Every spelling that means this person alone, longest first, unaccented.
        n_mentions: How often the book writes one of them; 0: the book does not know this name.
    """

    name: str
    aliases: tuple[str, ...]
    n_mentions: int = 0

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Any of the aliases in an unaccented text, across line breaks."""
        spelled = (r"\s+".join(map(re.escape, alias.split())) for alias in self.aliases)
        return re.compile(rf"\b(?:{'|'.join(spelled)})\b" if self.aliases else r"(?!)")


@dataclass(frozen=True)
class BookNames:
    """The names of a book: what is read once and asked for every story.

    Attributes:
        runs: How often the book writes each run of capitalised words, unaccented, on one line, with its titles.
        small: Its words in small letters.
        places: How often a run stands behind ``in``, ``at``, ``near``, ``from``, ``into`` or ``towards``.
    """

    runs: Mapping[str, int]
    small: frozenset[str]
    places: Mapping[str, int] = field(default_factory=dict)

    def is_name(self, word: str, *, is_initial: bool) -> bool:
        """Whether a capitalised word may name somebody: at the start of a sentence, one not known in small letters."""
        lower = word.lower()
        return bool(name_words(word)) and not (is_initial and (lower in self.small or lower in stop_words()))

    def is_place(self, run: str) -> bool:
        """Whether a run, unaccented, may be a place: it has no title, and the book has it as no person's name."""
        name = " ".join(run.split())
        return not title_of(run) and (self.runs.get(name, 0) < _FEWEST or self.is_known_place(name))

    def is_known_place(self, name: str) -> bool:
        """Whether a name stands behind words of place in the book, or not in the book at all."""
        n = self.runs.get(name, 0)
        return n == 0 or self.places.get(name, 0) > _PLACE_SHARE * n

    def person(self, name: str) -> Person:
        """Find who a name means, under whatever spelling; disguises (``Tom Ayrton/Ben Joyce``) are one person.

        A surname that several people bear means none of them, unless one is named `DOMINANT` times as often as the
        next. A person that the book does not mention is known by the given name alone.
        """
        parts = [unaccent(part).strip() for part in _ALIASES.split(name) if part.strip()]
        aliases = {alias for part in parts for alias in self._aliases(part)}
        spellings = sorted(aliases.union(parts), key=lambda spelling: (-len(spelling), spelling))
        return Person(name, tuple(spellings), sum(self.runs[alias] for alias in aliases))

    @cached_property
    def _spellings(self) -> tuple[dict[Key, Counter[str]], dict[Key, Counter[str]]]:
        """The runs by their words: those without a woman's title, those with one."""
        others: dict[Key, Counter[str]] = {}
        women: dict[Key, Counter[str]] = {}
        for run, n in self.runs.items():
            if words := name_words(run):
                same = women if title_of(run) in FEMALE_TITLES else others
                same.setdefault(words, Counter())[run] += n
        return others, women

    def _aliases(self, name: str) -> list[str]:
        """The book's spellings of one name: as it is given, fuller (Noirtier de Villefort), shorter, or nearly."""
        spelled = self._spellings[title_of(name) in FEMALE_TITLES]
        wanted = name_words(name)
        if not wanted:
            return []

        def wider(words: Key) -> Counter[Key]:
            return Counter({other: spelled[other].total() for other in spelled if set(words) < set(other)})

        known = [wanted] if wanted in spelled else []
        ranked = wider(wanted).most_common(2)
        if len(ranked) == 1 or (ranked and ranked[0][1] >= DOMINANT * ranked[1][1]):
            known.append(ranked[0][0])
        mine = sum(spelled[words].total() for words in known)
        for words in spelled:
            if set(words) < set(wanted) and (known or words[-1] == wanted[-1]):
                titled = (n for run, n in spelled[words].items() if title_of(run) not in ("", *_PLAIN_TITLES))
                rivals = [n for other, n in wider(words).items() if other not in known]
                if max([*titled, *rivals], default=0) * DOMINANT <= mine:
                    known.append(words)
        if not known and not ranked:
            joined = "".join(wanted)
            near = [
                words
                for words in spelled
                if similar(joined, "".join(words)) or (len(words) == 1 and similar(wanted[-1], words[0]))
            ]
            known = near if len(near) == 1 else []
        return [run for words in known for run in spelled[words]]


def read_names(texts: Iterable[str]) -> BookNames:
    """Count the capitalised runs of paragraphs; one that begins a sentence loses words known in small letters."""
    pieces = [unaccent(text) for text in texts]
    small = frozenset(word for text in pieces for word in _SMALL.findall(text))
    runs, places = Counter[str](), Counter[str]()
    for text in pieces:
        for match in CAPITALISED_RUN.finditer(text):
            start, end = match.span()
            before = text[max(0, start - _LONGEST_BEFORE) : start]
            is_initial = _OPENING.search(before) is not None
            words = text[start:end].split()
            while words and words[0].lower() not in _TITLES:
                first = words[0].lower()
                if not (first in stop_words() or (is_initial and first in small)):
                    break
                words.pop(0)
            if words:
                runs[" ".join(words)] += 1
                places[" ".join(words)] += _IN_PLACE.search(before) is not None
    return BookNames(runs, small, +places)
