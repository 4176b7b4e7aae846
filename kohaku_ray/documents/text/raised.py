"""Tell what raised and lowered characters are: exponents, indices, ordinals, or the marks of footnotes.

The one rule for PDF, HTML, Markdown and the cells of tables. An exponent is written ``10^9``, ``m^2``; an index is
joined, ``CO2``, as an ordinal is, ``21st``; the mark of a footnote is set apart in brackets, ``1.58 [2]``, so that it
is never read as a part of the number or word before it.
"""

from __future__ import annotations

import re
import unicodedata

from kohaku_ray.values import tex

_SIGNS = str.maketrans("−–‐‑﹣－∗⁎﹡＊", "------****")
_RAISED = re.compile("[⁰¹²³⁴-⁹⁺⁻⁼⁽⁾ⁱⁿ]+(?:[,·][⁰¹²³⁴-⁹]+)*")
_LOWERED = re.compile("[₀-₉₊₋₌₍₎ₐₑₒₓₔₕₖₗₘₙₚₛₜ]+")

_ASTRAL = re.compile("[\U0001d400-\U0001d7ff\u210e]+")  # letters and digits for maths

_SIGN_APART = re.compile(r"(?<=^[-+])\s+(?=\d)")
_SIMPLE = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|[^\W\d_]+|\*)|\d?[-+]|\[.*\]|\(.*\)")
_MARK = re.compile(r"\[.*\]|\(.*\)|(?:(?:\d{1,3}[a-z]?|[A-Za-z]{1,2}|[*†‡§¶‖#]+)(?:\s?[,;-]\s?|(?=[*†‡§¶‖#])|$))+")
_ORDINAL = re.compile(r"(?:st|nd|rd|th|er|[eè]me)")
_POWER = re.compile(
    r"""(?:
      [\w)\]}|‖]\^(?:[-+]\w{1,4}|\d?[-+])                                                 # 10^-3, x^-n, Na^+, SO4^2-
    | [\w)\]}|‖]\^(?=.*(?:[+/=·×|]|[^\W\d_]\s?-|\d\s?-\s?[i-z]))[-+/*=·×|().,\s\w]+         # e^n-1, 2^n/2: a formula
    | (?<![\d.,])(?<![^\W\d_][-‐‑])(?:10\^(?:\d{1,3}|[i-zA-Z]\w{0,2})|2\^(?:\d\d|[i-zA-Z]))  # powers of ten and two
    | (?<![^\W\d_])(?<![^\W\d_]\d)(?:[^\W\d_]|[mkcdnµμM]m|ft|in)\^(?!1$)(?:\d{1,3}|[^\W\d_]{1,3}|\*)  # x^2, km^2
    | [=+×·*/^(−]\s*\d*[^\W\d_]{2}\^(?!1$)(?:\d{1,3}|[^\W\d_]{1,3})                         # E = mc^2
    | (?<![^\W\d_]{3})(?<!\d{3})(?<!\.)[)\]|‖]\^(?!1$)(?:\d|[^\W\d_]{1,3})
    )$""",
    re.VERBOSE,
)
"""A base and what is raised behind it, ``base^raised``, that is an exponent; all else is the mark of a note."""

_EQUATION = re.compile(r"\s*[=+×·*^]")
_REACH = 80  # how many characters before a run decide what it is
_MAX_CHARS = 40  # longest run that may be an exponent or a mark


def write_raised(before: str, run: str, after: str = "") -> str:
    """Write raised characters so that they follow ``before``: ``^9``, ``st`` or ``␣[2]``; ``after`` is what follows."""
    raised = _SIGN_APART.sub("", run.strip().translate(_SIGNS))
    base = before[-_REACH:].rstrip()
    if len(raised) > _MAX_CHARS:
        return _set_apart(before, raised, after)
    if not raised or not any(char.isalnum() or char in "*†‡§¶‖#+-" for char in raised):
        return run
    if base[-1:].isdigit() and (_ORDINAL.fullmatch(raised) or raised in "o◦°º"):
        return raised if raised.isascii() and raised != "o" else "°"
    is_squared = base[-1:].isdigit() and raised.isdigit() and len(raised) < 4 and _EQUATION.match(after) is not None
    if is_squared or _POWER.search(f"{base}^{raised}") is not None:
        if raised in "+-":
            return raised
        return f"^{raised if _SIMPLE.fullmatch(raised) else f'({raised})'}" + " " * after[:1].isdigit()
    if _MARK.fullmatch(raised) and raised[0] not in "[(":
        raised = f"[{raised.rstrip(',;')}]"
    return _set_apart(before, raised, after)


def write_lowered(before: str, run: str, after: str = "") -> str:
    """Write lowered characters: joined, ``CO2``, and never a part of a number, ``1010_2``, ``log2 8``."""
    lowered = run.strip().translate(_SIGNS)
    if not lowered:
        return run
    joint = "_" if before[-1:].isdigit() and lowered[0].isdigit() else ""
    return f"{joint}{lowered}" + " " * (lowered[-1].isdigit() and after[:1].isdigit())


RAISE, LOWER, END = tex.RAISE, tex.LOWER, tex.END
"""Set by readers of markup round raised and lowered characters, for `write_scripts`."""

_SCRIPT = re.compile(f"([{RAISE}{LOWER}])([^{RAISE}{LOWER}{END}]*){END}")
_STRAY = re.compile(f"[{RAISE}{LOWER}{END}]")
_WRITERS = {RAISE: write_raised, LOWER: write_lowered}


def write_scripts(text: str) -> str:
    """Write the characters between `RAISE` or `LOWER` and `END` by the rule; of nested ones, the innermost."""
    if END not in text:
        return text
    first, *rest = _SCRIPT.split(text)
    written = [_STRAY.sub("", first)]
    before = written[0][-_REACH:]
    for kind, run, between in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        after = _STRAY.sub("", between)
        script = _WRITERS[kind](before, run, after[:_REACH]) if run.strip() else run
        if script.startswith("^"):  # 10 <sup>9</sup>
            written[-1] = written[-1].rstrip(" ")
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


def _set_apart(before: str, text: str, after: str) -> str:
    # behind a full stop it stays with its sentence: "… was measured.[12] The …"
    is_apart = not before or before[-1].isspace() or before[-1] in ".,;:!?([\"'“‘”’"
    return f"{'' if is_apart else ' '}{text}{' ' * after[:1].isalnum()}"
