"""Tables without rules: rows of a page whose pieces stand in columns, with stacked names, gaps and wrapped cells."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from kohaku_ray.documents.pdf_page import Line
from kohaku_ray.documents.pdf_text import CAPTION
from kohaku_ray.documents.sentences import LEADERS
from kohaku_ray.documents.tables import is_number

MAX_CELL_CHARS = 40  # longest median cell of a table; longer ones are columns of prose
MIN_ALIGNED_ROWS = 3  # fewest aligned rows that are a table without rules
MAX_ALIGNED_ROWS = 200  # most rows that are searched at a time
MAX_NAME_CHARS = 30  # longest line of a name in a header of several rows
MAX_HEADER_ROWS = 4  # most lines of names above the first row of values
MAX_LINE_CHARS = 80  # longest line of a wrapped cell
MAX_NAME_GAP = 4.0  # farthest that a name over several columns stands from one of them, in font sizes
TextRow = Sequence[Line]


def find_columns(rows: Sequence[TextRow]) -> list[Line]:
    """Columns from left to right, as wide as all pieces of the fullest rows; of these the longest, if they overlap."""
    n = max(map(len, rows))
    full = [row for row in rows if len(row) == n]
    columns = [_around([row[i] for row in full]) for i in range(n)]
    if any(left.x1 > right.x0 for left, right in pairwise(columns)):
        return list(full[0])
    is_sparse = 2 * len(full) < len(rows)  # then perhaps no row has all columns
    for piece in sorted((piece for row in rows for piece in row), key=lambda piece: piece.x0) if is_sparse else ():
        if not columns_under(piece, columns):
            columns = sorted([*columns, piece], key=lambda one: one.x0)
    return columns


def _around(pieces: Sequence[Line]) -> Line:
    left, right = min(piece.x0 for piece in pieces), max(piece.x1 for piece in pieces)
    return Line(left, pieces[0].y0, right, pieces[-1].y1, "", pieces[0].size)


def columns_under(piece: Line, columns: Sequence[Line], reach: float = 1.0) -> list[int]:
    """Which columns a piece stands under or over; else the nearest, if it is within so many font sizes."""
    found = [i for i, one in enumerate(columns) if min(piece.x1, one.x1) - max(piece.x0, one.x0) > 0]
    if found:
        return found
    gaps = [max(one.x0 - piece.x1, piece.x0 - one.x1) for one in columns]
    nearest = min(range(len(columns)), key=gaps.__getitem__)
    return [nearest] if gaps[nearest] < reach * piece.size else []


def aligned_rows(rows: Sequence[TextRow], start: int) -> int:
    """Count the rows from ``start`` on whose pieces stand in columns; 0 where they are too few to be a table."""
    end = start + 1
    while end < min(len(rows), start + MAX_ALIGNED_ROWS) and _is_near(rows[end - 1], rows[end]):
        end += 1
    window = rows[start:end]
    n_even = next((i for i, row in enumerate(window) if not _lines_up(window[0], row)), len(window))
    if n_even < MIN_ALIGNED_ROWS or not _is_table(window[:n_even], len(window[0]), is_even=True):
        n_even = 0
    for n_columns in sorted({len(row) for row in window if len(row) > 1}, reverse=True):
        n = _n_in_columns(window, n_columns)
        if n:
            return max(n, n_even)
    return n_even or _n_in_bands(window)


def _lines_up(first: TextRow, row: TextRow) -> bool:
    """Whether a row has as many cells as the first, several, each under its own."""
    if len(row) != len(first) or len(row) < 2:
        return False
    return all(min(a.x1, b.x1) > max(a.x0, b.x0) for a, b in zip(first, row, strict=True))


def _is_near(above: TextRow, row: TextRow) -> bool:
    is_prose = len(row) == 1 and len(row[0].text) > MAX_LINE_CHARS
    return row[0].kind == "text" and row[0].y0 - above[0].y0 <= 3 * row[0].size and not is_prose


def _n_in_columns(window: Sequence[TextRow], n_columns: int) -> int:
    """How many rows from the first on are a table of so many columns, or 0."""
    first = next(i for i, row in enumerate(window) if len(row) == n_columns)
    if first > MAX_HEADER_ROWS:
        return 0
    columns, n_full = list(window[first]), 1
    for row in window[first + 1 :]:
        if len(row) != n_columns:
            continue
        wider = [_around(pair) for pair in zip(columns, row, strict=True)]
        if any(left.x1 > right.x0 for left, right in pairwise(wider)):
            break  # another table, or prose, below this one
        columns, n_full = wider, n_full + 1
    if n_full < 2:
        return 0
    if len(window[0]) < 2 or not all(_may_be_names(row, columns) for row in window[:first]):
        return 0
    n = first + 1
    while n < len(window) and _is_in_columns(window, n, columns):
        n += 1
    return (
        n if _is_table(window[:n], n_columns, n_columns > 2 and all(len(row) == n_columns for row in window[:n])) else 0
    )


def _n_in_bands(window: Sequence[TextRow]) -> int:
    """How many rows from the first on are a table whose labels and values stand in the middle of longer cells.

    No row of pieces is full there: columns are what no piece bridges, and rows of cells what white space parts.
    """
    columns: list[Line] = []
    n_lines: list[int] = []
    rows: list[TextRow] = []
    for row in window:
        places = [[i for i, one in enumerate(columns) if piece.x0 < one.x1 and one.x0 < piece.x1] for piece in row]
        if any(len(place) > 1 for place in places):
            break
        for piece, place in zip(row, places, strict=True):
            if place:
                columns[place[0]] = _around([columns[place[0]], piece])
                n_lines[place[0]] += 1
            else:
                columns.append(piece)
                n_lines.append(1)
        rows.append(row)
    order = sorted(range(len(columns)), key=lambda i: columns[i].x0)
    columns = [columns[i] for i in order]
    if len(columns) < 3 or min(n_lines) < 3:
        return 0
    n_header = count_header(rows, columns)
    bands = rows_of_cells(rows[n_header:], columns)
    if len(bands) < 2 or 2 * len(bands) > len(rows) - n_header:
        return 0
    if not all({columns_under(piece, columns)[0] for piece in band} >= set(range(len(columns))) for band in bands):
        return 0
    lengths = [len(piece.text) for row in rows for piece in row]
    return len(rows) if any(is_number(piece.text) for band in bands for piece in band) and max(lengths) < 100 else 0


def _may_be_names(row: TextRow, columns: Sequence[Line]) -> bool:
    """Whether a row above the first full one holds names, of which one may span columns."""
    places = [columns_under(piece, columns, MAX_NAME_GAP) for piece in row]
    are_apart = all(a and b and a[-1] < b[0] for a, b in pairwise(places))
    are_names = all(len(piece.text) <= MAX_NAME_CHARS and not is_number(piece.text) for piece in row)
    return all(places) and are_apart and are_names


def _is_in_columns(window: Sequence[TextRow], i: int, columns: Sequence[Line]) -> bool:
    """Whether each piece of a row is in a column of its own."""
    row = window[i]
    places = [columns_under(piece, columns) for piece in row]
    if not all(len(place) == 1 for place in places) or any(a == b for a, b in pairwise(places)):
        return False
    if len(row) > 1:
        return True
    if len(columns) < 3 or CAPTION.match(row[0].text):
        return False
    is_label = places[0] == [0]  # between the rows that it labels, or the second line of a label
    below = window[i + 1] if i + 1 < len(window) else ()
    if is_label:
        return bool(below) and len(below) > 1 and below[0].y0 - row[0].y0 < 1.3 * (row[0].y0 - window[i - 1][0].y0)
    return row[0].y0 - window[i - 1][0].y0 < 2 * row[0].size


def _is_table(rows: Sequence[TextRow], n_columns: int, is_even: bool = False) -> bool:
    several = [row for row in rows if len(row) > 1]
    cells = [piece.text for row in rows for piece in row]
    if len(several) < (2 if _is_under_names(rows) else MIN_ALIGNED_ROWS) or median(map(len, cells)) > MAX_CELL_CHARS:
        return False
    n_leaders = sum(LEADERS.search(cell) is not None for cell in cells)
    if 2 * n_leaders > len(rows) or (n_leaders and not is_even):
        return False  # entries of a table of contents
    if is_even:
        return True
    # gaps and wrapped cells are those of a table where numbers stand in a column, or nearly all rows are full
    values = [piece.text for row in several for piece in row[1:]]
    n_last = sum(is_number(row[-1].text) for row in several)
    if 2 * sum(map(is_number, values)) >= len(values) or n_last >= max(2, len(several) - 1):
        return True
    n_full = sum(len(row) == n_columns for row in several)
    return n_columns > 2 and n_full >= MIN_ALIGNED_ROWS and 2 * n_full > len(rows) == len(several)


def _is_under_names(rows: Sequence[TextRow]) -> bool:
    """Whether a row of numbers is below one in bold."""
    names, *body = rows
    values = [piece for row in body for piece in row[1:] if is_number(piece.text)]
    return len(names) > 2 and len(values) > 1 and all(one.bold for one in names) and not any(one.bold for one in values)


def count_header(rows: Sequence[TextRow], columns: Sequence[Line]) -> int:
    """How many of the first rows name the columns: those in bold, else those above the first with a number."""
    are_bold = (all(piece.bold and not _is_value(piece) for piece in row) for row in rows)
    bold = next((i for i, is_bold in enumerate(are_bold) if not is_bold), len(rows))
    if 0 < bold <= MAX_HEADER_ROWS and bold < len(rows):
        return bold if _are_parts(rows[:bold], columns) else 1
    first = next((i for i, row in enumerate(rows) if any(is_number(piece.text) for piece in row[1:])), 0)
    above = rows[:first]
    return first if first <= MAX_HEADER_ROWS and _are_parts(above, columns) else min(first, 1)


def _are_parts(rows: Sequence[TextRow], columns: Sequence[Line]) -> bool:
    """Whether rows of names are parts of one header: short, and of two one lacks names."""
    are_short = all(len(piece.text) <= MAX_NAME_CHARS for row in rows for piece in row)
    return are_short and all(min(len(upper), len(row)) < len(columns) for upper, row in pairwise(rows))


def rows_of_cells(rows: Sequence[TextRow], columns: Sequence[Line]) -> list[list[Line]]:
    """Put the lines of one row of cells together, where less lies between them than between rows of cells.

    Nothing is put together unless each row then has one label, and one piece in another column, too.
    """
    gaps, bottom = [], max((piece.y1 for piece in rows[0]), default=0.0) if rows else 0.0
    for row in rows[1:]:
        gaps.append(min(piece.y0 for piece in row) - bottom)
        bottom = max(bottom, *(piece.y1 for piece in row))
    bands = [list(row) for row in rows]
    if not gaps or max(gaps) - min(gaps) < 0.25 * rows[0][0].size:
        return bands
    widest = (min(gaps) + max(gaps)) / 2
    for i in range(len(gaps) - 1, -1, -1):
        if gaps[i] < widest:
            bands[i] += bands.pop(i + 1)
    single = set(range(len(columns)))  # columns with one piece in each row
    for band in bands:
        places = [place for piece in band for place in columns_under(piece, columns)[:1]]
        single &= {place for place in places if places.count(place) == 1}
        numbers = [columns_under(piece, columns)[:1] for piece in band if is_number(piece.text)]
        if any(numbers.count(place) > 1 for place in numbers):
            return [list(row) for row in rows]
    return bands if 0 in single and len(single) > 1 else [list(row) for row in rows]


def fill_labels(rows: Sequence[TextRow], columns: Sequence[Line]) -> list[list[Line]]:
    """Give rows without a label that of the rows beside it, where its place says which it labels.

    A label stands at the first of its rows, or in the middle of them, perhaps between two. Rows with one label have
    different keys in the second column, words or years: a sum below a table has none.
    """
    filled = [list(row) for row in rows]
    labels: list[tuple[float, Line]] = []
    entries: list[list[Line]] = []
    for row in filled:
        if columns_under(row[0], columns) == [0]:
            labels.append((row[0].y0, row[0]))
        if len(row) > 1 or columns_under(row[0], columns) != [0]:
            entries.append(row)
    are_keyed = all(len(row) >= len(columns) - 1 and _key(row, columns) for row in entries)
    if len(columns) < 3 or not labels or len(labels) >= len(entries) or not are_keyed:
        return filled
    tops = [row[-1].y0 for row in entries]
    keys = [_key(row, columns) for row in entries]
    for place in (_from_first, _in_the_middle):
        groups = place(tops, [top for top, _ in labels])
        if groups and all(len(set(keys[a:b])) == b - a for a, b in groups):
            for (a, b), (_, label) in zip(groups, labels, strict=True):
                for row in entries[a:b]:
                    if row[0] is not label:
                        row.insert(0, label)
            return entries
    return filled


def _key(row: TextRow, columns: Sequence[Line]) -> str:
    """The text in the second column, if it may tell rows apart."""
    key = next((piece for piece in row if columns_under(piece, columns) == [1]), None)
    return "" if key is None or _is_value(key) else key.text


def _is_value(piece: Line) -> bool:
    """Whether it is a number, and no year."""
    is_year = len(piece.text) == 4 and piece.text.isdigit() and piece.text[:2] in ("19", "20")
    return is_number(piece.text) and not is_year


def _from_first(tops: Sequence[float], labels: Sequence[float]) -> list[tuple[int, int]]:
    starts = [next((i for i, top in enumerate(tops) if abs(top - label) < 1), -1) for label in labels]
    if starts[0] or -1 in starts:
        return []
    return list(zip(starts, [*starts[1:], len(tops)], strict=True))


def _in_the_middle(tops: Sequence[float], labels: Sequence[float]) -> list[tuple[int, int]]:
    groups, start = [], 0
    step = min((after - top for top, after in pairwise(tops)), default=0.0)
    for label in labels:
        middles = [(abs((tops[start] + tops[end]) / 2 - label), end) for end in range(start, len(tops))]
        if not middles or min(middles)[0] > 0.35 * step:
            return []
        end = min(middles)[1]
        groups.append((start, end + 1))
        start = end + 1
    return groups if start == len(tops) else []
