"""Spell texts alike: characters that look the same, and the key by which two texts are one answer."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from kohaku_ray.values.tex import END, LOWER, RAISE, read_tex

LONGEST_VALUE = 200
"""Longest value, in characters, that is parsed; a longer one is text."""

_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_TEX = re.compile(r"\\|[\^_]\{|\A\s*\$[^$]+\$\s*\Z")
_LOOKALIKES = {
    **dict.fromkeys("−⁃˗➖", "-"),
    **dict.fromkeys("×✕✖⨯∗", "x"),
    **dict.fromkeys("≈≃≅∼～∽", "~"),
    **dict.fromkeys("‘’ʼ′`´", "'"),
    **dict.fromkeys("“”„«»″", '"'),
}

_ARTICLE = re.compile(r"^(?:(?:the|an)\s+(?=\S)|a\s+(?=[^\W\d]))|(?<=[\s-])the[\s-]+(?=\S)")
_JOINT = re.compile(r"(?<=\w)(?:\s*[-_]\s+|\s+|[-_]+)(?=\w)")


@lru_cache(maxsize=65536)
def plain_characters(text: str) -> str:
    r"""Write what looks alike alike: NFKC, dashes, quotes and spaces, ``^`` before an exponent.

    Characters of no width are dropped. TeX is read (``\boxed{42}``, ``$42$``); Markdown's marks around the whole value
    are dropped.
    """
    if len(text) <= LONGEST_VALUE and _TEX.search(text):
        text = read_tex(text).replace(RAISE, "^").replace(LOWER, "").replace(END, "")
    if not text.isascii():
        text = _SUPERSCRIPT.sub(lambda match: "^" + unicodedata.normalize("NFKC", match[0]), text)
        text = "".join(map(_plain_character, text))
        text = unicodedata.normalize("NFKC", text)
        text = "".join(map(_ascii_character, text))
    return " ".join((text.strip("*` \t\r\n") or text).split())


def one_form(text: str) -> str:
    """Write a text in the form in which texts are compared: NFKC, ' for ’, and the usual hyphen for its other forms."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", text).replace("’", "'").replace("\u2010", "-").replace("\u2011", "-")


@lru_cache(maxsize=65536)
def ref_key(doc_id: str) -> str:
    """The key by which two document ids are one: in one form, without case; what is written keeps its spelling."""
    return one_form(doc_id).strip().lower()


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
    if unicodedata.category(char) == "Pd":
        return "-"
    return _LOOKALIKES.get(char, char)


def text_key(text: str) -> str:
    """The key of a text: without case, articles, end punctuation and quotes, hyphens and spaces.

    Two digits stay apart where a hyphen or space parts them: ``Llama 3 8B`` is not ``Llama 38B``.
    """
    folded = " ".join(plain_characters(text).casefold().split())
    key = _ARTICLE.sub("", folded.strip("\"'").rstrip(" .,;:!?。\"'").lstrip(" \"'"))
    return _JOINT.sub(_join, key) or folded


def _join(match: re.Match[str]) -> str:
    text = match.string
    parts_digits = text[match.start() - 1].isdigit() and text[match.end()].isdigit()
    return " " if parts_digits else ""
