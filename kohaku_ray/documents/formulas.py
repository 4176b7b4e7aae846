r"""Write formulas as text that a search and a reader of numbers understand: ``1.3 × 10^9``, ``E = m c^2``, ``a/b``.

TeX, MathML and AsciiMath are written alike: a power is ``^``, an index of digits is joined (``CO2``), another follows
``_``, a fraction is ``a/b``, with brackets round whatever is not one number or name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from html import escape
from typing import Any

from kohaku_ray.documents.raised import END, LOWER, RAISE, is_tolerance, write_lowered, write_raised
from kohaku_ray.documents.sentences import words_of

MAX_FORMULA_CHARS = 100_000  # longest formula in TeX that is read; a longer one stays as it is written
MAX_FORMULA_DEPTH = 100  # deepest nesting that is read; TeX beyond it stays as it is written, MathML is a row there

_GREEK = dict(
    pair.split("=")
    for pair in words_of(
        """alpha=α beta=β gamma=γ delta=δ epsilon=ε zeta=ζ eta=η theta=θ iota=ι kappa=κ lambda=λ mu=μ nu=ν xi=ξ
        omicron=ο pi=π rho=ρ sigma=σ tau=τ upsilon=υ phi=φ chi=χ psi=ψ omega=ω"""
    )
)
_SYMBOLS = dict(
    pair.split("=", 1)
    for pair in words_of(
        """times=× cdot=· cdotp=· div=÷ pm=± mp=∓ ast=* star=* approx=≈ sim=~ simeq=≈ cong=≅ equiv=≡ propto=∝ leq=≤ le=≤
        leqslant=≤ lesssim=≲ geq=≥ ge=≥ geqslant=≥ gtrsim=≳ neq=≠ ne=≠ ll=≪ gg=≫ lt=< gt=> to=→ rightarrow=→
        longrightarrow=→ Rightarrow=⇒ implies=⇒ mapsto=↦ leftarrow=← gets=← Leftarrow=⇐ leftrightarrow=↔
        Leftrightarrow=⇔ iff=⇔ uparrow=↑ downarrow=↓ in=∈ notin=∉ subset=⊂ subseteq=⊆ supset=⊃ supseteq=⊇ cup=∪ cap=∩
        setminus=∖ emptyset=∅ varnothing=∅ forall=∀ exists=∃ neg=¬ lnot=¬ land=∧ wedge=∧ lor=∨ vee=∨ oplus=⊕ otimes=⊗
        odot=⊙ circ=∘ bullet=• infty=∞ partial=∂ nabla=∇ sum=∑ prod=∏ int=∫ iint=∬ oint=∮ ldots=… dots=… cdots=… vdots=⋮
        dotsc=… dotsb=… ell=l hbar=ℏ degree=° textdegree=° celsius=°C prime=' dagger=† ddagger=‡ mid=| vert=| lvert=|
        rvert=| Vert=‖ lVert=‖ rVert=‖ parallel=∥ perp=⊥ langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ lbrace={
        rbrace=} lbrack=[ rbrack=] colon=: micro=μ textmu=μ euro=€ pounds=£ textdollar=$ textless=< textgreater=>
        textasciitilde=~ percent=% angle=∠ therefore=∴ because=∵ checkmark=✓"""
    )
)
_SYMBOLS |= _GREEK | {name.capitalize(): letter.upper() for name, letter in _GREEK.items()}
_SYMBOLS |= {f"var{name}": letter for name, letter in _GREEK.items()}
_FUNCTIONS = words_of(
    """log ln lg exp sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan max min sup inf lim limsup liminf arg
    argmax argmin det dim gcd ker Pr mod bmod"""
)
_TEXTS = words_of(
    """text textrm textit textbf textsf texttt textnormal textup textsc emph mbox hbox ce num unit textsubscript label
    tag operatorname"""
)
_NAMES = words_of("mathrm mathit mathbf mathsf mathtt mathop boldsymbol bm")  # of several letters that are one name
_FRACTIONS = words_of("frac dfrac tfrac cfrac sfrac nicefrac")
_WIDE = words_of("quad qquad enspace thinspace space nobreakspace hspace hskip")
_SILENT = words_of(
    """displaystyle textstyle scriptstyle scriptscriptstyle limits nolimits left right middle big Big bigg Bigg bigl
    bigr Bigl Bigr biggl biggr Biggl Biggr nonumber notag hline centering strut mathstrut ensuremath mathbb mathcal
    mathfrak mathscr overline underline bar hat tilde vec dot ddot widehat widetilde overrightarrow underbrace overbrace
    boxed cancel bf it rm tt cal mathbin mathrel mathord mathopen mathclose textcolor"""
)
_WITH_SETTING = words_of("color textcolor hspace vspace phantom begin end label")  # whose first argument is no text
_JOINED = words_of("mm cm dm km kg mg ml cl ms ns ps hr kw mw px pm um in ft yd mi oz lb eq id dt dx dy")
_TOKEN = re.compile(r"\\([A-Za-z]+)\*?|\\(.)|(\d+(?:[.,]\d+)*)|([^\W\d_]+)|([\s~]+)|(.)", re.DOTALL)
_RELATIONS = frozenset("=<>≤≥≲≳≠≈≅≡∝≪≫→⇒↦←⇐↔⇔∈∉⊂⊆⊃⊇∪∩∖×÷∧∨⊕⊗~")
_SIGNS = frozenset("+-±∓·")  # of a number, or between two
_OPERAND_END = re.compile(r"[\w)\]}|'!%°…∞\x04]$")
_ONE_OPERAND = re.compile(r"[-√]?(?:\d[\d.,]*%?|[^\W\d_]+\d*(?:_\w+)?|√?\([^()]*\))")
_ONE_SCRIPT = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|[^\W\d_]+\d*|\d*[^\W\d_])|[*'+-]")
_ROUND_SIGN = re.compile(r" ([^\w\s,;]) ")
_BLANKS = re.compile(r"\s+")
_INSIDE = re.compile(r"(?<=[(\[]) | (?=[)\],;])")
_THOUSANDS = re.compile(r"(?<=\d)\\,(?=\d{3}(?!\d))")
_ACCENTS = frozenset("^¯~→˙¨ˇ˘´`‾_⏞⏟︷︸ˆ˜→⃗")


def write_tex(source: str) -> str:
    r"""Write a formula in TeX, without its delimiters, as text.

    A formula that is only a raised or lowered run (``$^{2}$``) is put between `RAISE` or `LOWER` and `END`.
    """
    if len(source) <= MAX_FORMULA_CHARS:
        with suppress(RecursionError):
            return _trim(_Tex(_THOUSANDS.sub(",", source)).row(0))
    return _BLANKS.sub(" ", source).strip()


def _trim(text: str) -> str:
    return _INSIDE.sub("", _BLANKS.sub(" ", text)).strip()


def add_piece(pieces: list[str], text: str) -> None:
    """Add a token to a row of them; an operator between two operands has a space at each side."""
    if text in _RELATIONS:
        pieces.append(f" {text} ")
    elif text in _SIGNS or text == "−":
        is_between = _OPERAND_END.search("".join(pieces[-2:]).rstrip()) is not None
        sign = "-" if text == "−" else text
        pieces.append(f" {sign} " if is_between else sign)
    else:
        pieces.append(text)


def end_number(pieces: list[str]) -> None:
    """Keep a fraction apart from the number or name before it: two and three quarters are ``2 3/4``, not ``23/4``."""
    if pieces and pieces[-1][-1:].isalnum():
        pieces.append(" ")


def write_power(base: str, raised: str) -> str:
    """Write a power; ``base`` may be empty."""
    raised = _ROUND_SIGN.sub(r"\1", _trim(raised))
    if not raised or base.endswith(END) or not base.strip():
        return f"{base}{RAISE}{raised}{END}" if raised else base
    if raised in ("∘", "°"):
        return f"{base}°"
    if set(raised) == {"'"} or set(raised) <= {"′", "″"}:
        return f"{base}{raised}"
    if raised[0] == "+" and is_tolerance(base, raised):
        return f"{base} {raised}"
    if base[-1].isdigit() and not any(char.isdigit() for char in raised):
        raised = raised.replace(" ", "")
        written = write_raised(base, raised)  # an ordinal, or the mark of a note
        if not written.startswith("^"):
            return f"{base}{written}"
    return f"{base}^{raised}" if _ONE_SCRIPT.fullmatch(raised) else f"{base}^({raised})"


def write_index(base: str, lowered: str) -> str:
    """Write an index; ``base`` may be empty."""
    lowered = _ROUND_SIGN.sub(r"\1", _trim(lowered))
    if not lowered or base.endswith(END) or not base.strip():
        return f"{base}{LOWER}{lowered}{END}" if lowered else base
    if is_tolerance(base, lowered):
        return f"{base} {lowered}"
    if lowered.isdigit() and base[-1].isalpha():
        return base + write_lowered(base, lowered)
    return f"{base}_{lowered}" if lowered.replace(",", "").isalnum() else f"{base}_({lowered})"


def write_fraction(above: str, below: str) -> str:
    """Write a fraction."""
    parts = [_trim(part) for part in (above, below)]
    return "/".join(part if _ONE_OPERAND.fullmatch(part) else f"({part})" for part in parts)


def write_root(inside: str, degree: str = "") -> str:
    """Write a root."""
    inside = _trim(inside)
    index = f"[{_trim(degree)}]" if degree.strip() else ""
    return f"√{index}{inside}" if not index and _ONE_OPERAND.fullmatch(inside) else f"√{index}({inside})"


def write_letters(letters: str) -> str:
    """Write letters side by side: two small ones are a product, ``m c``; others one name, ``kWh``, ``CO``."""
    is_product = len(letters) == 2 and letters.isascii() and letters.islower() and letters not in _JOINED
    return " ".join(letters) if is_product else letters


class _Tex:
    """Reads tokens of TeX from left to right."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = list(_TOKEN.finditer(source))
        self._next = 0

    def row(self, depth: int, end: str = "", is_name: bool = False) -> str:
        """Read to ``end`` or the formula's; RecursionError: it is nested deeper than is read."""
        if depth > MAX_FORMULA_DEPTH:
            raise RecursionError
        pieces: list[str] = []
        while self._next < len(self._tokens):
            token = self._tokens[self._next]
            self._next += 1
            command, escaped, number, letters, blanks, char = token.groups()
            if char is not None and char == end:
                break
            if char in ("^", "_"):
                script = self._argument(depth)
                while pieces and not pieces[-1].strip():
                    pieces.pop()
                is_bare = not pieces or pieces[-1].endswith(" ")  # an operator has no index
                base = "" if is_bare else pieces.pop()
                pieces.append((write_power if char == "^" else write_index)(base, script))
            elif char == "{":
                pieces.append(self.row(depth + 1, "}", is_name))
            elif command:
                if command in _FRACTIONS:
                    end_number(pieces)
                add_piece(pieces, self._command(command, depth, is_name))
            elif letters:
                pieces.append(letters if is_name else write_letters(letters))
            elif blanks or char == "&":
                pieces.append(" ")
            elif escaped is not None:
                pieces.append({"\\": "; ", "!": "", "|": "‖", "\n": " ", "(": "", ")": ""}.get(escaped, ""))
                if not pieces[-1] and escaped not in "!()":
                    pieces[-1] = " " if escaped in ",;: >" else escaped
            elif number or char not in ("}", "$"):
                add_piece(pieces, number or char or "")
        return "".join(pieces)

    def _argument(self, depth: int) -> str:
        """Read a command's or a script's argument: a group, a command or a token; a number is taken whole."""
        if depth > MAX_FORMULA_DEPTH:
            raise RecursionError
        tokens = self._tokens
        while self._next < len(tokens) and tokens[self._next][5]:
            self._next += 1
        if self._next == len(tokens):
            return ""
        token = tokens[self._next]
        if token[0] in "})]&$^_":
            return ""
        self._next += 1
        if token[0] == "{":
            return self.row(depth + 1, "}")
        if token[1]:
            return self._command(token[1], depth + 1, False)
        if token[0] in "+-" and self._next < len(tokens) and tokens[self._next][3]:
            self._next += 1
            return token[0] + tokens[self._next - 1][0]
        return token[2] or token[0]

    def _raw(self) -> str:
        """Read a group as it is written; without one, a token."""
        tokens = self._tokens
        while self._next < len(tokens) and tokens[self._next][5]:
            self._next += 1
        start, level = self._next, 0
        while self._next < len(tokens):
            text = tokens[self._next][0]
            self._next += 1
            level += (text == "{") - (text == "}")
            if level <= 0:
                break
        if start == self._next:
            return ""
        text = self._source[tokens[start].start() : tokens[self._next - 1].end()]
        return re.sub(r"[{}$]|\\(?=[^A-Za-z])|\\[A-Za-z]+ ?", "", text)

    def _command(self, name: str, depth: int, is_name: bool) -> str:
        if name in _SYMBOLS:
            return _SYMBOLS[name]
        if name in _FUNCTIONS:
            return name.removeprefix("b") + " " * (self._follows() not in "^_({[\\")
        if name in _WIDE or name in _WITH_SETTING:
            if name in _WITH_SETTING:
                is_array = name == "begin"
                self._raw()
                if is_array and self._follows() == "{":
                    self._raw()
            return " "
        if name in _FRACTIONS:
            above = self._argument(depth)
            return write_fraction(above, self._argument(depth))
        if name == "sqrt":
            degree = ""
            if self._next < len(self._tokens) and self._tokens[self._next][0] == "[":
                self._next += 1
                degree = self.row(depth + 1, "]")
            return write_root(self._argument(depth), degree)
        if name in ("SI", "qty"):
            number = self._raw()
            return f"{number} {self._raw()}"
        if name in _TEXTS:
            return self._raw()
        if name == "textsuperscript":
            return f"{RAISE}{self._raw()}{END}"
        if name in _NAMES:
            if self._follows() != "{":
                return ""
            self._next += 1
            return self.row(depth + 1, "}", is_name=True)
        if name in ("left", "right", "middle") and self._follows() == ".":
            self._next += 1
        return "" if name in _SILENT else name

    def _follows(self) -> str:
        return self._tokens[self._next][0][:1] if self._next < len(self._tokens) else ""


def write_mathml(math: Any) -> str:
    """Write a ``<math>`` element as text, once: its annotation or alternative text in TeX, else its structure."""
    annotation = math.css_first("annotation[encoding*='tex' i]")
    tex = (annotation.text() if annotation is not None else "").strip()
    alternative = (math.attributes.get("alttext") or "").strip()
    if not tex and re.search(r"[\\^_{]", alternative):
        tex = alternative
    if not tex and next(math.iter(include_text=False), None) is None:  # Marker writes TeX within the tag
        tex = (math.text() or "").strip()
    return (write_tex(tex) if tex else "") or _trim(_element(math, 0)) or _trim(alternative)


def _element(node: Any, depth: int) -> str:
    """Write an element of MathML."""
    tag = node.tag
    if tag in ("mi", "mn", "mtext", "ms", "mo", "-text"):
        return _BLANKS.sub(" ", node.text() or "").strip(" ") if tag != "mtext" else _BLANKS.sub(" ", node.text() or "")
    if tag in ("annotation", "annotation-xml", "mphantom", "none", "mprescripts"):
        return ""
    if tag == "mspace":
        return " "
    if depth >= MAX_FORMULA_DEPTH:
        return _BLANKS.sub(" ", node.text(separator=" ") or "")
    children = [child for child in node.iter(include_text=False) if child.tag not in ("annotation", "annotation-xml")]
    write = _WRITERS.get(tag)
    if write is not None and len(children) == _N_CHILDREN.get(tag, len(children)):  # else it is shown as a row
        return write([_element(child, depth + 1) for child in children])
    if tag == "mmultiscripts" and children:
        return _prescripts(children, depth)
    if tag == "mtable":
        return "; ".join(_trim(_element(child, depth + 1)) for child in children)
    if tag == "mfenced":
        opening, closing = (node.attributes.get(key, default) for key, default in (("open", "("), ("close", ")")))
        return f"{opening}{', '.join(_trim(_element(child, depth + 1)) for child in children)}{closing}"
    return _row(children, depth, " " if tag in ("mtr", "mlabeledtr") else "")


def _prescripts(children: Sequence[Any], depth: int) -> str:
    """Write a base with pairs of an index and an exponent behind it, and of those that stand before it."""
    base, *scripts = [_element(child, depth + 1) for child in children]
    where = next((i for i, child in enumerate(children[1:]) if child.tag == "mprescripts"), len(scripts))
    before, behind = scripts[where + 1 :], scripts[:where]
    for i in range(0, len(behind), 2):
        base = _both([base, *behind[i : i + 2], ""][:3])
    lowered = [f"{LOWER}{text}{END}" for text in before[::2] if text]
    raised = [f"{RAISE}{text}{END}" for text in before[1::2] if text]
    return "".join([*lowered, *raised, base])


def _row(children: Sequence[Any], depth: int, joint: str) -> str:
    pieces: list[str] = []
    letters = ""  # names of one letter that stand side by side
    for child in children:
        text = _element(child, depth + 1)
        if child.tag == "mi" and len(text) == 1 and text.isalpha() and not joint:
            letters += text
            continue
        starts = re.match(r"[a-z](?![A-Za-z])", text) if child.tag in ("msup", "msub", "msubsup") else None
        if letters:
            pieces.append(write_letters(letters))
            if len(letters) == 1 and starts and " " in write_letters(letters + text[0]):
                pieces.append(" ")
            letters = ""
        if child.tag == "mfrac":
            end_number(pieces)
        if child.tag == "mo":
            text = {"\u2061": " ", "\u2062": "\u2062", "\u2063": ",", "\u2064": "+", ",": ", "}.get(text, text)
            add_piece(pieces, text) if text else None
        else:
            pieces += [joint, text] if joint and pieces else [text]
    if letters:
        pieces.append(write_letters(letters))
    return re.sub("(?<=[a-z])\u2062(?=[a-z](?![A-Za-z]))", " ", "".join(pieces)).replace("\u2062", "")


def _both(parts: Sequence[str]) -> str:
    return write_power(write_index(*parts[:2]), parts[2])


_WRITERS: dict[str, Callable[[Sequence[str]], str]] = {
    "msup": lambda parts: write_power(*parts),
    "msub": lambda parts: write_index(*parts),
    "msubsup": _both,
    "munderover": _both,
    "mover": lambda parts: parts[0] if parts[1].strip() in _ACCENTS else write_power(*parts),
    "munder": lambda parts: parts[0] if parts[1].strip() in _ACCENTS else write_index(*parts),
    "mfrac": lambda parts: write_fraction(*parts),
    "msqrt": lambda parts: write_root("".join(parts)),
    "mroot": lambda parts: write_root(*parts),
}
_N_CHILDREN = dict.fromkeys(("msup", "msub", "mover", "munder", "mfrac", "mroot"), 2) | {"msubsup": 3, "munderover": 3}

_OPERATORS = frozenset({"mrel", "mbin", "mpunct", "mopen", "mclose"})
_SIGNS_DRAWN = str.maketrans("−⋅∗", "-·*")
_EM = re.compile(r"(?<![\w-])(?:top|height)\s*:\s*(-?[\d.]+)em")


def katex_mathml(node: Any) -> str:
    """Rebuild MathML from what KaTeX shows (``span.katex-html``), for pages that have its drawing alone.

    KaTeX sets powers, indices and fractions as lists of lines (``vlist``), each at a height of its own.
    """
    return f"<math>{_markup(_tokens(node, 0))}</math>"


_Token = tuple[str, str]
"""Tag of MathML and its content, which is markup where the tag is none of a single character's."""


def _tokens(node: Any, depth: int) -> list[_Token]:
    """Read the children of an element of KaTeX's drawing."""
    tokens: list[_Token] = []
    if depth > MAX_FORMULA_DEPTH:
        return [("mtext", escape(node.text() or ""))]
    for child in node.iter(include_text=True):
        classes = _classes(child)
        if child.tag == "-text":
            tokens += _characters(child.text() or "", _classes(node))
        elif "msupsub" in classes:
            base = tokens.pop() if tokens else ("mrow", "")
            lines = _lines(child, depth)
            lowered = [text for height, text, _ in lines if height < 0]
            raised = [text for height, text, _ in lines if height >= 0]
            tag = "m" + "sub" * bool(lowered) + "sup" * bool(raised)
            tokens.append((tag, _markup([base]) + "".join(map(_in_row, (*lowered[:1], *raised[:1])))))
        elif "mfrac" in classes:
            texts = [text for _, text, _ in _lines(child, depth) if text]
            tokens.append(("mfrac", "".join(map(_in_row, (texts[0], texts[-1])))) if texts else ("mrow", ""))
        elif "sqrt" in classes:
            parts = list(child.iter(include_text=False))
            degree = next((part for part in parts if "root" in _classes(part)), None)
            inside = [_lines(part, depth) for part in parts if part is not degree]
            tag, root = ("msqrt", "") if degree is None else ("mroot", _in_row(_markup(_tokens(degree, depth + 1))))
            tokens.append((tag, _in_row(next((lines[0][1] for lines in inside if lines), "")) + root))
        elif "accent" in classes:
            texts = [text for _, text, line in _lines(child, depth) if line.css_first(".accent-body") is None]
            tokens.append(("mrow", "".join(texts[:1])))
        elif "mtable" in classes:
            columns = [_lines(part, depth) for part in child.iter(include_text=False) if part.css_first(".vlist")]
            rows = ("".join(f"<mtd>{text}</mtd>" for _, text, _ in row) for row in zip(*columns, strict=False))
            tokens.append(("mtable", "".join(f"<mtr>{row}</mtr>" for row in rows)))
        elif "mspace" in classes:
            tokens.append(("mspace", ""))
        elif "mord" in classes and (child.text() or "") in ",.":
            tokens.append(("mn", child.text() or ""))  # in 1{,}287: a comma between words is no mord
        elif "op-limits" in classes:
            lines = _lines(child, depth)
            base_line = next((i for i, (_, _, line) in enumerate(lines) if line.css_first(".mop")), 0)
            above, below = [text for _, text, _ in lines[:base_line]], [text for _, text, _ in lines[base_line + 1 :]]
            tag = "m" + "under" * bool(below) + "over" * bool(above)
            texts = [lines[base_line][1], *below[:1], *above[:1]] if lines else []
            tokens.append((tag if above or below else "mrow", "".join(map(_in_row, texts))))
        elif not classes & {"strut", "pstrut", "vlist-s", "frac-line"}:
            tokens += _tokens(child, depth + 1)
            if "mop" in classes and child.css_first(".msupsub") is None and len(child.text() or "") > 1:
                tokens.append(("mo", "\u2061"))  # as MathML has between sin and x
    return _joined_numbers(tokens)


def _classes(node: Any) -> set[str]:
    """Names of an element's classes; of late versions, without their prefix ``katex-``."""
    names = (node.attributes.get("class") or "").split() if node.tag != "-text" else ()
    return {name.removeprefix("katex-") for name in names}


def _characters(text: str, classes: set[str]) -> list[_Token]:
    text = text.replace("\u200b", "").strip(" ").translate(_SIGNS_DRAWN)
    if not text:
        return []
    if classes & _OPERATORS:
        return [("mo", escape(text))]
    tag = "mn" if re.fullmatch(r"[\d.,]+", text) else "mi" if len(text) == 1 and text.isalpha() else "mtext"
    return [(tag, escape(text))]


def _lines(node: Any, depth: int) -> list[tuple[float, str, Any]]:
    """The lines of the first list below an element, the highest first: height over the base line, markup, element."""
    vlist = node.css_first(".vlist")
    lines = []
    for line in vlist.iter(include_text=False) if vlist is not None else ():
        strut = line.css_first(".pstrut")
        top, height = (
            _EM.search((part.attributes.get("style") or "") if part is not None else "") for part in (line, strut)
        )
        up = -float(top[1]) - float(height[1] if height else 2.7) if top else 0.0
        lines.append((up, _markup(_tokens(line, depth + 1)), line))
    return sorted(lines, key=lambda drawn: -drawn[0])


def _joined_numbers(tokens: list[_Token]) -> list[_Token]:
    """Join digits that stand side by side, also where the last of them has a power: ``1``, ``0^9`` is ``10^9``."""
    joined: list[_Token] = []
    for tag, content in tokens:
        if joined and joined[-1][0] == "mn":
            digits = joined[-1][1]
            if tag == "mn":
                joined[-1] = ("mn", digits + content)
                continue
            if tag in ("msup", "msub", "msubsup") and content.startswith("<mn>"):
                joined[-1] = (tag, f"<mn>{digits}{content[4:]}")
                continue
        joined.append((tag, content))
    return joined


def _markup(tokens: Sequence[_Token]) -> str:
    return "".join(f"<{tag}>{content}</{tag}>" for tag, content in tokens)


def _in_row(markup: str) -> str:
    return f"<mrow>{markup}</mrow>"


_ASCII_WORDS = _SYMBOLS | {"xx": "×", "oo": "∞", "del": "∂", "grad": "∇", "sqrt": "√", "o+": "⊕"}
_ASCII_TOKEN = re.compile(
    r"\"([^\"]*)\"|text\(([^()]*)\)|(-:|<=|>=|!=|~~|\+-|->|=>|\*\*?)|([A-Za-z]+)|(\s+)|(\d[\d.]*)|(.)"
)
_ASCII_SIGNS = {
    "-:": "÷",
    "<=": "≤",
    ">=": "≥",
    "!=": "≠",
    "~~": "≈",
    "+-": "±",
    "->": "→",
    "=>": "⇒",
    "*": "·",
    "**": "*",
}


def write_asciimath(source: str) -> str:
    """Write a formula in AsciiMath as text."""
    if len(source) > MAX_FORMULA_CHARS:
        return _trim(source)
    pieces: list[str] = []
    is_script = False
    for quoted, text, sign, word, _, number, char in _ASCII_TOKEN.findall(source):
        piece = _ASCII_SIGNS.get(sign) or _ASCII_WORDS.get(word) or quoted or text or word or number or char or " "
        if is_script and piece == "-":
            pieces.append(piece)
        else:
            add_piece(pieces, piece)
        is_script = piece in ("^", "_")
    return _trim("".join(pieces))


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
