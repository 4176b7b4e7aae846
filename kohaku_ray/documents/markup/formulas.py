r"""Write formulas as text that a search and a reader of numbers understand: ``1.3 × 10^9``, ``E = mc^2``, ``a/b``.

TeX, by pylatexenc, and MathML are written alike: a power is ``^``, an index of digits is joined (``CO2``), another
follows ``_``, a fraction is ``a/b``, with brackets round whatever is not one number or name.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from kohaku_ray.documents.text.raised import END, LOWER, RAISE, plain_maths
from kohaku_ray.values.tex import LONGEST_TEX, place_fractions, read_tex, write_fraction, write_root

MAX_FORMULA_DEPTH = 100  # deepest nesting of elements that is read; what is deeper is text without structure

_BLANKS = re.compile(r"\s+")
_INSIDE = re.compile(r"(?<=[(\[]) | (?=[)\],;])")
# a minus behind an operand, but no hyphen in a word
_SIGN = re.compile(r"\s*([=<>≤≥≠≈±×÷→∈+]|(?<=[\w)\]}\x04])\s*(?!(?<=[^\W\d_]{2})-[^\W\d_]{2})-)\s*(?=\S)")
_LETTER_LIKE = re.compile("[\u210b-\u2138]")  # ℱ of \\mathcal{F}, beside 𝒞, which `plain_maths` writes as C
_SCRIPT = re.compile(rf"\s*([{RAISE}{LOWER}])([^{RAISE}{LOWER}{END}]*){END}(?=(\w?))")
_ONE_SCRIPT = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|[^\W\d_]+\d*|\d*[^\W\d_])|[*'+-]")


@lru_cache(maxsize=4096)
def write_tex(source: str) -> str:
    r"""Write a formula in TeX as text; a document repeats most of its formulas.

    A formula that is only a raised or lowered run (``$^{2}$``) is put between `RAISE` or `LOWER` and `END`.
    """
    return _finish(read_tex(source, _finish)) if len(source) <= LONGEST_TEX else _trim(source)


def _finish(text: str) -> str:
    """Set spaces round signs, and powers and indices behind what they belong to."""
    text = plain_maths(_BLANKS.sub(" ", text)).replace("−", "-")
    text = _LETTER_LIKE.sub(lambda letter: unicodedata.normalize("NFKC", letter[0]), text)
    return place_fractions(_trim(_SCRIPT.sub(_write_script, _SIGN.sub(r" \1 ", text))))


def _trim(text: str) -> str:
    return _INSIDE.sub("", _BLANKS.sub(" ", text)).strip()


def _write_script(match: re.Match[str]) -> str:
    """Write a power or an index; without a base, for `write_scripts` of the text that it stands in."""
    mark, script, after = match[1], _trim(match[2]), match[3]
    if match.start() == 0 or not script:
        return f"{mark}{script}{END}" if script else ""
    if set(script) <= set("'′″°∘"):
        return script.replace("∘", "°")
    if mark == LOWER and script.isdigit() and match.string[match.start() - 1].isalpha():
        return script
    script = script if _ONE_SCRIPT.fullmatch(script := re.sub(r"^([-+]) ", r"\1", script)) else f"({script})"
    return f"{'^' if mark == RAISE else '_'}{script}{' ' * (after != '' and script[-1].isalnum())}"


def write_mathml(math: Any) -> str:
    """Write a ``<math>`` element as text, once: its annotation or alternative text in TeX, else its structure."""
    annotation = math.css_first("annotation[encoding*='tex' i]")
    tex = (annotation.text() if annotation is not None else "").strip()
    alternative = (math.attributes.get("alttext") or "").strip()
    if not tex and re.search(r"[\\^_{]", alternative):
        tex = alternative
    if not tex and next(math.iter(include_text=False), None) is None:  # Marker writes TeX within the tag
        tex = (math.text() or "").strip()
    return (write_tex(tex) if tex else "") or _finish(_element(math, 0)) or _trim(alternative)


_SILENT = frozenset({"annotation", "annotation-xml", "mphantom", "none", "mprescripts"})
_N_CHILDREN = dict.fromkeys(("msup", "msub", "mover", "munder", "mfrac", "mroot"), 2) | {"msubsup": 3, "munderover": 3}
_JOINTS = {"mtable": "; ", "mtr": " ", "mmultiscripts": " "}
_UNSEEN = {"\u2061": " ", "\u2062": "", "\u2063": ",", ",": ", "}  # operators that are not drawn, and one that is


def _element(node: Any, depth: int) -> str:
    """Write an element of MathML; raised and lowered characters between their marks."""
    tag = node.tag
    if tag in ("mi", "mn", "mtext", "ms", "mo", "-text"):
        text = _BLANKS.sub(" ", node.text() or "")
        text = text if tag == "mtext" else text.strip(" ")
        return _UNSEEN.get(text, text) if tag == "mo" else f" {text} " if tag == "mi" and len(text) > 2 else text
    if tag in _SILENT:
        return ""
    if tag == "mspace":
        return " "
    if depth >= MAX_FORMULA_DEPTH:
        return _BLANKS.sub(" ", node.text(separator=" ") or "")
    parts = [_element(child, depth + 1) for child in node.iter(include_text=False) if child.tag not in _SILENT]
    if len(parts) == _N_CHILDREN.get(tag):  # else it is shown as a row
        return _write_parts(tag, parts)
    if tag == "msqrt":
        return write_root(_finish("".join(parts)))
    if tag == "mfenced":
        return f"{node.attributes.get('open', '(')}{', '.join(map(_trim, parts))}{node.attributes.get('close', ')')}"
    return _JOINTS.get(tag, "").join(parts)


def _write_parts(tag: str, parts: list[str]) -> str:
    base, *scripts = parts
    if tag == "mfrac":
        return write_fraction(_finish(base), _finish(scripts[0]))
    if tag == "mroot":
        return write_root(_finish(base), _finish(scripts[0]))
    if tag in ("mover", "munder") and not any(map(str.isalnum, scripts[0])):  # an accent
        return base
    marks = RAISE if tag in ("msup", "mover") else f"{LOWER}{RAISE}"
    return base + "".join(f"{mark}{_finish(part)}{END}" for mark, part in zip(marks, scripts, strict=False))


_DELIMITERS = (
    r"\\\((?P<round>(?:[^\\]|\\(?![()]).){1,10000}?)\\\)|\\\[(?P<square>(?:[^\\]|\\(?![\[\]]).){1,10000}?)\\\]|"
    r"(?<!\\)\$\$(?P<double>[^$]{1,10000})\$\$|"
    r"(?:(?<![\\$\w])|(?<=\w)(?=\$(?:\{\})?[\^_]))"
    r"\$(?P<single>(?![\s$])(?:\\.|[^$\\\n]|\n(?!\s*\n)){1,1000})(?<![\s\\])\$(?!\d)|"
    r"(?P<display>\\begin\{(?P<name>(?:align|equation|gather|multline|eqnarray)\*?)\}.{1,10000}?\\end\{(?P=name)\})"
)
_CODE = (
    r"(?P<code>(?:^|\n)[ \t>]*(?P<fence>```|~~~).*?(?:\n[ \t>]*(?P=fence)|\Z)|"
    r"(?<!`)(?P<ticks>`{1,9})(?!`)(?:[^\n]|\n(?!\s*\n)){1,2000}?(?<!`)(?P=ticks)(?!`))|"
)
_DELIMITED, _IN_MARKDOWN = re.compile(_DELIMITERS, re.DOTALL), re.compile(_CODE + _DELIMITERS, re.DOTALL)
_TEX_SIGN = re.compile(r"[\\^_{]")
_PROSE = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}\s+[A-Za-z]{2,}|[.;!?]\s")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*\s?%?")


def is_formula(tex: str, after: str) -> bool:
    """Whether what stands between single dollar signs is a formula, and no text between two prices or variables."""
    if _TEX_SIGN.search(tex):
        return not (tex[0].isdigit() and _PROSE.search(re.sub(r"\\\w+\s*\{[^}]*\}", "", tex)))
    if after[:1].isalpha() and len(tex) > 1:
        return False
    if tex[0].isdigit():
        return _NUMBER.fullmatch(tex) is not None or re.fullmatch(r"[\d.,\s]+[-+=<>×/][\d.,\s]+", tex) is not None
    return _PROSE.search(tex) is None and not re.search(r"[A-Za-z]{4}", tex) and "\n" not in tex


def write_delimited(text: str) -> str:
    r"""Write the formulas in a text, between ``\(…\)``, ``\[…\]``, ``$$…$$`` or ``$…$``."""
    return _replace(_DELIMITED, text, write_tex)


def mark_formulas(markdown: str) -> str:
    r"""Put the formulas of Markdown, outside of code, into ``<math>``, so that nothing in them is markup.

    Brackets are also escaped where they are no formula's: ``\[1\]``.
    """

    def mark(tex: str) -> str:
        return f"<math>{_ASCII_SIGN.sub(lambda sign: f'&#{ord(sign[0])};', _BLANKS.sub(' ', tex))}</math>"

    return _replace(_IN_MARKDOWN, markdown, mark)


_ASCII_SIGN = re.compile(r"[!-/:-@\[-`{-~]")
_OF_FORMULA = re.compile(r"[\\^_{=<>+×]")


def _replace(pattern: re.Pattern[str], text: str, write: Callable[[str], str]) -> str:
    if "$" not in text and "\\" not in text:
        return text
    pieces, end, start = [], 0, 0
    while match := pattern.search(text, start):
        kind, start = match.lastgroup or "", match.end()
        tex = match[kind]
        if kind == "single" and not is_formula(tex, text[start : start + 1]):
            start = match.start() + 1  # the second sign may begin one
        elif kind != "code" and (pattern is _DELIMITED or kind not in ("round", "square") or _OF_FORMULA.search(tex)):
            pieces += [text[end : match.start()], write(tex)]
            end = start
    return "".join([*pieces, text[end:]])
