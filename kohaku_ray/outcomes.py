"""The result of each command: an exit code, one line, and what ``--json`` prints (keys: docs/commands.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

OK, FAILED, BAD_CONFIG, ROWS_IN_ERROR = 0, 1, 2, 3
"""Exit codes: all done; anything else; a mistake in what was given; finished with some rows in error."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a command.

    Attributes:
        line: The result in one line.
        result: A dataclass, which ``--json`` prints after ``command`` and ``exit_code``; after an error, ``error``.
        code: Exit code.
    """

    line: str
    result: object
    code: int = OK

    def as_json(self, command: str, hide: Callable[[str], str] = str) -> dict[str, Any]:
        """Return the object that ``--json`` prints, with secrets hidden."""
        whole: dict[str, Any] = plain({"command": command, "exit_code": self.code, **plain(self.result)}, hide)
        return whole


def failure(command: str, error: Exception, code: int, hide: Callable[[str], str] = str) -> dict[str, Any]:
    """Return the object that ``--json`` prints after an error."""
    told = {"kind": type(error).__name__, "message": hide(str(error))}
    return {"command": command, "exit_code": code, "error": told}


def plain(value: Any, hide: Callable[[str], str] = str) -> Any:
    """Turn a value into what JSON can hold; NaN and infinities become null."""
    if isinstance(value, str):
        return hide(value)
    if is_dataclass(value):
        return {column.name: plain(getattr(value, column.name), hide) for column in fields(value)}
    if isinstance(value, Mapping):
        return {hide(str(key)): plain(item, hide) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, hide) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
