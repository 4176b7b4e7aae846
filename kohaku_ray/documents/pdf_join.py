"""Lines of print as running text: which lines are items, where words and numbers are cut at a line's end."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from kohaku_ray.documents.sentences import LEADERS, ends_entry, words_of

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
