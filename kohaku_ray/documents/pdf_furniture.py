"""What is printed on a page and is no text: running heads, numbers of pages and lines, watermarks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import floor
from statistics import median

from kohaku_ray.documents.pdf_page import Line, Page
from kohaku_ray.documents.text import is_number

MARGIN_SHARE = 0.12  # share of a page's height, at the top and at the bottom, in which running lines are looked for
MOST_SHOWN = 3  # most texts of a kind of furniture that are named
MIN_PAGES = 3  # fewest pages that repeat a running line; two in a short document, or beside a page number
SIDE_SHARE = 0.28  # share of a slide's width, left and right, in which a sidebar is looked for
_LOWEST = re.compile(r"(?:\d{1,2}[.-])?(\d{1,4})")  # a page's number, perhaps after its chapter's
MAX_ROW_GAP = 1.6  # largest distance of two rows of a table, in font sizes
MAX_ROW_STEP = 3.0  # likewise, from top to top
MIN_CELLS = 3  # fewest cells of a row at a page's edge that is no running head
MAX_NUMBER_SHARE = 0.03  # largest font size of a page number, as a share of the page's height
_BUCKET = 6.0
_OUTERMOST = 2
_DIGITS = re.compile(r"\d+")
_PAGE_NUMBER = re.compile(
    r"(?:[-–—|]\s*)?(?:p(?:age|\.)?\s*)?(?:#|[ivxl]+)(?:\s*(?:of|/|von)\s*#)?(?:\s*[-–—|])?", re.IGNORECASE
)


class Furniture:
    """What is printed on pages and is no text: running heads, page and line numbers, watermarks.

    It counts lines in page margins as pages arrive, and keeps the counts of earlier pages.
    """

    def __init__(self, n_pages: int) -> None:
        self.dropped: dict[str, Counter[str]] = {}  # texts by what they are
        self._steps: Counter[int] = Counter()  # distance of the lowest number on a page from the page's own
        self.n_marks = 0  # marks of footnotes
        self._counts: Counter[tuple[str, int]] = Counter()
        self._needed = min(MIN_PAGES, max(2, (n_pages + 1) // 2))

    def drop(self, pages: Sequence[Page]) -> None:
        """Remove furniture from a window of pages, in place."""
        for page in pages:
            self.n_marks += page.n_marks
            self._remove(page, "watermark", _watermarks(page.lines))
            self._remove(page, "line number", _line_numbers(page.lines))
        lowest = [found for page in pages if (found := _lowest_number(page)) is not None]
        self._steps.update(shown - number for number, _, shown in lowest)
        for number, line, shown in lowest:
            if self._steps[shown - number] >= MIN_PAGES:
                self._remove(pages[number - pages[0].number], "page number", [line])
        marginal = [[(line, _without_digits(line)) for line in _marginal(page)] for page in pages]
        for page, lines in zip(pages, marginal, strict=True):
            self._counts.update({key for line, text in lines for key in _keys(line, text, page)})
        for page, lines in zip(pages, marginal, strict=True):
            numbers = [line for line, text in lines if _is_page_number(line, text, page)]
            heads = [line for line, text in lines if self._is_running(line, text, page, numbers)]
            self._remove(page, "page number", [line for line in heads if line in numbers])
            self._remove(page, "running head", [line for line in heads if line not in numbers])
        self._drop_sidebars(pages)

    def _drop_sidebars(self, pages: Sequence[Page]) -> None:
        """Remove what stands at the same place beside the text of most slides: a list of sections, a number."""
        slides = [page for page in pages if page.width > page.height]
        beside = [[line for line in page.lines if _is_beside(line, page)] for page in slides]
        keys = [[(_without_digits(line), round(line.x0 / 4), round(line.y0 / 4)) for line in lines] for lines in beside]
        counts = Counter(key for its_keys in keys for key in set(its_keys))
        needed = max(MIN_PAGES, 0.5 * len(slides))
        for page, lines, its_keys in zip(slides, beside, keys, strict=True):
            self._remove(
                page, "sidebar line", [line for line, key in zip(lines, its_keys, strict=True) if counts[key] >= needed]
            )

    def describe(self) -> tuple[str, ...]:
        """Say what was removed, and how much of it."""
        said = []
        for what, texts in self.dropped.items():
            n = texts.total()
            often = [f"{text[:60]!r}{f' × {k}' * (k > 1)}" for text, k in texts.most_common(MOST_SHOWN)]
            more = f" and {len(texts) - MOST_SHOWN} more" if len(texts) > MOST_SHOWN else ""
            said.append(f"{n:,} {what}{'s' * (n > 1)}: {', '.join(often)}{more}")
        if self.n_marks:
            said.append(f"{self.n_marks:,} mark{'s' * (self.n_marks > 1)} of notes, set apart in brackets")
        return tuple(said)

    def _remove(self, page: Page, what: str, lines: Sequence[Line]) -> None:
        if lines:
            self.dropped.setdefault(what, Counter()).update(line.text for line in lines)
            gone = set(map(id, lines))
            page.lines = [line for line in page.lines if id(line) not in gone]

    def _is_running(self, line: Line, text: str, page: Page, numbers: Sequence[Line]) -> bool:
        if _is_page_number(line, text, page):
            return True
        if not any(map(str.isalpha, line.text)):
            return False  # a row of figures at the same height of several pages belongs to a table
        beside_number = any(abs(number.y0 - line.y0) < 0.5 * line.size for number in numbers)
        needed = 2 if beside_number else self._needed
        return max(self._counts[key] for key in _keys(line, text, page)) >= needed and not _is_in_table(line, page)


def _is_beside(line: Line, page: Page) -> bool:
    """Whether a line stands at the side of a page, a figure only in a corner."""
    is_aside = line.x1 < SIDE_SHARE * page.width or line.x0 > (1 - SIDE_SHARE) * page.width
    in_corner = line.y1 <= MARGIN_SHARE * page.height or line.y0 >= (1 - MARGIN_SHARE) * page.height
    return is_aside and (in_corner or any(map(str.isalpha, line.text)))


def _lowest_number(page: Page) -> tuple[int, Line, int] | None:
    """The last line of a page, where it is a number by itself: many pages end high above the margin."""
    if not page.lines:
        return None
    line = max(page.lines, key=lambda line: line.y0)
    beside = sum(other.y1 > line.y0 + 0.3 * line.size for other in page.lines)
    number = _LOWEST.fullmatch(line.text)
    return (page.number, line, int(number[1])) if beside == 1 and number is not None else None


def _is_page_number(line: Line, text: str, page: Page) -> bool:
    if line.size > MAX_NUMBER_SHARE * page.height or _PAGE_NUMBER.fullmatch(text) is None:
        return False
    return text != "#" or not _is_in_column(line, page)


def _is_in_column(number: Line, page: Page) -> bool:
    """Whether a number stands right over or under another one, as a table's cells do."""
    reach = MAX_ROW_GAP * number.size
    return any(
        -reach < line.y0 - number.y1 < reach or -reach < number.y0 - line.y1 < reach
        for line in page.lines
        if line.x0 < number.x1 and number.x0 < line.x1 and line is not number and is_number(line.text)
    )


def _is_in_table(line: Line, page: Page) -> bool:
    """Whether a line is one of several in a row, right above or below as many in the same columns."""
    row, *others = _rows_near(line, page)
    return len(row) >= MIN_CELLS and any(
        len(other) == len(row) and all(a.x0 < b.x1 and b.x0 < a.x1 for a, b in zip(row, other, strict=True))
        for other in others
    )


def _rows_near(line: Line, page: Page) -> list[list[Line]]:
    """The lines beside one, those right above, and those right below."""
    rows: list[list[Line]] = [[], [], []]
    for other in page.lines:
        distance = (other.y0 - line.y0) / line.size
        if abs(distance) < MAX_ROW_STEP and other.size:
            rows[0 if abs(distance) < 0.5 else 1 if distance < 0 else 2].append(other)
    for row in rows:
        row.sort(key=lambda one: one.x0)
    return rows


def _marginal(page: Page) -> list[Line]:
    """The outermost lines at the top and the bottom of a page."""
    top, bottom = page.height * MARGIN_SHARE, page.height * (1 - MARGIN_SHARE)
    above = sorted((line for line in page.lines if line.y1 <= top), key=lambda line: line.y0)
    below = sorted((line for line in page.lines if line.y0 >= bottom), key=lambda line: -line.y1)
    return [*_first_rows(above), *_first_rows(below)]


def _first_rows(lines: Sequence[Line]) -> list[Line]:
    """Lines of the first rows, the sorted lines given from the edge inwards."""
    rows: list[list[Line]] = []
    for line in lines:
        if rows and abs(line.y0 - rows[-1][0].y0) <= 0.5 * line.size:
            rows[-1].append(line)
        elif len(rows) < _OUTERMOST:
            rows.append([line])
        else:
            break
    return [line for row in rows for line in row]


def _without_digits(line: Line) -> str:
    return _DIGITS.sub("#", line.text).casefold()


def _keys(line: Line, text: str, page: Page) -> tuple[tuple[str, int], tuple[str, int]]:
    """Text without digits, and height on the page, from the bottom in its lower half, since pages differ in height.

    Heights are rounded to two scales, half a step apart: lines at nearly the same height share at least one of the two.
    """
    height = line.y0 if line.y0 < page.height / 2 else line.y0 - page.height
    steps = height / _BUCKET
    return (text, 2 * floor(steps)), (text, 2 * round(steps) + 1)


MIN_WATERMARK = 2.0  # least font size of a watermark, in font sizes of the text
MIN_COVERED = 2  # fewest lines that a watermark lies across
MAX_WATERMARKS = 20  # most lines on a page that are looked at; more large ones are a poster


def _watermarks(lines: Sequence[Line]) -> list[Line]:
    """Large words that lie across lines of text."""
    if len(lines) <= MIN_COVERED:
        return []
    sizes = sorted([line.size for line in lines])
    if sizes[-1] < MIN_WATERMARK * sizes[len(sizes) // 2]:
        return []
    least = MIN_WATERMARK * sizes[len(sizes) // 2]
    large = [line for line in lines if line.size >= least]
    return [line for line in large[:MAX_WATERMARKS] if _n_covered(line, lines) >= MIN_COVERED]


def _n_covered(large: Line, lines: Sequence[Line]) -> int:
    """How many smaller lines run through the middle of a large one."""
    margin = 0.2 * (large.y1 - large.y0)
    top, bottom = large.y0 + margin, large.y1 - margin
    return sum(
        top < (line.y0 + line.y1) / 2 < bottom
        and line.x0 < large.x1
        and line.x1 > large.x0
        and line.size * MIN_WATERMARK <= large.size
        for line in lines
    )


MIN_LINE_NUMBERS = 5  # fewest numbers on a page that number its lines
MAX_NUMBER_STEP = 10  # every line, or every fifth or tenth one, has its number
MAX_LINE_NUMBER_SIZE = 0.87  # largest font size of a line number, as a share of the text's, but beside prose
MIN_EVEN_SHARE = 0.6  # least share of line numbers at the usual distance from the next
MIN_OUTSIDE_SHARE = 0.95  # least share of lines that are on the inner side of their numbers


def _line_numbers(lines: Sequence[Line]) -> list[Line]:
    """Numbers that count the lines of a page, in its left or right margin: 001, 002 and so on, or 5, 10."""
    numbers = [line for line in lines if line.text.isdecimal() and len(line.text) < 6]
    if len(numbers) < MIN_LINE_NUMBERS:
        return []
    ids = set(map(id, numbers))
    rest = [line for line in lines if id(line) not in ids]
    if not rest:
        return []
    found: dict[int, Line] = {}
    for is_left in (True, False):
        for column in (*_columns(numbers, lambda line: line.x1), *_columns(numbers, lambda line: line.x0)):
            edge = max(line.x1 for line in column) if is_left else min(line.x0 for line in column)
            n_inside = sum(line.x0 >= edge if is_left else line.x1 <= edge for line in rest)
            if n_inside >= MIN_OUTSIDE_SHARE * len(rest) and _counts_lines(column, rest):
                found.update((id(line), line) for line in column)
    return list(found.values())


def _columns(numbers: Sequence[Line], edge: Callable[[Line], float]) -> Iterator[list[Line]]:
    """Numbers whose edges lie one below the other, each column from top to bottom."""
    column: list[Line] = []
    for line in [*sorted(numbers, key=edge), None]:
        if line is not None and (not column or edge(line) - edge(column[-1]) < 1.0):
            column.append(line)
            continue
        if len(column) >= MIN_LINE_NUMBERS:
            yield sorted(column, key=lambda line: line.y0)
        column = [] if line is None else [line]


def _counts_lines(column: Sequence[Line], rest: Sequence[Line]) -> bool:
    """Whether numbers, from top to bottom, grow evenly at even distances, and stand beside prose or in small print."""
    values = [int(line.text) for line in column]
    steps = Counter(after - value for value, after in pairwise(values))
    step, n = steps.most_common(1)[0]
    if not 1 <= step <= MAX_NUMBER_STEP or n < 0.9 * (len(column) - 1):
        return False
    gaps = [after.y0 - line.y0 for line, after in pairwise(column)]
    usual = median(gaps)
    if sum(abs(gap - usual) < 0.15 * usual for gap in gaps) < MIN_EVEN_SHARE * len(gaps):
        return False
    if median(line.size for line in column) <= MAX_LINE_NUMBER_SIZE * median(line.size for line in rest):
        return True
    return _is_prose(column, rest)


def _is_prose(column: Sequence[Line], rest: Sequence[Line]) -> bool:
    """Whether sentences run over the lines beside numbers: they are no column of a table, nor a numbered list."""
    heights = {round(line.y0 + line.y1) for line in column}
    beside = [line for line in rest if any(round(line.y0 + line.y1) + d in heights for d in range(-4, 5))]
    texts = [line.text for line in sorted(beside, key=lambda line: line.y0)]
    n_going_on = sum(after[:1].islower() and text[-1] not in ".!?:;" for text, after in pairwise(texts))
    return len(texts) > 0 and n_going_on >= 0.3 * len(texts) and median(map(len, texts)) >= 30
