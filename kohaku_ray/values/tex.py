r"""Read TeX as text: ``1.2 \times 10^{5}`` is ``1.2 × 10^5``, ``\frac{1}{2}`` is ``1/2``, ``\boxed{42}`` is ``42``.

Macros and symbols are those of pylatexenc, which is imported where a text holds TeX: that takes 40 ms of CPU.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

LONGEST_TEX = 100_000
"""Longest text, in characters, that is read; a longer one stays as it is written."""

RAISE, LOWER, END = "\x01", "\x02", "\x04"
"""Stand round raised and lowered characters in the text that `read_tex` returns."""

_EATEN = re.compile(r"([\b\f\n\r\t])([A-Za-z]+)")
_LETTERS = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}  # of JSON's escapes that macros begin with
_WHOLE_NUMBER = re.compile(r"([\^_])\s*([-+]?\d+(?:[.,]\d+)*)")  # TeX itself would raise one digit of 10^23
_BARE_ARGUMENT = re.compile(r"([\^_])\s*(\\[A-Za-z]+\s*\{[^{}]*\})")  # x_\mathrm{max}
_THOUSANDS = re.compile(r"(?<=\d)(?:\\,|\{,\})(?=\d{3}(?!\d))")
_NO_BRACKET = re.compile(r"\\(?:left|right|middle)\s*\.")
_PERCENT = re.compile(r"(?<!\\)%")  # to TeX, the rest of the line is a comment
_ONE_OPERAND = re.compile(r"[-√]?(?:\d[\d.,]*%?|[^\W\d_]+\d*(?:_\w+)?|√?\([^()]*\))")
_APART = "\x06"  # stands before a fraction: two and a half are 2 1/2, not 21/2
_APART_FROM = re.compile(rf"(?<=\w){_APART}")
_FRACTIONS = ("frac", "dfrac", "tfrac", "cfrac", "sfrac", "nicefrac")
# Of which the argument alone is written: boxes, texts, and accents, so that a search for x finds its mean.
_SHOWN = ("boxed", "text", "ce", "operatorname", "hat", "bar", "vec", "tilde", "dot", "ddot", "widehat", "widetilde")
_QUANTITIES = ("SI", "qty")  # of siunitx: a number and its unit
_SCRIPTS = {"^": RAISE, "_": LOWER, "textsuperscript": RAISE, "textsubscript": LOWER}
# Of which the default has none, or a line's end.
_SYMBOLS = {"degree": "°", "celsius": "°C", "colon": ":", "iff": "⇔", "implies": "⇒", "bmod": " mod ", "pmod": " mod "}
_SYMBOLS |= {"\\": "; "}


def read_tex(source: str, finish: Callable[[str], str] = str) -> str:
    """Read TeX, with or without delimiters; what is torn or nested too deep stays as it is written.

    Args:
        source: The text.
        finish: Writes what is raised or lowered, and the parts of fractions and roots.
    """
    if len(source) > LONGEST_TEX:
        return source
    whole = _WHOLE_NUMBER.sub(r"\1{\2}", _THOUSANDS.sub(",", _NO_BRACKET.sub("", source)))
    whole = _BARE_ARGUMENT.sub(r"\1{\2}", whole)
    with suppress(Exception):  # on torn TeX the library raises Python's own errors, of any kind
        return place_fractions(_reader(finish)(_PERCENT.sub(r"\\%", whole))) or source
    return source


def restore_tex(text: str) -> str:
    r"""Restore the macros that JSON's escapes have eaten: a form feed and ``rac`` are ``\frac`` (OpenMAIC#658).

    A form feed and a backspace before a letter are nothing else (LightRAG#3238); a tab or a line's end is one where a
    macro of pylatexenc begins with it.
    """
    if _EATEN.search(text) is None:
        return text

    def restore(match: re.Match[str]) -> str:
        name = _LETTERS[match[1]] + match[2]
        return f"\\{name}" if match[1] in "\b\f" or name in _macros() else match[0]

    return _EATEN.sub(restore, text)


@cache
def _macros() -> frozenset[str]:
    from pylatexenc import latex2text

    known = latex2text.get_default_latex_context_db().iter_macro_specs()
    return frozenset({spec.macroname for spec in known}.union(_FRACTIONS, _SHOWN))


def place_fractions(text: str) -> str:
    """Keep fractions apart from a number or name before them."""
    return _APART_FROM.sub(" ", text).replace(_APART, "") if _APART in text else text


def write_fraction(above: str, below: str) -> str:
    """Write ``a/b``, with brackets round whatever is not one number or name."""
    return _APART + "/".join(
        part if _ONE_OPERAND.fullmatch(part) else f"({part})" for part in (above.strip(), below.strip())
    )


def write_root(inside: str, degree: str = "") -> str:
    """Write ``√x``, with brackets round whatever is not one number or name."""
    inside, index = inside.strip(), f"[{degree.strip()}]" if degree.strip() else ""
    return f"√{index}{inside}" if not index and _ONE_OPERAND.fullmatch(inside) else f"√{index}({inside})"


@cache
def _reader(finish: Callable[[str], str]) -> Callable[[str], str]:
    from pylatexenc import latex2text, latexwalker, macrospec

    logging.getLogger("pylatexenc").setLevel(logging.ERROR)  # it warns of every macro without its arguments

    def arguments(node: Any, writer: Any) -> list[str]:
        given = node.nodeargd.argnlist or () if node.nodeargd else ()
        return ["" if argument is None else finish(writer.nodelist_to_text([argument])) for argument in given]

    def fraction(node: Any, l2tobj: Any) -> str:
        return write_fraction(*[*arguments(node, l2tobj), "", ""][:2])

    def script(node: Any, l2tobj: Any) -> str:
        inside = "".join(arguments(node, l2tobj))
        mark = _SCRIPTS[node.macroname if hasattr(node, "macroname") else node.specials_chars]
        return "°" if inside == "∘" else f"{mark}{inside}{END}" if inside else ""

    def root(node: Any, l2tobj: Any) -> str:
        degree, inside = [*arguments(node, l2tobj), "", ""][:2]
        return write_root(inside, degree)

    words = latexwalker.get_default_latex_context_db()
    one = macrospec.MacroStandardArgsParser("{")
    words.add_context_category(
        "kohaku_ray",
        macros=[macrospec.std_macro(name, "{{") for name in (*_FRACTIONS, *_QUANTITIES)]
        + [macrospec.std_macro(name, "{") for name in (*_SHOWN, "textsuperscript", "textsubscript")],
        specials=[macrospec.SpecialsSpec(char, args_parser=one) for char in "^_"],
        prepend=True,
    )
    texts = latex2text.get_default_latex_context_db()
    texts.add_context_category(
        "kohaku_ray",
        macros=[latex2text.MacroTextSpec(name, simplify_repl=fraction) for name in _FRACTIONS]
        + [latex2text.MacroTextSpec(name, simplify_repl="%s") for name in _SHOWN]
        + [latex2text.MacroTextSpec(name, simplify_repl="%s %s") for name in _QUANTITIES]
        + [latex2text.MacroTextSpec(name, simplify_repl=text) for name, text in _SYMBOLS.items()]
        + [latex2text.MacroTextSpec(name, simplify_repl=script) for name in _SCRIPTS if len(name) > 1]
        + [latex2text.MacroTextSpec("sqrt", simplify_repl=root)],
        specials=[latex2text.SpecialsTextSpec(char, simplify_repl=script) for char in "^_"],
        prepend=True,
    )
    writer = latex2text.LatexNodes2Text(latex_context=texts, math_mode="text", strict_latex_spaces="based-on-source")

    def read(source: str) -> str:
        walker = latexwalker.LatexWalker(source, latex_context=words, tolerant_parsing=True)
        text: str = writer.nodelist_to_text(walker.get_latex_nodes()[0])
        return text

    return read
