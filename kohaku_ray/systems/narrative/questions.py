"""A story as a question: what its row says of whom, what is searched for it, and how a book has its names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kohaku_ray.records import Question
from kohaku_ray.systems.questions import QuestionColumns

COLUMNS = QuestionColumns(
    question_id=("id",),
    text=("content",),
    gold=frozenset({"label"}),
    needed=("book_name", "char"),
    split_by=("book_name",),
)
"""Columns of a story; ``caption`` may be missing."""

MOST_CLAUSES = 24
"""A longer story's clauses are joined to so many."""

_FEWEST_WORDS = 3
_CLAUSE_END = re.compile(
    r"(?<=[.!?;:])[\"”’)]*\s+|\s*[—–]\s*|,\s+(?=(?:and|but|so|yet|then|while|though|although|after|before|when|where|"
    r"which|who|until|because)\b)"
)

Source = Literal["story", "clause", "caption"]


@dataclass(frozen=True, slots=True)
class Story:
    """A backstory of a novel's character (disguises behind a slash), under a caption, if it has one."""

    content: str
    character: str
    book_name: str
    caption: str

    @property
    def clauses(self) -> tuple[str, ...]:
        """What it claims, a clause each; one of fewer than three words joins the clause before it."""
        clauses: list[str] = []
        for part in filter(None, map(str.strip, _CLAUSE_END.split(self.content))):
            if clauses and min(len(part.split()), len(clauses[-1].split())) < _FEWEST_WORDS:
                clauses[-1] += f" {part}"
            else:
                clauses.append(part)
        step = -(-len(clauses) // MOST_CLAUSES)
        return tuple(" ".join(clauses[at : at + step]) for at in range(0, len(clauses), step or 1))

    def queries(self, with_character: bool) -> tuple[tuple[str, Source], ...]:
        """Everything that is searched: the clauses first, in order, then the whole story and the caption.

        The story brings its character if the book knows it: another name would only mislead the search.
        """
        name = f"{self.character.replace('/', ' ')} " if with_character else ""
        clauses: list[tuple[str, Source]] = [(clause, "clause") for clause in self.clauses]
        caption: list[tuple[str, Source]] = [(self.caption, "caption")] if self.caption else []
        return (*clauses, (name + self.content, "story"), *caption)


def story_of(question: Question) -> Story:
    """Read a question's columns."""
    columns = question.columns
    return Story(question.text, columns.get("char", ""), columns.get("book_name", ""), columns.get("caption", ""))


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
