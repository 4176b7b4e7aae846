"""Tell what raised and lowered characters are: exponents, indices, ordinals, or the marks of footnotes.

The one rule for PDF, HTML, Markdown and the cells of tables. An exponent is written ``10^9``, ``m^2``; an index is
joined, ``CO2``, as an ordinal is, ``21st``; the mark of a footnote is set apart in brackets, ``1.58 [2]``, so that it
is never read as a part of the number or word before it.
"""

from __future__ import annotations

import re
import unicodedata

from kohaku_ray.documents.text.sentences import words_of
from kohaku_ray.values import tex

_SIGNS = str.maketrans("−–‐‑﹣－∗⁎﹡＊", "------****")
_RAISED = re.compile("[⁰¹²³⁴-⁹⁺⁻⁼⁽⁾ⁱⁿ]+(?:[,·][⁰¹²³⁴-⁹]+)*")
_LOWERED = re.compile("[₀-₉₊₋₌₍₎ₐₑₒₓₔₕₖₗₘₙₚₛₜ]+")

_ASTRAL = re.compile("[\U0001d400-\U0001d7ff\u210e]+")  # letters and digits for maths

_SIGNED = re.compile(r"[-+](?:\d+(?:[.,/]\d+)?|[A-Za-zα-ωΑ-Ω]{1,2}\d?)")
_CHARGE = re.compile(r"\d?[-+]")
_SIGN_APART = re.compile(r"(?<=^[-+])\s+(?=\d)")
_INTEGER = re.compile(r"\d{1,3}")
_TOLERANCE = re.compile(r"[-+]\d+(?:[.,]\d+)?")
_OF_NUMBER = re.compile(r"(?<![\w.,^])(?!10$)\d[\d.,]*$")
_SIMPLE = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|[^\W\d_]+|\*)|\d?[-+]")
_FORMULA = re.compile(r"[-+/*=·×|().,\s\w]+")
_OPERATOR = re.compile(
    r"[+/=·×|]|[^\W_]\*[^\W_]|(?![a-h]\s?-\s?[a-h])[^\W\d_]\s?-\s?[^\W_]|\d\s?-\s?[^\W\d_]|\d[^\W\d_]{2}|\d[^\W\d_](?=.)|"
    r"\d[i-zA-Z]$"
)
_MARK = re.compile(
    r"{0}(?:\s?[,;-]\s?{0}|{1})*[,;]?".format(r"(?:\d{1,3}[a-z]?|[A-Za-z]{1,2}|[*†‡§¶‖#]+)", r"[*†‡§¶‖#]+")
)
_BRACKETED = re.compile(r"\[.*\]|\(.*\)")

_TEN = re.compile(r"(?<![\d.,])(?<![^\W\d_][-‐‑])(?<![A-WYZa-wyz])10$")
_NUMBER_END = re.compile(r"\d$")
_FACTOR = re.compile(r"[×·*^]\s*\d{1,3}$")
_EQUATION = re.compile(r"\s*[=+×·*^]")
_SYMBOL = re.compile(r"(?<![^\W\d_])(?<![^\W\d_]\d)[^\W\d_]$")  # a letter by itself, but not in CO2e
_PRODUCT = re.compile(r"[=+×·*/^(−]\s*\d*[^\W\d_]{2}$")
_LENGTH = re.compile(r"(?:(?<![^\W\d_])(?:[mµμncdkMG]m|dam|hm|ft|yd|mi|px|sec|inch|feet|meters?|metres?)|\d\s?in)$")
_GROUP = re.compile(r"\(([^()]*)\)$|\[([^\[\]]*)\]$|[|‖]$")
_REACH = 80  # how many characters before a run decide what it is
_MAX_CHARS = 40  # longest run that may be an exponent or a mark
_IN_GROUP = re.compile(r"(?!.*[^\W\d_]{3})(?=.*(?:[^\W\d_]|[+×*/=−])).*")

_ORDINALS = words_of("st nd rd th er re ère e è ème ième nde o os")
_ORDINAL_BASE = re.compile(r"(?<![\d.,])(?:\d{1,4}|[IVXLC]+)$")


def write_raised(before: str, run: str, after: str = "") -> str:
    """Write raised characters so that they follow ``before``: ``^9``, ``st`` or ``␣[2]``; ``after`` is what follows."""
    raised = _SIGN_APART.sub("", run.strip().translate(_SIGNS))
    base = before[-_REACH:].rstrip()
    if len(raised) > _MAX_CHARS or (raised[0:1] == "+" and is_tolerance(base, raised)):
        return _set_apart(before, raised, after)
    if not raised or not any(char.isalnum() or char in "*†‡§¶‖#+-" for char in raised) or base.endswith("^"):
        return run
    if raised in ("o", "0", "◦", "°", "º") and _NUMBER_END.search(base) and re.match(r"\s*[CFKNSEW](?!\w)", after):
        return "°"
    if _is_ordinal(base, raised, after):
        return raised
    if base and _is_exponent(base, raised, after):
        if raised in "+-":
            return raised
        written = raised if _SIMPLE.fullmatch(raised) or _BRACKETED.fullmatch(raised) else f"({raised})"
        return f"^{written}" + " " * after[:1].isdigit()
    if not _MARK.fullmatch(raised) and not _BRACKETED.fullmatch(raised):
        return _set_apart(before, raised, after)  # words, such as "new" beside a name
    return write_mark(before, raised, after)


def write_mark(before: str, run: str, after: str = "") -> str:
    """Write the mark of a footnote, or a citation, apart from the word or number before it: ``␣[2]``."""
    mark = run.strip().translate(_SIGNS).rstrip(",;")
    return _set_apart(before, mark if _BRACKETED.fullmatch(mark) else f"[{mark}]", after)


_NOTE_LINK = re.compile(r"[^\W_]\[?(?:\d{1,3}|[*†‡§¶‖]+)\]?|[%\x04]\[?\d{1,3}\]?|\d[a-z]")


def is_note_link(before: str, text: str) -> bool:
    """Whether a link to a place of the page is the mark of a note, set directly behind a word or number."""
    return _NOTE_LINK.fullmatch(before[-1:] + text.strip()) is not None


def write_lowered(before: str, run: str, after: str = "") -> str:
    """Write lowered characters: joined, ``CO2``, and never a part of a number, ``1010_2``, ``log2 8``."""
    lowered = run.strip().translate(_SIGNS)
    if not lowered:
        return run
    if is_tolerance(before, lowered):
        return _set_apart(before, lowered, after)
    joint = "_" if before[-1:].isdigit() and lowered[0].isdigit() else ""
    return f"{joint}{lowered}" + " " * (lowered[-1].isdigit() and after[:1].isdigit())


RAISE, LOWER, MARK, END = tex.RAISE, tex.LOWER, "\x03", tex.END
"""Set by readers of markup round raised and lowered characters and the marks of notes, for `write_scripts`."""

_SCRIPT = re.compile("([\x01-\x03])([^\x01-\x04]*)\x04")
_STRAY = re.compile("[\x01-\x04]")
_WRITERS = {RAISE: write_raised, LOWER: write_lowered, MARK: write_mark}


def write_scripts(text: str) -> str:
    """Write the characters between `RAISE`, `LOWER` or `MARK` and `END` by the rule; of nested ones, the innermost."""
    if END not in text:
        return text
    first, *rest = _SCRIPT.split(text)
    written = [_STRAY.sub("", first)]
    before, of_symbol = written[0][-_REACH:], False
    for kind, run, between in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        after = _STRAY.sub("", between)
        if of_symbol and kind == RAISE and _SIMPLE.fullmatch(run.strip().translate(_SIGNS)):
            script = f"^{run.strip().translate(_SIGNS)}"  # of x with an index: an exponent, no mark
        else:
            script = _WRITERS[kind](before, run, after[:_REACH]) if run.strip() else run
        if script.startswith("^"):  # 10 <sup>9</sup>
            written[-1] = written[-1].rstrip(" ")
        of_symbol = kind == LOWER and not between and _SYMBOL.search(before) is not None and not before[-1].isupper()
        written += (script, after)
        before = f"{before}{script}{after}"[-_REACH:]
    return "".join(written)


def plain_maths(text: str) -> str:
    """Write Unicode's raised and lowered digits and signs by the same rule, and its letters for maths as letters.

    ``1.3 × 10⁹`` is ``1.3 × 10^9``, ``CO₂`` is ``CO2``, ``𝐸 = 𝑚𝑐²`` is ``E = mc^2``.
    """
    if _ASTRAL.search(text) is not None:
        text = _ASTRAL.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    for pattern, write in ((_RAISED, write_raised), (_LOWERED, write_lowered)):
        pieces, end = [], 0
        for match in pattern.finditer(text):
            before, after = text[max(0, match.start() - _REACH) : match.start()], text[match.end() :][:_REACH]
            pieces += [text[end : match.start()], write(before, unicodedata.normalize("NFKC", match[0]), after)]
            end = match.end()
        text = "".join([*pieces, text[end:]])
    return text


def is_tolerance(base: str, script: str) -> bool:
    """Whether a raised or lowered number with a sign is by how much the number before it may differ."""
    return _TOLERANCE.fullmatch(script) is not None and _OF_NUMBER.search(base) is not None


def _set_apart(before: str, text: str, after: str) -> str:
    # behind a full stop it stays with its sentence: "… was measured.[12] The …"
    is_apart = not before or before[-1].isspace() or before[-1] in ".,;:!?([\"'“‘”’"
    return f"{'' if is_apart else ' '}{text}{' ' * after[:1].isalnum()}"


def _is_ordinal(base: str, raised: str, after: str) -> bool:
    if raised in _ORDINALS and _ORDINAL_BASE.search(base):
        # letters are marks too: "19e siècle" goes on with a word, a figure in a cell ends there
        return len(raised) > 1 or (re.search(r"(?<!\d)\d{3,}$", base) is None and after.lstrip()[:1].isalpha())
    return False


def _is_exponent(base: str, raised: str, after: str) -> bool:
    """Whether raised characters are an exponent of what they follow."""
    if _SIGNED.fullmatch(raised):
        return base[-1].isalnum() or base[-1] in ")]}"
    if _CHARGE.fullmatch(raised):
        return base[-1].isalpha() or base[-1] in ")]}" or base[-1].isdigit()
    if _is_formula(raised):
        return True
    is_integer, is_letters = _INTEGER.fullmatch(raised) is not None, raised.isalpha() and len(raised) <= 3
    is_symbol = _SYMBOL.search(base) is not None
    if _TEN.search(base):
        return is_integer or (is_letters and raised[0] not in "abcdefgh")
    is_symbol = is_symbol or _PRODUCT.search(base) is not None
    if is_symbol and not is_integer:
        return is_letters or raised == "*"
    if _NUMBER_END.search(base):
        is_two = re.search(r"(?<![\d.,])2$", base) is not None
        if not is_integer:
            return is_two and raised in "ijklmnpqrstxyzNT"
        return (is_two and len(raised) == 2) or bool(_FACTOR.search(base) or _EQUATION.match(after))
    if not is_integer:
        return is_letters and _is_group(base)
    if raised == "1":  # nobody writes the first power
        return False
    return is_symbol or _is_group(base) or _LENGTH.search(base) is not None


def _is_formula(raised: str) -> bool:
    """Whether it is a formula, such as ``n-1`` or ``2n``, and no list of marks, such as ``1,2`` or ``a-c``."""
    if _FORMULA.fullmatch(raised) is None or not any(map(str.isalnum, raised)):
        return False
    return _OPERATOR.search(raised) is not None


def _is_group(base: str) -> bool:
    """Whether the text ends in brackets round a formula: ``(1 + x)``, but not ``(2021)`` or ``(see above)``."""
    group = _GROUP.search(base)
    return group is not None and _IN_GROUP.fullmatch(group[1] or group[2] or "x") is not None
