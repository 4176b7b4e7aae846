"""Text of a PDF: MuPDF's pieces of one font as text with scripts and spaces, and lines of print as running text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Any

from kohaku_ray.documents.raised import write_lowered, write_raised
from kohaku_ray.documents.sentences import LEADERS, ends_entry, words_of

SCALE = 2**15  # units per point: four decimals stay exact, and a page may be 23 m high within MuPDF's 32 bits

Piece = Mapping[str, Any]  # text in one font as MuPDF prints it: where it begins (x, y), its bbox, font and text

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
    shapes = [_shape(piece) for piece in pieces if piece["text"][0] != " "]
    if len(shapes) in (0, len(pieces)):
        return [piece["y"] for piece in pieces]
    ascent, descent = shapes[0]
    baselines = []
    for piece in pieces:
        baseline, box, size = piece["y"], piece["bbox"], piece["font"]["size"]
        if piece["text"][0] == " " and box["h"] > 1.12 * (ascent + descent) * size:
            upper, lower = box["y"] + ascent * size, box["y"] + box["h"] - descent * size
            baseline = upper if abs(lower - baseline) < abs(upper - baseline) else lower
        baselines.append(baseline)
    return baselines


def _shape(piece: Piece) -> tuple[float, float]:
    """Ascent and descent of a piece, in font sizes."""
    box, size = piece["bbox"], piece["font"]["size"]
    return (piece["y"] - box["y"]) / size, (box["y"] + box["h"] - piece["y"]) / size


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
        is_stacked = upper.height > 0 > lower.height and lower.x0 < upper.x1 - 0.3 * (upper.x1 - upper.x0)
        before = scripts[i - 1].text[-1:] if i and upper.text[:1] != " " else ""
        if is_stacked and (before.isalpha() or before in tuple(")]}")):
            scripts[i], scripts[i + 1] = lower, upper  # an index and an exponent: the index belongs to the name
        elif is_stacked:
            over, under = upper.text.strip(), lower.text.strip()
            is_apart = before.isalnum() or upper.text[:1] == " "
            upper.height, upper.text = 0, f"{' ' * is_apart}{over}/{under}"
            lower.height, lower.text = 0, " " * (lower.text[-1:] == " ")
    return scripts


MIN_SPACED = 5  # fewest letters that are set letter by letter
MAX_LETTER_GAP = 0.5  # largest distance between the letters of a word, in font sizes
MIN_WORD_GAP = 0.15  # least distance of two words beyond that of two letters
_VOWEL = re.compile(r"[aeiouäöüáéíóúàèìòùâêîôû]", re.IGNORECASE)


def is_spaced(text: str) -> bool:
    """Whether nearly all words of a line are single letters, as those of ``A B S T R A C T`` are."""
    n_spaces = text.count(" ")
    if n_spaces < MIN_SPACED - 1 or 3 * n_spaces < len(text):
        return False
    words = text.split(" ")
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
_NO_HEADS = words_of("care inter over under dis mis out cor sub pre con pro per trans bio mid super hyper micro macro")
_HEADS = words_of("self high low long short large small")  # and first parts, but of high-lights and short-comings
_ONE_WORD = re.compile(r"light|land|itud|age|en|est|ing|er|way|ish|com|.{1,4}$")


def compounds_in(lines: Iterable[str]) -> set[str]:
    """Words written with a hyphen inside a line, in lower case: ``energy-efficient``."""
    return {word.lower() for line in lines if "-" in line or "‐" in line for word in _COMPOUND.findall(line)}


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
    if text.endswith(SOFT_HYPHEN):
        return text[:-1], ""
    first = _FIRST_PART.match(line)
    if first is None or not first[1][0].islower() or _is_compound(last[1], first, compounds):
        return text, ""
    return text[:-1], ""


def _is_compound(head: str, tail: re.Match[str], compounds: Collection[str]) -> bool:
    """Whether the hyphen between two lines belongs to the word: the document writes it, or its parts say so."""
    word, head = tail[1], head.lower()
    if f"{head}-{word}".lower() in compounds or tail[2] is not None or min(len(head), len(word)) == 1:
        return True  # state-⏎of-the-art, e-⏎mail
    if (head == "real" and word == "time") or (head in _HEADS and _ONE_WORD.match(word) is None):
        return True
    return len(head) > 2 and word in _TAILS and head not in _NO_HEADS


_THOUSANDS = re.compile(r"(?<![\d.,])(?<!\d, )\d{1,3}(?:,\d{3})*,$")
_NEXT_THOUSAND = re.compile(r"\d{3}(?![\d,]|, \d| (?:and|or) \d)|\d{3}(?:,\d{3})+(?!\d)")
_TEN_END = re.compile(r"[x×·*]\s?10$")
_EXPONENT = re.compile(r"[-−–]\d{1,2}\b")
_OPEN_SIGN = re.compile(r"(?:^|[\s(=×x*/,~≈<>])[-−]$")


def _separator(text: str, line: str) -> str:
    """What stands between the ends of two lines: nothing within a number, ``12,⏎345`` or ``20–⏎25``."""
    is_number = line[:1].isdigit()
    if is_number and text[-1] == "," and _THOUSANDS.search(text) and _NEXT_THOUSAND.match(line):
        return ""
    if _TEN_END.search(text) and _EXPONENT.match(line):
        return "^"
    if is_number and _OPEN_SIGN.search(text):
        return ""
    # "20–" and "25 %", or "3/" and "4"
    return "" if text[-1] in "-–/" and text[-2:-1].isalnum() and line[:1].isalnum() else " "
