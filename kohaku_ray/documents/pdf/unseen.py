"""Leave out what a reader of a PDF's page does not see: text not painted, of its ground's colour, or struck out.

The text of a scan's recognition is not painted either, but lies over the scan or is all that there is: it stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from kohaku_ray.documents.model import Box

SCALE = 2**15  # units per point: four decimals stay exact, and a page may be 23 m high within MuPDF's 32 bits

Piece = Mapping[str, Any]  # text in one font as MuPDF prints it: where it begins (x, y), its bbox, font and text

UNPAINTED, GROUND, STRUCK = "unpainted text", "text of its ground's colour", "struck-out text"
MAX_SHADE = 8  # largest difference of 255 between two shades that a screen shows as one
MAX_STROKE = 2.0  # thickest line through words, in points; a thicker one is a bar of a drawing or covers the text
MIN_STRIKE, MAX_STRIKE = 0.12, 0.42  # where such a line runs above the baseline, in font sizes: a small letter has 0.5
MAX_LOOSE = 0.5  # farthest that its ends lie from the struck words, in font sizes; a rule or a grid's line goes on
_PAINTED = 0x10 | 0x20 | 0x40  # MuPDF's flags of a character: filled, stroked, or a clip that an image fills


def drop_unseen(
    page: Any, textpage: Any, runs: Sequence[Sequence[Piece]], strokes: Sequence[Box], pictures: Sequence[Box]
) -> tuple[Sequence[Sequence[Piece]], dict[str, list[str]]]:
    """Return the pieces of a `pymupdf.Page` that a reader sees, and the texts of the others by what they are.

    Args:
        page: The page, for the colours of its areas, which are looked at where a piece may have one.
        textpage: Its text, whose pieces are ``runs``.
        runs: The pieces of its text, block by block.
        strokes: Boxes of its lines and areas; empty for a page printed sideways, whose areas are not looked at.
        pictures: Boxes of its images.
    """
    odd, n_painted = _odd_paints(textpage, runs)
    gone: dict[int, str] = {}
    if n_painted:
        unpainted = [piece for piece, _, is_painted in odd if not is_painted and piece["text"].strip()]
        gone |= {id(piece): UNPAINTED for piece in unpainted if not any(_is_over(piece, box) for box in pictures)}
    gone |= _of_ground(
        page, [(piece, colour) for piece, colour, is_painted in odd if is_painted], runs, strokes, pictures
    )
    struck = _struck(textpage, runs, strokes)
    if not (gone or struck) or len(gone) == sum(map(len, runs)):
        return runs, {}
    dropped: dict[str, list[str]] = {}
    kept: list[list[Piece]] = []
    for run in runs:
        kept.append([])
        for piece in run:
            seen, texts = struck.get(id(piece), ([piece], []))
            if id(piece) in gone:
                seen, texts = [], []
                dropped.setdefault(gone[id(piece)], []).append(piece["text"].strip())
            kept[-1] += seen
            if texts:
                dropped.setdefault(STRUCK, []).extend(texts)
    return kept, dropped


_BLACK = 0xFF000000


def _odd_paints(textpage: Any, runs: Sequence[Sequence[Piece]]) -> tuple[list[tuple[Piece, int, bool]], int]:
    """Pieces not painted in black, with their colour (ARGB) and whether they are painted; and how many are painted.

    All characters of a piece are alike.
    """
    odd: list[tuple[Piece, int, bool]] = []
    n_painted = 0
    blocks = []
    for block in textpage.this:  # PyMuPDF's iterator is not iterable, as comprehensions want from Python 3.13 on
        if block.m_internal.type == 0:
            blocks.append(block)  # noqa: PERF401
    for block, run in zip(blocks, runs, strict=True):
        lines = iter(block)  # which keeps the block's lines alive
        line = next(lines).m_internal
        for piece in run:
            char = line.first_char
            colour, is_painted = char.argb, char.flags & _PAINTED
            if is_painted:
                n_painted += 1
            if colour != _BLACK or not is_painted:
                odd.append((piece, colour, bool(is_painted)))
            line = line.next
    return odd, n_painted


def _is_over(piece: Piece, box: Sequence[float]) -> bool:
    """Whether the middle of a piece lies in a box."""
    x, y = _middle(piece)
    return bool(box[0] <= x <= box[2] and box[1] <= y <= box[3])


def _middle(piece: Piece) -> tuple[float, float]:
    box = piece["bbox"]
    return (box["x"] + box["w"] / 2) / SCALE, (box["y"] + box["h"] / 2) / SCALE


def _of_ground(
    page: Any,
    coloured: Sequence[tuple[Piece, int]],
    runs: Sequence[Sequence[Piece]],
    strokes: Sequence[Box],
    pictures: Sequence[Box],
) -> dict[int, str]:
    """Pieces, by ``id``, of the same colour as the area that they lie on, or as the paper."""
    if not coloured:
        return {}
    areas = [box for box in strokes if min(box[2] - box[0], box[3] - box[1]) > MAX_STROKE]
    may_be = []
    for piece, colour in coloured:
        shades = _shades(colour)
        if _are_alike(shades, (255, 255, 255)) or any(_is_over(piece, area) for area in areas):
            may_be.append((piece, shades))
    if not may_be:
        return {}
    grounds = _grounds(page)
    unknown = [
        *pictures,
        *(box for kind, box in page.get_bboxlog() if kind in ("fill-shade", "fill-image", "fill-imgmask")),
    ]
    gone = {}
    for piece, shades in may_be:
        ground: tuple[int, ...] | None = (255, 255, 255)
        for box, of_area in grounds:
            ground = of_area if _is_over(piece, box) else ground
        if ground and _are_alike(shades, ground) and not any(_is_over(piece, box) for box in unknown):
            # a disc below a white digit may be a character, too
            others = (other for run in runs for other in run if other is not piece and other["text"].strip())
            if not any(_is_over(piece, box_of(other)) for other in others):
                gone[id(piece)] = GROUND
    return gone


def box_of(block: Mapping[str, Any]) -> Box:
    """Box in points of what MuPDF printed: a piece, or an image's block."""
    box = block["bbox"]
    return box["x"] / SCALE, box["y"] / SCALE, (box["x"] + box["w"]) / SCALE, (box["y"] + box["h"]) / SCALE


def _shades(argb: int) -> tuple[int, int, int]:
    return argb >> 16 & 255, argb >> 8 & 255, argb & 255


def _are_alike(shades: Sequence[int], others: Sequence[int]) -> bool:
    return all(abs(a - b) <= MAX_SHADE for a, b in zip(shades, others, strict=True))


def _grounds(page: Any) -> list[tuple[Box, tuple[int, ...] | None]]:
    """Areas in the order they are painted, each with its colour; None where it is no rectangle or is seen through."""
    grounds: list[tuple[Box, tuple[int, ...] | None]] = []
    for drawing in page.get_cdrawings():
        if drawing.get("fill"):
            is_plain = all(item[0] in ("re", "qu") for item in drawing["items"]) and drawing.get("fill_opacity") == 1
            grounds.append(
                (drawing["rect"], tuple(round(255 * part) for part in drawing["fill"]) if is_plain else None)
            )
    return grounds


def _struck(
    textpage: Any, runs: Sequence[Sequence[Piece]], strokes: Sequence[Box]
) -> dict[int, tuple[list[Piece], list[str]]]:
    """Pieces, by ``id``, through which a line is drawn: what is left of each, and the texts that are struck out."""
    thin = sorted(((y0 + y1) / 2, x0, x1) for x0, y0, x1, y1 in strokes if y1 - y0 <= MAX_STROKE < x1 - x0)
    if not thin:
        return {}
    heights = [SCALE * y for y, _, _ in thin]
    crossed: dict[tuple[float, float, float], list[tuple[int, int]]] = {}  # pieces by the line through them
    for i, run in enumerate(runs):
        for k, piece in enumerate(run):
            box = piece["bbox"]
            first, bottom = bisect_left(heights, box["y"]), box["y"] + box["h"]
            while first < len(thin) and heights[first] < bottom:
                stroke = thin[first]
                if SCALE * stroke[1] < box["x"] + box["w"] and box["x"] < SCALE * stroke[2]:
                    crossed.setdefault(stroke, []).append((i, k))
                first += 1
    if not crossed:
        return {}
    lines = [list(block) for block in textpage.this if block.m_internal.type == 0]
    hit: dict[tuple[int, int], set[int]] = {}  # characters by the piece that they are in
    for (y, x0, x1), places in crossed.items():
        within: dict[tuple[int, int], list[int]] = {}
        chars = []
        size = max(runs[i][k]["font"]["size"] for i, k in places) / SCALE
        for i, k in places:
            for n, char in enumerate(_chars(lines[i][k])):
                rise = (char[3] - y) / char[4]  # by its own baseline: a piece may hold several
                if x0 <= (char[0] + char[1]) / 2 <= x1 and MIN_STRIKE <= rise <= MAX_STRIKE:
                    within.setdefault((i, k), []).append(n)
                    chars.append(char)
        # one character alone may be drawn so: ħ, Ø, a zero with a bar
        is_word = sum(char[2].isalnum() for char in chars) > 1
        loose = MAX_LOOSE * size
        if is_word and min(c[0] for c in chars) - x0 < loose and x1 - max(c[1] for c in chars) < loose:
            for place, numbers in within.items():
                hit.setdefault(place, set()).update(numbers)
    struck = {}
    for (i, k), gone in hit.items():
        piece, chars = runs[i][k], list(_chars(lines[i][k]))
        bounds = sorted({0, len(chars), *(n for n in range(1, len(chars)) if (n in gone) != (n - 1 in gone))})
        seen: list[Piece] = []
        texts: list[str] = []
        for a, b in pairwise(bounds):
            text = "".join(char[2] for char in chars[a:b])
            if a in gone:
                texts.append(text.strip())
            elif text.strip():
                x, width = chars[a][0] * SCALE, (chars[b - 1][1] - chars[a][0]) * SCALE
                seen.append({**piece, "x": x, "bbox": {**piece["bbox"], "x": x, "w": width}, "text": text})
        struck[id(piece)] = seen, list(filter(None, texts))
    return struck


def _chars(line: Any) -> Iterator[tuple[float, float, str, float, float]]:
    """Left edge, right edge, text, baseline and font size of each character of a piece."""
    char = line.m_internal.first_char
    while char is not None:
        yield char.quad.ll.x, char.quad.lr.x, chr(char.c), char.origin.y, char.size
        char = char.next
