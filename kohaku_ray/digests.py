"""Digests of plain values: BLAKE2b of their canonical JSON, the same on every machine and in every run."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from kohaku_ray.errors import ConfigError


class UnstableError(ConfigError, TypeError):
    """A value has no stable form."""


def canonical_json(value: Any, where: str = "the value", *, ascii_only: bool = True) -> str:
    """Write plain values as canonical JSON: sorted keys, no white space.

    Args:
        value: None, booleans, finite numbers, text, lists, tuples and mappings with text keys.
        where: Name of the value, for messages.
        ascii_only: Escape every character outside ASCII.

    Raises:
        UnstableError: The value holds anything else, such as a set, an object or NaN.
    """
    _check_stable(value, where)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=ascii_only, allow_nan=False)


def digest(value: Any, n_bytes: int = 8, where: str = "the value") -> str:
    """Hash plain values: BLAKE2b of their canonical JSON, ``2 * n_bytes`` hexadecimal characters.

    Raises:
        UnstableError: See ``canonical_json``.
    """
    return digest_text(canonical_json(value, where), n_bytes)


def digest_text(text: str | bytes, n_bytes: int = 8) -> str:
    """Hash a text or bytes: BLAKE2b, ``2 * n_bytes`` hexadecimal characters."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.blake2b(data, digest_size=n_bytes).hexdigest()


def plain(value: Any) -> Any:
    """Copy plain values as JSON would give them back.

    Raises:
        UnstableError: See ``canonical_json``.
    """
    return json.loads(canonical_json(value, ""))


def _check_stable(value: Any, where: str) -> None:
    """Refuse a value that JSON would change, or would write differently in another run."""
    if value is None or isinstance(value, (bool, int, str)):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UnstableError(f"{where or 'the value'} is {value!r}, which has no stable form: give a finite number")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str):
                raise UnstableError(
                    f"{where} is keyed by {name!r} of type {type(name).__name__}, which has no stable form: "
                    "keys must be text"
                )
            _check_stable(item, f"{where}.{name}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            _check_stable(item, f"{where}[{at}]")
    else:
        raise UnstableError(
            f"{where or 'the value'} is of type {type(value).__name__}, which has no stable form: "
            "use text, finite numbers, true, false, null, lists and mappings with text keys"
        )
