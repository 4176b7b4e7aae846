"""Refusals that quote the prompt, and counts of tokens that are none (attack5.md, A1 and A2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kit.fake_openai import error_body

ASKED = {
    "temperature": "What is the temperature of the hall?",
    "seed": "How many seed companies exist?",
    "top_p": "Which top_p did the authors use?",
    "maxLength": "What is the default maxLength of the format?",
    "schema": "Which schemas and system messages are unsupported?",
}
"""Questions in the words of parameters: WattBot's own hold temperature, seed, format and range."""

QUOTES: dict[str, Callable[[str], tuple[int, dict[str, Any]]]] = {
    "OpenAI": lambda text: (400, error_body(f"Not allowed by the content policy: '{text}' is unsupported")),
    "a proxy's words": lambda text: (400, f"blocked term in {text!r}: not supported"),
    "FastAPI's echo": lambda text: (
        422,
        {"detail": [{"loc": ["body", "messages"], "msg": f"refused: {text}", "input": {"seed": 1, "maxLength": 3}}]},
    ),
    "Mistral": lambda text: (422, {"object": "error", "message": {"detail": [{"loc": ["body"], "msg": text}]}}),
}
"""Status and body of a refusal of a text."""

NO_COUNTS: tuple[Any, ...] = (-5, 2**63, 1e300, 7.0, "many", "", None, True, [1])

NO_USAGE: tuple[Any, ...] = (
    *({"prompt_tokens": bad, "completion_tokens": bad, "total_tokens": bad} for bad in NO_COUNTS),
    *NO_COUNTS,
    {},
    {"prompt_tokens": 10**400, "completion_tokens": -1},
)
"""Twenty usages of which none can be used."""
