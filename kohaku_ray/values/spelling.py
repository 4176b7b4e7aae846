"""Spell texts alike: characters that look the same, and the key by which two texts are one answer."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_SPACED_THOUSANDS = re.compile("(?<=[0-9])[\u00a0\u2000-\u200a\u202f](?=[0-9]{3}(?![0-9]))")
_MARKUP = (
    (re.compile(r"<sup>([^<]*)</sup>", re.IGNORECASE), lambda match: "^" + match[1].strip()),
    (re.compile(r"<sub>([^<]*)</sub>", re.IGNORECASE), lambda match: match[1].strip()),
    (re.compile(r"</?(?:b|i|em|strong|code)>", re.IGNORECASE), lambda match: ""),
    (re.compile(r"\\(?:times|cdot)(?![a-z]) ?", re.IGNORECASE), lambda match: "x"),
    (re.compile(r"\\(?:approx|sim)(?![a-z]) ?", re.IGNORECASE), lambda match: "~"),
    (re.compile(r"\\pm(?![a-z]) ?", re.IGNORECASE), lambda match: "±"),
    (re.compile(r"\\(?:text|mathrm|mathit|textbf|mathbf)\s*\{([^{}]*)\}", re.IGNORECASE), lambda match: match[1]),
    (re.compile(r"\\[()]"), lambda match: ""),
    (re.compile(r"\^\{([^{}]*)\}"), lambda match: "^" + match[1].strip()),
    (re.compile(r"\\([,;:! ])"), lambda match: " "),
    (re.compile(r"\\([%$&#_])"), lambda match: match[1]),
)
_EMPHASIS = re.compile(r"(\*{1,3}|`{1,2})(?=[^\s*`])([^*`]+)(?<!\s)\1")  # Markdown's, around the whole value
_IN_DOLLARS = re.compile(r"\$([^$]*)\$")
_LOOKALIKES = {
    **dict.fromkeys("−⁃˗➖", "-"),
    **dict.fromkeys("×✕✖⨯∗", "x"),
    **dict.fromkeys("·⋅∙•", "·"),
    **dict.fromkeys("≈≃≅∼～∽", "~"),
    **dict.fromkeys("≤⩽≦", "<="),
    **dict.fromkeys("≥⩾≧", ">="),
    **dict.fromkeys("‘’ʼ′`´", "'"),
    **dict.fromkeys("“”„«»″", '"'),
    **dict.fromkeys("≳⪆≫", ">"),
    **dict.fromkeys("≲⪅≪", "<"),
    **dict.fromkeys("⁄∕", "/"),
    "【": "[",
    "】": "]",
    "、": ",",
    "٪": "%",
    "٫": ".",
    "٬": ",",
    "μ": "u",
}

_ARTICLE = re.compile(r"^(?:(?:the|an)\s+(?=\S)|a\s+(?=[^\W\d]))|(?<=[\s-])the[\s-]+(?=\S)")
_POWER_OF_LETTER = re.compile(r"(?<=[^\W\d_])\^(?=[0-9])")
_COMPARISON = re.compile(r" ?([<>=]+|[/&]) ?")
_INITIALS = re.compile(r"(?<!\w)(?:[^\W\d_]\.)+[^\W\d_](?!\w)\.?")  # U.S.
_IN_BRACKETS = re.compile(r"(.+?) ?\(([^\W_]{2,10}?)s?\)")
_SMALL_WORDS = frozenset({"a", "and", "for", "in", "of", "the", "to"})
_JOINT = re.compile(r"(?<=\w)(?:\s*[-_]\s+|\s+|[-_]+)(?=\w)")


@lru_cache(maxsize=65536)
def plain_characters(text: str) -> str:
    """Write what looks alike alike: NFKC, ASCII digits, dashes, quotes and spaces, ``^`` before an exponent.

    Characters of no width are dropped, a narrow space between digits in groups of three too, and the marks of LaTeX
    and HTML around an exponent.
    """
    if not text.isascii():
        text = _SUPERSCRIPT.sub(lambda match: "^" + unicodedata.normalize("NFKC", match[0]), text)
        text = "".join(map(_plain_character, _SPACED_THOUSANDS.sub("", text)))
        text = _SPACED_THOUSANDS.sub("", unicodedata.normalize("NFKC", text))
        text = "".join(map(_ascii_character, text))
    if "\\" in text or "<" in text or "{" in text or "$" in text:
        text = _IN_DOLLARS.sub(lambda match: match[1] if set(match[1]) & set("\\^x") else match[0], text)
        for pattern, written in _MARKUP:
            text = pattern.sub(written, text)
    text = " ".join(text.split())
    emphasis = _EMPHASIS.fullmatch(text) if text[:1] in ("*", "`") else None
    return emphasis[2] if emphasis else text


def _plain_character(char: str) -> str:
    """Write a vulgar fraction as ``1/2``, apart from a number before it; leave what NFKC reads well."""
    if unicodedata.category(char) == "Cf":
        return ""
    if unicodedata.decomposition(char).startswith("<fraction>"):
        return f" {unicodedata.normalize('NFKC', char).replace('⁄', '/')}"
    return _LOOKALIKES.get(char, char)


def _ascii_character(char: str) -> str:
    if char.isascii():
        return char
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    if unicodedata.category(char) == "Pd":
        return "-"
    return _LOOKALIKES.get(char, char)


def text_key(text: str) -> str:
    """The key of a text: without case, articles, end punctuation and quotes, hyphens and spaces.

    Two digits stay apart where a hyphen or space parts them: ``Llama 3 8B`` is not ``Llama 38B``.
    """
    folded = " ".join(plain_characters(text).casefold().split())
    key = _ARTICLE.sub("", folded.strip("\"'").rstrip(" .,;:!?。\"'").lstrip(" \"'"))
    if key.endswith(")") and (match := _IN_BRACKETS.fullmatch(key)) is not None:
        # the words' own initials in brackets behind them go: ``mixture of experts (moe)``
        words = re.split(r"[\s/-]+", match[1])
        initials = ("".join(word[:1] for word in words if word not in left_out) for left_out in (_SMALL_WORDS, ()))
        key = match[1] if match[2] in initials else key
    key = _INITIALS.sub(lambda initials: initials[0].replace(".", ""), key)
    key = _COMPARISON.sub(r"\1", _POWER_OF_LETTER.sub("", key))
    return _JOINT.sub(_join, key) or folded


def _join(match: re.Match[str]) -> str:
    text = match.string
    parts_digits = text[match.start() - 1].isdigit() and text[match.end()].isdigit()
    return " " if parts_digits else ""
