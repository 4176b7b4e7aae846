"""Words, sentences, and the coverage of a question by a sentence."""

from __future__ import annotations

import math
import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache


def word_set(listed: str) -> frozenset[str]:
    """Read a list of words written with spaces between."""
    return frozenset(listed.split())


STOP_WORDS = word_set("""
    a about above according after all also am an and any are as at be because been before being below between both but
    by can could did do does doing during each for from further had has have having he her here him his how i if in into
    is it its itself just many may might more most much must my no nor not of off on once one only or other our out over
    own per roughly same she should so some such than that the their them then there these they this those through to
    too under until up upon used using very was we were what when where which while who whom whose why will with within
    without would you your
    true false approximately approximate estimated estimate reported name called term given total share percentage
    percent range value amount number
    take takes took taken use uses make makes made get gets got give gives gave go goes went say says said
""")
_ABBREVIATIONS = word_set("""
    al fig figs eq eqs sec tab no nos vs cf e.g i.e etc approx dr mr mrs ms prof st ref refs vol pp ed eds inc ltd co
    corp dept est resp ca u.s u.k u.n a.k.a jan feb mar apr jun jul aug sep sept oct nov dec
""")
_ENDS_IN_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[“\"'])(?:" + "|".join(map(re.escape, sorted(_ABBREVIATIONS))) + r"|[A-Z])\.$", re.IGNORECASE
)
_BREAK = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[]*[A-Z0-9])")
_LINE_ITEM = re.compile(r"\n\s*(?=[-*•]\s|\d+[.)]\s)|\n\s*\n")
_TABLE_ROW = re.compile(r"^\s*\|(.+)\|\s*$")
_HEADER_UNIT = re.compile(r"^(.*?)\s*[(\[]([^()\[\]]+)[)\]]$")
_WORD = re.compile(r"\d+(?:[.,]\d+)*[^\W\d_]*\d*|[^\W\d_]+\d*(?:[^\W_]+)?")
_POWER_OF_TEN = re.compile(r"(?<=\d)\s*[×x·*]\s*10\s*\^?\s*([-−⁻]?[\d⁰¹²³⁴⁵⁶⁷⁸⁹]+)|(?<!\w)10\^?([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻−", "0123456789--")
_SUFFIXES = sorted(
    word_set("""
        izations ization izing ized izes ize ational ations ation ptions ption tions tion ments ment ings ing ances ance
        ences ence ies ied ers ed es er ly al s e
    """),
    key=lambda suffix: (-len(suffix), suffix),
)
_MIN_STEM = 4
_LOOK_BACK_CHARS = 40
_LONGEST_PASSAGE_CHARS = 2000
_EVERYWHERE = 0.3  # weight of a term that every passage has: its presence says little, its absence much
_UNKNOWN_NAME = 1.2  # a name or code that the context lacks suggests that nothing answers
_UNKNOWN_WORD = 0.6  # an ordinary word that the context lacks is as often a paraphrase as a sign of no answer
_BRITISH_S = re.compile(r"(?<=[a-z]i)s(?=ations?$|ed$|es?$|ing$)")
_BRITISH_RE = re.compile(r"tre(?=s?$)")


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a sentence.

    Attributes:
        text: As written.
        stem: Its stem, for comparison.
        start: Its first character in the sentence.
    """

    text: str
    stem: str
    start: int


@dataclass(frozen=True, slots=True)
class Passage:
    """A sentence, list item or table cell of a snippet.

    Attributes:
        ref_id: Its document.
        text: Its text on one line.
        words: Its words.
        stems: Their stems.
        near: Stems of the sentences on either side.
        around: Stems of the whole snippet.
    """

    ref_id: str
    text: str
    words: tuple[Word, ...]
    stems: frozenset[str]
    near: frozenset[str]
    around: frozenset[str]


@dataclass(frozen=True, slots=True)
class Coverage:
    """How well a passage covers a question.

    Attributes:
        share: Weighted share of the question's terms that it covers, from 0 to 1; a term that stands only beside it
            counts half, one that stands only further off in the snippet a quarter.
        found: The question's stems in the passage itself.
        touches: It, or a sentence beside it, has a term of the question that is no name, if the question has any.
    """

    share: float
    found: frozenset[str]
    touches: bool


def normalise(text: str) -> str:
    """Normalise a text: powers of ten as ``1e6``, no compatibility characters, hyphenated line breaks joined."""
    text = _POWER_OF_TEN.sub(_in_e_notation, text)
    return re.sub(r"(?<=[^\W\d_])-\n\s*(?=[a-z])", "", unicodedata.normalize("NFKC", text))


def _in_e_notation(power: re.Match[str]) -> str:
    exponent = (power[1] or power[2]).translate(_SUPERSCRIPTS)
    return f"e{exponent}" if power[1] else f"1e{exponent}"


def before(text: str, position: int) -> str:
    """Return the few words before a position."""
    return text[max(0, position - _LOOK_BACK_CHARS) : position]


def words_of(text: str) -> tuple[Word, ...]:
    """Split a text into words; ``1,287`` and ``0.18`` stay whole."""
    return tuple(Word(found[0], stem(found[0]), found.start()) for found in _WORD.finditer(text))


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """Return a word's rough stem; a number loses its thousands separators."""
    lower = word.lower()
    if lower[0].isdigit():
        return lower.replace(",", "")
    lower = _BRITISH_RE.sub("ter", _BRITISH_S.sub("z", lower))
    for suffix in _SUFFIXES:
        if lower.endswith(suffix) and len(lower) - len(suffix) >= (3 if suffix == "s" else _MIN_STEM):
            return lower[: -len(suffix)]
    return lower


def content_stems(text: str) -> tuple[str, ...]:
    """List the distinct stems of a text without stop words, in order."""
    return tuple(dict.fromkeys(word.stem for word in words_of(text) if word.text.lower() not in STOP_WORDS))


def split_passages(text: str) -> list[str]:
    """Split a snippet into sentences, list items and table cells, each on one line.

    A table cell carries its row's first cell, its column's title and the unit in that title.
    """
    passages: list[str] = []
    prose: list[str] = []
    header: list[str] | None = None
    for line in normalise(text).split("\n"):
        row = _TABLE_ROW.match(line)
        if row is None:
            header = None
            prose.append(line)
            continue
        cells = [cell.strip() for cell in row[1].split("|")]
        if header is None:
            passages += _split_prose("\n".join(prose))
            prose, header = [], cells
        elif any(cell.strip(":- ") for cell in cells):
            passages += _row_passages(header, cells)
    return passages + _split_prose("\n".join(prose))


def _row_passages(header: Sequence[str], cells: Sequence[str]) -> list[str]:
    passages = []
    for title, cell in list(zip(header, cells, strict=False))[1:]:
        unit = _HEADER_UNIT.match(title)
        shown = f"{unit[1]}: {cell} {unit[2]}" if unit else f"{title}: {cell}"
        passages.append(f"{header[0]} {cells[0]}, {shown}")
    return passages


def _split_prose(text: str) -> list[str]:
    sentences: list[str] = []
    for block in _LINE_ITEM.split(text):
        line = " ".join(block.split())
        start = 0
        for gap in _BREAK.finditer(line):
            if not _ENDS_IN_ABBREVIATION.search(before(line, gap.start())):
                sentences.append(line[start : gap.start()])
                start = gap.end()
        sentences.append(line[start:])
    return [part for sentence in sentences for part in _short_parts(sentence)]


def _short_parts(sentence: str) -> list[str]:
    """Cut what is far too long for a sentence, such as a table that came as text."""
    if len(sentence) <= _LONGEST_PASSAGE_CHARS:
        return [sentence] if sentence else []
    return textwrap.wrap(sentence, _LONGEST_PASSAGE_CHARS, break_on_hyphens=False)


@lru_cache(maxsize=1024)
def passages_of(ref_id: str, text: str) -> tuple[Passage, ...]:
    """Analyse one snippet; members and attempts share the work."""
    texts = split_passages(text)
    words = [words_of(passage) for passage in texts]
    stems = [frozenset(word.stem for word in one) for one in words]
    around = frozenset().union(*stems)
    return tuple(
        Passage(ref_id, texts[i], words[i], stems[i], frozenset().union(*stems[max(0, i - 1) : i + 2]), around)
        for i in range(len(texts))
    )


def term_weights(question: str, passages: Sequence[Passage]) -> dict[str, float]:
    """Weigh the question's terms: rare ones more, names and numbers even more.

    The weight is a smoothed inverse document frequency over the passages (Robertson 2004).
    """
    counts = Counter(stem for passage in passages for stem in passage.stems)
    emphasis = names_of(question)
    weights = {}
    for term in content_stems(question):
        idf = _EVERYWHERE + math.log1p((len(passages) - counts[term] + 0.5) / (counts[term] + 0.5))
        if counts[term] == 0:
            idf *= _UNKNOWN_NAME if term in emphasis else _UNKNOWN_WORD
        weights[term] = idf * emphasis.get(term, 1.0)
    return weights


def names_of(question: str) -> dict[str, float]:
    """Return a question's names, numbers and codes with their weight factors; the first word is left out."""
    emphasis: dict[str, float] = {}
    for word in words_of(question)[1:]:
        has_digit, has_letter = any(map(str.isdigit, word.text)), any(map(str.isalpha, word.text))
        if has_digit and has_letter:
            emphasis[word.stem] = 3.0
        elif has_digit or word.text[0].isupper():
            emphasis[word.stem] = 1.5
    return emphasis


def cover(weights: Mapping[str, float], names: frozenset[str], passage: Passage) -> Coverage:
    """Measure how well a passage covers the weighted terms."""
    covered = sum(
        weight * (1.0 if t in passage.stems else 0.5 if t in passage.near else 0.25 if t in passage.around else 0.0)
        for t, weight in weights.items()
    )
    total = sum(weights.values())
    others = weights.keys() - names
    return Coverage(
        share=covered / total if total else 0.0,
        found=frozenset(passage.stems & weights.keys()),
        touches=not others or bool(others & passage.near),
    )


def proximity(passage: Passage, start: int, end: int, weights: Mapping[str, float], found: Iterable[str]) -> float:
    """Measure how close the found terms are to a span: 1 if adjacent, towards 0 with the distance.

    A comma counts as two words between, a semicolon or a full stop as six.
    """
    found = set(found)
    total = sum(weights[term] for term in found)
    if not total:
        return 0.0
    place = _places(passage)
    here = [at for word, at in zip(passage.words, place, strict=True) if start <= word.start < end]
    if not here:
        return 0.0
    closeness: dict[str, float] = {}
    for word, at in zip(passage.words, place, strict=True):
        if word.stem in found and not start <= word.start < end:
            distance = here[0] - at if at < here[0] else at - here[-1]
            closeness[word.stem] = max(closeness.get(word.stem, 0.0), 4.0 / (3.0 + distance))
    return sum(weights[term] * near for term, near in closeness.items()) / total


@lru_cache(maxsize=16384)
def _places(passage: Passage) -> tuple[int, ...]:
    """Number a passage's words, with gaps for punctuation."""
    places, place, position = [], 0, 0
    for word in passage.words:
        between = passage.text[position : word.start]
        place += 1 + 2 * between.count(",") + 6 * (between.count(";") + between.count(". "))
        places.append(place)
        position = word.start + len(word.text)
    return tuple(places)
