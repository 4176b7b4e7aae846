"""Join a paragraph's lines to running text, with words divided at line ends joined."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from kohaku_ray.documents.pdf_blocks import BULLETS, begins_item, ends_sentence

SOFT_HYPHEN = "\u00ad"

_HYPHENS = f"-‐‑{SOFT_HYPHEN}"
_COMPOUND = re.compile(r"[^\W\d_]+(?:[-‐‑][^\W\d_]+)+")
_LAST_PART = re.compile(r"([^\W\d_]+)[-‐‑\u00ad]$")
_FIRST_PART = re.compile(r"[^\W\d_]+")


def compounds_in(lines: Iterable[str]) -> set[str]:
    """Words written with a hyphen inside a line, in lower case: ``energy-efficient``."""
    return {word.lower() for line in lines if "-" in line or "‐" in line for word in _COMPOUND.findall(line)}


def join_lines(lines: Sequence[str], compounds: Collection[str]) -> str:
    """Write lines as running text.

    Args:
        lines: Lines of one paragraph.
        compounds: Words that the document writes with a hyphen elsewhere.

    Returns:
        The text. A word divided before a small letter loses its hyphen, unless it is one of the compounds. An item of
        a list stays on a line of its own.
    """
    done: list[str] = []
    text = lines[0]
    for line in lines[1:]:
        if text[-1].isalpha() and line[:2].isalpha():  # most lines: no hyphen, no item
            done.extend((text, " "))
        else:
            done.extend(_join(text, line, compounds))
        text = line
    return "".join([*done, text]).replace(SOFT_HYPHEN, "")


def _join(text: str, line: str, compounds: Collection[str]) -> tuple[str, str]:
    """A line, without its hyphen where that is dropped, and the separator before the next."""
    if begins_item(line) and (ends_sentence(text) or begins_item(text) or line[0] in BULLETS):
        return text, "\n"
    last = _LAST_PART.search(text[-40:]) if text[-1] in _HYPHENS else None
    if last is None:
        return text, "" if _is_divided_number(text, line) else " "
    if text.endswith(SOFT_HYPHEN):
        return text[:-1], ""
    first = _FIRST_PART.match(line)
    if first is None or not first[0][0].islower() or f"{last[1]}-{first[0]}".lower() in compounds:
        return text, ""
    return text[:-1], ""


def _is_divided_number(text: str, line: str) -> bool:
    """Whether "20–" and "25 %", or "3/" and "4", stand on two lines."""
    return text[-1] in "-–/" and text[-2:-1].isalnum() and line[:1].isalnum()
