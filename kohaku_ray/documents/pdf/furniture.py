"""Find what is printed on pages and is no text of the document: running heads and page numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from kohaku_ray.documents.pdf.page import Page, TextLine
from kohaku_ray.documents.text.tables import is_number
from kohaku_ray.records import pluralize

MARGIN_SHARE = 0.12  # share of a page's height, at the top and at the bottom, in which running lines are looked for
MAX_MARGINAL = 200  # most lines of a page's margins that are looked at; more are a drawing or a table
MOST_SHOWN = 3  # most texts of a kind of furniture that are named
MIN_PAGES = 3  # fewest pages that repeat a running line; two in a short document
SAME_LINE = 0.5  # largest distance of the tops of two texts on one line, in font sizes: 0.39 to 0.64 in tables
MAX_NUMBER_SHARE = 0.03  # largest font size of a page number, as a share of the page's height
_HEIGHT_STEP = 12.0
_DIGITS = re.compile(r"\d+")
_PAGE_NUMBER = re.compile(
    r"(?:[-–—|]\s*)?(?:p(?:age|\.)?\s*)?(?:#|[ivxl]+)(?:\s*(?:of|/|von)\s*#)?(?:\s*[-–—|])?", re.IGNORECASE
)


class Furniture:
    """What is printed on pages and is no text: running heads and page numbers.

    It counts lines in page margins as pages arrive, and keeps the counts of earlier pages.
    """

    def __init__(self, n_pages: int) -> None:
        self.dropped: dict[str, Counter[str]] = {}  # texts by what they are
        self._n_pages: Counter[tuple[str, int]] = Counter()  # pages by what stands at which height of their margins
        self._needed = min(MIN_PAGES, max(2, (n_pages + 1) // 2))

    def drop(self, pages: Sequence[Page]) -> None:
        """Remove furniture from a window of pages, in place."""
        marginal = []
        for page in pages:
            for what, texts in page.dropped.items():
                self.add(what, texts)
            top, bottom = page.height * MARGIN_SHARE, page.height * (1 - MARGIN_SHARE)
            lines = [line for line in page.lines if line.y1 <= top or line.y0 >= bottom]
            marginal.append([(line, _key(line, page)) for line in lines[:MAX_MARGINAL]])
            self._n_pages.update({key for _, key in marginal[-1]})
        for page, keyed in zip(pages, marginal, strict=True):
            gone = set()
            for line, key in keyed:
                is_page_number = _is_page_number(line, key[0], page)
                # a row of figures at the same height of several pages belongs to a table
                is_head = self._n_pages[key] >= self._needed and any(map(str.isalpha, line.text))
                if is_page_number or is_head:
                    what = "page number" if is_page_number else "running head"
                    self.add(what, [line.text])
                    gone.add(id(line))
            page.lines = [line for line in page.lines if id(line) not in gone]

    def add(self, what: str, texts: Sequence[str]) -> None:
        """Count texts that are not read, under what they are."""
        if texts:
            self.dropped.setdefault(what, Counter()).update(texts)

    def describe(self) -> tuple[str, ...]:
        """Say what was removed, and how much of it."""
        described = []
        for what, texts in self.dropped.items():
            n = texts.total()
            often = [f"{text[:60]!r}{f' × {k}' * (k > 1)}" for text, k in texts.most_common(MOST_SHOWN)]
            more = f" and {len(texts) - MOST_SHOWN} more" if len(texts) > MOST_SHOWN else ""
            described.append(f"{pluralize(n, what)}: {', '.join(often)}{more}")
        return tuple(described)


def _is_page_number(line: TextLine, text: str, page: Page) -> bool:
    """Whether a line is a page's number; one that stands beside another number is an axis' or a table's."""
    if line.size > MAX_NUMBER_SHARE * page.height or _PAGE_NUMBER.fullmatch(text) is None:
        return False
    beside = [other for other in page.lines if other is not line and abs(other.y0 - line.y0) < SAME_LINE * line.size]
    return not any(is_number(other.text) for other in beside)


def _key(line: TextLine, page: Page) -> tuple[str, int]:
    """Text without digits, and height on the page, from the bottom in its lower half, since pages differ in height."""
    height = line.y0 if line.y0 < page.height / 2 else line.y0 - page.height
    return _DIGITS.sub("#", line.text).casefold(), round(height / _HEIGHT_STEP)
