"""Error texts of a run, grouped: a thousand rows that fail for one reason are one line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

MOST_KINDS = 5
"""Most kinds of errors that are printed."""

_CHARS = 300
_ID = re.compile(r"\b(?=[\w-]*\d)[\w-]{8,}\b")


def group_errors(texts: Iterable[str | None]) -> dict[str, int]:
    """Count error texts that differ only in ids (of requests, say) as one; the most frequent first."""
    counts = Counter(_ID.sub("…", " ".join(text.split()))[:_CHARS] for text in texts if text)
    return dict(counts.most_common())


def describe_errors(errors: Mapping[str, int]) -> list[str]:
    """Format counts of error texts, one line per kind."""
    most = sorted(errors.items(), key=lambda item: -item[1])
    lines = [f"{count} × {text}" for text, count in most[:MOST_KINDS]]
    return lines + ([f"and {len(most) - MOST_KINDS} more kinds of errors"] if len(most) > MOST_KINDS else [])
