"""Split French sentences: Punkt with French abbreviations.

Punkt breaks at every full stop that ends no abbreviation. Rules on the next word remove breaks after words that are
abbreviations only there ("art. 5", "le col. Martin"), and add some after single letters ("vitamine C. Les").
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from kohaku_ray.documents.model import Sentence
from kohaku_ray.documents.text.sentences import continues_at, paragraph_blocks, quick_punkt, trimmed_pieces, words_of

_MID_SENTENCE = words_of(
    "mme mmes mlle mlles mgr dr drs dre pr prof st ste vve cf env approx av bd boul fg rte c.-à-d i.e e.g"
)
"""Abbreviations that never end a sentence; Punkt itself never ends one after a single letter ("M. Le Pen")."""

_TITLES = words_of("MM Me")  # abbreviations only in capitals: "12 mm." is a length
_BEFORE_NAME = words_of("al col gén adj cap cdt lt sgt cie ets sté éd coll trad dir prés sén dép préf coord ex s.a")
"""Abbreviations that end a sentence when a word follows that commonly begins one."""

_BEFORE_NUMBER = words_of(
    "art no nos pp vol chap tab fig éq réf ann liv sect alin tél ép janv févr avr juill sept oct nov déc"
)
"""Abbreviations only in front of a number or a label: `art`, `no` and `sept` are words too."""

_STARTER = re.compile(
    "(?:Ainsi|Après|Au|Aussi|Aux|Avant|Avec|Ce|Cela|Cependant|Ces|Cet|Cette|Chaque|Chez|Comme|Contre|Dans|Depuis|Dès|"
    "Elle|Elles|En|Enfin|Entre|Et|Il|Ils|Je|Les|Leur|Leurs|Lors|Mais|Malgré|Notre|Nos|Nous|On|Or|Par|Pendant|Plus|Pour|"
    "Pourtant|Puis|Quand|Quant|Sa|Selon|Ses|Si|Son|Sous|Sur|Tous|Toutefois|Toutes|Un|Une|Vous|À)\\b"
    "|(?:Le|La|De|Du|Des)\\s+[a-zà-ÿœ\\d]|(?:C|D|J|L|N|S|Qu)'"
)
"""Words that commonly begin a sentence; "Le", "La", "De" begin surnames too, in front of a capital ("J. Le Goff")."""

_PLAIN = str.maketrans("«“‹»”›’‘", '((("""\'\'')
"""Punkt ends a sentence after a quotation mark, so opening ones become a bracket; each maps to one character."""

_WORD_END = re.compile(r"([A-Za-zÀ-ÖØ-öø-ÿ]{2,})\.\s+[!-~À-ÿ]")
_LAST_WORD = re.compile(r"([\w.-]+)\.\s+\Z")
_LETTERS = r"(?:[A-ZÀ-Ý]\.-?)*[A-ZÀ-Ý]"
_INITIALS = re.compile(_LETTERS)
_NUMBER = re.compile(r"\(?(?:\d|(?:[IVXLCDM]+|[A-Z])\b(?!'))")
_LETTERS_END = re.compile(rf"(?<![\w.'-])(?!M\.){_LETTERS}\.\s+(?=[A-ZÀ-Ý])")
_QUOTE_GOES_ON = re.compile(r"[\"']\s*[,;:)]")


def split_french(text: str) -> tuple[Sentence, ...]:
    """Find the sentences of a French text: spans as ``split_sentences`` gives them."""
    plain = text.translate(_PLAIN)
    return tuple(
        piece
        for start, end in paragraph_blocks(plain)
        for first, last in _block_sentences(plain[start:end])
        for piece in trimmed_pieces(text, start + first, start + last)
    )


@cache
def _punkt() -> Any:
    return quick_punkt(_MID_SENTENCE, _plainly_ends, ".?!…")


def _plainly_ends(context: str) -> bool | None:
    word = _WORD_END.match(context)
    return True if word and word[1].lower() not in _MID_SENTENCE else None


def _block_sentences(block: str) -> list[tuple[int, int]]:
    """The sentences of one block as untrimmed spans that together cover it."""
    cuts = {start for start, _ in _punkt().span_tokenize(block) if start and block[start - 1].isspace()}
    cuts.update(stop.end() for stop in _LETTERS_END.finditer(block) if _STARTER.match(block, stop.end()))
    has_capitals = any(map(str.isupper, block))
    spans, first = [], 0
    for cut in sorted(cuts):
        if not (continues_at(block, first, cut, has_capitals) or _is_inside(block, first, cut)):
            spans.append((first, cut))
            first = cut
    return [*spans, (first, len(block))]


def _is_inside(block: str, first: int, cut: int) -> bool:
    """Whether ``cut`` follows an abbreviation, judged by the next word, or precedes the rest of a quotation."""
    if _QUOTE_GOES_ON.match(block, cut):
        return True
    last = _LAST_WORD.search(block[max(first, cut - 40) : cut])
    if last is None:
        return False
    word = last[1].lower()
    if last[1] in _TITLES or word in _MID_SENTENCE:  # Punkt breaks even there before a dotted word: "av. J.-C."
        return True
    if word in _BEFORE_NUMBER:
        return _NUMBER.match(block, cut) is not None
    return (word in _BEFORE_NAME or _INITIALS.fullmatch(last[1]) is not None) and not _STARTER.match(block, cut)
