"""Split prose, tables and lists into sentences.

NLTK's Punkt proposes the breaks, with our own abbreviations in place of a downloaded model. A few rules then add the
breaks that Punkt cannot see without training ("… in the U.S. The plant …") and remove those that no reader would
make ("… See example.org. npm …"). Blank lines and list items always break; no sentence is longer than `MAX_CHARS`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from kohaku_ray.documents.lean_imports import nltk_module
from kohaku_ray.documents.model import Sentence

MAX_CHARS = 2000  # longest sentence, in characters: a dump without punctuation is cut at line ends, then at spaces


def words_of(text: str) -> frozenset[str]:
    """Split a text into the set of its words."""
    return frozenset(text.split())


_MID_SENTENCE = words_of(  # abbreviations that never end a sentence
    """a.k.a approx ca cf e.g i.e viz vs w.r.t fig figs eq eqs eqn eqns dr drs mr mrs ms mme mlle messrs prof profs st
    capt lt sgt maj hon chap"""
)
_MAY_END = words_of(  # those that end one when a word follows that commonly begins one
    """al etc et inc ltd corp co llc plc gmbh bros dept univ assoc est ed eds jr sr col gen gov rep rev sen mt ch
    resp incl excl avg temp cont u.s u.s.a u.k u.n e.u d.c a.m p.m ph.d m.d m.sc b.sc m.s b.s b.a m.a
    jan feb mar apr jun jul aug sep sept oct nov dec"""
)
_BEFORE_NUMBER = words_of(  # those only in front of a number or a label: `no`, `tab` and `app` are words too
    """no nos p pp vol vols sec secs sect tab tabs ref refs app appx art alg thm def prop lem cor ex para pt pts ver
    env"""
)
_ABBREVIATIONS = _MID_SENTENCE | _MAY_END | _BEFORE_NUMBER

_STARTER = re.compile(
    r"(?:The|This|These|Those|That|There|Their|They|Then|Thus|Therefore|We|Our|It|Its|He|She|His|Her|In|On|At|For|From|To|By|"
    "As|With|However|Moreover|Furthermore|Additionally|Hence|Although|Though|While|When|Where|If|Since|Because|After|"
    r"Before|Such|Each|Both|Here|But|And|Yet|Finally|Overall|Meanwhile|Instead|Unlike|According|Among|During|Under|You|What)\b"
)
"""Words that commonly begin a sentence."""

_PLAIN_QUOTES = tuple(zip("“”„«»‘’‚", "\"\"\"()'''", strict=True))
"""Punkt knows only straight quotes and brackets; each is one character, so that spans stay valid.

Of a straight quote with a space on both sides, as « and » have, it cannot tell which side it belongs to.
"""

_STOP_BEFORE_CAPITAL = re.compile(r"\.([\"')\]]*)\s+(?=[A-Z])")
_NOT_IN_WORD = re.compile(r"[^\w.]")
_LETTER = re.compile(r"[A-Za-z]")
_UNIT = re.compile(r"\d\s?[WJVAKCFBMTGhsgtm]\Z")
_CAPITALISED = re.compile(r"[A-Z][a-z]")

_LABELS = frozenset(word.title() for word in _BEFORE_NUMBER - {"p"})
_LONGEST = max(map(len, _ABBREVIATIONS))


_WIDE_END = re.compile(r"[。！？]+[」』）\"']*")

# Untrained, Punkt always ends a sentence at "a word. Next" (no abbreviation), "[12]. Next" and "2024. Next", and never
# at "al. 2023", "J. Bach," and "J.;".
_WORD_END = re.compile(r"([A-Za-z]{2,})\.[ \t\n]+[!-~]")
_SURE_END = re.compile(r"(?:[!-~]*[)\]]\.[ \t\n]+[!-~]|[0-9]+\.[ \t\n]+[A-Z0-9])")
_SURELY_ON = re.compile(
    r"(?:[A-Za-z]\.[ \t\n]+[A-Za-z]|[A-Za-z]{2,}\.[ \t\n]+[A-Za-z0-9])[A-Za-z0-9]*[.,:;]?|[A-Za-z]\.;"
)

_GOING_ON = frozenset(",;:)]}%")
_FIRST_WORD = re.compile(r"[\"'(\[]*([^\W\d_]+)")
_ENUMERATOR = re.compile(r"[\[(]?(?:\d{1,3}(?:\.\d{1,3})*|[A-Za-z]|[ivxIVX]{1,5})[\])]?[.)]?|[-–—*+•·]+")

_BULLET = re.compile(r"\s*[•‣◦▪●■□➢➤✓∙]")
_DASH = re.compile(r"\s*([-*+–—])\s+\S")
_NUMBERED = re.compile(r"\s*([\[(]?)(\d{1,3}|[a-z](?=\)))([.)\]])\s+\S")
LEADERS = re.compile(r"(?:[.…·․‥⋅_][ \t]?){4,}")  # dots that lead from an entry of a contents page to its page
_ENTRY_END = re.compile(r"[·…][ \t]*(?:\d{1,4}|[ivxl]{1,7}|[A-Z]-\d{1,3})[ \t]*$")
_LINE_ENDS_SENTENCE = re.compile(r"[.:;!?][\"')\]]*$")


def split_sentences(text: str) -> tuple[Sentence, ...]:
    """Find the sentences of any text; blank lines, list items and entries of a contents page stand alone.

    Spans are in order, trimmed, never empty and at most `MAX_CHARS` long; all but white space is in one of them.
    """
    plain = text
    if not text.isascii():
        for quote, straight in _PLAIN_QUOTES:  # str.translate takes thirty times as long
            plain = plain.replace(quote, straight)
    return tuple(
        piece
        for block_start, block_end in paragraph_blocks(plain)
        for start, end in _block_sentences(plain, block_start, block_end)
        for piece in trimmed_pieces(text, start, end)
    )


def split_lines(text: str) -> tuple[Sentence, ...]:
    """Make every line one sentence, for the rows of a table. Spans as `split_sentences` gives them."""
    return tuple(piece for start, end in _lines(text) for piece in trimmed_pieces(text, start, end))


def whole_text(text: str) -> tuple[Sentence, ...]:
    """Make the text one sentence, for program code; cut only where it is longer than `MAX_CHARS`."""
    return tuple(trimmed_pieces(text, 0, len(text)))


def quick_punkt(abbreviations: frozenset[str], decide: Callable[[str], bool | None], ends: str = ".?!") -> Any:
    """Make Punkt with our abbreviations, without its scoring where the result is plain: that takes most of the time.

    ``decide`` says whether a stop in its context ends a sentence, None where Punkt must score; ``ends`` are the stops.
    """
    punkt = nltk_module("nltk.tokenize.punkt")

    class Language(punkt.PunktLanguageVars):  # type: ignore[name-defined, misc]
        sent_end_chars = tuple(ends)

    class Quick(punkt.PunktSentenceTokenizer):  # type: ignore[name-defined, misc]
        def text_contains_sentbreak(self, text: str) -> bool:
            decided = decide(text)
            return bool(super().text_contains_sentbreak(text)) if decided is None else decided

    parameters = punkt.PunktParameters()
    parameters.abbrev_types = set(abbreviations)
    return Quick(parameters, lang_vars=Language())


@cache
def _punkt() -> Any:
    return quick_punkt(_ABBREVIATIONS, _plainly_ends)


def _plainly_ends(context: str) -> bool | None:
    word = _WORD_END.match(context)
    if (word is not None and word[1].lower() not in _ABBREVIATIONS) or _SURE_END.match(context):
        return True
    return False if _SURELY_ON.fullmatch(context) else None


def _lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of every line, blank ones too, without its line end."""
    start = 0
    while True:
        end = text.find("\n", start)
        if end < 0:
            yield start, len(text)
            return
        yield start, end
        start = end + 1


def paragraph_blocks(text: str) -> Iterator[tuple[int, int]]:
    """Yield runs of lines between blank lines, and within a run each list item by itself."""
    if "\n" not in text:
        yield 0, len(text)
        return
    run: list[tuple[int, int]] = []
    for start, end in [*_lines(text), (len(text), len(text))]:
        if text[start:end].strip():
            run.append((start, end))
            continue
        if run:
            items = _item_lines([text[a:b] for a, b in run])
            firsts = [0, *sorted(items - {0}), len(run)]
            for first, behind in pairwise(firsts):
                yield run[first][0], run[behind - 1][1]
        run = []


def _item_lines(lines: list[str]) -> set[int]:
    """Find the lines that begin a list item, or stand below an entry of a contents page.

    A wrapped line may begin with "3. " or "- " by chance, so these count only after a line that ends a sentence or
    introduces a list, or beside another dash or the number before or after.
    """
    dashes = {i: match[1] for i, line in enumerate(lines) if (match := _DASH.match(line))}
    numbers = {i: match.groups() for i, line in enumerate(lines) if (match := _NUMBERED.match(line))}
    n_dashes = Counter(dashes.values())
    numbers_seen = {(opening, _rank(label), closing) for opening, label, closing in numbers.values()}
    accepted = {i for i, line in enumerate(lines) if _BULLET.match(line)}
    accepted |= {i for i, line in enumerate(lines[:-1], 1) if ends_entry(line)}
    accepted |= {i for i, kind in dashes.items() if n_dashes[kind] > 1 or _follows_sentence(lines, i)}
    for i, (opening, label, closing) in numbers.items():
        neighbours = {(opening, _rank(label) + step, closing) for step in (-1, 1)}
        if neighbours & numbers_seen or _follows_sentence(lines, i):
            accepted.add(i)
    return accepted


def ends_entry(line: str) -> bool:
    """Whether a line ends as an entry of a contents page does: with dots and a page number."""
    return ("·" in line or "…" in line) and _ENTRY_END.search(line[-16:]) is not None


def _rank(label: str) -> int:
    """The place of ``3`` or ``c`` in its list; letters keep clear of numbers."""
    return int(label) if label.isdigit() else 1000 + ord(label)


def _follows_sentence(lines: list[str], i: int) -> bool:
    """Whether the line before ends a sentence or introduces a list."""
    return i > 0 and _LINE_ENDS_SENTENCE.search(lines[i - 1].rstrip()[-10:]) is not None


def _block_sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the sentences of one block as untrimmed spans that together cover it."""
    block = text[start:end]
    # a full stop with no space after it ends nothing: "Fig.(a)", "measured.[12]"
    cuts = {cut for cut, _ in _punkt().span_tokenize(block) if cut and block[cut - 1].isspace()}
    for stop in _STOP_BEFORE_CAPITAL.finditer(block):
        if stop.end() not in cuts and _ends_there(block, stop):
            cuts.add(stop.end())
    if not block.isascii():
        cuts.update(match.end() for match in _WIDE_END.finditer(block))
    has_capitals = any(map(str.isupper, block))
    first = 0
    cuts.discard(len(block))
    for cut in sorted(cuts):
        if not continues_at(block, first, cut, has_capitals):
            yield start + first, start + cut
            first = cut
    yield start + first, end


def _ends_there(block: str, stop: re.Match[str]) -> bool:
    """Whether a full stop before a capital ends a sentence, though Punkt may take it for an abbreviation's."""
    start, end = stop.span()
    word = _NOT_IN_WORD.split(block[max(0, start - _LONGEST - 1) : start])[-1]
    # Punkt takes any single letter for an initial: "class B. The …", "300 W. Training …"
    if (word.lower() in _MAY_END or _LETTER.fullmatch(word)) and _STARTER.match(block, end):
        return True
    if word == "etc" and _CAPITALISED.match(block, end):
        return True
    # "the answer is no. The …", "Use the app. It …": a word, not the label of a number ("No. 5", "App. B")
    if not stop[1] and (word in _BEFORE_NUMBER or (word in _LABELS and _CAPITALISED.match(block, end))):
        return True
    return _UNIT.search(block, max(0, start - 3), start) is not None


def continues_at(block: str, first: int, cut: int, has_capitals: bool) -> bool:
    """Whether the sentence from ``first`` continues at ``cut``."""
    begins = block[cut]
    if begins in _GOING_ON:
        return True
    if has_capitals and not begins.isupper():
        word = _FIRST_WORD.match(block, cut)
        if word is not None and word[1].islower():
            return True
    if cut - first >= 20 or _ENUMERATOR.fullmatch(block[first:cut].strip()) is None:
        return False
    return first == 0 or "\n" in block[max(0, first - 2) : first]


def trimmed_pieces(text: str, start: int, end: int) -> Iterator[Sentence]:
    """Yield the span trimmed, in pieces of at most `MAX_CHARS`; nothing for white space."""
    start, end = _trim(text, start, end)
    while end - start > MAX_CHARS:
        cut = _cut(text, start)
        yield Sentence(*_trim(text, start, cut))
        start, end = _trim(text, cut, end)
    if start < end:
        yield Sentence(start, end)


def _cut(text: str, start: int) -> int:
    """Where to cut a long span: the last line end in the second half of the allowed length, else space, else there."""
    half, limit = start + MAX_CHARS // 2, start + MAX_CHARS
    line_end = text.rfind("\n", half, limit + 1)
    if line_end >= 0:
        return line_end
    return next((i for i in range(limit, half, -1) if text[i].isspace()), limit)


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Trim the white space at both ends."""
    piece = text[start:end].rstrip()
    end = start + len(piece)
    return end - len(piece.lstrip()), end
