"""One page of a PDF as PyMuPDF sees it: lines of text, images, rules, and grids with a border round every cell."""

# Over 400 lines: lines, pictures and scripts are read in one walk over the pieces of a page.

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from kohaku_ray.documents.content import clean_print
from kohaku_ray.documents.model import Box, Image
from kohaku_ray.documents.pdf_grids import find_grids
from kohaku_ray.documents.pdf_text import SCALE, Piece, is_spaced, one_font, respaced, several_fonts
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
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefe]")

MAX_SCRIPT_CHARS = 6  # longest mark or exponent that was drawn apart from its line
MAX_NEAR = 8  # most lines whose ends are looked at in a square of eight points
_SCRIPT = re.compile(r"[-−+]?\d{1,3}(?:[,–-]\d{1,3})*|[a-z](?:,[a-z])*|[*∗†‡§¶]+|st|nd|rd|th")
_MANY_SPACES = "   "  # as many set the cells of a table apart
MAX_RATIO = 3.0  # largest ratio of font sizes in one line
MAX_NUMBER_GAP = 0.4  # font sizes between a line and a smaller number that belongs to it
_TEXT, _IMAGE, _VECTOR = 0, 1, 3  # muPDF's kinds of block


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
    cells: list[list[str]] = field(default_factory=list)  # of a table
    header: int = -1  # which row of a table names its columns
    n_marks: int = 0  # marks of footnotes in its text
    is_note: bool = False  # whether it begins with the mark of a footnote, which is the note's

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
    headers: list[int] = field(default_factory=list)  # which row of each grid names its columns; -1: none
    turn: int = 0  # 1 where the text runs upwards, 3 where it runs downwards
    pictures: dict[Box, Picture] = field(default_factory=dict)  # embedded images by their place
    strokes: list[Box] = field(default_factory=list)  # places of drawn lines and areas
    extracted: dict[Box, Image] = field(default_factory=dict)  # images by their place, as extracted
    n_marks: int = 0  # marks of footnotes, set apart
    left_out: Counter[str] = field(default_factory=Counter)  # number of images that carry no content, by reason
    is_turned: bool = False  # its text runs upwards or downwards, or a viewer turns the page
    is_pictured: bool = False  # it has no text, but a picture
    upright: list[str] = field(
        default_factory=list
    )  # texts that run another way than the page's: labels of axes, stamps

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
    upright: list[str] = []
    if not _are_level(runs):
        turns = _turns(textpage)
        turn = max(range(4), key=Counter(turn for run in turns for turn in run).__getitem__)
        if turn:  # printed sideways: read it again as if it were turned
            matrix = (0, 1, -1, 0, height, 0) if turn == 1 else (0, -1, 1, 0, 0, width)
            width, height = height, width
            textpage = page.get_textpage(clip=(0, 0, width, height), flags=flags, matrix=pymupdf.Matrix(*matrix))
            blocks, runs = _blocks(textpage)
            turns = _turns(textpage)
        turned = [list(zip(run, its_turns, strict=True)) for run, its_turns in zip(runs, turns, strict=True)]
        texts = (one_font(piece)[0].strip() for pieces in turned for piece, its_turn in pieces if its_turn)
        upright = [clean_print(text) for text in texts if text]
        runs = [[piece for piece, its_turn in pieces if not its_turn] for pieces in turned]
    is_turned = bool(turn or page.rotation)
    read = Page(page.number + 1, width, height, _lines(runs), turn=turn, is_turned=is_turned, upright=upright)
    read.n_marks = sum(line.n_marks for line in read.lines)
    if not turn:
        read.lines = _split_at_spaces(page, read.lines)
        _respace(page, read.lines)
    read.is_pictured = has_pictures and not read.lines
    # rules of a page printed sideways would have to be turned as well, and are rare there
    if not turn and any(block["type"] == "vector" for block in blocks):
        strokes = [found[:4] for found in textpage.extractBLOCKS() if found[6] == _VECTOR]
        read.rules = _rules(strokes)
        read.grids, read.headers = find_grids(page, strokes, runs)
        read.strokes = strokes if images else []
    if images:
        _keep_pictures(read, textpage, 0 if read.lines else page.rotation // 90)
    elif not turn:
        read.images = _images([_box(block) for block in blocks if block["type"] == "image"], read)
    return read


def _split_at_spaces(page: Any, lines: list[Line]) -> list[Line]:
    """Cut lines whose words are set apart by spaces, as the cells of a table are by some programs."""
    if not any(_MANY_SPACES in line.text for line in lines):
        return lines
    words = page.get_text("words")
    cut: list[Line] = []
    for line in lines:
        parts = [part for part in line.text.split(_MANY_SPACES) if part.strip()]
        inside = [word for word in words if line.y0 - 1 < (word[1] + word[3]) / 2 < line.y1 + 1] if parts[1:] else []
        inside = sorted(word for word in inside if line.x0 - 1 < word[0] and word[2] < line.x1 + 1)
        starts = [i for i, (a, b) in enumerate(pairwise(inside), 1) if b[0] - a[2] > 0.9 * line.size]
        groups = [inside[a:b] for a, b in pairwise([0, *starts, len(inside)])]
        if not inside or len(groups) != len(parts):
            cut.append(line)
            continue
        for part, group in zip(parts, groups, strict=True):
            box = group[0][0], line.y0, group[-1][2], line.y1
            cut.append(replace(line, x0=box[0], x1=box[2], text=part.strip()))
    return cut


def _respace(page: Any, lines: Sequence[Line]) -> None:
    """Write the words of lines that are set letter by letter, by the distances of their characters."""
    import pymupdf

    spaced = [line for line in lines if is_spaced(line.text)]
    if not spaced:
        return
    found = page.get_text("rawdict", flags=pymupdf.TEXT_MEDIABOX_CLIP)["blocks"]
    spans = [span for block in found for line in block["lines"] for span in line["spans"]]
    rows: dict[int, list[tuple[float, float, float, str]]] = {}  # characters by the height of their baseline
    for span in spans:
        for char in span["chars"]:
            if char["c"] != " ":
                left, _, right, _ = char["bbox"]
                rows.setdefault(round(char["origin"][1]), []).append((left, right, span["size"], char["c"]))
    for line in spaced:
        inside = [
            char
            for height in range(round(line.y0), round(line.y1) + 1)
            for char in rows.get(height, ())
            if line.x0 - 0.1 <= char[0] and char[1] <= line.x1 + 0.1 and abs(char[2] - line.size) < 0.1 * line.size
        ]
        line.text = respaced(inside, line.size) or line.text


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

    With PRESERVE_SPANS each of its ``lines`` is in one font. Lengths are whole numbers, `SCALE` per point.
    """
    from pydantic_core import from_json
    from pymupdf import mupdf

    buffer = mupdf.fz_new_buffer(1 << 15)
    output = mupdf.FzOutput(buffer)
    mupdf.fz_print_stext_page_as_json(output, textpage.this, SCALE)
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
    return x / SCALE, y / SCALE, (x + box["w"]) / SCALE, (y + box["h"]) / SCALE


def _are_level(runs: Sequence[Sequence[Piece]]) -> bool:
    """Whether all pieces surely run across the page: each begins at its left edge, its baseline is its lower edge."""
    for run in runs:
        for piece in run:
            box, size = piece["bbox"], piece["font"]["size"]
            if piece["x"] - box["x"] > 0.05 * size or box["y"] + box["h"] - piece["y"] > size:
                return False
    return True


def _turns(textpage: Any) -> list[list[int]]:
    """Which way each piece of each block runs: 0 across the page, 1 upwards, 3 downwards, as a margin stamp may."""
    blocks = (block for block in textpage.this if block.m_internal.type == _TEXT)
    vectors = [[line.m_internal.dir for line in block] for block in blocks]
    return [[0 if abs(v.x) >= abs(v.y) else 1 if v.y < 0 else 3 for v in block] for block in vectors]


def _lines(runs: Sequence[Sequence[Piece]]) -> list[Line]:
    """Put pieces together to lines, in the order they were drawn."""
    lines: list[Line] = []
    ends_in_space = False
    for run in _with_fractions(runs):
        for pieces in _in_line(run):
            box = around(list(map(_box, pieces)))
            text, size, bold = one_font(pieces[0]) if len(pieces) == 1 else several_fonts(pieces)
            if not (text.isascii() and text.isprintable()):
                text = plain_maths(clean_print(text))
            stripped = text.strip()
            if not stripped:
                continue
            if lines and _goes_on(lines[-1], box, size, stripped):
                _append(lines[-1], stripped, box, ends_in_space or text[0] == " ")
            else:
                is_note = stripped[0] == "[" != pieces[0]["text"].lstrip()[:1]
                lines.append(Line(*box, stripped, size, bold, is_note=is_note))
            if len(pieces) > 1 and "[" in text:
                lines[-1].n_marks += text.count("[") - sum(piece["text"].count("[") for piece in pieces)
            ends_in_space = text[-1] == " "
    return _attach_scripts(lines)


def _with_fractions(runs: Sequence[Sequence[Piece]]) -> Iterator[Sequence[Piece]]:
    """Yield runs, of which one that begins below the end of the one before, as a denominator does, goes on with it."""
    last: Sequence[Piece] = ()
    for run in runs:
        if last and run and _is_below(run[0], last):
            last = [*last, *run]
            continue
        if last:
            yield last
        last = run
    if last:
        yield last


def _is_below(piece: Piece, before: Sequence[Piece]) -> bool:
    """Whether a piece stands below the last of a line, where that is in smaller print than the one before it."""
    if len(before) < 2:
        return False
    upper, size, box = before[-1], piece["font"]["size"], piece["bbox"]
    above, rise = upper["bbox"], piece["y"] - upper["y"]
    if upper["font"]["size"] != size or size > 0.85 * before[-2]["font"]["size"] or not 0 < rise < 1.3 * size:
        return False
    is_narrow: bool = max(box["w"], above["w"]) < 4 * size
    return is_narrow and bool(above["x"] <= box["x"] < above["x"] + above["w"] - 0.2 * size)


def _in_line(run: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Yield runs of pieces that MuPDF split only where the font changes, not at a gap."""
    pieces: list[Piece] = []
    for piece in run:
        if pieces and not (_continues(pieces[-1], piece) or _is_below(piece, pieces)):
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
    gap = abs(box["x"] - before["x"] - before["w"])
    if gap < reach:
        return gap < MAX_NUMBER_GAP * max(size, other) or not _is_line_number(piece, last)
    touches = abs(before["x"] - box["x"] - box["w"]) < 0.2 * reach
    return touches and _RIGHT_TO_LEFT.search(last["text"] + piece["text"]) is not None


def _attach_scripts(lines: list[Line]) -> list[Line]:
    """Join marks, exponents and indices that were drawn apart from their lines to these."""
    least = 0.9 * max([line.size for line in lines], default=0.0)
    small = [line for line in lines if len(line.text) <= MAX_SCRIPT_CHARS and line.size < least]
    small = [line for line in small if _SCRIPT.fullmatch(line.text)]
    if not small:
        return lines
    ends: dict[tuple[int, int], list[Line]] = {}
    for line in lines:
        for x in (line.x0, line.x1) if line.size else ():
            ends.setdefault((round(x / 8), round(line.y0 / 8)), []).append(line)
    gone: set[int] = set()
    for script in small:
        for base in _near(ends, script):
            size = base.size
            rise = (base.y0 + base.y1 - script.y0 - script.y1) / 2 / size
            if (
                id(base) in gone
                or script.size > 0.9 * size
                or not 0.08 < abs(rise) < 0.8
                or script.x1 - script.x0 > 2 * size
            ):
                continue
            if -0.3 * size < script.x0 - base.x1 < 0.35 * size:
                write = write_raised if rise > 0 else write_lowered
                base.text += write(base.text, script.text)
            elif rise > 0 and -0.1 * size < base.x0 - script.x1 < size:
                base.text = f"{write_raised('', script.text, ' ')} {base.text}"
                base.is_note = base.text[0] == "["
            else:
                continue
            base.x0, base.x1 = min(base.x0, script.x0), max(base.x1, script.x1)
            base.n_marks += base.text.endswith("]") or base.is_note
            gone.add(id(script))
            break
    return [line for line in lines if id(line) not in gone] if gone else lines


def _near(ends: Mapping[tuple[int, int], Sequence[Line]], script: Line) -> Iterator[Line]:
    """Lines one of whose ends is beside a small line, at most `MAX_NEAR` per square of eight points."""
    column, row = round((script.x0 + script.x1) / 16), round(script.y0 / 8)
    for x in (column, column - 1, column + 1):
        for y in (row, row - 1, row + 1, row - 2):
            yield from ends.get((x, y), ())[:MAX_NEAR]


def around(boxes: Sequence[Box]) -> Box:
    """Return the smallest box that holds all the others."""
    left, top, right, bottom = zip(*boxes, strict=True)
    return min(left), min(top), max(right), max(bottom)


def _is_line_number(piece: Piece, last: Piece) -> bool:
    """Whether one of two pieces side by side may be the number of the line, in smaller print in the margin."""
    small, large = (piece, last) if piece["font"]["size"] < last["font"]["size"] else (last, piece)
    is_number: bool = small["text"].strip().isdecimal()
    return is_number and bool(small["font"]["size"] < 0.85 * large["font"]["size"])


def _goes_on(last: Line, box: Box, size: float, text: str) -> bool:
    """Whether a piece is on the same line as the last, with no more than a letter's width between."""
    x0, y0, x1, y1 = box
    if not last.size < MAX_RATIO * size < MAX_RATIO * MAX_RATIO * last.size:
        return False
    if abs(y1 - last.y1) > 0.4 * size or abs(y0 - last.y0) > 0.6 * size:
        return False
    gap = x0 - last.x1 if x0 >= last.x0 else last.x0 - x1
    if gap >= MAX_NUMBER_GAP * max(size, last.size):  # the number of a line, in smaller print in the margin
        small, ratio = (text, size / last.size) if size < last.size else (last.text, last.size / size)
        if ratio < 0.85 and small.isdecimal():
            return False
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
