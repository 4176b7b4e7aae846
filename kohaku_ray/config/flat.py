"""Flat configurations of other programs: ``.env`` files, or a mapping without sections, read by a system's importer."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

from kohaku_ray.config.kohakurag import ConfigWarning
from kohaku_ray.config.plain import nested
from kohaku_ray.config.schema import Config
from kohaku_ray.errors import ConfigError
from kohaku_ray.systems.base import Importer
from kohaku_ray.systems.registry import find_system, system_names

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")


def read_env(text: str, where: str) -> dict[str, str]:
    """Read a ``.env`` file: ``NAME=value`` per line, quotes around a value and comments removed.

    Raises:
        ConfigError: A line is neither; the message names it by its number alone, for it may hold a secret.
    """
    values = {}
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        found = _LINE.fullmatch(bare)
        if found is None:
            raise ConfigError(f"{where}: line {number} is no NAME=value: correct it, or begin it with #")
        values[found[1]] = _unquoted(found[2])
    return values


def import_env(text: str, where: str) -> dict[str, Any]:
    """Translate a ``.env`` file into nested values of ours.

    Raises:
        ConfigError: A line is no assignment, or no system knows any of the names.

    Warns:
        ConfigWarning: Names are left out.
    """
    values = read_env(text, where)
    importer = _importer_of(values)
    if importer is None:
        raise ConfigError(
            f"{where} holds no name that a system reads from a .env file: name a YAML file, or write names such as "
            f"{', '.join(name.upper() for one in _importers() for name in sorted(one.names)[:3]) or 'none'}"
        )
    return _imported(importer, values, where)


def import_flat(values: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """Translate a mapping without sections, most of whose names a system's importer knows; None: it is none.

    Warns:
        ConfigWarning: Names are left out.
    """
    has_sections = any(isinstance(value, Mapping) for value in values.values())
    if not values or has_sections or not {*Config.model_fields, "base"}.isdisjoint(values):
        return None
    importer = _importer_of(values)
    if importer is None or 2 * _n_known(importer, values) <= len(values):
        return None
    return _imported(importer, values, where)


def _imported(importer: Importer, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    keys, left_out = importer.translate(values)
    if left_out:
        told = "; ".join(f"{name} ({reason})" for name, reason in left_out.items())
        warnings.warn(" ".join(f"{where}: left out: {told}".split()), ConfigWarning, stacklevel=5)
    return nested(keys)


def _importer_of(values: Mapping[str, Any]) -> Importer | None:
    """Find the importer that knows most of the names; the first of equals."""
    known = [(_n_known(one, values), one) for one in _importers()]
    n_most, best = max(known, key=lambda pair: pair[0], default=(0, None))
    return best if n_most else None


def _importers() -> list[Importer]:
    found = []
    for name in system_names():
        try:
            importer = find_system(name).importer
        except ConfigError:  # an installed system that cannot be imported: not what this file asks for
            continue
        found += [] if importer is None else [importer]
    return found


def _n_known(importer: Importer, values: Mapping[str, Any]) -> int:
    return sum(str(name).strip().lower() in importer.names for name in values)


def _unquoted(value: str) -> str:
    if value[:1] in ("'", '"') and (end := value.find(value[0], 1)) > 0:
        return value[1:end]
    return re.split(r"(?:^|\s)#", value, maxsplit=1)[0].strip()
