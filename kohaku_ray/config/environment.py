"""Environment variables in a configuration: their values are used but never written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kohaku_ray.config.paths import Placed
from kohaku_ray.config.plain import Place, value_at
from kohaku_ray.errors import ConfigError

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_SHORT_CHARS = 4


@dataclass(slots=True)
class Environment:
    """The environment variables in one configuration.

    Attributes:
        references: Text as written, with its ``${NAME}``, by place.
        texts: Text after expansion, by place.
        made: Value after validation, by place.
        variables: Values of the variables, by name.
    """

    references: dict[Place, str] = field(default_factory=dict)
    texts: dict[Place, str] = field(default_factory=dict)
    made: dict[Place, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def expand(self, value: Any, path: Place = ()) -> Any:
        """Replace ``${NAME}`` and ``${NAME:-default}`` by environment variables, at any depth; see ``expand``.

        Args:
            value: Plain values.
            path: Their place.
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
            reference = _VARIABLE.sub(lambda m: m[0] if m[1] in found else _default(m, value), value)
            self.references[path] = value.like(reference) if isinstance(value, Placed) else reference
            self.texts[path] = text
        return value.like(text) if isinstance(value, Placed) else text

    def hide(self, text: str) -> str:
        """Replace the values of environment variables, plain or as ``repr`` writes them, by their references."""
        known = {value: f"${{{name}}}" for name, value in self.variables.items()}
        known |= {whole: self.references[path] for path, whole in self.texts.items()}
        for value, reference in [*known.items()]:
            known.setdefault(repr(value)[1:-1], reference)
        longest_first = sorted(filter(str.strip, known), key=len, reverse=True)
        if not longest_first:
            return text
        # A short value may be part of any word: only a separate word counts as the variable's value.
        patterns = (rf"(?<!\w){re.escape(v)}(?!\w)" if len(v) < _SHORT_CHARS else re.escape(v) for v in longest_first)
        return re.sub("|".join(patterns), lambda match: known[match[0]], text)

    def restore(self, values: Any) -> None:
        """Put the references back.

        Args:
            values: Plain values after validation, perhaps changed since: a path made absolute is restored with its
                directory; of another value, only the environment's part is replaced.
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
        if isinstance(reference, Placed):  # a path was joined to its file's directory
            reference = os.path.join(reference.directory, reference) if made != self.texts[path] else str(reference)
        if now == made:
            return reference
        if not isinstance(now, str) or not isinstance(made, str):
            return now
        if now != os.path.abspath(os.path.expanduser(made)):
            return self.hide(now)
        return reference if made.startswith(("/", "~")) else os.path.join(os.getcwd(), reference)


def expand(value: Any) -> Any:
    """Replace ``${NAME}`` and ``${NAME:-default}`` by environment variables, at any depth.

    Raises:
        ConfigError: The environment has no such variable and there is no default, or a default holds another variable.
    """
    return Environment().expand(value)


def _default(match: re.Match[str], text: str) -> str:
    default: str | None = match[2]
    if default is not None and "${" in default:
        raise ConfigError(f"{text}: the default of {match[1]} holds another variable: write plain text after `:-`")
    if default is None and match[1] not in os.environ:
        raise ConfigError(f"{text}: the environment has no {match[1]}: set it or write ${{{match[1]}:-default}}")
    return default or ""
