"""Write the text of a line of a PDF: raised and lowered characters in it, its font size and weight."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import Any

from kohaku_ray.documents.text.content import clean_print
from kohaku_ray.documents.text.raised import plain_maths, write_lowered, write_raised

Span = Mapping[str, Any]
"""Text in one font as PyMuPDF's ``get_text("dict")`` has it: text, size, flags, font, origin, bbox, color and so on."""

MIN_RAISED, MIN_LOWERED = 0.15, 0.06  # least distance of a raised and of a lowered character's baseline, in font sizes
MAX_SCRIPT_SIZE = 0.98  # largest font size of one, as a share of the text's: WeasyPrint sets 0.97
_BOLD = 1 << 4  # pymupdf.TEXT_FONT_BOLD
_BOLD_NAME = re.compile(r"bold|black|heavy|cmbx|sfbx|-bd|\bmedi$", re.IGNORECASE)


def write_spans(spans: Sequence[Span]) -> tuple[str, float, bool]:
    """Text of a line, raised and lowered characters as `raised` writes them; size and weight of its longest span."""
    longest = max(spans, key=lambda span: len(span["text"].strip()))
    size = round(longest["size"], 4)
    is_bold = bool(longest["flags"] & _BOLD) or _BOLD_NAME.search(longest["font"]) is not None
    # what has nine tenths of the line's size stands on its baseline: 0.82 to 0.9 decide alike
    base = next(span for span in spans if span["size"] >= 0.9 * size)
    groups = [
        (height, "".join(span["text"] for _, span in group))
        for height, group in groupby([(_height(span, base), span) for span in spans], key=itemgetter(0))
    ]
    written = ""
    for (height, text), (_, after) in zip_longest(groups, groups[1:], fillvalue=(0, "")):
        if height and text.strip():
            left, right = " " * (text[0] == " "), " " * (text[-1] == " ")
            write = write_raised if height > 0 else write_lowered
            text = write(written[-80:] + left, text.strip(), right or after)
            text = f"{left * (text[:1] != ' ')}{text}{right}"
        written += text
    if not (written.isascii() and written.isprintable()):
        written = plain_maths(clean_print(written))
    return written, size, is_bold


def _height(span: Span, base: Span) -> int:
    """Whether a span is raised, 1, lowered, -1, or on the baseline of another one, 0."""
    if span["size"] > MAX_SCRIPT_SIZE * base["size"]:
        return 0
    rise = (base["origin"][1] - span["origin"][1]) / base["size"]
    return 1 if MIN_RAISED < rise < 1 else -1 if -0.8 < rise < -MIN_LOWERED else 0
