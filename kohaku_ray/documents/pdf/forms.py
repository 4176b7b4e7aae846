"""Read the fields of a PDF's form: each value under its label."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kohaku_ray.documents.model import Box
from kohaku_ray.documents.text.content import clean_print

MAX_FIELDS = 5000  # most fields of a page that are read; a form that people fill in has a few hundred
_PASSWORD = 1 << 13  # PDF 32000, table 228
_WORDS = re.compile(r"[^\W\d_]{3,}(?:[\s/()&,.%-]+[\w%]+)*")
"""A name of a field that says what it is, and none that a program made: ``f1_02[0]``."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field with a value: where it is, its value, and what it is called in the file."""

    box: Box
    value: str
    label: str


def read_fields(page: Any) -> tuple[list[Box], list[Field]]:
    """Return where the fields of a `pymupdf.Page` are, and those that have a value.

    A box is ticked, ``[x]``, or not, ``[ ]``. Buttons and signatures show what they are in the page's own text.
    """
    import pymupdf

    boxes: list[Box] = []
    fields: list[Field] = []
    for widget, _ in zip(page.widgets(), range(MAX_FIELDS), strict=False):
        kind = widget.field_type
        is_box = kind in (pymupdf.PDF_WIDGET_TYPE_CHECKBOX, pymupdf.PDF_WIDGET_TYPE_RADIOBUTTON)
        if not is_box and kind not in (
            pymupdf.PDF_WIDGET_TYPE_TEXT,
            pymupdf.PDF_WIDGET_TYPE_COMBOBOX,
            pymupdf.PDF_WIDGET_TYPE_LISTBOX,
        ):
            continue
        box = tuple(widget.rect)
        boxes.append(box)
        if is_box:
            value = "[x]" if widget.field_value == widget.on_state() else "[ ]"
        else:
            value = "" if (widget.field_flags or 0) & _PASSWORD else clean_print(str(widget.field_value or "")).strip()
        if value:
            fields.append(Field(box, value, _label(widget)))
    return boxes, fields


def _label(widget: Any) -> str:
    """What a field is called: its description for readers, else its name where that is words."""
    described = clean_print(str(widget.field_label or "")).strip()
    name = str(widget.field_name or "").rpartition(".")[2].strip()
    return described or (clean_print(name) if _WORDS.fullmatch(name) else "")


def write_field(field: Field, lines: Sequence[tuple[Box, str]]) -> str:
    """Write a field's value, under its label where no text of the page stands in front of it on its line.

    Behind a box to tick, such text is its label.
    """
    is_box = field.value in ("[x]", "[ ]")
    left, top, right, bottom = field.box
    height = bottom - top
    for (x0, y0, x1, y1), text in lines:
        gap = x0 - right if is_box else left - x1
        if top <= (y0 + y1) / 2 <= bottom and -0.5 * height < gap < MAX_LABEL_GAP and any(map(str.isalpha, text)):
            return field.value
    if not field.label:
        return field.value
    return f"{field.value} {field.label}" if is_box else f"{field.label.rstrip(': ')}: {field.value}"


MAX_LABEL_GAP = 72.0  # farthest that a printed label ends before its field, in points: an inch
