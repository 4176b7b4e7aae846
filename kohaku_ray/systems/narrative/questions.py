"""A story as a question: what its row says of whom, and what is searched for it."""

from __future__ import annotations

import re
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
