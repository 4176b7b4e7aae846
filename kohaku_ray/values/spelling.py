"""Spell texts alike: characters that look the same, and the key by which two texts are one answer."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from kohaku_ray.values.tex import END, LOWER, RAISE, read_tex

LONGEST_VALUE = 200
"""Longest value, in characters, that is parsed; a longer one is text."""

_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_SPACED_THOUSANDS = re.compile("(?<=[0-9])[\u00a0\u2000-\u200a\u202f](?=[0-9]{3}(?![0-9]))")
_TAG = re.compile(r"</?[a-z]{1,6}>", re.IGNORECASE)
_TEX = re.compile(r"\\|[\^_]\{|\A\s*\$[^$]+\$\s*\Z")
_LOOKALIKES = {
    **dict.fromkeys("−⁃˗➖", "-"),
    **dict.fromkeys("×✕✖⨯∗", "x"),
    **dict.fromkeys("·⋅∙•", "·"),
    **dict.fromkeys("≈≃≅∼～∽", "~"),
    **dict.fromkeys("≤⩽≦", "<="),
    **dict.fromkeys("≥⩾≧", ">="),
    **dict.fromkeys("‘’ʼ′`´", "'"),
    **dict.fromkeys("“”„«»″", '"'),
    **dict.fromkeys("⁄∕", "/"),
    "μ": "u",
}

_ARTICLE = re.compile(r"^(?:(?:the|an)\s+(?=\S)|a\s+(?=[^\W\d]))|(?<=[\s-])the[\s-]+(?=\S)")
_POWER_OF_LETTER = re.compile(r"(?<=[^\W\d_])\^(?=[0-9])")
_COMPARISON = re.compile(r" ?([<>=]+|[/&]) ?")
_JOINT = re.compile(r"(?<=\w)(?:\s*[-_]\s+|\s+|[-_]+)(?=\w)")


@lru_cache(maxsize=65536)
def plain_characters(text: str) -> str:
    r"""Write what looks alike alike: NFKC, ASCII digits, dashes, quotes and spaces, ``^`` before an exponent.

    Characters of no width are dropped, a narrow space between digits in groups of three too. TeX is read
    (``\boxed{42}``, ``$42$``); tags of HTML and Markdown's marks around the whole value are dropped.
    """
    if len(text) <= LONGEST_VALUE and _TEX.search(text):
        text = read_tex(text).replace(RAISE, "^").replace(LOWER, "").replace(END, "")
    if not text.isascii():
        text = _SUPERSCRIPT.sub(lambda match: "^" + unicodedata.normalize("NFKC", match[0]), text)
        text = "".join(map(_plain_character, _SPACED_THOUSANDS.sub("", text)))
        text = _SPACED_THOUSANDS.sub("", unicodedata.normalize("NFKC", text))
        text = "".join(map(_ascii_character, text))
    if "<" in text:
        text = _TAG.sub("", text.replace("<sup>", "^"))
    return " ".join((text.strip("*` \t\r\n") or text).split())


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
    return _JOINT.sub(_join, _COMPARISON.sub(r"\1", _POWER_OF_LETTER.sub("", key))) or folded


def _join(match: re.Match[str]) -> str:
    text = match.string
    parts_digits = text[match.start() - 1].isdigit() and text[match.end()].isdigit()
    return " " if parts_digits else ""
