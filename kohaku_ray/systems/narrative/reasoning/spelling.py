"""Spellings of one name: without accents, case and punctuation, or a letter apart."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher

FUZZY_RATIO = 0.8
"""Least similarity (`difflib.SequenceMatcher.ratio`) of two spellings of one name."""

FUZZY_CHARS = 5
"""Shorter names are compared letter by letter: Grant and Brant would be one."""

_ARTICLES = frozenset(("a", "an", "the", "le", "la", "les"))
_WORD = re.compile(r"[^\W_]+")


def _base(char: str) -> str:
    base = unicodedata.normalize("NFKD", char)[0]
    return base if base.isalpha() else char


_BASES = {code: _base(chr(code)) for code in range(0xC0, 0x250)} | {ord("’"): "'", ord("‘"): "'"}


def unaccent(text: str) -> str:
    """Take accents off and write apostrophes straight, one character for one: spans still fit."""
    return text if text.isascii() else text.translate(_BASES)


def words_of(text: str) -> tuple[str, ...]:
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


def match_book(book_name: str, known: Mapping[str, str] | Iterable[str]) -> str | None:
    """Find the book that a story names.

    Args:
        book_name: As the story's row gives it.
        known: The books' ids, each with its title where a mapping is given.

    Returns:
        The id of the one book whose id or title has the same words, whatever their case, accents, articles and
        punctuation, or, if none has, the same words before a subtitle (``;``, ``:``, ``(``). None when there is no such
        book, or more than one.
    """
    titles = dict(known) if isinstance(known, Mapping) else dict.fromkeys(known, "")
    for cut in (str, _main_title):
        wanted = _title_words(cut(book_name))
        found = [
            doc_id
            for doc_id, title in titles.items()
            if wanted in (_title_words(cut(doc_id)), _title_words(cut(title)))
        ]
        if wanted and found:
            return found[0] if len(found) == 1 else None
    return None


def _title_words(title: str) -> tuple[str, ...]:
    words = words_of(title)
    return tuple(word for word in words if word not in _ARTICLES) or words


def _main_title(title: str) -> str:
    return re.split(r"[;:(]", title)[0]
