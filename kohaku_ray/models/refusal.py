"""What a server's refusal means: the prompt's length, the room that is left, how long to wait, access for nobody."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_OVERFLOW_STATUS = frozenset({400, 413, 422})
_OVERFLOW_WORDS = (
    "context_length_exceeded",
    "maximum context length",
    "context window",
    "context size",
    "too long",
    "reduce the length",
    "longer than the maximum model length",
)

_NO_CREDIT = re.compile(
    r"insufficient_quota|insufficient (?:quota|credits?|(?:account )?balance)|credit balance is too low", re.IGNORECASE
)
"""Of a 429, what is no rate limit (coder#26200, jp#1081): other words for quotas stand in rate limits too."""

_MODERATED = re.compile(r"moderation|flagged", re.IGNORECASE)
"""A 403 of this prompt alone: OpenRouter's for a prompt that a provider's moderation flagged."""

_NUMBER = re.compile(r"(?<![\w.-])\d+(?:,\d{3})*(?![\w-])")
_DELAY = re.compile(
    r"(?:retrydelay\W{1,5}|(?:try again|retry)[^\d.;]{0,24}?\b(?:in|after)\s+)((?:\d+(?:\.\d+)?\s*[a-z]+\s*)+)"
)
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_SECONDS = {"ms": 1e-3, "mil": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "hou": 3600.0}
_SECONDS |= {"d": 86400.0, "day": 86400.0}
"""Seconds of a unit, by its first three letters."""


def refuses_length(status: int, text: str) -> bool:
    """Return whether a server refused a request for the prompt's length."""
    text = text.lower()
    if status == 413 or (status == 500 and "too large to process" in text):  # the latter by llama.cpp
        return True
    return status in _OVERFLOW_STATUS and any(word in text for word in _OVERFLOW_WORDS)


def refuses_access(status: int, text: str, wait_s: float | None) -> bool:
    """Return whether a server refuses all requests: the key, the account, the model or the address."""
    if status in (400, 429):
        return wait_s is None and _NO_CREDIT.search(text) is not None
    return status in (401, 402, 404) or (status == 403 and not _MODERATED.search(text))


def room_left(status: int, text: str, max_tokens: int, least: int) -> int | None:
    """Read from a refusal what the prompt leaves of the window, where that is less than ``max_tokens``.

    Of the numbers in the text, two are the window and the prompt if ``max_tokens`` fits beside neither; of several such
    pairs the one that leaves least counts (vllm#42474).

    Returns:
        Tokens, at least ``least``; None: the refusal is another one, or too little is left.
    """
    if status not in _OVERFLOW_STATUS or "token" not in text.lower():
        return None
    numbers = {int(match[0].replace(",", "")) for match in _NUMBER.finditer(text[:2000])} - {max_tokens}
    pairs = ((window, prompt) for window in numbers for prompt in numbers if prompt < window < prompt + max_tokens)
    return min((room for window, prompt in pairs if (room := window - prompt) >= least), default=None)


def told_wait_s(headers: Mapping[str, str], text: str) -> float | None:
    """Read for how many seconds a server asks to wait, in its headers or its words; None: it does not say.

    Retry-After holds seconds or an HTTP date; Azure adds one in milliseconds; Google's bodies have a ``retryDelay``
    (AtomicBot#267, pixeltable#1092), others say "try again in 1m2.5s".
    """
    for name, unit in (("Retry-After-Ms", 1e-3), ("Retry-After", 1.0)):
        header = headers.get(name, "").strip()
        if re.fullmatch(r"\d{1,15}(\.\d{1,15})?", header, re.ASCII):
            return float(header) * unit
    try:
        moment = parsedate_to_datetime(header)
        return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError, IndexError):
        delay = _DELAY.search(text.lower())
    amounts = _AMOUNT.findall(delay[1]) if delay else []
    if not amounts or any(unit[:3] not in _SECONDS for _, unit in amounts):
        return None
    return sum(float(amount[:15]) * _SECONDS[unit[:3]] for amount, unit in amounts)
