r"""Write formulas as text that a search and a reader of numbers understand: ``1.3 × 10^9``, ``E = mc^2``, ``a/b``.

TeX, MathML and what KaTeX draws are written alike: a power is ``^``, an index of digits is joined (``CO2``), another
follows ``_``, a fraction is ``a/b``, with brackets round whatever is not one number or name.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Any

from kohaku_ray.documents.text.raised import END, LOWER, RAISE, is_tolerance, plain_maths, write_lowered, write_raised
from kohaku_ray.values.tex import LONGEST_TEX, place_fractions, read_tex, write_fraction, write_root

MAX_FORMULA_DEPTH = 100  # deepest nesting of elements that is read; what is deeper is text without structure

_REACH = 80  # how many characters before a script are looked at
_BLANKS = re.compile(r"\s+")
_INSIDE = re.compile(r"(?<=[(\[]) | (?=[)\],;])")
_RELATION = re.compile(r"\s*([=<>≤≥≲≳≠≈≅≡∝≪≫→⇒↦←⇐↔⇔∈∉⊂⊆⊃⊇∪∩∖×÷∧∨⊕⊗~])\s*")
_SIGN = re.compile(r"(?<=[\w)\]}|'!%°…∞\x04])\s*(?!(?<=[^\W\d_]{2})-[^\W\d_]{2})([-+±∓·])\s*(?=\S)")
_ROUND_SIGN = re.compile(r" ([^\w\s,;]) ")
_SCRIPT = re.compile(rf"\s*([{RAISE}{LOWER}])([^{RAISE}{LOWER}{END}]*){END}")
_LETTER_LIKE = re.compile("[\u03d1\u03d5\u03d6\u03f0\u03f1\u03f5\u210b-\u2138]")  # ℱ of \\mathcal{F}, ϕ of \\phi
_ONE_SCRIPT = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|[^\W\d_]+\d*|\d*[^\W\d_])|[*'+-]")


@lru_cache(maxsize=4096)
def write_tex(source: str) -> str:
    r"""Write a formula in TeX as text; a document repeats most of its formulas.

    A formula that is only a raised or lowered run (``$^{2}$``) is put between `RAISE` or `LOWER` and `END`.
    """
    return _finish(read_tex(source, _finish)) if len(source) <= LONGEST_TEX else _trim(source)


def _finish(text: str) -> str:
    """Set spaces round signs, and powers and indices behind what they belong to."""
    text = plain_maths(_BLANKS.sub(" ", text))
    text = _LETTER_LIKE.sub(lambda letter: unicodedata.normalize("NFKC", letter[0]), text)
    text = text.replace("−", "-").replace("⋅", "·").replace("∗", "*")
    text = _SIGN.sub(r" \1 ", _RELATION.sub(r" \1 ", text))
    first, *rest = _SCRIPT.split(text)
    written = [first]
    before = first[-_REACH:]
    for mark, script, between in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        placed = _write_script(before, mark, _ROUND_SIGN.sub(r"\1", _trim(script)))
        is_apart = placed[-1:].isalnum() and between[:1].isalnum() and (mark == RAISE or not script.isdigit())
        written += [placed, " " if is_apart else "", between]
        before = f"{before}{placed}{between}"[-_REACH:]
    return place_fractions(_trim("".join(written)))


def _trim(text: str) -> str:
    return _INSIDE.sub("", _BLANKS.sub(" ", text)).strip()


def _write_script(base: str, mark: str, script: str) -> str:
    """Write a power or an index; without a base, for `write_scripts` of the text that it stands in."""
    if not script:
        return ""
    if not base.strip() or base.endswith((" ", END)):
        return f"{mark}{script}{END}"
    if script in ("°", "∘") or set(script) <= set("'′″"):
        return script.replace("∘", "°")
    if is_tolerance(base, script):
        return f" {script}"
    if mark == LOWER:
        if script.isdigit() and base[-1].isalpha():
            return write_lowered(base, script)
        return f"_{script}" if script.replace(",", "").isalnum() else f"_({script})"
    if base[-1].isdigit() and not any(char.isdigit() for char in script):
        raised = write_raised(base, script.replace(" ", ""))  # an ordinal, or the mark of a note
        if not raised.startswith("^"):
            return raised
    return f"^{script}" if _ONE_SCRIPT.fullmatch(script) else f"^({script})"


def end_number(pieces: list[str]) -> None:
    """Keep a fraction apart from the number or name before it: two and three quarters are ``2 3/4``, not ``23/4``."""
    if pieces and pieces[-1][-1:].isalnum():
        pieces.append(" ")


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
_ACCENTS = frozenset("^¯~→˙¨ˇ˘´`‾_⏞⏟︷︸ˆ˜→⃗")
_N_CHILDREN = dict.fromkeys(("msup", "msub", "mover", "munder", "mfrac", "mroot"), 2) | {"msubsup": 3, "munderover": 3}
_UNSEEN = {"\u2061": " ", "\u2062": "", "\u2063": ",", "\u2064": "+", ",": ", "}  # operators that are not drawn


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
    children = [child for child in node.iter(include_text=False) if child.tag not in ("annotation", "annotation-xml")]
    parts = [_element(child, depth + 1) for child in children]
    if tag == "mmultiscripts" and parts:
        return _multiscripts(parts, next((i for i, c in enumerate(children) if c.tag == "mprescripts"), len(parts)))
    if len(parts) == _N_CHILDREN.get(tag):  # else it is shown as a row
        return _write_parts(tag, parts)
    if tag == "msqrt":
        return write_root(_finish("".join(parts)))
    if tag == "mfenced":
        return f"{node.attributes.get('open', '(')}{', '.join(map(_trim, parts))}{node.attributes.get('close', ')')}"
    return {"mtable": "; ", "mtr": " ", "mlabeledtr": " "}.get(tag, "").join(parts)


def _write_parts(tag: str, parts: list[str]) -> str:
    base, *scripts = parts
    if tag == "mfrac":
        return write_fraction(_finish(base), _finish(scripts[0]))
    if tag == "mroot":
        return write_root(_finish(base), _finish(scripts[0]))
    if scripts[0].strip() in _ACCENTS:
        return base
    marks = RAISE if tag in ("msup", "mover") else f"{LOWER}{RAISE}"
    return base + "".join(f"{mark}{_finish(part)}{END}" for mark, part in zip(marks, scripts, strict=False))


def _multiscripts(parts: list[str], end: int) -> str:
    """Write a base with pairs of an index and an exponent behind it, and with those that stand before it."""
    scripts = [f"{LOWER if i % 2 else RAISE}{_finish(part)}{END}" if part else "" for i, part in enumerate(parts[:end])]
    before = [f"{RAISE if i % 2 else LOWER}{_finish(part)}{END}" for i, part in enumerate(parts[end + 1 :]) if part]
    return "".join([*before, parts[0], *scripts[1:]])


_SIGNS_DRAWN = str.maketrans({"\u200b": None})
_EM = re.compile(r"(?<![\w-])(?:top|height)\s*:\s*(-?[\d.]+)em")


def write_katex(node: Any) -> str:
    """Write what KaTeX shows (``span.katex-html``), for pages that have its drawing alone.

    KaTeX sets powers, indices and fractions as lists of lines (``vlist``), each at a height of its own.
    """
    return _finish(_drawn(node, 0))


def _drawn(node: Any, depth: int) -> str:
    if depth > MAX_FORMULA_DEPTH:
        return node.text() or ""
    pieces = []
    for child in node.iter(include_text=True):
        if child.tag == "-text":
            pieces.append((child.text() or "").translate(_SIGNS_DRAWN).strip(" "))
            continue
        classes = _classes(child)
        lines = [] if classes.isdisjoint(_LISTS) else _lines(child, depth)
        texts = [text for _, text, _ in lines if text]
        if "msupsub" in classes:
            lowered, raised = ([text for up, text, _ in lines if (up < 0) == is_low] for is_low in (True, False))
            pieces += [f"{LOWER}{text}{END}" for text in lowered[:1]] + [f"{RAISE}{text}{END}" for text in raised[:1]]
        elif "mfrac" in classes:
            pieces.append(write_fraction(texts[0], texts[-1]) if texts else "")
        elif "sqrt" in classes:
            parts = list(child.iter(include_text=False))
            degree = next((_finish(_drawn(part, depth + 1)) for part in parts if "root" in _classes(part)), "")
            inside = (_lines(part, depth) for part in parts if "root" not in _classes(part))
            pieces.append(write_root(next((drawn[0][1] for drawn in inside if drawn), ""), degree))
        elif "accent" in classes:
            pieces += [text for _, text, line in lines if line.css_first(".accent-body") is None][:1]
        elif "op-limits" in classes:
            base = next((i for i, (_, _, line) in enumerate(lines) if line.css_first(".mop")), 0)
            pieces += [text for _, text, _ in lines[base : base + 1]]
            pieces += [f"{LOWER}{text}{END}" for _, text, _ in lines[base + 1 : base + 2]]
            pieces += [f"{RAISE}{text}{END}" for _, text, _ in lines[:base][:1]]
        elif "mtable" in classes:
            columns = [_lines(part, depth) for part in child.iter(include_text=False) if part.css_first(".vlist")]
            rows = zip(*columns, strict=False)
            pieces.append("; ".join(" ".join(text for _, text, _ in row) for row in rows))
        elif "mspace" in classes:
            pieces.append(" ")
        elif not classes & {"strut", "pstrut", "vlist-s", "frac-line"}:
            text = _drawn(child, depth + 1)
            pieces.append(f"{text} " if "mop" in classes and len(child.text() or "") > 1 else text)
    return "".join(pieces)


_LISTS = frozenset({"msupsub", "mfrac", "accent", "op-limits"})


def _classes(node: Any) -> set[str]:
    """Names of an element's classes; of late versions, without their prefix ``katex-``."""
    return {name.removeprefix("katex-") for name in (node.attributes.get("class") or "").split()}


def _lines(node: Any, depth: int) -> list[tuple[float, str, Any]]:
    """The lines of the first list below an element, the highest first: height over the base line, text, element."""
    vlist = node.css_first(".vlist")
    lines = []
    for line in vlist.iter(include_text=False) if vlist is not None else ():
        strut = line.css_first(".pstrut")
        top, height = (
            _EM.search((part.attributes.get("style") or "") if part is not None else "") for part in (line, strut)
        )
        up = -float(top[1]) - float(height[1] if height else 2.7) if top else 0.0
        lines.append((up, _finish(_drawn(line, depth + 1)), line))
    return sorted(lines, key=lambda drawn: -drawn[0])


_DELIMITED = re.compile(
    r"\\\((?P<round>(?:[^\\]|\\(?![()]).){1,10000}?)\\\)|\\\[(?P<square>(?:[^\\]|\\(?![\[\]]).){1,10000}?)\\\]|"
    r"(?<!\\)\$\$(?P<double>[^$]{1,10000})\$\$|"
    r"(?:(?<![\\$\w])|(?<=\w)(?=\$(?:\{\})?[\^_]))"
    r"\$(?P<single>(?![\s$])(?:\\.|[^$\\\n]|\n(?!\s*\n)){1,1000})(?<![\s\\])\$(?!\d)|"
    r"(?P<display>\\begin\{((?:align|equation|gather|multline|eqnarray)\*?)\}.{1,10000}?\\end\{\6\})",
    re.DOTALL,
)
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
    if "$" not in text and "\\" not in text:
        return text
    return _DELIMITED.sub(_written, text)


def _written(match: re.Match[str]) -> str:
    tex = match[match.lastgroup or 0]
    if match.lastgroup == "single" and not is_formula(tex, match.string[match.end() : match.end() + 1]):
        return match[0]
    return write_tex(tex)


def match_formula(text: str, start: int) -> tuple[int, str] | None:
    r"""Where a formula that begins at ``start`` of a Markdown text ends, and its TeX; None: none begins there.

    Brackets are also escaped where they are no formula's: ``\[1\]``.
    """
    match = _DELIMITED.match(text, start)
    if match is None:
        return None
    kind, tex = match.lastgroup, match[match.lastgroup or 0]
    is_one = is_formula(tex, text[match.end() : match.end() + 1]) if kind == "single" else True
    if kind in ("round", "square"):
        is_one = re.search(r"[\\^_{=<>+×]", tex) is not None
    return (match.end(), tex.strip("`")) if is_one else None
