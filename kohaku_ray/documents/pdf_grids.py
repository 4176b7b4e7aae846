"""Tables with a border round every cell: their cells, spans and headers, by the strokes on a page."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from kohaku_ray.documents.content import clean_print
from kohaku_ray.documents.model import Box
from kohaku_ray.documents.pdf_text import SCALE, Piece, join_lines, one_font, several_fonts
from kohaku_ray.documents.raised import plain_maths
from kohaku_ray.documents.tables import Cells, is_number, join_names, names_columns

MAX_STROKES = 1500
"""Most strokes on a page that is searched for grids; one with more is a drawing and would take seconds."""

MAX_COMPARISONS = 40_000_000  # most comparisons of the search for grids on one page: about three seconds
MAX_GRIDS = 50  # grids read on one page; more are the boxes of a form or drawing, whose text is read as lines
_THICKNESS = 3.0


MAX_HEADER_ROWS = 3  # most rows that name the columns of a table


def find_grids(
    page: Any, strokes: Sequence[Box], runs: Sequence[Sequence[Piece]]
) -> tuple[list[tuple[Box, Cells]], list[int]]:
    """Find the grids on a `pymupdf.Page`: where each is, its rows of cells, and the row that names its columns.

    A grid has at least two rows and two columns, most cells filled, which a chart's frame has not. Nothing is found
    where the search would take more than `MAX_COMPARISONS`.
    """
    n_chars = sum(len(piece["text"]) for run in runs for piece in run)
    if not _may_hold_grid(strokes) or _n_comparisons(strokes, n_chars) > MAX_COMPARISONS:
        return [], []
    # use_layout would run a neural network over the page: two hundred times as long, and quadratic in its text
    finder = page.find_tables(strategy="lines_strict", use_layout=False)
    found, headers = [], []
    for table in finder.tables[:MAX_GRIDS] if finder is not None else ():
        cells = _spanned(table, _pieces_inside(page, runs, table))
        filled = [cell for row in cells for cell in row if cell is not None]
        rows = [row for row in cells if any(cell is not None and cell.text for cell in row)]
        if len(rows) < 2 or len(rows[0]) < 2 or 2 * sum(bool(cell.text) for cell in filled) < len(filled):
            continue
        written, header = _written(rows)
        found.append((tuple(table.bbox), written))
        headers.append(header)
    return found, headers


@dataclass(slots=True)
class _Cell:
    """A cell: its text, whether most of it is bold, how many columns and rows it spans."""

    text: str
    bold: bool
    n_columns: int
    n_rows: int


def _pieces_inside(page: Any, runs: Sequence[Sequence[Piece]], table: Any) -> list[list[Piece]]:
    """The pieces of text in a table, run by run; one that lies across a border word by word."""
    left, top, right, bottom = (SCALE * x for x in table.bbox)
    borders = sorted({round(x * SCALE) for row in table.rows for cell in row.cells if cell for x in (cell[0], cell[2])})
    words: list[Any] = []
    found = []
    for run in runs:
        pieces: list[Piece] = []
        for piece in run:
            box = piece["bbox"]
            x0, x1, y = box["x"], box["x"] + box["w"], box["y"] + box["h"] / 2
            if not (left <= (x0 + x1) / 2 <= right and top <= y < bottom):
                continue
            if any(x0 + SCALE < border < x1 - SCALE for border in borders) and " " in piece["text"].strip():
                words = words or page.get_text("words", clip=table.bbox)
                pieces.extend(_split_at_words(piece, words))
            else:
                pieces.append(piece)
        if pieces:
            found.append(pieces)
    return found


def _split_at_words(piece: Piece, words: Sequence[Any]) -> Iterator[Piece]:
    box = piece["bbox"]
    for x0, y0, x1, y1, text, *_ in words:
        middle = (y0 + y1) / 2 * SCALE
        if box["y"] <= middle < box["y"] + box["h"] and box["x"] - 1 <= x0 * SCALE <= box["x"] + box["w"]:
            its_box = {"x": x0 * SCALE, "y": box["y"], "w": (x1 - x0) * SCALE, "h": box["h"]}
            if text in piece["text"]:
                yield {**piece, "x": x0 * SCALE, "bbox": its_box, "text": f" {text}"}


def _spanned(table: Any, runs: Sequence[Sequence[Piece]]) -> list[list[_Cell | None]]:
    """The cells of a table by row and column; one that spans several is at each of them."""
    lefts = _edges([cell[0] for row in table.rows for cell in row.cells if cell])
    tops = _edges([cell[1] for row in table.rows for cell in row.cells if cell])
    inside: dict[tuple[int, int], list[tuple[int, Piece]]] = {}
    for i, run in enumerate(runs):
        for piece in run:
            box, size = piece["bbox"], piece["font"]["size"]
            r = bisect_right(tops, (piece["y"] - 0.3 * size) / SCALE) - 1
            c = bisect_right(lefts, (box["x"] + box["w"] / 2) / SCALE) - 1
            inside.setdefault((r, c), []).append((i, piece))
    cells: list[list[_Cell | None]] = [[None] * len(lefts) for _ in tops]
    for x0, y0, x1, y1 in (cell for row in table.rows for cell in row.cells if cell):
        columns = range(bisect_left(lefts, x0 - 2), bisect_left(lefts, x1 - 2))
        rows = range(bisect_left(tops, y0 - 2), bisect_left(tops, y1 - 2))
        places = [(r, c) for r in rows for c in columns]
        pieces = [piece for place in places for piece in inside.get(place, ())]
        text, bold = _cell_text(pieces if len(places) == 1 else sorted(pieces, key=itemgetter(0)))
        for r, c in places:
            cells[r][c] = _Cell(text, bold, len(columns), len(rows))
    return cells


def _edges(values: Sequence[float]) -> list[float]:
    """Edges from left to right or from top to bottom, those within two points as one."""
    edges: list[float] = []
    for value in sorted(values):
        if not edges or value - edges[-1] > 2:
            edges.append(value)
    return edges


def _cell_text(placed: Sequence[tuple[int, Piece]]) -> tuple[str, bool]:
    """Text of a cell's pieces, its lines joined, and whether most of it is bold."""
    lines: list[list[Piece]] = []
    for _, run in groupby(placed, key=itemgetter(0)):
        for _, piece in run:
            last = lines[-1][-1] if lines else None
            size = piece["font"]["size"]
            if last is not None and abs(piece["y"] - last["y"]) < 0.7 * max(size, last["font"]["size"]):
                gap = piece["bbox"]["x"] - last["bbox"]["x"] - last["bbox"]["w"]
                is_apart = gap > 0.2 * size and piece["text"][:1] != " "
                lines[-1].append({**piece, "text": f" {piece['text']}"} if is_apart else piece)
            else:
                lines.append([piece])
    texts, n_bold, n_all = [], 0, 0
    for pieces in lines:
        text, _, bold = one_font(pieces[0]) if len(pieces) == 1 else several_fonts(pieces)
        text = plain_maths(clean_print(text)).strip()
        if text:
            texts.append(text)
            n_all += len(text)
            n_bold += len(text) if bold else 0
    return (join_lines(texts, ()) if texts else ""), 2 * n_bold > n_all


def _written(rows: Sequence[Sequence[_Cell | None]]) -> tuple[Cells, int]:
    """Texts of rows, spans filled, the rows of a header as one; and the header's row, -1 where there is none."""
    n_columns = len(rows[0])
    texts = [
        [row[0].text]
        if row[0] is not None and row[0].n_columns == n_columns
        else [cell.text if cell else "" for cell in row]
        for row in rows
    ]
    lead = next((i for i, row in enumerate(texts) if len(row) > 1), 0)  # rows as wide as the table, above its header
    n = lead + _n_header(rows[lead:])
    if min(map(len, texts[lead:n])) == 1:
        return texts, -1
    in_header = [cell for row in rows[lead:n] for cell in row if cell is not None and cell.text]
    in_body = [cell for row in rows[n:] for cell in row[1:] if cell is not None and cell.text]
    is_bold = all(cell.bold for cell in in_header) and 2 * sum(cell.bold for cell in in_body) <= len(in_body)
    names = join_names([[(text, True) for text in row] for row in texts[lead:n]])
    if names_columns([names, *texts[n:]], set_apart=n - lead > 1 or is_bold):
        return [*texts[:lead], names, *texts[n:]], lead
    return texts, -1


def _n_header(rows: Sequence[Sequence[_Cell | None]]) -> int:
    """How many rows its header has: more than one where a name spans several columns, under which no numbers stand."""
    n = 1
    while n < min(len(rows) - 1, MAX_HEADER_ROWS):
        if not any(cell is not None and 1 < cell.n_columns < len(rows[0]) for cell in rows[n - 1]):
            break
        if any(is_number(cell.text) for cell in rows[n] if cell is not None):
            break
        n += 1
    return n


def _may_hold_grid(strokes: Sequence[Box]) -> bool:
    """Whether there are upright strokes or boxes enough for two cells side by side on two rows."""
    if len(strokes) > MAX_STROKES:
        return False
    upright = {round(x0) for x0, y0, x1, y1 in strokes if x1 - x0 <= _THICKNESS and y1 - y0 > 8}
    level = {round(y0) for x0, y0, x1, y1 in strokes if y1 - y0 <= _THICKNESS and x1 - x0 > 8}
    boxes = [(round(x0), round(y0)) for x0, y0, x1, y1 in strokes if x1 - x0 > 8 and 8 < y1 - y0 < 200]
    has_lines = len(upright) >= 3 and len(level) >= 3
    return has_lines or (len({x for x, _ in boxes}) >= 2 and len({y for _, y in boxes}) >= 2)


def _n_comparisons(strokes: Sequence[Box], n_chars: int) -> int:
    """At most about how many comparisons `Page.find_tables` makes: of strokes, crossings and words in pairs."""
    across = {round(x) for x0, y0, x1, y1 in strokes if y1 - y0 > _THICKNESS for x in (x0, x1)}
    down = {round(y) for x0, y0, x1, y1 in strokes if x1 - x0 > _THICKNESS for y in (y0, y1)}
    n_crossings = min(len(across) * len(down), len(strokes) ** 2)
    return 4 * len(strokes) * (len(strokes) + n_chars) + n_crossings * (n_crossings + n_chars // 6)
