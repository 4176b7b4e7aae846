"""How an answer is written in a cell of text: blanks, numbers, pairs, lists.

Voting and scoring share these parsers and interpret the results in their own way. No parser raises on hostile text.

"No answer" is read in four ways. Each one accepts all that the one before it does, and each has its use:

- `is_blank_strict`: empty or ``is_blank``, where ``NA`` or ``none`` may be the answer (the ``exact`` metric, a unit).
- `is_blank`: any writer's null too, since pandas and spreadsheets write an empty cell as ``nan`` or ``N/A``.
- `is_abstention`: WattBot's sentence too, which a submission may hold in place of the value.
- `is_blank_lenient`: any phrase that models write for no answer (``unknown``, ``not stated``); only for replies.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata

from kohaku_ray.records import BLANK, UNANSWERABLE

NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
"""Regular expression of a plain number: no thousands separators, no ``inf`` or ``nan``; linear on hostile text."""

WRAPPING = " \t\r\n\"'`[](){}<>"
"""Characters that models put around a value or an id."""

BOOLEANS = {"true": "1", "yes": "1", "false": "0", "no": "0"}

_NUMBER = re.compile(NUMBER)
_PAIR = re.compile(rf"\[\s*({NUMBER})\s*,\s*({NUMBER})\s*\]")
_BARE_NULLS = frozenset({"", "nan", "none", "null"})
_BLANKS = _BARE_NULLS | {"na", "n/a", "<na>", BLANK, "is blank"}
_REFUSALS = (
    _BLANKS
    | {"blank", "n.a", "unknown", "-", "–", "—", "insufficient evidence", "cannot be determined"}
    | {f"not {word}" for word in ("available", "applicable", "specified", "stated", "provided", "given")}
)
_REFUSAL_STARTS = ("unable to answer", "cannot answer", "can not answer")
_UNANSWERABLE = UNANSWERABLE.rstrip(".").lower()
_BRACKETS = frozenset({("[", "]"), ("{", "}"), ("(", ")")})
_ITEM = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|([^,]+))', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def fold(text: str) -> str:
    """Lower-case and collapse white space: two texts that fold alike are one answer."""
    return " ".join(text.lower().split())


def clean_text(text: str) -> str:
    """Drop characters that no file can hold: lone surrogates and control characters other than tab and line break."""
    if text.isprintable():
        return text
    return "".join(char for char in text if char in "\t\n" or unicodedata.category(char) not in ("Cc", "Cs"))


def is_blank_strict(text: str | None) -> bool:
    """Tell whether a cell is empty or says ``is_blank``, in any case."""
    return text is None or fold(text) in ("", BLANK)


def is_blank(text: str | None) -> bool:
    """Tell whether a cell holds no answer: empty, a null in any writer's spelling, or ``is_blank``, also as a list."""
    return text is None or fold(text.strip(" \t\r\n[](){}'\"")) in _BLANKS


def is_abstention(text: str | None) -> bool:
    """Tell whether a cell abstains: blank, or WattBot's "Unable to answer with confidence …"."""
    return is_blank(text) or fold(text or "").startswith(_UNANSWERABLE)


def is_blank_lenient(text: str | None) -> bool:
    """Tell whether a model's value means "no answer": an abstention, or what models say instead, in any wrapping."""
    bare = fold((text or "").strip(WRAPPING).rstrip("."))
    return is_abstention(text) or bare in _REFUSALS or bare.startswith(_REFUSAL_STARTS)


def parse_number(text: str) -> float | None:
    """Read a plain finite number; None where the text is anything else."""
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def parse_pair(text: str) -> tuple[float, float] | None:
    """Read a ``[low,high]`` range of two plain numbers; None where the text is anything else."""
    match = _PAIR.fullmatch(text.strip())
    if match is None:
        return None
    low, high = float(match[1]), float(match[2])
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def split_list(text: str) -> tuple[str, ...] | None:
    """Split a JSON or Python list, tuple or set into its items, as text; None where the text has no brackets.

    Nulls are dropped, not turned into the text "None". A text that is neither JSON nor Python is cut at its commas.
    """
    text = text.strip()
    if len(text) < 2 or (text[0], text[-1]) not in _BRACKETS:
        return None
    try:
        items = json.loads(text)
        if isinstance(items, list):
            return tuple(item if isinstance(item, str) else json.dumps(item) for item in items if item is not None)
    except (ValueError, RecursionError):
        pass
    return split_items(text[1:-1])


def split_items(text: str) -> tuple[str, ...]:
    """Split at the commas outside quotes; unquote the items and drop empty ones and bare nulls."""
    items = []
    for match in _ITEM.finditer(text):
        quoted = match[1] if match[1] is not None else match[2]
        if quoted is not None:
            items.append(_ESCAPE.sub(r"\1", quoted))
        else:
            bare = match[3].strip(" \t\r\n'\"")
            if bare.lower() not in _BARE_NULLS:
                items.append(bare)
    return tuple(items)
