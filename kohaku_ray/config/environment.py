"""Environment variables in a configuration: their values are used and never written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kohaku_ray.config.plain import Place, value_at
from kohaku_ray.errors import ConfigError

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_SHORT_CHARS = 4


@dataclass(slots=True)
class Environment:
    """What the environment gave to one configuration.

    Attributes:
        references: By place, the text as it was written, with its ``${NAME}``.
        texts: By place, the text that came of it.
        made: By place, the value that validation made of that.
        variables: By name, its value.
    """

    references: dict[Place, str] = field(default_factory=dict)
    texts: dict[Place, str] = field(default_factory=dict)
    made: dict[Place, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def expand(self, value: Any, path: Place = ()) -> Any:
        """Put environment variables in the place of ``${NAME}`` and ``${NAME:-default}``, however deep; see ``expand``.

        Args:
            value: Plain values.
            path: Where they stand.
        """
        if isinstance(value, Mapping):
            return {key: self.expand(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.expand(inner, (*path, str(at))) for at, inner in enumerate(value)]
        if not isinstance(value, str):
            return value
        found = {match[1]: os.environ[match[1]] for match in _VARIABLE.finditer(value) if match[1] in os.environ}
        text = _VARIABLE.sub(lambda match: found.get(match[1], _default(match, value)), value)
        if found:
            self.variables |= found
            self.references[path] = _VARIABLE.sub(lambda m: m[0] if m[1] in found else _default(m, value), value)
            self.texts[path] = text
        return text

    def hide(self, text: str) -> str:
        """Put references in the place of all that the environment gave, as it is and as ``repr`` writes it."""
        known = {value: f"${{{name}}}" for name, value in self.variables.items()}
        known |= {whole: self.references[path] for path, whole in self.texts.items()}
        for value, reference in [*known.items()]:
            known.setdefault(repr(value)[1:-1], reference)
        longest_first = sorted(filter(str.strip, known), key=len, reverse=True)
        if not longest_first:
            return text
        # A short value may be part of any word: only where it stands alone is it the variable's.
        patterns = (rf"(?<!\w){re.escape(v)}(?!\w)" if len(v) < _SHORT_CHARS else re.escape(v) for v in longest_first)
        return re.sub("|".join(patterns), lambda match: known[match[0]], text)

    def restore(self, values: Any) -> None:
        """Put the references back in place.

        Args:
            values: Plain values as validation made them, perhaps changed since: a path made absolute is restored with
                its directory, another value stays, but for what of it the environment gave.
        """
        for path, reference in self.references.items():
            there = value_at(values, path[:-1])
            now = value_at(values, path)
            if now is None or not isinstance(there, (dict, list)):
                continue
            key: Any = int(path[-1]) if isinstance(there, list) else path[-1]
            there[key] = self._restored(now, path, reference)

    def _restored(self, now: Any, path: Place, reference: str) -> Any:
        made = self.made.get(path)
        if now == made:
            return reference
        if not isinstance(now, str) or not isinstance(made, str):
            return now
        if now != os.path.abspath(os.path.expanduser(made)):
            return self.hide(now)
        return reference if made.startswith(("/", "~")) else os.path.join(os.getcwd(), reference)


def expand(value: Any) -> Any:
    """Put environment variables in the place of ``${NAME}`` and ``${NAME:-default}``, however deep.

    Raises:
        ConfigError: The environment has no such variable and there is no default, or a default holds another variable.
    """
    return Environment().expand(value)


def _default(match: re.Match[str], text: str) -> str:
    default: str | None = match[2]
    if default is not None and "${" in default:
        raise ConfigError(f"{text}: the default of {match[1]} holds another variable: write plain text after `:-`")
    if default is None and match[1] not in os.environ:
        raise ConfigError(f"{text}: the environment has no {match[1]}; set it or write ${{{match[1]}:-default}}")
    return default or ""
