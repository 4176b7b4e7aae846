"""One page of a PDF as PyMuPDF sees it: lines of text, images, rules, and grids with a border round every cell."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

from kohaku_ray.documents.content import clean_print
from kohaku_ray.documents.model import Box, Image
from kohaku_ray.documents.raised import plain_maths, write_lowered, write_raised


@dataclass(slots=True)
class Picture:
    """An embedded image where it is drawn."""

    image: Any  # ``pymupdf.mupdf.FzImage``, not decoded
    axes: tuple[float, float, float, float]  # its horizontal and its vertical axis on the page as it is read

    @property
    def axes_signs(self) -> tuple[bool, bool, bool]:
        """Whether it lies on its side, and then whether it is mirrored left to right, and top to bottom."""
        a, b, c, d = self.axes
        across = abs(b) + abs(c) > abs(a) + abs(d)
        return (True, c < 0, b < 0) if across else (False, a < 0, d < 0)


MIN_IMAGE_POINTS = 30.0  # shortest side of a picture that is kept; smaller ones are icons and bullets
MAX_IMAGE_SHARE = 0.9  # largest share of a page with text that a picture may cover; a larger one is the background
MAX_IMAGES = 50  # most pictures kept of a page; more are the tiles of one picture and are all left out
_RULE_THICKNESS = 3.0
_MIN_RULE = 20.0
_BOLD_NAME = re.compile(r"bold|black|heavy|cmbx|sfbx|-bd|\bmedi$", re.IGNORECASE)
_MATHS = re.compile(r"CMMI|CMSY|MSBM|math|MTMI|[tp]xmi|LMMI", re.IGNORECASE)  # fonts for formulas
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefe]")

MAX_RATIO = 3.0  # largest ratio of font sizes in one line
_TEXT, _IMAGE, _VECTOR = 0, 1, 3  # muPDF's kinds of block

_SCALE = 2**15  # units per point: four decimals stay exact, and a page may be 23 m high within MuPDF's 32 bits

Piece = Mapping[str, Any]  # text in one font as MuPDF prints it: where it begins (x, y), its bbox, font and text


@dataclass(slots=True)
class Line:
    """Text on one line between two wide gaps, or a whole image or table, which is ordered with the lines; in points."""

    x0: float
    y0: float
    x1: float
    y1: float
    text: str  # for a table, one line per row
    size: float = 0.0  # font size of most of its text
    bold: bool = False  # whether most of its text is
    kind: str = "text"  # or ``image`` or ``table``

    @property
    def box(self) -> Box:
        """Left, top, right, bottom."""
        return self.x0, self.y0, self.x1, self.y1


@dataclass(slots=True)
class Page:
    """What was read of a page; pictures and strokes only where images are extracted."""

    number: int  # from 1
    width: float  # in points; of a page printed sideways, as its text is read
    height: float
    lines: list[Line]  # in the order they were drawn
    images: list[Box] = field(default_factory=list)  # where pictures are
    rules: list[tuple[float, float, float]] = field(default_factory=list)  # left, right, height on the page
    grids: list[tuple[Box, list[list[str]]]] = field(default_factory=list)  # bordered tables: place, rows of cells
    turn: int = 0  # 1 where the text runs upwards, 3 where it runs downwards
    pictures: dict[Box, Picture] = field(default_factory=dict)  # embedded images by their place
    strokes: list[Box] = field(default_factory=list)  # places of drawn lines and areas
    extracted: dict[Box, Image] = field(default_factory=dict)  # images by their place, as extracted
    left_out: Counter[str] = field(default_factory=Counter)  # number of images that carry no content, by reason
    is_turned: bool = False  # its text runs upwards or downwards, or a viewer turns the page
    is_pictured: bool = False  # it has no text, but a picture

    def on_paper(self, box: Box) -> Box:
        """A box on the page as it lies, rounded to a tenth of a point."""
        x0, y0, x1, y1 = box
        if self.turn == 1:
            x0, y0, x1, y1 = y0, self.width - x1, y1, self.width - x0
        elif self.turn == 3:
            x0, y0, x1, y1 = self.height - y1, x0, self.height - y0, x1
        return round(x0, 1), round(y0, 1), round(x1, 1), round(y1, 1)


def read_page(page: Any, images: bool = False) -> Page:
    """Read a `pymupdf.Page`; its images are located, never decoded.

    With ``images``, which are extracted later, inline ones and those of a page printed sideways are located too.
    """
    import pymupdf

    # without PRESERVE_LIGATURES and PRESERVE_WHITESPACE MuPDF itself writes "fi" and plain spaces
    flags = pymupdf.TEXT_MEDIABOX_CLIP | pymupdf.TEXT_COLLECT_VECTORS | pymupdf.TEXT_PRESERVE_SPANS
    has_pictures = bool(page.get_images())
    if images or has_pictures:
        flags |= pymupdf.TEXT_PRESERVE_IMAGES
    textpage = page.get_textpage(flags=flags)
    blocks, runs = _blocks(textpage)
    width, height, turn = float(page.cropbox.width), float(page.cropbox.height), 0
    if not _are_level(runs):
        turns = _turns(textpage)
        turn = max(range(4), key=Counter(turn for run in turns for turn in run).__getitem__)
        if turn:  # printed sideways: read it again as if it were turned
            matrix = (0, 1, -1, 0, height, 0) if turn == 1 else (0, -1, 1, 0, 0, width)
            width, height = height, width
            textpage = page.get_textpage(clip=(0, 0, width, height), flags=flags, matrix=pymupdf.Matrix(*matrix))
            blocks, runs = _blocks(textpage)
            turns = _turns(textpage)
        runs = [
            [piece for piece, its_turn in zip(run, its_turns, strict=True) if not its_turn]
            for run, its_turns in zip(runs, turns, strict=True)
        ]
    is_turned = bool(turn or page.rotation)
    read = Page(page.number + 1, width, height, _lines(runs), turn=turn, is_turned=is_turned)
    read.is_pictured = has_pictures and not read.lines
    # rules of a page printed sideways would have to be turned as well, and are rare there
    if not turn and any(block["type"] == "vector" for block in blocks):
        strokes = [found[:4] for found in textpage.extractBLOCKS() if found[6] == _VECTOR]
        read.rules = _rules(strokes)
        read.grids = grids(page, strokes, sum(len(piece["text"]) for run in runs for piece in run))
        read.strokes = strokes if images else []
    if images:
        _keep_pictures(read, textpage, 0 if read.lines else page.rotation // 90)
    elif not turn:
        read.images = _images([_box(block) for block in blocks if block["type"] == "image"], read)
    return read


def _keep_pictures(read: Page, textpage: Any, turn: int) -> None:
    """Note the pictures of a page with their pixels, and count those that carry no content."""
    found: dict[Box, Picture] = {}
    for block in textpage.this:
        if block.m_internal.type != _IMAGE:
            continue
        box, to_page = block.m_internal.bbox, block.i_transform()
        place, axes = (box.x0, box.y0, box.x1, box.y1), (to_page.a, to_page.b, to_page.c, to_page.d)
        for _ in range(turn):  # a quarter clockwise each
            axes = (-axes[1], axes[0], -axes[3], axes[2])
        found[place] = Picture(block.i_image(), axes)
    read.images = _images(list(found), read)
    read.pictures = {place: found[place] for place in read.images}
    n_small = sum(min(x1 - x0, y1 - y0) < MIN_IMAGE_POINTS for x0, y0, x1, y1 in found)
    n_rest = len(found) - n_small - len(read.images)
    reason = "background" if read.images or n_rest <= MAX_IMAGES else "tile"
    read.left_out = +Counter({"small": n_small, reason: n_rest})


def _blocks(textpage: Any) -> tuple[Sequence[Mapping[str, Any]], list[list[Piece]]]:
    """Read the blocks of a page, and the pieces of its text, from MuPDF's own JSON: twice as fast as PyMuPDF's dict.

    With PRESERVE_SPANS each of its ``lines`` is in one font. Lengths are whole numbers, `_SCALE` per point.
    """
    from pydantic_core import from_json
    from pymupdf import mupdf

    buffer = mupdf.fz_new_buffer(1 << 15)
    output = mupdf.FzOutput(buffer)
    mupdf.fz_print_stext_page_as_json(output, textpage.this, _SCALE)
    output.fz_close_output()
    text = buffer.fz_buffer_extract()
    try:
        blocks: Sequence[Mapping[str, Any]] = from_json(text, cache_strings="keys")["blocks"]
    except ValueError:
        blocks = json.loads(text)["blocks"]  # slower, but it accepts lone surrogates
    return blocks, [block["lines"] for block in blocks if block["type"] == "text"]


def _box(found: Mapping[str, Any]) -> Box:
    box = found["bbox"]
    x: int = box["x"]
    y: int = box["y"]
    return x / _SCALE, y / _SCALE, (x + box["w"]) / _SCALE, (y + box["h"]) / _SCALE


def _are_level(runs: Sequence[Sequence[Piece]]) -> bool:
    """Whether all pieces surely run across the page: each begins at its left edge, its baseline is its lower edge."""
    for run in runs:
        for piece in run:
            box, size = piece["bbox"], piece["font"]["size"]
            if piece["x"] - box["x"] > 0.05 * size or box["y"] + box["h"] - piece["y"] > size:
                return False
    return True


def _turns(textpage: Any) -> list[list[int]]:
    """Which way each piece of each block runs; a margin stamp or an axis label runs otherwise than the text."""
    text = (block for block in textpage.this if block.m_internal.type == _TEXT)
    return [[_direction(line.m_internal.dir) for line in block] for block in text]


def _direction(vector: Any) -> int:
    """Which way a piece runs: 0 across the page, 1 upwards, 3 downwards."""
    return 0 if abs(vector.x) >= abs(vector.y) else 1 if vector.y < 0 else 3


def _lines(runs: Sequence[Sequence[Piece]]) -> list[Line]:
    """Put pieces together to lines, in the order they were drawn."""
    lines: list[Line] = []
    ends_in_space = False
    for run in runs:
        for pieces in _in_line(run):
            box = around(list(map(_box, pieces)))
            text, size, bold = _one_font(pieces[0]) if len(pieces) == 1 else _several_fonts(pieces)
            if not (text.isascii() and text.isprintable()):
                text = plain_maths(clean_print(text))
            stripped = text.strip()
            if not stripped:
                continue
            if lines and _goes_on(lines[-1], box, size):
                _append(lines[-1], stripped, box, ends_in_space or text[0] == " ")
            else:
                lines.append(Line(*box, stripped, size, bold))
            ends_in_space = text[-1] == " "
    return lines


def _in_line(run: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Yield runs of pieces that MuPDF split only where the font changes, not at a gap."""
    pieces: list[Piece] = []
    for piece in run:
        if pieces and not _continues(pieces[-1], piece):
            yield pieces
            pieces = []
        pieces.append(piece)
    if pieces:
        yield pieces


def _continues(last: Piece, piece: Piece) -> bool:
    """Whether only the font separates two pieces: MuPDF joins what is within 0.8 font sizes both ways."""
    size, other = piece["font"]["size"], last["font"]["size"]
    # what is several times as large is a watermark below the text, or an initial beside it
    reach = 0.8 * (size if size < MAX_RATIO * other else other)
    if abs(piece["y"] - last["y"]) > 0.8 * min(max(size, other), MAX_RATIO * min(size, other)):
        return False
    box, before = piece["bbox"], last["bbox"]
    if abs(box["x"] - before["x"] - before["w"]) < reach:
        return True
    touches = abs(before["x"] - box["x"] - box["w"]) < 0.2 * reach
    return touches and _RIGHT_TO_LEFT.search(last["text"] + piece["text"]) is not None


def _one_font(piece: Piece) -> tuple[str, float, bool]:
    """Text of a piece, its size in points and whether it is bold."""
    font = piece["font"]
    return piece["text"], *_size_and_weight(font["size"], font["weight"], font["name"])


@lru_cache(maxsize=4096)
def _size_and_weight(size: int, weight: str, name: str) -> tuple[float, bool]:
    return round(size / _SCALE, 4), weight == "bold" or _BOLD_NAME.search(name) is not None


def _several_fonts(pieces: Sequence[Piece]) -> tuple[str, float, bool]:
    """Text of a line of several fonts, with the size and weight that most of its characters have."""
    texts: list[str] = []
    sizes: dict[float, int] = {}
    n_bold = n_all = 0
    for piece in pieces:
        text, size, bold = _one_font(piece)
        n = len(text.strip())
        sizes[size] = sizes.get(size, 0) + n
        n_all += n
        if bold:
            n_bold += n
        texts.append(text)
    size = max(sizes, key=sizes.__getitem__)
    baselines = [piece["y"] for piece in pieces]
    is_level = len(sizes) == 1 or max(baselines) - min(baselines) < MIN_LOWERED * size * _SCALE
    return "".join(texts) if is_level else _with_scripts(pieces, size), size, 2 * n_bold > n_all


MIN_RAISED, MIN_LOWERED = 0.15, 0.06  # least distance of a raised and of a lowered character's baseline, in font sizes
MAX_SCRIPT_SIZE = 0.95  # largest font size of one, as a share of the text's


@dataclass(slots=True)
class _Script:
    """Neighbouring pieces at one height: 1 raised, -1 lowered, 0 on the baseline; left and right in MuPDF's units."""

    height: int
    text: str
    x0: float
    x1: float
    is_maths: bool = False  # whether it ends in a font for formulas


def _with_scripts(pieces: Sequence[Piece], size: float) -> str:
    """Text of a line with raised and lowered characters as `raised` writes them; ``size`` is that of most of it."""
    scripts = _scripts(pieces, size)
    written = ""
    for i, script in enumerate(scripts):
        text, after = script.text, scripts[i + 1].text if i + 1 < len(scripts) else ""
        if script.height:
            stripped = text.strip()
            # in a font for formulas a letter is a name by itself, whatever stands before it
            start = -1 if i and scripts[i - 1].is_maths and written[-1:].isalpha() else -80
            before = written[start:] + " " * (text[:1] == " ")
            write = write_raised if script.height > 0 else write_lowered
            text = write(before, stripped, " " if text[-1:] == " " else after)
            text = f"{' ' * (script.text[:1] == ' ' and text[:1] != ' ')}{text}{' ' * (script.text[-1:] == ' ')}"
        written += text
    return written


def _scripts(pieces: Sequence[Piece], size: float) -> list[_Script]:
    # MuPDF gives a piece that begins with a space the height of the piece before it
    bases = [piece for piece in pieces if piece["font"]["size"] >= 0.9 * size * _SCALE]
    base = next((piece for piece in bases if piece["text"][0] != " "), bases[0] if bases else pieces[0])
    baseline, base_size = base["y"], base["font"]["size"]
    scripts: list[_Script] = []
    for piece in pieces:
        its_size, box = piece["font"]["size"], piece["bbox"]
        rise = (baseline - piece["y"]) / base_size
        height = 0
        if its_size < MAX_SCRIPT_SIZE * base_size:
            height = 1 if MIN_RAISED < rise < 1 else -1 if -0.8 < rise < -MIN_LOWERED else 0
        if not height and its_size >= 0.9 * size * _SCALE and piece["text"][0] != " ":
            baseline, base_size = piece["y"], its_size
        if scripts and scripts[-1].height == height:
            scripts[-1].text += piece["text"]
            scripts[-1].x1 = box["x"] + box["w"]
        else:
            scripts.append(_Script(height, piece["text"], box["x"], box["x"] + box["w"]))
        scripts[-1].is_maths = _MATHS.search(piece["font"]["name"]) is not None
    for i, (upper, lower) in enumerate(pairwise(scripts)):
        is_stacked = upper.height > 0 > lower.height and lower.x0 < upper.x1 - 0.3 * (upper.x1 - upper.x0)
        before = scripts[i - 1].text[-1:] if i else ""
        if is_stacked and (before.isalpha() or before in tuple(")]}")):
            scripts[i], scripts[i + 1] = lower, upper  # an index and an exponent: the index belongs to the name
        elif is_stacked:
            over, under = upper.text.strip(), lower.text.strip()
            upper.height, upper.text = 0, f"{' ' * before.isalnum()}{over}/{under}"
            lower.height, lower.text = 0, " " * (lower.text[-1:] == " ")
    return scripts


def around(boxes: Sequence[Box]) -> Box:
    """Return the smallest box that holds all the others."""
    left, top, right, bottom = zip(*boxes, strict=True)
    return min(left), min(top), max(right), max(bottom)


def _goes_on(last: Line, box: Box, size: float) -> bool:
    """Whether a piece is on the same line as the last, with no more than a letter's width between."""
    x0, y0, x1, y1 = box
    if abs(y1 - last.y1) > 0.4 * size or abs(y0 - last.y0) > 0.6 * size:
        return False
    gap = x0 - last.x1 if x0 >= last.x0 else last.x0 - x1
    return -0.5 * size < gap < 0.9 * size


def _append(last: Line, text: str, box: Box, spaced: bool) -> None:
    """Add text to a line, after a space where there is one or the gap is as wide as one."""
    x0, y0, x1, y1 = box
    is_before = x0 < last.x0
    rtl = _RIGHT_TO_LEFT.search(text) is not None or _RIGHT_TO_LEFT.search(last.text) is not None
    close = not spaced and (last.x0 - x1 if is_before else x0 - last.x1) < 0.12 * last.size
    pieces = (text, last.text) if is_before and not rtl else (last.text, text)
    last.text = ("" if close and not rtl else " ").join(pieces)
    last.x0, last.x1 = min(last.x0, x0), max(last.x1, x1)
    last.y0, last.y1 = min(last.y0, y0), max(last.y1, y1)


def _rules(strokes: Sequence[Box]) -> list[tuple[float, float, float]]:
    """Horizontal rules from top to bottom; for a filled or framed box, its upper and lower edge."""
    found: set[tuple[float, float, float]] = set()
    for x0, y0, x1, y1 in strokes:
        if x1 - x0 >= _MIN_RULE:
            left, right = round(x0, 1), round(x1, 1)
            heights = ((y0 + y1) / 2,) if y1 - y0 <= _RULE_THICKNESS else (y0, y1)
            found.update((left, right, round(height, 1)) for height in heights)
    return sorted(found, key=lambda rule: (rule[2], rule[0]))


def _images(boxes: Sequence[Box], page: Page) -> list[Box]:
    """Those pictures that may carry content, top to bottom."""
    area = page.width * page.height
    kept = []
    for x0, y0, x1, y1 in boxes:
        is_small = min(x1 - x0, y1 - y0) < MIN_IMAGE_POINTS
        is_background = bool(page.lines) and (x1 - x0) * (y1 - y0) > MAX_IMAGE_SHARE * area
        if not is_small and not is_background:
            kept.append((x0, y0, x1, y1))
    return sorted(set(kept), key=lambda box: (box[1], box[0])) if len(kept) <= MAX_IMAGES else []


MAX_STROKES = 1500
"""Most strokes on a page that is searched for grids; one with more is a drawing and would take seconds."""

MAX_COMPARISONS = 40_000_000  # most comparisons of the search for grids on one page: about three seconds
MAX_GRIDS = 50  # grids read on one page; more are the boxes of a form or drawing, whose text is read as lines
_THICKNESS = 3.0


def grids(page: Any, strokes: Sequence[Box], n_chars: int) -> list[tuple[Box, list[list[str]]]]:
    """Find the grids on a `pymupdf.Page`: where each is, and its rows of cells.

    A grid has at least two rows and two columns, most cells filled, which a chart's frame has not. Nothing is found
    where the search would take more than `MAX_COMPARISONS`.
    """
    if not _may_hold_grid(strokes) or _n_comparisons(strokes, n_chars) > MAX_COMPARISONS:
        return []
    # use_layout would run a neural network over the page: two hundred times as long, and quadratic in its text
    finder = page.find_tables(strategy="lines_strict", use_layout=False)
    found = []
    for table in finder.tables[:MAX_GRIDS] if finder is not None else ():
        words = page.get_text("words", clip=table.bbox)
        rows = [row for one in table.rows if any(row := _cells(one, words))]
        n_cells = sum(map(len, rows))
        n_filled = sum(bool(cell) for row in rows for cell in row)
        if len(rows) >= 2 and min(map(len, rows)) >= 2 and 2 * n_filled >= n_cells:
            found.append((tuple(table.bbox), rows))
    return found


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


def _cells(row: Any, words: Sequence[tuple[Any, ...]]) -> list[str]:
    """Texts of a row's cells, by the middle of each word: `Table.extract` removes spaces and commas from numbers."""
    _, top, _, bottom = row.bbox
    placed = [((word[0] + word[2]) / 2, (word[1] + word[3]) / 2, word[4]) for word in words]
    inside = [word for word in placed if top <= word[1] < bottom]
    return [_cell(cell, inside) for cell in row.cells]


def _cell(cell: Box | None, words: Sequence[tuple[float, float, str]]) -> str:
    """Text of a cell; empty where the grid has a gap."""
    if cell is None:
        return ""
    x0, y0, x1, y1 = cell
    return clean_print(" ".join(text for x, y, text in words if x0 <= x < x1 and y0 <= y < y1)).strip()
