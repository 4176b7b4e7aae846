"""Texts that a reader sees: untrusted ones made safe to show, long ones cut, numbers written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlencode, urlsplit

_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff\U000e0000-\U000e007f]"
)
_NOT_IN_URLS = re.compile(r"[\x00-\x20\x7f-\xa0\"'<>\\^`{|}\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Show characters that are otherwise invisible: control, direction override, lone surrogate and tag characters.

    Direction overrides would reorder the text around them, and NUL is not HTML; both are shown by name. Letters of
    scripts that run from right to left are unchanged.
    """
    return text if text.isprintable() else _HIDDEN.sub(_name, text)  # the first is a tenth of the second's time


def _name(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code in {0x2028, 0x2029}:
        return "\n"
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"[U+{code:04X}]"


def one_line(text: str) -> str:
    """Make a text visible, on one line."""
    return " ".join(visible(text).split())


def cut(text: str, n_chars: int) -> str:
    """Keep the first ``n_chars`` characters, and say how many more there were."""
    if len(text) <= n_chars:
        return text
    return f"{text[:n_chars].rstrip()} … [{len(text) - n_chars:,} more characters]"


def leave_out_shared(paths: Sequence[str]) -> list[str]:
    """Leave out the folders with which all of several paths begin, and the file name with which all end."""
    parts = [path.split("/") for path in paths]
    while len(parts) > 1 and len({names[0] for names in parts}) == 1 and all(len(names) > 1 for names in parts):
        parts = [names[1:] for names in parts]
    while len(parts) > 1 and len({names[-1] for names in parts}) == 1 and all(len(names) > 1 for names in parts):
        parts = [names[:-1] for names in parts]
    return ["/".join(names) for names in parts]


def web_link(url: str) -> str:
    """Return the address when it is a plain http or https one that may become a link, else nothing."""
    url = url.strip()
    if len(url) > 2000 or _NOT_IN_URLS.search(url):
        return ""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return url if parts.scheme in {"http", "https"} and parts.hostname else ""


def write_number(value: float) -> str:
    """Format a score or a measure: whole numbers and those from 1,000 on in full, others with four digits."""
    is_whole = value.is_integer() or abs(value) >= 1000
    return f"{value:,.0f}" if is_whole and abs(value) < 1e15 else f"{value:.4g}"


def write_duration(seconds: float) -> str:
    """Format a time in its two largest units: ``45 s``, ``21 min 5 s``, ``4 h 20 min``."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (seconds, "s")]
    largest = next((position for position, (number, _) in enumerate(parts) if number), 2)
    return " ".join(f"{number:,} {unit}" for number, unit in parts[largest : largest + 2])


def list_link(**values: str) -> str:
    """Write the address that sets the list of questions to these values."""
    return f"#show:{urlencode(values)}"
