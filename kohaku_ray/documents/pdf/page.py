"""Read one page of a PDF: its lines of text, images, rules, and tables with borders.

Ranges beside thresholds as in `kohaku_ray.documents.pdf.blocks`.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from statistics import median
from typing import Any

from kohaku_ray.documents.model import Box, Image
from kohaku_ray.documents.pdf.forms import read_fields, write_field
from kohaku_ray.documents.pdf.unseen import SCALE, Piece, box_of, drop_unseen
from kohaku_ray.documents.text.content import clean_print
from kohaku_ray.documents.text.raised import is_tolerance, plain_maths, write_lowered, write_raised
from kohaku_ray.documents.text.sentences import LEADERS, ends_entry, words_of
from kohaku_ray.documents.text.tables import Cells, Grid, Hints, TableCell, header_rows, name_columns

_BOLD_NAME = re.compile(r"bold|black|heavy|cmbx|sfbx|-bd|\bmedi$", re.IGNORECASE)
_MATHS = re.compile(r"CMMI|CMSY|MSBM|math|MTMI|[tp]xmi|LMMI", re.IGNORECASE)  # fonts for formulas


def one_font(piece: Piece) -> tuple[str, float, bool]:
    """Text of a piece, its size in points and whether it is bold."""
    font = piece["font"]
    return piece["text"], *_size_and_weight(font["size"], font["weight"], font["name"])


@lru_cache(maxsize=4096)
def _size_and_weight(size: int, weight: str, name: str) -> tuple[float, bool]:
    return round(size / SCALE, 4), weight == "bold" or _BOLD_NAME.search(name) is not None


def several_fonts(pieces: Sequence[Piece]) -> tuple[str, float, bool]:
    """Text of a line of several fonts, with the size and weight that most of its characters have."""
    texts: list[str] = []
    sizes: dict[float, int] = {}
    n_bold = n_all = 0
    for piece in pieces:
        text, size, bold = one_font(piece)
        n = len(text.strip())
        sizes[size] = sizes.get(size, 0) + n
        n_all += n
        if bold:
            n_bold += n
        texts.append(text)
    size = max(sizes, key=sizes.__getitem__)
    if len(sizes) > 1:
        baselines = _baselines(pieces)
        if max(baselines) - min(baselines) >= MIN_LOWERED * size * SCALE:
            return _with_scripts(pieces, baselines, size), size, 2 * n_bold > n_all
    return "".join(texts), size, 2 * n_bold > n_all


def _baselines(pieces: Sequence[Piece]) -> list[float]:
    """Heights of the baselines of pieces.

    MuPDF gives a piece that begins with a space the height of the piece before it; its box then holds both.
    """
    plain = [piece for piece in pieces if piece["text"][0] != " "]
    if len(plain) in (0, len(pieces)):
        return [piece["y"] for piece in pieces]
    y, first_box, first_size = plain[0]["y"], plain[0]["bbox"], plain[0]["font"]["size"]
    ascent, descent = (y - first_box["y"]) / first_size, (first_box["y"] + first_box["h"] - y) / first_size
    baselines = []
    for piece in pieces:
        baseline, box, size = piece["y"], piece["bbox"], piece["font"]["size"]
        # a space between two baselines has a box round both: an eighth above its own height is beyond rounding
        if piece["text"][0] == " " and box["h"] > 1.12 * (ascent + descent) * size:
            upper, lower = box["y"] + ascent * size, box["y"] + box["h"] - descent * size
            baseline = upper if abs(lower - baseline) < abs(upper - baseline) else lower
        baselines.append(baseline)
    return baselines


MIN_RAISED, MIN_LOWERED = 0.15, 0.06  # least distance of a raised and of a lowered character's baseline, in font sizes
MIN_LARGE_RISE, MAX_LARGE_RISE = 0.25, 0.6  # distance of the baseline of one that is nearly as large as the text
_LARGE_SCRIPT = re.compile(r"[-−]?\d{1,3}(?:[,–-]\d{1,3})*|[a-z](?:,[a-z])*|[*†‡§]|st|nd|rd|th")
MAX_SCRIPT_SIZE = 0.95  # largest font size of one, as a share of the text's


@dataclass(slots=True)
class _Script:
    """Neighbouring pieces at one height: 1 raised, -1 lowered, 0 on the baseline; left and right in MuPDF's units."""

    height: int
    text: str
    x0: float
    x1: float
    is_maths: bool = False  # whether it ends in a font for formulas


def _with_scripts(pieces: Sequence[Piece], baselines: Sequence[float], size: float) -> str:
    """Text of a line with raised and lowered characters as `raised` writes them; ``size`` is that of most of it."""
    scripts = _scripts(pieces, baselines, size)
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


def _scripts(pieces: Sequence[Piece], baselines: Sequence[float], size: float) -> list[_Script]:
    # what has nine tenths of the line's size stands on its baseline: 0.82 to 0.9 decide alike
    first = next((i for i, piece in enumerate(pieces) if piece["font"]["size"] >= 0.9 * size * SCALE), 0)
    baseline, base_size = baselines[first], pieces[first]["font"]["size"]
    scripts: list[_Script] = []
    for piece, its_baseline in zip(pieces, baselines, strict=True):
        its_size, box = piece["font"]["size"], piece["bbox"]
        rise = (baseline - its_baseline) / base_size
        height = 0
        if its_size < MAX_SCRIPT_SIZE * base_size:
            height = 1 if MIN_RAISED < rise < 1 else -1 if -0.8 < rise < -MIN_LOWERED else 0
        elif its_size < base_size and MIN_LARGE_RISE < rise < MAX_LARGE_RISE and scripts and not scripts[-1].height:
            # right behind a letter or digit: so WeasyPrint sets exponents in cells (extraction_made.py)
            is_behind = abs(box["x"] - scripts[-1].x1) < 0.1 * base_size and scripts[-1].text[-1].isalnum()
            height = 1 if is_behind and _LARGE_SCRIPT.fullmatch(piece["text"].strip()) else 0
        if not height and its_size >= 0.9 * size * SCALE:
            baseline, base_size = its_baseline, its_size
        if scripts and scripts[-1].height == height:
            scripts[-1].text += piece["text"]
            scripts[-1].x1 = box["x"] + box["w"]
        else:
            scripts.append(_Script(height, piece["text"], box["x"], box["x"] + box["w"]))
        scripts[-1].is_maths = _MATHS.search(piece["font"]["name"]) is not None
    for i, (upper, lower) in enumerate(pairwise(scripts)):
        # one below the other by most of the upper one's width: 0.2 to 0.45 decide alike
        is_stacked = upper.height > 0 > lower.height and lower.x0 < upper.x1 - 0.3 * (upper.x1 - upper.x0)
        before = scripts[i - 1].text[-1:] if i and upper.text[:1] != " " else ""
        if is_stacked and before.isalpha():
            scripts[i], scripts[i + 1] = lower, upper  # an index and an exponent: the index belongs to the name
        elif is_stacked:
            over, under = upper.text.strip(), lower.text.strip()
            is_apart = upper.text[:1] == " "
            joint = " " if over[:1] == "+" and is_tolerance("1", under) else "/"
            upper.height, upper.text = 0, f"{' ' * is_apart}{over}{joint}{under}"
            lower.height, lower.text = 0, " " * (lower.text[-1:] == " ")
    return scripts


MIN_SPACED = 5  # fewest letters that are set letter by letter
MAX_LETTER_GAP = 0.5  # largest distance between the letters of a word, in font sizes
MIN_WORD_GAP = 0.15  # least distance of two words beyond that of two letters
_SINGLE_LETTERS = re.compile(r" [^\W\d_] \S \S \S ")
_SPACED_PART = re.compile(r"(?<!\S)(?:\S ){5,}\S(?!\S)")
_VOWEL = re.compile(r"[aeiouäöüáéíóúàèìòùâêîôû]", re.IGNORECASE)


def is_spaced(text: str) -> bool:
    """Whether nearly all words of a line are single letters, as those of ``A B S T R A C T`` are."""
    n_spaces = text.count(" ")
    if n_spaces < MIN_SPACED - 1 or 3 * n_spaces < len(text):
        return False
    words = text.split(" ")  # of five, one may be a word; a row of symbols has fewer letters
    return sum(len(word) == 1 for word in words) >= 0.8 * len(words) and 2 * sum(map(str.isalpha, words)) > len(words)


def respaced(chars: Sequence[tuple[float, float, float, str]], size: float) -> str:
    """Write a line's characters (left, right, size, text) as words; empty where they are no words."""
    ordered = sorted(chars)
    gaps = [after[0] - char[1] for char, after in pairwise(ordered)]
    if len(gaps) < MIN_SPACED - 1 or median(gaps) > MAX_LETTER_GAP * size:
        return ""
    widest = median(gaps) + MIN_WORD_GAP * size
    text = ordered[0][3] + "".join(" " * (gap > widest) + char[3] for gap, char in zip(gaps, ordered[1:], strict=True))
    words = text.split(" ")
    if len(words) == 1:  # an only word, and no list of letters: "a b c d e"
        is_list = list(text) == sorted(text) or not (text.isalpha() and (text.isupper() or text[1:].islower()))
        return "" if is_list or _VOWEL.search(text) is None else text
    return text if max(map(len, words)) >= 3 else ""


def _spaced_parts(text: str) -> list[re.Match[str]]:
    """Runs of single characters between spaces, most of them letters."""
    return [match for match in _SPACED_PART.finditer(text) if 4 * sum(map(str.isalpha, match[0])) > len(match[0])]


def _respaced_parts(line: TextLine, chars: Sequence[tuple[float, float, float, str]]) -> str:
    """Write the words of a line of which a part is set letter by letter."""
    ordered = sorted(chars)
    if "".join(char[3] for char in ordered) != line.text.replace(" ", ""):
        return line.text
    text = line.text
    for match in reversed(_spaced_parts(text)):
        start = len(text[: match.start()].replace(" ", ""))
        part = ordered[start : start + len(match[0].replace(" ", ""))]
        if written := respaced(part, line.size):
            text = f"{text[: match.start()]}{written}{text[match.end() :]}"
    return text


BULLETS = "•‣◦▪●■□➢➤✓∙"  # characters that only ever begin a list item
_BULLET = re.compile(rf"[{BULLETS}·–—*-]\s+\S|[\[(]?(?:\d{{1,2}}|[a-z])[.)\]]\s+\S")
_SENTENCE_END = re.compile(r"[.!?:;][\"'”’)\]]*(?:\[\d+(?:[,–-] ?\d+)*\])?$")


def ends_sentence(line: str) -> bool:
    """Whether a line ends with a full stop, a colon or the like."""
    return _SENTENCE_END.search(line[-24:]) is not None


def begins_item(line: str) -> bool:
    """Whether a line begins with a bullet, a number or a letter as the items of a list do."""
    return _BULLET.match(line) is not None


CAPTION = re.compile(
    r"(?P<kind>fig(?:ure|\.)?|table|tab\.)\s*(?:[A-Z]\.?)?\d+[a-z]?(?:[.:|–—]|\s+[A-Z(]|$)", re.IGNORECASE
)
"""How a caption begins."""

SOFT_HYPHEN = "\u00ad"

_HYPHENS = f"-‐‑{SOFT_HYPHEN}"
_COMPOUND = re.compile(r"[^\W\d_]+(?:[-‐‑][^\W\d_]+)+")
_LAST_PART = re.compile(r"([^\W\d_]+)[-‐‑\u00ad]$")
_FIRST_PART = re.compile(r"([^\W\d_]+)([-‐‑][^\W\d_])?")
_TAILS = words_of(  # second parts of compounds that do not end a word written as one
    """based driven aware free efficient intensive specific related trained tuned dependent independent defined powered
    oriented friendly neutral agnostic grained hungry heavy owned funded effective sensitive level scale term stage
    hour domain purpose performance quality precision bandwidth density source"""
)
_HEADS = words_of("self high low long short large small")  # and first parts, but of high-lights and short-comings
_ONE_WORD = re.compile(r"light|land|itud|age|en|est|ing|er|way|ish|com|.{1,4}$")


_CHAIN = re.compile(r"[-‐]\w+[-‐]\w+[-‐]$")  # state-of-the-⏎art


def compounds_in(lines: Iterable[str]) -> set[str]:
    """Words written with a hyphen inside a line, in lower case: ``energy-efficient``."""
    return {word.lower() for line in lines if "-" in line for word in _COMPOUND.findall(line)}


def join_lines(lines: Sequence[str], compounds: Collection[str]) -> str:
    """Write the lines of a paragraph as running text.

    A word divided before a small letter loses its hyphen, unless it is one of the compounds, which the document writes
    with a hyphen elsewhere. An item of a list and an entry of a contents page stay on lines of their own, and dots that
    lead to a page number become an ellipsis.
    """
    done: list[str] = []
    lines = list(map(without_leaders, lines))
    text = lines[0]
    for line in lines[1:]:
        if text[-1].isalpha() and line[:2].isalpha() and "…" not in text:  # most lines: no hyphen, no item, no entry
            done.extend((text, " "))
        else:
            done.extend(_join(text, line, compounds))
        text = line
    return "".join([*done, text]).replace(SOFT_HYPHEN, "")


def without_leaders(line: str) -> str:
    """Write the dots that lead to a page number as an ellipsis."""
    return " … ".join(map(str.strip, LEADERS.split(line))).strip() if LEADERS.search(line) else line


def _join(text: str, line: str, compounds: Collection[str]) -> tuple[str, str]:
    """A line, without its hyphen where that is dropped, and the separator before the next."""
    if ends_entry(text):
        return text, "\n"
    if begins_item(line) and (ends_sentence(text) or begins_item(text) or line[0] in BULLETS):
        return text, "\n"
    last = _LAST_PART.search(text[-40:]) if text[-1] in _HYPHENS else None
    if last is None:
        return text, _separator(text[-40:], line[:40])
    if text.endswith(SOFT_HYPHEN):  # docling#3232
        return text[:-1], ""
    first = _FIRST_PART.match(line)
    is_chain = _CHAIN.search(text[-40:]) is not None
    if first is None or not first[1][0].islower() or is_chain or _is_compound(last[1], first, compounds):
        return text, ""
    return text[:-1], ""


def _is_compound(head: str, tail: re.Match[str], compounds: Collection[str]) -> bool:
    """Whether the hyphen between two lines belongs to the word: the document writes it, or its parts say so."""
    word, head = tail[1], head.lower()
    if f"{head}-{word}".lower() in compounds or tail[2] is not None or min(len(head), len(word)) == 1:
        return True  # state-⏎of-the-art, e-⏎mail
    if head in _HEADS and _ONE_WORD.match(word) is None:
        return True
    return len(head) > 2 and word in _TAILS


_THOUSANDS = re.compile(r"(?<![\d.,])(?<!\d, )\d{1,3}(?:,\d{3})*,$")
_NEXT_THOUSAND = re.compile(r"\d{3}(?![\d,]|, \d| (?:and|or) \d)|\d{3}(?:,\d{3})+(?!\d)")
_OPEN_SIGN = re.compile(r"(?:^|[\s(=×x*/,~≈<>])[-−]$")


def _separator(text: str, line: str) -> str:
    """What stands between the ends of two lines: nothing within a number, ``12,⏎345`` or ``20–⏎25``."""
    is_number = line[:1].isdigit()
    if is_number and text[-1] == "," and _THOUSANDS.search(text) and _NEXT_THOUSAND.match(line):
        return ""
    if is_number and _OPEN_SIGN.search(text):
        return ""
    # "20–" and "25 %", or "3/" and "4"
    return "" if text[-1] in "-–/" and text[-2:-1].isalnum() and line[:1].isalnum() else " "


MAX_STROKES = 1500
"""Most strokes on a page that is searched for grids; one with more is a drawing and would take seconds."""

MAX_COMPARISONS = 40_000_000  # most comparisons of the search for grids on one page: about three seconds
MAX_GRIDS = 50  # grids read on one page; more are the boxes of a form or drawing, whose text is read as lines
_THICKNESS = 3.0


MAX_GRID_HEADER = 3  # most rows that name the columns of a table


def find_grids(
    page: Any, strokes: Sequence[Box], runs: Sequence[Sequence[Piece]]
) -> tuple[list[tuple[Box, Cells]], list[int]]:
    """Find the grids on a `pymupdf.Page`: where each is, its rows of cells, and the row that names its columns.

    A grid has at least two rows and two columns, most cells filled, which a chart's frame has not. Nothing is found
    where the search would take more than `MAX_COMPARISONS`.
    """
    n_chars = sum(len(piece["text"]) for run in runs for piece in run)
    if len(strokes) > MAX_STROKES:
        return [], []
    # upright strokes or boxes enough for two cells side by side on two rows
    upright = {round(x0) for x0, y0, x1, y1 in strokes if x1 - x0 <= _THICKNESS and y1 - y0 > 8}
    level = {round(y0) for x0, y0, x1, y1 in strokes if y1 - y0 <= _THICKNESS and x1 - x0 > 8}
    boxes = [(round(x0), round(y0)) for x0, y0, x1, y1 in strokes if x1 - x0 > 8 and 8 < y1 - y0 < 200]
    has_boxes = len({x for x, _ in boxes}) >= 2 and len({y for _, y in boxes}) >= 2
    if not has_boxes and (len(upright) < 3 or len(level) < 3):
        return [], []
    # at most about how many comparisons `find_tables` makes: of strokes, crossings and words in pairs
    across = {round(x) for x0, y0, x1, y1 in strokes if y1 - y0 > _THICKNESS for x in (x0, x1)}
    down = {round(y) for x0, y0, x1, y1 in strokes if x1 - x0 > _THICKNESS for y in (y0, y1)}
    n_crossings = min(len(across) * len(down), len(strokes) ** 2)
    n_comparisons = 4 * len(strokes) * (len(strokes) + n_chars) + n_crossings * (n_crossings + n_chars // 6)
    if n_comparisons > MAX_COMPARISONS:
        return [], []
    # use_layout would run a neural network over the page: two hundred times as long, and quadratic in its text
    finder = page.find_tables(strategy="lines_strict", use_layout=False)
    grids, headers = [], []
    for table in finder.tables[:MAX_GRIDS] if finder is not None else ():
        cells = _spanned(table, _pieces_inside(page, runs, table))
        filled = [cell for row in cells for cell in row if cell is not None]
        rows = [row for row in cells if any(cell is not None and cell[0] for cell in row)]
        if len(rows) < 2 or len(rows[0]) < 2 or 2 * sum(bool(cell[0]) for cell in filled) < len(filled):
            continue
        written, header = _written(rows)
        grids.append((tuple(table.bbox), written))
        headers.append(header)
    return grids, headers


def _pieces_inside(page: Any, runs: Sequence[Sequence[Piece]], table: Any) -> list[list[Piece]]:
    """The pieces of text in a table, run by run; one that lies across a border word by word."""
    left, top, right, bottom = (SCALE * x for x in table.bbox)
    borders = sorted({round(x * SCALE) for row in table.rows for cell in row.cells if cell for x in (cell[0], cell[2])})
    words: list[Any] = []
    inside = []
    for run in runs:
        pieces: list[Piece] = []
        for piece in run:
            box = piece["bbox"]
            x0, x1, y = box["x"], box["x"] + box["w"], box["y"] + box["h"] / 2
            if not (left <= (x0 + x1) / 2 <= right and top <= y < bottom):
                continue
            if any(x0 + SCALE < border < x1 - SCALE for border in borders) and " " in piece["text"].strip():
                words = words or page.get_text("words", clip=table.bbox)
                for left_of, top_of, right_of, bottom_of, text, *_ in words:
                    middle = (top_of + bottom_of) / 2 * SCALE
                    is_inside = box["y"] <= middle < box["y"] + box["h"] and box["x"] - 1 <= left_of * SCALE <= x1
                    if is_inside and text in piece["text"]:
                        x, width = left_of * SCALE, (right_of - left_of) * SCALE
                        its_box = {"x": x, "y": box["y"], "w": width, "h": box["h"]}
                        pieces.append({**piece, "x": x, "bbox": its_box, "text": f" {text}"})
            else:
                pieces.append(piece)
        if pieces:
            inside.append(pieces)
    return inside


def _spanned(table: Any, runs: Sequence[Sequence[Piece]]) -> list[list[TableCell | None]]:
    """The cells of a table by row and column, one that spans several at each of them; bold ones marked as names."""
    lefts = _edges([cell[0] for row in table.rows for cell in row.cells if cell])
    tops = _edges([cell[1] for row in table.rows for cell in row.cells if cell])
    inside: dict[tuple[int, int], list[tuple[int, Piece]]] = {}
    for i, run in enumerate(runs):
        for piece in run:
            box, size = piece["bbox"], piece["font"]["size"]
            r = bisect_right(tops, (piece["y"] - 0.3 * size) / SCALE) - 1
            c = bisect_right(lefts, (box["x"] + box["w"] / 2) / SCALE) - 1
            inside.setdefault((r, c), []).append((i, piece))
    cells: list[list[TableCell | None]] = [[None] * len(lefts) for _ in tops]
    for x0, y0, x1, y1 in (cell for row in table.rows for cell in row.cells if cell):
        columns = range(bisect_left(lefts, x0 - 2), bisect_left(lefts, x1 - 2))
        rows = range(bisect_left(tops, y0 - 2), bisect_left(tops, y1 - 2))
        positions = [(r, c) for r in rows for c in columns]
        pieces = [piece for row_and_column in positions for piece in inside.get(row_and_column, ())]
        text, bold = _cell_text(pieces if len(positions) == 1 else sorted(pieces, key=itemgetter(0)))
        cell = text, len(columns), len(rows), bold
        for r, c in positions:
            cells[r][c] = cell
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
            # of one line of a cell: 0.45 to 0.84 decide alike; apart by a space: 0.16 to 0.21
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
SMALLER = 0.85  # largest font size of smaller print, as a share of the other's: 0.83 to 0.87 decide alike
MAX_NUMBER_GAP = 0.4  # font sizes between a line and a smaller number that belongs to it
_TEXT, _IMAGE, _VECTOR = 0, 1, 3  # muPDF's kinds of block


@dataclass(slots=True)
class TextLine:
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
    lines: list[TextLine]  # in the order they were drawn
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
    dropped: dict[str, list[str]] = field(default_factory=dict)  # texts that are not read, by what they are

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
    turns: list[list[int]] = []
    if not _are_level(runs):
        turns = _turns(textpage)
        turn = max(range(4), key=Counter(turn for run in turns for turn in run).__getitem__)
        if turn:  # printed sideways: read it again as if it were turned
            matrix = (0, 1, -1, 0, height, 0) if turn == 1 else (0, -1, 1, 0, 0, width)
            width, height = height, width
            textpage = page.get_textpage(clip=(0, 0, width, height), flags=flags, matrix=pymupdf.Matrix(*matrix))
            blocks, runs = _blocks(textpage)
            turns = _turns(textpage)
    # rules of a page printed sideways would have to be turned as well, and are rare there
    has_strokes = not turn and any(block["type"] == "vector" for block in blocks)
    strokes = (
        [text_block[:4] for text_block in textpage.extractBLOCKS() if text_block[6] == _VECTOR] if has_strokes else []
    )
    upright = {
        id(piece) for run, of in zip(runs, turns, strict=False) for piece, turned in zip(run, of, strict=True) if turned
    }
    boxes = [box_of(block) for block in blocks if block["type"] == "image"]
    runs, dropped = drop_unseen(page, textpage, runs, strokes, boxes)
    if upright:  # texts that run another way than the page's: labels of axes, stamps
        texts = (one_font(piece)[0].strip() for run in runs for piece in run if id(piece) in upright)
        dropped["upright text"] = [clean_print(text) for text in texts if text]
        runs = [[piece for piece in run if id(piece) not in upright] for run in runs]
    is_turned = bool(turn or page.rotation)
    read = Page(page.number + 1, width, height, [], turn=turn, is_turned=is_turned, dropped=dropped)
    read.lines = _with_fields(page, runs) if not (is_turned or page.first_widget is None) else _lines(runs)
    read.n_marks = sum(line.n_marks for line in read.lines)
    if not turn:
        read.lines = _split_at_spaces(page, read.lines)
        _respace(page, read.lines)
    read.is_pictured = has_pictures and not read.lines
    if has_strokes:
        read.rules = _rules(strokes)
        read.grids, read.headers = find_grids(page, strokes, runs)
        read.strokes = strokes if images else []
    if images:
        _keep_pictures(read, textpage, 0 if read.lines else page.rotation // 90)
    elif not turn:
        read.images = _images(boxes, read)
    return read


def _with_fields(page: Any, runs: Sequence[Sequence[Piece]]) -> list[TextLine]:
    """The lines of a page with a form, in which each field's value is written as it is, with its label."""
    boxes, fields = read_fields(page)

    def is_field(piece: Piece) -> bool:
        # what is drawn in a low field hangs out of it (pypdf's libreoffice-form.pdf)
        x0, y0, x1, y1 = box_of(piece)
        return any(
            left <= (x0 + x1) / 2 <= right and min(y1, bottom) - max(y0, top) > 0.5 * min(y1 - y0, bottom - top)
            for left, top, right, bottom in boxes
        )

    lines = _lines([[piece for piece in run if not is_field(piece)] for run in runs])
    printed = [(line.box, line.text) for line in lines]
    # in the page's own size: a value may be set as large as its field, and is no heading
    size = median([line.size for line in lines] or [10.0])
    return lines + [TextLine(*field.box, write_field(field, printed), size) for field in fields]


def _split_at_spaces(page: Any, lines: list[TextLine]) -> list[TextLine]:
    """Cut lines whose words are set apart by spaces, as the cells of a table are by some programs."""
    if not any(_MANY_SPACES in line.text for line in lines):
        return lines
    words = page.get_text("words")
    cut: list[TextLine] = []
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


def _respace(page: Any, lines: Sequence[TextLine]) -> None:
    """Write the words of lines that are set letter by letter, by the distances of their characters."""
    import pymupdf

    spaced = [line for line in lines if is_spaced(line.text)]
    others = [line for line in lines if _SINGLE_LETTERS.search(line.text) and not is_spaced(line.text)]
    spaced_in_part = [line for line in others if _spaced_parts(line.text)]
    if not (spaced or spaced_in_part):
        return
    blocks = page.get_text("rawdict", flags=pymupdf.TEXT_MEDIABOX_CLIP)["blocks"]
    spans = [span for block in blocks for line in block["lines"] for span in line["spans"]]
    rows: dict[int, list[tuple[float, float, float, str]]] = {}  # characters by the height of their baseline
    for span in spans:
        for char in span["chars"]:
            if char["c"] != " ":
                left, _, right, _ = char["bbox"]
                rows.setdefault(round(char["origin"][1]), []).append((left, right, span["size"], char["c"]))

    def inside(line: TextLine) -> list[tuple[float, float, float, str]]:
        return [
            char
            for height in range(round(line.y0), round(line.y1) + 1)
            for char in rows.get(height, ())
            # but for rounding: 0.04 to 0.16 decide alike
            if line.x0 - 0.1 <= char[0] and char[1] <= line.x1 + 0.1 and abs(char[2] - line.size) < 0.1 * line.size
        ]

    for line in spaced:
        line.text = respaced(inside(line), line.size) or line.text
    for line in spaced_in_part:
        line.text = _respaced_parts(line, inside(line))


def _keep_pictures(read: Page, textpage: Any, turn: int) -> None:
    """Note the pictures of a page with their pixels, and count those that carry no content."""
    pictures: dict[Box, Picture] = {}
    for block in textpage.this:
        if block.m_internal.type != _IMAGE:
            continue
        box, to_page = block.m_internal.bbox, block.i_transform()
        corners, axes = (box.x0, box.y0, box.x1, box.y1), (to_page.a, to_page.b, to_page.c, to_page.d)
        for _ in range(turn):  # a quarter clockwise each
            axes = (-axes[1], axes[0], -axes[3], axes[2])
        pictures[corners] = Picture(block.i_image(), axes)
    read.images = _images(list(pictures), read)
    read.pictures = {corners: pictures[corners] for corners in read.images}
    n_small = sum(min(x1 - x0, y1 - y0) < MIN_IMAGE_POINTS for x0, y0, x1, y1 in pictures)
    n_rest = len(pictures) - n_small - len(read.images)
    reason = "background" if read.images or n_rest <= MAX_IMAGES else "tile"
    read.left_out = +Counter({"small": n_small, reason: n_rest})


def _blocks(textpage: Any) -> tuple[Sequence[Mapping[str, Any]], Sequence[Sequence[Piece]]]:
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


def _are_level(runs: Sequence[Sequence[Piece]]) -> bool:
    """Whether all pieces surely run across the page: each begins at its left edge, its baseline is its lower edge."""
    for run in runs:
        for piece in run:
            box, size = piece["bbox"], piece["font"]["size"]
            # but for rounding: 0.02 to 0.08 decide alike
            if piece["x"] - box["x"] > 0.05 * size or box["y"] + box["h"] - piece["y"] > size:
                return False
    return True


def _turns(textpage: Any) -> list[list[int]]:
    """Which way each piece of each block runs: 0 across the page, 1 upwards, 3 downwards, as a margin stamp may."""
    blocks = (block for block in textpage.this if block.m_internal.type == _TEXT)
    vectors = [[line.m_internal.dir for line in block] for block in blocks]
    return [[0 if abs(v.x) >= abs(v.y) else 1 if v.y < 0 else 3 for v in block] for block in vectors]


def _lines(runs: Sequence[Sequence[Piece]]) -> list[TextLine]:
    """Put pieces together to lines, in the order they were drawn."""
    lines: list[TextLine] = []
    ends_in_space = False
    for run in _with_fractions(runs):
        for pieces in _in_line(run):
            box = around(list(map(box_of, pieces)))
            text, size, bold = one_font(pieces[0]) if len(pieces) == 1 else several_fonts(pieces)
            if not (text.isascii() and text.isprintable()):
                text = plain_maths(clean_print(text))
            stripped = text.strip()
            if not stripped:
                continue
            if lines and lines[-1].text == stripped:
                last = lines[-1]
                # drawn twice for bold, or shadow: 0.04 to 0.16 decide alike
                if abs(last.x0 - box[0]) + abs(last.y0 - box[1]) + abs(last.x1 - box[2]) < 0.1 * last.size:
                    continue  # bold by printing it twice: pypdf#1731, unstructured#4215
            if lines and _goes_on(lines[-1], box, size, stripped):
                _append(lines[-1], stripped, box, ends_in_space or text[0] == " ")
            else:
                is_note = stripped[0] == "[" != pieces[0]["text"].lstrip()[:1]
                lines.append(TextLine(*box, stripped, size, bold, is_note=is_note))
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
    # within a line's height: 1.29 to 1.7 decide alike
    if upper["font"]["size"] != size or size > SMALLER * before[-2]["font"]["size"] or not 0 < rise < 1.3 * size:
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
        # else one of the two may be the number of the line, in smaller print in the margin
        small, large = (piece, last) if size < other else (last, piece)
        is_smaller = small["font"]["size"] < SMALLER * large["font"]["size"]
        return gap < MAX_NUMBER_GAP * max(size, other) or not (
            is_smaller and small["text"].strip().rstrip(":").isdecimal()
        )
    # letters of one word: 0.08 to 0.22 decide alike
    touches = abs(before["x"] - box["x"] - box["w"]) < 0.2 * reach
    return touches and _RIGHT_TO_LEFT.search(last["text"] + piece["text"]) is not None


def _attach_scripts(lines: list[TextLine]) -> list[TextLine]:
    """Join marks, exponents and indices that were drawn apart from their lines to these."""
    # what has nine tenths of the largest size is no mark: 0.83 to 0.93 decide alike
    least = 0.9 * max([line.size for line in lines], default=0.0)
    small = [line for line in lines if len(line.text) <= MAX_SCRIPT_CHARS and line.size < least]
    small = [line for line in small if _SCRIPT.fullmatch(line.text)]
    if not small:
        return lines
    ends: dict[tuple[int, int], list[TextLine]] = {}
    for line in lines:
        for x in (line.x0, line.x1) if line.size else ():
            ends.setdefault((round(x / 8), round(line.y0 / 8)), []).append(line)
    gone: set[int] = set()
    for script in small:
        # lines one of whose ends is beside it, at most `MAX_NEAR` per square of eight points
        column, row = round((script.x0 + script.x1) / 16), round(script.y0 / 8)
        squares = [(x, y) for x in (column, column - 1, column + 1) for y in (row, row - 1, row + 1, row - 2)]
        for base in (line for square in squares for line in ends.get(square, ())[:MAX_NEAR]):
            size = base.size
            rise = (base.y0 + base.y1 - script.y0 - script.y1) / 2 / size
            # raised by more than rounding and less than a line: 0.06 to 0.12 and 0.77 to 0.82 decide alike
            if id(base) in gone or script.size > 0.9 * size or not 0.08 < abs(rise) < 0.8:
                continue
            # at the line's end, or before its start: 0.12 to 0.48 font sizes back, 0.3 to 0.4 on decide alike
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


def around(boxes: Sequence[Box]) -> Box:
    """Return the smallest box that holds all the others."""
    left, top, right, bottom = zip(*boxes, strict=True)
    return min(left), min(top), max(right), max(bottom)


def _goes_on(last: TextLine, box: Box, size: float, text: str) -> bool:
    """Whether a piece is on the same line as the last, with no more than a letter's width between."""
    x0, y0, x1, y1 = box
    if not last.size < MAX_RATIO * size < MAX_RATIO * MAX_RATIO * last.size:
        return False
    # the lower edges of one line: 0.36 or 0.44 decide otherwise in 17 of 131 files; the upper ones: 0.58 to 0.62 alike
    if abs(y1 - last.y1) > 0.4 * size or abs(y0 - last.y0) > 0.6 * size:
        return False
    gap = x0 - last.x1 if x0 >= last.x0 else last.x0 - x1
    if gap >= MAX_NUMBER_GAP * max(size, last.size):  # the number of a line, in smaller print in the margin
        small, ratio = (text, size / last.size) if size < last.size else (last.text, last.size / size)
        if ratio < SMALLER and small.rstrip(":").isdecimal():
            return False
    # half a letter back, where boxes overlap: 0.48 to 0.55 decide alike; forth somewhat more than the 0.8 of MuPDF
    return -0.5 * size < gap < 0.9 * size


def _append(last: TextLine, text: str, box: Box, spaced: bool) -> None:
    """Add text to a line, after a space where there is one or the gap is as wide as one."""
    x0, y0, x1, y1 = box
    is_before = x0 < last.x0
    rtl = _RIGHT_TO_LEFT.search(text) is not None or _RIGHT_TO_LEFT.search(last.text) is not None
    # a space has at least an eighth of the font size: 0.05 to 0.14 decide alike
    close = not spaced and (last.x0 - x1 if is_before else x0 - last.x1) < 0.12 * last.size
    pieces = (text, last.text) if is_before and not rtl else (last.text, text)
    last.text = ("" if close and not rtl else " ").join(pieces)
    last.x0, last.x1 = min(last.x0, x0), max(last.x1, x1)
    last.y0, last.y1 = min(last.y0, y0), max(last.y1, y1)


def _rules(strokes: Sequence[Box]) -> list[tuple[float, float, float]]:
    """Horizontal rules from top to bottom; for a filled or framed box, its upper and lower edge."""
    rules: set[tuple[float, float, float]] = set()
    for x0, y0, x1, y1 in strokes:
        if x1 - x0 >= _MIN_RULE:
            left, right = round(x0, 1), round(x1, 1)
            heights = ((y0 + y1) / 2,) if y1 - y0 <= _RULE_THICKNESS else (y0, y1)
            rules.update((left, right, round(height, 1)) for height in heights)
    return sorted(rules, key=lambda rule: (rule[2], rule[0]))


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
