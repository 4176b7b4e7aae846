"""Sections of a configuration, and extensions found by name."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from kohaku_ray.errors import ConfigError, did_you_mean

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """Base of every section: frozen, no unknown keys, docstrings as descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


_SECRET_NAME = re.compile(
    r"(?:key|token|secret|password|passwd|authorization|auth|credentials?|sig|signature|cookie)$", re.IGNORECASE
)
_SCHEME = re.compile(r"(?:bearer|basic)\s+(?=\S)", re.IGNORECASE)
SECRET_CHARS = 8
"""Shortest key that is a secret; a shorter one, such as EMPTY or ollama, is a word that texts may hold."""


def find_secrets(values: object, name: str = "") -> set[str]:
    """Find the keys and passwords in plain values: under a ``name`` or after a scheme that says so, at any depth."""
    if isinstance(values, Mapping):
        parts = [find_secrets(value, name if _SECRET_NAME.search(name) else str(key)) for key, value in values.items()]
    elif isinstance(values, (list, tuple)):
        parts = [find_secrets(value, name) for value in values]
    else:
        is_secret = (
            isinstance(values, str)
            and len(values) >= SECRET_CHARS
            and (_SECRET_NAME.search(name) or _SCHEME.match(values))
        )
        parts = [{str(values)}] if is_secret else []
    return set().union(*parts)


T = TypeVar("T")


def find_registered(name: str, known: Mapping[str, str], group: str, wanted: type[T]) -> T:
    """Load the object that a name stands for; nothing is imported before.

    Args:
        name: A key of ``known``, the name of an entry point, or ``module:NAME``.
        known: ``module:NAME`` of each built-in one, by name.
        group: Entry-point group of installed packages.
        wanted: Type that the object must have.

    Raises:
        ConfigError: There is no such name, it cannot be imported, or it has another type.
    """
    kind = wanted.__name__.lower()
    place = known.get(name, name)
    if ":" not in place:
        own = {entry.name: entry.value for entry in entry_points(group=group)}
        names = [*known, *own]
        if name not in own:
            raise ConfigError(
                f"{kind} {name}: no such {kind}{did_you_mean(name, names)}; {kind}s: {', '.join(names)}, or "
                "your own as module:NAME"
            )
        place = own[name]
    module, _, attribute = place.partition(":")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # as ``python -m`` does
    try:
        found = getattr(import_module(module), attribute)
    except ConfigError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(
            f"{kind} {name}: {place} cannot be loaded ({type(error).__name__}: {error}): install its package, start "
            "in its folder, or put its folder on PYTHONPATH"
        ) from error
    if not isinstance(found, wanted):
        raise ConfigError(
            f"{kind} {name}: {place} is of type {type(found).__name__}, not {wanted.__name__}: name a {wanted.__name__}"
        )
    return found
