"""Running heads, footers and page numbers: lines at the same place on several pages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from math import floor

from kohaku_ray.documents.pdf_page import Line, Page

MARGIN_SHARE = 0.12
"""Share of a page's height, at the top and at the bottom, in which running lines are looked for."""

MIN_PAGES = 3
"""Fewest pages that repeat a running line; two in a short document, or beside a page number."""

MAX_NUMBER_SHARE = 0.03
"""Largest font size of a page number, as a share of the page's height."""

_BUCKET = 6.0
_OUTERMOST = 2
_DIGITS = re.compile(r"\d+")
_PAGE_NUMBER = re.compile(
    r"(?:[-–—|]\s*)?(?:p(?:age|\.)?\s*)?(?:#|[ivxl]+)(?:\s*(?:of|/|von)\s*#)?(?:\s*[-–—|])?", re.IGNORECASE
)


class RunningLines:
    """Counts lines in page margins as pages arrive, and keeps the counts of earlier pages."""

    def __init__(self, n_pages: int) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._needed = min(MIN_PAGES, max(2, (n_pages + 1) // 2))

    def drop(self, pages: Sequence[Page]) -> None:
        """Remove running lines and page numbers from pages.

        Args:
            pages: A window of the document, changed in place.
        """
        marginal = [[(line, _without_digits(line)) for line in _marginal(page)] for page in pages]
        for page, lines in zip(pages, marginal, strict=True):
            self._counts.update({key for line, text in lines for key in _keys(line, text, page)})
        for page, lines in zip(pages, marginal, strict=True):
            numbers = [line for line, text in lines if _is_page_number(line, text, page)]
            gone = {id(line) for line, text in lines if self._is_running(line, text, page, numbers)}
            if gone:
                page.lines = [line for line in page.lines if id(line) not in gone]

    def _is_running(self, line: Line, text: str, page: Page, numbers: Sequence[Line]) -> bool:
        if any(line is number for number in numbers):
            return True
        if not any(map(str.isalpha, line.text)):
            return False  # a row of figures at the same height of several pages belongs to a table
        beside_number = any(abs(number.y0 - line.y0) < 0.5 * line.size for number in numbers)
        needed = 2 if beside_number else self._needed
        return max(self._counts[key] for key in _keys(line, text, page)) >= needed


def _is_page_number(line: Line, text: str, page: Page) -> bool:
    """Whether a line is a number of a page number's font size, not of a slide's message."""
    return line.size <= MAX_NUMBER_SHARE * page.height and _PAGE_NUMBER.fullmatch(text) is not None


def _marginal(page: Page) -> list[Line]:
    """The outermost lines at the top and the bottom of a page."""
    top, bottom = page.height * MARGIN_SHARE, page.height * (1 - MARGIN_SHARE)
    above = [line for line in page.lines if line.y1 <= top]
    below = [line for line in page.lines if line.y0 >= bottom]
    above.sort(key=lambda line: line.y0)
    below.sort(key=lambda line: -line.y1)
    return [*_first_rows(above), *_first_rows(below)]


def _first_rows(lines: Sequence[Line]) -> list[Line]:
    """Lines of the first rows, the sorted lines given from the edge inwards."""
    taken: list[Line] = []
    n_rows = 0
    row = 0.0
    for line in lines:
        if not taken or abs(line.y0 - row) > 0.5 * line.size:
            n_rows += 1
            row = line.y0
        if n_rows > _OUTERMOST:
            break
        taken.append(line)
    return taken


def _without_digits(line: Line) -> str:
    return _DIGITS.sub("#", line.text).casefold()


def _keys(line: Line, text: str, page: Page) -> tuple[tuple[str, int], tuple[str, int]]:
    """Text without digits, and height on the page, from the bottom in its lower half, since pages differ in height.

    Heights are rounded to two scales, half a step apart: lines at nearly the same height share at least one of the two.
    """
    height = line.y0 if line.y0 < page.height / 2 else line.y0 - page.height
    steps = height / _BUCKET
    return (text, 2 * floor(steps)), (text, 2 * round(steps) + 1)
