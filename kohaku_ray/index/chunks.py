"""Chunks: windows over a text, by characters or by tokens in whole paragraphs, each retrieved as one piece."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from kohaku_ray.documents.model import Paragraph, Sentence
from kohaku_ray.index.arrays import F64, I64
from kohaku_ray.settings import PositiveInt, Settings

PARAGRAPH_BREAK = "\n\n"
"""Separator of a section's title and its paragraphs when they are read as one text."""

TokenCounter = Callable[[Sequence[str]], I64]
"""Counts the tokens of each text: shape ``(n,)``; ``token_counter`` makes one."""


class Chunks(Settings):
    """How documents are cut into chunks, windows that are searched beside paragraphs and sentences."""

    unit: Literal["chars", "tokens"] = "chars"
    """Windows of characters, or of the tokens of whole paragraphs (the encoder's)."""
    size: PositiveInt = 500
    """Characters per window, or most tokens in one."""
    overlap: Annotated[int, Field(ge=0)] = 50
    """Characters that two neighbours share; windows of tokens have no overlap."""
    min_size: PositiveInt = 200
    """Fewest tokens wanted in a window; windows of characters have no least size."""
    over: Literal["document", "section"] = "document"
    """Whose paragraphs are rejoined and cut: each document's, or each section's."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Chunks:
        if self.unit == "chars" and self.overlap >= self.size:
            raise ValueError(
                f"index.chunks.overlap is {self.overlap} but chunks.size {self.size} characters: "
                "set overlap to 0 or more, and below size"
            )
        if self.unit == "tokens" and self.min_size > self.size:
            raise ValueError(
                f"index.chunks.min_size is {self.min_size} but chunks.size {self.size} tokens: "
                "set min_size to 1 or more, and at most size"
            )
        return self

    def as_mapping(self) -> dict[str, Any]:
        """Return the settings that decide the chunks, keys named as in the configuration."""
        bound = {"overlap": self.overlap} if self.unit == "chars" else {"min_size": self.min_size}
        return {"unit": self.unit, "size": self.size, "over": self.over, **bound}

    def cut(self, paragraphs: Sequence[Paragraph], count: TokenCounter | None) -> tuple[str, list[Span]]:
        """Rejoin paragraphs that have a text, and cut them; windows of characters need no ``count``.

        Returns:
            The rejoined text, and its windows.
        """
        text, sentences = join_paragraphs(paragraphs)
        if self.unit == "chars":
            return text, character_windows(text, self.size, self.overlap)
        assert count is not None, "windows of tokens are counted"
        return text, token_windows(text, sentences, count, self.min_size, self.size)


Span = tuple[int, int]
"""A window of a text: its first character, and one past its last."""


def character_windows(text: str, size: int = 500, overlap: int = 50) -> list[Span]:
    """Cut a text every ``size - overlap`` characters into windows of ``size``; the last one may be shorter.

    Returns:
        Windows that cover the text, none within another; none for an empty text.
    """
    starts = range(0, max(len(text) - overlap, min(len(text), 1)), size - overlap)
    return [(start, min(start + size, len(text))) for start in starts]


def cut_near(text: str, middle: int) -> tuple[str, str]:
    """Cut a text of at least two characters in two, between words where there are any shortly before ``middle``."""
    space = max(text.rfind(" ", 0, middle + 1), text.rfind("\n", 0, middle + 1))
    end = space if space > middle // 2 else max(1, middle)
    return text[:end], text[end:]


def without_header(text: str) -> str:
    """Cut off the header of a text of ``texts_to_encode`` with ``context_header``: its first line, if it has two."""
    return text.partition("\n")[2] or text


def join_paragraphs(paragraphs: Sequence[Paragraph]) -> tuple[str, list[tuple[Sentence, ...]]]:
    """Rejoin paragraphs to one text, as a section's is, with the spans of each one's sentences in it."""
    starts = np.cumsum([0, *(len(paragraph.text) + len(PARAGRAPH_BREAK) for paragraph in paragraphs)]).tolist()
    spans = [
        tuple(Sentence(start + sentence.start, start + sentence.end) for sentence in paragraph.sentences)
        for start, paragraph in zip(starts, paragraphs, strict=False)
    ]
    return PARAGRAPH_BREAK.join(paragraph.text for paragraph in paragraphs), spans


def token_windows(
    text: str,
    paragraphs: Sequence[Sequence[Sentence]],
    count: TokenCounter,
    min_tokens: int = 200,
    max_tokens: int = 600,
) -> list[Span]:
    """Group a text's paragraphs into windows of ``min_tokens`` to ``max_tokens``, without overlap.

    A window ends between paragraphs where the bounds allow it, else between sentences, and inside a sentence only
    where it is longer than ``max_tokens``. Only a text of fewer than ``min_tokens`` has a smaller window, as far as
    its sentences allow.

    ``paragraphs`` are per paragraph the spans of its sentences in the text (``join_paragraphs``), ``count`` counts the
    tokens per text; a window's tokens are the sum over its sentences.
    """
    sentences = [sentence for paragraph in paragraphs for sentence in paragraph]
    owner = np.repeat(np.arange(len(paragraphs)), [len(paragraph) for paragraph in paragraphs])
    sizes = count([text[sentence.start : sentence.end] for sentence in sentences])
    units: list[tuple[int, int, int, int]] = []  # start, end, tokens, paragraph
    for sentence, size, paragraph in zip(sentences, sizes.tolist(), owner.tolist(), strict=True):
        pieces = [(sentence.start, sentence.end, size)]
        if size > max_tokens:
            pieces = list(_word_runs(text, sentence, count, max_tokens))
        units.extend((*piece, paragraph) for piece in pieces)
    if not units:
        return []
    table = np.array(units, np.int64)
    ends = _best_breaks(table[:, 2], table[:, 3], min_tokens, max_tokens)
    return [(units[first][0], units[behind - 1][1]) for first, behind in pairwise([0, *ends])]


def _word_runs(text: str, sentence: Sentence, count: TokenCounter, max_tokens: int) -> Iterator[tuple[int, int, int]]:
    """Cut an over-long sentence at spaces into runs of about half of ``max_tokens``: start, end, tokens."""
    words = [match.span() for match in re.finditer(r"\S+", text[sentence.start : sentence.end])]
    sizes = count([text[sentence.start + start : sentence.start + end] for start, end in words])
    run = (np.cumsum(sizes) - sizes) // max(1, max_tokens // 2)
    firsts = [0, *(np.flatnonzero(np.diff(run)) + 1).tolist(), len(words)]
    for first, behind in pairwise(firsts):
        yield sentence.start + words[first][0], sentence.start + words[behind - 1][1], int(sizes[first:behind].sum())


def _best_breaks(n_tokens: I64, paragraph: I64, min_tokens: int, max_tokens: int) -> list[int]:
    """Where each window ends, one past its last unit: the partition of least cost (dynamic programming).

    A window costs its squared relative distance from the middle of the bounds (at most 1), 100 more where it ends
    inside a paragraph, and 10,000 more per token below ``min_tokens``. Ties go to the longer window. A unit over
    ``max_tokens`` is a window of its own. Tokens and paragraph are those of each unit: shape ``(n,)``.
    """
    n = len(n_tokens)
    behind = np.r_[0, np.cumsum(n_tokens)]
    inside = np.r_[False, paragraph[1:] == paragraph[:-1], False]
    middle = (min_tokens + max_tokens) / 2
    cost: F64 = np.r_[0.0, np.full(n, np.inf)]
    came_from = np.zeros(n + 1, np.int64)
    earliest = np.minimum(np.searchsorted(behind, behind - max_tokens), np.maximum(np.arange(n + 1) - 1, 0))
    for end in range(1, n + 1):
        first = int(earliest[end])
        size = behind[end] - behind[first:end]
        total = cost[first:end] + ((size - middle) / middle) ** 2 + 1e2 * inside[end]
        total += 1e4 * np.maximum(min_tokens - size, 0)
        best = int(total.argmin())
        cost[end], came_from[end] = total[best], first + best
    ends = [n]
    while came_from[ends[-1]]:
        ends.append(int(came_from[ends[-1]]))
    return ends[::-1]
