"""Check the values of a configuration, and put in environment variables, which are used but never written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kohaku_ray.errors import ConfigError
from kohaku_ray.settings import RelativeToFile, find_address_secrets, find_secrets

KeyPath = tuple[str, ...]
"""Keys and positions that lead to a value."""


def remember_directory(value: Any, directory: str = "") -> Any:
    """Copy values: no two places share one, as YAML's aliases do, and texts know the directory of relative paths."""
    if isinstance(value, Mapping):
        return {key: remember_directory(inner, directory) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [remember_directory(inner, directory) for inner in value]
    return RelativeToFile(value, directory) if directory and isinstance(value, str) else value


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield every value that is neither list nor section, with the keys and positions that lead to it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from leaves(inner, (*path, str(number)))
    else:
        yield path, value


def value_at(value: Any, path: KeyPath, default: Any = None) -> Any:
    """Find the value at a path; ``default`` where there is none."""
    for key in path:
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, (list, tuple)) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return default
    return value


def label_of(value: Any) -> str:
    """Write a value as short YAML."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ", ".join(map(label_of, value))
    return str(value)


def shown(value: Any, hide: Callable[[str], str] = str) -> str:
    """Format a value for a message, with ``hide`` applied, shortened to 200 characters."""
    text = hide(repr(value))
    return text if len(text) <= 200 else f"{text[:200]}…"


def misread(given: Any, made: Any) -> list[str]:
    """Name the numbers that validation made of true or false."""
    return [
        f"{'.'.join(path)} is {str(value).lower()}: give a number"
        for path, value in leaves(given)
        if isinstance(value, bool) and type(value_at(made, path)) in (int, float)
    ]


_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_SHORT_CHARS = 4

HIDDEN = "[hidden]"
"""What stands for a key or password of the file itself, wherever a configuration is printed or written."""


def _is_shown(path: KeyPath) -> bool:
    """Return whether the value at a place is shown: a reader must see which model ran."""
    return path[:1] == ("deployments",) and path[-1:] == ("model",)


def _may_hold_keys(path: KeyPath) -> bool:
    return path[:1] == ("deployments",) or path[:2] == ("index", "encoder") or path == ("tracking", "uri")


@dataclass(slots=True)
class Environment:
    """The environment variables in one configuration.

    By place: text as written with its ``${NAME}``, text after expansion, value after validation; and by name, the
    values of the variables that are hidden. Besides, keys and passwords that stand in the file itself.
    """

    references: dict[KeyPath, str] = field(default_factory=dict)
    texts: dict[KeyPath, str] = field(default_factory=dict)
    made: dict[KeyPath, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    literals: set[str] = field(default_factory=set)

    def find_literals(self, values: Any) -> None:
        """Find the keys and passwords in clear of a configuration's deployments, its encoder and its tracker."""
        deployments = value_at(values, ("deployments",))
        servers = [*deployments.values()] if isinstance(deployments, Mapping) else []
        for server in (*servers, value_at(values, ("index", "encoder"))):
            if isinstance(server, Mapping):
                given = [server.get(name) for name in ("headers", "extra_body")]
                self.literals |= find_secrets(given) | find_address_secrets(str(server.get("base_url", "")))
        self.literals |= find_address_secrets(str(value_at(values, ("tracking", "uri"), "")))
        for path, reference in self.references.items():  # a text may hold a variable and a key in clear
            text = str(reference)
            for key in sorted(self.literals, key=len, reverse=True):
                text = text.replace(key, HIDDEN)
            if text != reference and _may_hold_keys(path):
                self.references[path] = reference.with_text(text) if isinstance(reference, RelativeToFile) else text

    def expand(self, value: Any, path: KeyPath = ()) -> Any:
        """Replace ``${NAME}`` and ``${NAME:-default}`` in plain values; see ``expand``."""
        if isinstance(value, Mapping):
            return {key: self.expand(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.expand(inner, (*path, str(index))) for index, inner in enumerate(value)]
        if not isinstance(value, str):
            return value
        used = {match[1]: os.environ[match[1]] for match in _VARIABLE.finditer(value) if match[1] in os.environ}
        text = _VARIABLE.sub(lambda match: used.get(match[1], _default(match, value)), value)
        if used:
            self.variables |= {} if _is_shown(path) else used
            reference = _VARIABLE.sub(lambda m: m[0] if m[1] in used else _default(m, value), value)
            self.references[path] = value.with_text(reference) if isinstance(value, RelativeToFile) else reference
            self.texts[path] = text
        return value.with_text(text) if isinstance(value, RelativeToFile) else text

    def hide(self, text: str) -> str:
        """Replace the values of environment variables, plain or as ``repr`` writes them, by their references."""
        known = {value: f"${{{name}}}" for name, value in self.variables.items()}
        known |= {whole: self.references[path] for path, whole in self.texts.items() if not _is_shown(path)}
        known |= dict.fromkeys(self.literals - known.keys(), HIDDEN)
        for value, reference in [*known.items()]:
            known.setdefault(repr(value)[1:-1], reference)
        longest_first = sorted(filter(str.strip, known), key=len, reverse=True)
        if not longest_first:
            return text
        # A short value may be part of any word: only a separate word counts as the variable's value.
        patterns = (rf"(?<!\w){re.escape(v)}(?!\w)" if len(v) < _SHORT_CHARS else re.escape(v) for v in longest_first)
        return re.sub("|".join(patterns), lambda match: known[match[0]], text)

    def restore(self, values: Any) -> None:
        """Put the references back into plain values after validation, perhaps changed since.

        A path made absolute is restored with its directory; of another value, only the environment's part is replaced.
        Keys and passwords that stand in the file itself are hidden.
        """
        for key_path, value in [*leaves(values)] if self.literals else ():
            if isinstance(value, str) and _may_hold_keys(key_path) and any(key in value for key in self.literals):
                _put(values, key_path, self.hide(value))
        for path, reference in self.references.items():
            now = value_at(values, path)
            if now is not None:
                _put(values, path, self._restored(now, path, reference))

    def _restored(self, now: Any, path: KeyPath, reference: str) -> Any:
        made = self.made.get(path)
        if isinstance(reference, RelativeToFile):  # a path was joined to its file's directory
            reference = os.path.join(reference.directory, reference) if made != self.texts[path] else str(reference)
        if now == made:
            return reference
        if not isinstance(now, str) or not isinstance(made, str):
            return now
        place = os.path.normpath(os.path.expanduser(made))
        if now == place:
            return reference
        # Not by the working directory, which may be another one by now, or gone.
        return os.path.join(now.removesuffix(place), reference) if now.endswith(f"/{place}") else self.hide(now)


def _put(values: Any, path: KeyPath, value: Any) -> None:
    section = value_at(values, path[:-1])
    if isinstance(section, dict):
        section[path[-1]] = value
    elif isinstance(section, list):
        section[int(path[-1])] = value


def expand(value: Any) -> Any:
    """Replace ``${NAME}`` and ``${NAME:-default}`` by environment variables, at any depth.

    Raises:
        ConfigError: The environment has no such variable and there is no default, or a default holds another variable.
    """
    return Environment().expand(value)


def unset_variables(text: str) -> list[str]:
    """Return the environment variables that a configuration's text refers to and the environment lacks."""
    return [name for name in dict.fromkeys(match[1] for match in _VARIABLE.finditer(text)) if name not in os.environ]


def _default(match: re.Match[str], text: str) -> str:
    default: str | None = match[2]
    if default is not None and "${" in default:
        raise ConfigError(f"{text}: the default of {match[1]} holds another variable: write plain text after `:-`")
    if default is None and match[1] not in os.environ:
        raise ConfigError(f"{text}: the environment has no {match[1]}: set it or write ${{{match[1]}:-default}}")
    return default or ""
