"""Read the tables of a PDF's page that have borders."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from kohaku_ray.documents.model import Box
from kohaku_ray.documents.pdf.scripts import Span, write_spans
from kohaku_ray.documents.pdf.words import join_lines
from kohaku_ray.documents.text.tables import Cells, Grid, Hints, TableCell, header_rows, name_columns

MAX_STROKES = 1500
"""Most strokes on a page that is searched for grids; one with more is a drawing and would take seconds."""
MAX_COMPARISONS = 40_000_000  # most comparisons of the search for grids on one page: about three seconds
MAX_GRIDS = 50  # grids read on one page; more are the boxes of a form or drawing, whose text is read as lines
_THICKNESS = 3.0


def find_grids(page: Any, strokes: Sequence[Box], lines: Sequence[Sequence[Span]]) -> list[tuple[Box, Cells, int]]:
    """Find the grids on a `pymupdf.Page`: where each is, its rows of cells, and the row that names its columns.

    A grid has at least two rows and two columns, most cells filled, which a chart's frame has not. Nothing is found
    where the search would take more than `MAX_COMPARISONS`.
    """
    n_chars = sum(len(span["text"]) for spans in lines for span in spans)
    if len(strokes) > MAX_STROKES:
        return []
    # upright strokes or boxes enough for two cells side by side on two rows
    upright = {round(x0) for x0, y0, x1, y1 in strokes if x1 - x0 <= _THICKNESS and y1 - y0 > 8}
    level = {round(y0) for x0, y0, x1, y1 in strokes if y1 - y0 <= _THICKNESS and x1 - x0 > 8}
    boxes = [(round(x0), round(y0)) for x0, y0, x1, y1 in strokes if x1 - x0 > 8 and 8 < y1 - y0 < 200]
    has_boxes = len({x for x, _ in boxes}) >= 2 and len({y for _, y in boxes}) >= 2
    if not has_boxes and (len(upright) < 3 or len(level) < 3):
        return []
    # at most about how many comparisons `find_tables` makes: of strokes, crossings and words in pairs
    across = {round(x) for x0, y0, x1, y1 in strokes if y1 - y0 > _THICKNESS for x in (x0, x1)}
    down = {round(y) for x0, y0, x1, y1 in strokes if x1 - x0 > _THICKNESS for y in (y0, y1)}
    n_crossings = min(len(across) * len(down), len(strokes) ** 2)
    n_comparisons = 4 * len(strokes) * (len(strokes) + n_chars) + n_crossings * (n_crossings + n_chars // 6)
    if n_comparisons > MAX_COMPARISONS:
        return []
    # use_layout would run a neural network over the page: two hundred times as long, and quadratic in its text
    finder = page.find_tables(strategy="lines_strict", use_layout=False)
    grids = []
    for table in finder.tables[:MAX_GRIDS] if finder is not None else ():
        cells = _spanned(table, lines)
        filled = [cell for row in cells for cell in row if cell is not None]
        rows = [row for row in cells if any(cell is not None and cell[0] for cell in row)]
        if len(rows) < 2 or len(rows[0]) < 2 or 2 * sum(bool(cell[0]) for cell in filled) < len(filled):
            continue
        written, header = _written(rows)
        grids.append((tuple(table.bbox), written, header))
    return grids


def _spanned(table: Any, lines: Sequence[Sequence[Span]]) -> list[list[TableCell | None]]:
    """The cells of a table by row and column, one that spans several at each of them; bold ones marked as names."""
    lefts = _edges([cell[0] for row in table.rows for cell in row.cells if cell])
    tops = _edges([cell[1] for row in table.rows for cell in row.cells if cell])
    left, top, right, bottom = table.bbox
    inside: dict[tuple[int, int], dict[int, list[Span]]] = {}
    for i, spans in enumerate(lines):
        for span in spans:
            x0, y0, x1, y1 = span["bbox"]
            x, y = (x0 + x1) / 2, (y0 + y1) / 2
            if left <= x <= right and top <= y < bottom:
                place = bisect_right(tops, y) - 1, bisect_right(lefts, x) - 1
                inside.setdefault(place, {}).setdefault(i, []).append(span)
    cells: list[list[TableCell | None]] = [[None] * len(lefts) for _ in tops]
    for x0, y0, x1, y1 in (cell for row in table.rows for cell in row.cells if cell):
        columns = range(bisect_left(lefts, x0 - 2), bisect_left(lefts, x1 - 2))
        rows = range(bisect_left(tops, y0 - 2), bisect_left(tops, y1 - 2))
        places = [(r, c) for r in rows for c in columns]
        written = [write_spans(spans) for place in places for spans in inside.get(place, {}).values()]
        texts = [(text, bold) for raw, _, bold in written if (text := raw.strip())]
        n_bold = sum(len(text) for text, bold in texts if bold)
        is_bold = 2 * n_bold > sum(len(text) for text, _ in texts)
        cell = join_lines([text for text, _ in texts]) if texts else "", len(columns), len(rows), is_bold
        for r, c in places:
            cells[r][c] = cell
    return cells


def _edges(values: Sequence[float]) -> list[float]:
    """Edges from left to right or from top to bottom, those within two points as one."""
    edges: list[float] = []
    for value in sorted(values):
        if not edges or value - edges[-1] > 2:
            edges.append(value)
    return edges


def _written(rows: Grid) -> tuple[Cells, int]:
    """Texts of rows, spans filled, the rows of a header as one; and the header's row, -1 where there is none."""
    n_columns = len(rows[0])
    texts = [
        [row[0][0]] if row[0] is not None and row[0][1] == n_columns else [cell[0] if cell else "" for cell in row]
        for row in rows
    ]
    lead = next((i for i, row in enumerate(texts) if len(row) > 1), 0)  # rows as wide as the table, above its header
    names = [cell for cell in rows[lead] if cell is not None and cell[0]]
    in_body = [cell for row in rows[lead + 1 :] for cell in row[1:] if cell is not None and cell[0]]
    is_bold = all(cell[3] for cell in names) and 2 * sum(cell[3] for cell in in_body) <= len(in_body)
    n = header_rows(rows[lead:], Hints(n_apart=int(is_bold)))
    if not n or min(map(len, texts[lead : lead + n])) == 1:
        return texts, -1
    return [*texts[:lead], name_columns(rows[lead : lead + n]), *texts[lead + n :]], lead
