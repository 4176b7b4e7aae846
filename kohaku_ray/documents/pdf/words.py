"""Join the lines of a paragraph of a PDF: words and numbers that a line's end divides, items of lists."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kohaku_ray.documents.text.sentences import LEADERS, ends_entry

BULLETS = "•·‣◦▪●■□➢➤✓∙"  # characters that only ever begin a list item
CAPTION = re.compile(
    r"(?P<kind>fig(?:ure|\.)?|table|tab\.)\s*(?:[A-Z]\.?)?\d+[a-z]?(?:[.:|–—]|\s+[A-Z(]|$)", re.IGNORECASE
)
"""How a caption begins."""
_SENTENCE_END = re.compile(r"[.!?:;][\"'”’)\]]*(?:\[\d+(?:[,–-] ?\d+)*\])?$")
_DIVIDED = re.compile(r"[^\W\d_][-‐‑\u00ad]$")
_WHOLE_WORD = re.compile(r"[^\W\d_]+(?![^\W\d_]|[-‐‑][^\W\d_])")
_DIVIDED_NUMBER = re.compile(r"\d[-–/]$")


def ends_sentence(line: str) -> bool:
    """Whether a line ends with a full stop, a colon or the like."""
    return _SENTENCE_END.search(line[-24:]) is not None


def join_lines(lines: Sequence[str]) -> str:
    """Write the lines of a paragraph as running text; an item with a bullet stays on a line of its own.

    So does an entry of a table of contents, whose dots before the page number become an ellipsis. A word divided before
    a small letter loses its hyphen, but not in ``state-⏎of-the-art``.
    """
    lines = [" … ".join(map(str.strip, LEADERS.split(line))).strip() for line in lines]
    text = lines[0]
    for line, last in zip(lines[1:], lines, strict=False):
        if line[0] in BULLETS or ends_entry(last):
            text += f"\n{line}"
        elif _DIVIDED.search(text[-2:]):
            is_whole = line[0].islower() and _WHOLE_WORD.match(line) is not None
            text = (text[:-1] if is_whole else text) + line  # docling#3232
        else:
            text += line if _DIVIDED_NUMBER.search(text[-2:]) and line[0].isdigit() else f" {line}"
    return text.replace("\u00ad", "")
