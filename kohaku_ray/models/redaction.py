"""Hide secrets in what a server says, however it spells them."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "[key]"

# Of JSON and of URLs, also of JSON within JSON and of a URL within a URL.
_CODE = r"\\+u([0-9a-fA-F]{4})|%(?:25)*([0-9a-fA-F]{2})"
_ESCAPED = re.compile(_CODE)
_ESCAPE = re.compile(r"\\+[nrtbf]?")
_PIECE = re.compile(rf"{_CODE}|{_ESCAPE.pattern}|.", re.DOTALL)
_UNSEEN = bytes(range(33)) + b"\x7f\\"


class Redaction:
    """Writes ``[key]`` for each secret in a text."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Hide the longest secrets first: one may be a part of another."""
        self._secrets = sorted(filter(None, secrets), key=len, reverse=True)
        self._decoded = [_decode(secret) for secret in self._secrets if secret.isascii() and _decode(secret)]

    def __call__(self, text: str) -> str:
        """Hide secrets, also those with escapes of JSON or a URL, or with characters between that cannot be seen."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        decoded = _decode(text)
        for spelled in self._decoded:
            if spelled in decoded:
                text = _hide_decoded(text, spelled)
                decoded = _decode(text)
        return text


def _decode(text: str) -> bytes:
    """Keep the characters of a text that can be seen and are ASCII, with escapes of JSON and URLs resolved."""
    if "\\" in text or "%" in text:
        text = _ESCAPE.sub("", _ESCAPED.sub(lambda code: chr(int(code[1] or code[2], 16)), text))
    return text.encode("ascii", "ignore").translate(None, _UNSEEN)


def _hide_decoded(text: str, secret: bytes) -> str:
    seen = [(piece.span(), char) for piece in _PIECE.finditer(text) if (char := _decode(piece[0]))]
    decoded, start, end = b"".join(char for _, char in seen), 0, 0
    written: list[str] = []
    while (start := decoded.find(secret, start)) >= 0:
        written += [text[end : seen[start][0][0]], HIDDEN]
        start += len(secret)
        end = seen[start - 1][0][1]
    return "".join([*written, text[end:]])
