"""Which book a story names, and where a text has its character; read without a model."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

_ARTICLES = frozenset(("a", "an", "the", "le", "la", "les"))
_WORD = re.compile(r"[^\W_]+")
_DECOMPOSED = {code: unicodedata.normalize("NFKD", chr(code))[0] for code in range(0xC0, 0x250)}
_BASES = {code: base for code, base in _DECOMPOSED.items() if base.isalpha()} | {ord("’"): "'", ord("‘"): "'"}


def unaccent(text: str) -> str:
    """Take accents off and write apostrophes straight, one character for one: spans still fit."""
    return text if text.isascii() else text.translate(_BASES)


def words_of(text: str) -> tuple[str, ...]:
    """A name's words without case, accents and punctuation."""
    return tuple(_WORD.findall(unaccent(unicodedata.normalize("NFC", text)).casefold()))


def match_book(book_name: str, known: Mapping[str, str]) -> str | None:
    """Find the book that a story names among books' ids and titles; None: not one such book.

    It is the one whose id or title has the same words, whatever their case, accents, articles and punctuation, or, if
    none has, the same words before a subtitle (``;``, ``:``, ``(``).
    """
    for cut in (str, lambda title: re.split(r"[;:(]", title)[0]):
        wanted = _title_words(cut(book_name))
        found = [id_ for id_, title in known.items() if wanted in (_title_words(cut(id_)), _title_words(cut(title)))]
        if wanted and found:
            return found[0] if len(found) == 1 else None
    return None


def _title_words(title: str) -> tuple[str, ...]:
    words = words_of(title)
    return tuple(word for word in words if word not in _ARTICLES) or words


def names_of(character: str) -> list[str]:
    """A character's names: a disguise stands behind a slash (``Tom Ayrton/Ben Joyce``)."""
    return [name.strip() for name in character.split("/") if name.strip()]


def named(character: str) -> re.Pattern[str]:
    """Any of a character's names, as the story gives them, in an unaccented text, across line breaks."""
    spelled = [r"\s+".join(map(re.escape, unaccent(name).split())) for name in names_of(character)]
    return re.compile(rf"\b(?:{'|'.join(spelled)})\b" if spelled else r"(?!)")
