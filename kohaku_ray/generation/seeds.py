"""Seeds and keys: the same on every machine, in every process, in every year."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from kohaku_ray.generation.request import ChatRequest


def seed_for(base: int, question_id: str, member: int, attempt: int, role: str) -> int:
    """Derive the seed of one model call.

    Args:
        base: The run's seed.
        question_id: The question asked.
        member: Ensemble member, from 0.
        attempt: Attempt, from 0.
        role: ``plan`` or ``answer``.

    Returns:
        An integer in ``[0, 2**31)``, which every backend takes.
    """
    digest = _blake2b([base, question_id, member, attempt, role], digest_size=8)
    return int.from_bytes(digest, "big") % 2**31


def request_key(request: ChatRequest) -> str:
    """Name a model call by everything that decides its reply: 32 hexadecimal characters.

    ``session_id`` and ``variables`` do not count: the first is routing, the second stands in the messages already.

    Raises:
        TypeError: Something in the request has no stable form: a set, an object, NaN, a key that is not text.
    """
    parts = {
        "model": request.model,
        "messages": [list(message) for message in request.messages],
        "sampling": {
            "temperature": float(request.temperature),
            "top_p": float(request.top_p),
            "max_tokens": request.max_tokens,
        },
        "seed": request.seed,
        "schema": request.schema,
    }
    _require_stable(parts, "request")
    return _blake2b(parts, digest_size=16).hex()


def _blake2b(value: Any, digest_size: int) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(text.encode("ascii"), digest_size=digest_size).digest()


def _require_stable(value: Any, where: str) -> None:
    """Refuse what JSON would write differently from what it is, or differently from day to day."""
    if value is None or isinstance(value, (bool, int, str)):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{where} is {value!r}: a request's key needs finite numbers")
        return
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str):
                raise TypeError(f"{where} has the key {name!r} of type {type(name).__name__}: keys must be text")
            _require_stable(item, f"{where}.{name}")
        return
    if isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            _require_stable(item, f"{where}[{position}]")
        return
    raise TypeError(
        f"{where} is of type {type(value).__name__}, which has no stable form: "
        "use text, numbers, booleans, null, lists and dictionaries"
    )
