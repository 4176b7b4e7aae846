"""Systems, metrics and document formats by name: the package's own, those of installed packages, yours as module:NAME.

An installed package adds to a kind by the entry-point group ``kohaku_ray.systems``, ``kohaku_ray.metrics`` or
``kohaku_ray.formats``.

Whatever imports code that a configuration names passes through ``check_code_trusted``: a replay of somebody's bundle
refuses it there.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Literal, TypeVar

from kohaku_ray.errors import CodeRefusedError, ConfigError, did_you_mean

ExtensionKind = Literal["systems", "metrics", "formats"]
T = TypeVar("T")

BUILT_IN: Mapping[ExtensionKind, Mapping[str, str]] = {
    "systems": {
        "kohaku": "kohaku_ray.systems.kohaku:SYSTEM",
        "hybrid": "kohaku_ray.systems.hybrid:SYSTEM",
        "narrative": "kohaku_ray.systems.narrative:SYSTEM",
    },
    "metrics": {
        "wattbot": "kohaku_ray.evaluation.wattbot:WATTBOT",
        "kaggle": "kohaku_ray.evaluation.wattbot:KAGGLE",
        "wattbot2026": "kohaku_ray.evaluation.wattbot2026:WATTBOT2026",
        "exact": "kohaku_ray.evaluation.answers:EXACT",
        "answer": "kohaku_ray.evaluation.answers:ANSWER",
        "label": "kohaku_ray.systems.narrative.label:LABEL",
        "citations": "kohaku_ray.evaluation.references:CITATIONS",
        "retrieval": "kohaku_ray.evaluation.references:RETRIEVAL",
        "passages": "kohaku_ray.evaluation.passages:PASSAGES",
        "context_value": "kohaku_ray.evaluation.passages:CONTEXT_VALUE",
    },
    "formats": {
        "auto": "kohaku_ray.documents.formats:AUTO",
        "text": "kohaku_ray.documents.formats:TEXT",
        "news": "kohaku_ray.systems.hybrid.news:NEWS",
        "novel": "kohaku_ray.systems.narrative.novel:NOVEL",
    },
}
"""``module:NAME`` of the package's own, by kind and name; nothing is imported before it is asked for."""


_refusals: list[str] = []  # of the whole process, threads included: who refuses code now, and the way out


@contextmanager
def refuse_named_code(way_out: str) -> Iterator[None]:
    """Refuse all code that a configuration names and nobody installed as an extension, while the block runs.

    Args:
        way_out: What a person can do, for the message.
    """
    _refusals.append(way_out)
    try:
        yield
    finally:
        _refusals.remove(way_out)


def check_code_trusted(what: str) -> None:
    """Refuse ``what`` where named code is refused; called before the code is looked for, imported or run.

    Raises:
        CodeRefusedError: ``refuse_named_code`` is in force.
    """
    if _refusals:
        raise CodeRefusedError(f"{what} is code that a configuration names; nothing was imported: {_refusals[-1]}")


@functools.cache
def installed(group: str) -> Mapping[str, str]:
    """Find the entry points of installed packages; a package installed later is seen by the next process."""
    from importlib.metadata import entry_points  # reads the metadata of every installed package: about 20 ms

    return {entry.name: entry.value for entry in entry_points(group=group)}


def find_registered(kind: ExtensionKind, name: str, wanted: type[T]) -> T:
    """Load the object that a name stands for.

    Args:
        kind: What it is the name of.
        name: A name of the package or of an installed one, or ``module:NAME``, also searched in the working directory.
        wanted: Type that the object must have.

    Raises:
        ConfigError: There is no such name, it cannot be imported, or it has another type.
    """
    what = kind.removesuffix("s")
    target = BUILT_IN[kind].get(name, name)
    if ":" not in target:
        others = installed(f"kohaku_ray.{kind}")
        names = [*BUILT_IN[kind], *others]
        if name not in others:
            raise ConfigError(
                f"{what} {name}: no such {what}{did_you_mean(name, names)}; {kind}: {', '.join(names)}, or "
                "your own as module:NAME"
            )
        target = others[name]
    elif target == name:
        check_code_trusted(f"{what} {name}")
    module, _, attribute = target.partition(":")
    with suppress(FileNotFoundError):  # a directory that is gone has no module
        here = os.getcwd()
        if here not in sys.path and "" not in sys.path:
            sys.path.append(here)  # as ``python -m`` does
    try:
        loaded = getattr(import_module(module), attribute)
    except ConfigError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(
            f"{what} {name}: {target} cannot be loaded ({type(error).__name__}: {error}): install its package, start "
            "in its folder, or put its folder on PYTHONPATH (on a cluster whose nodes lack it: `ray job submit "
            "--working-dir .`)"
        ) from error
    if not isinstance(loaded, wanted):
        raise ConfigError(
            f"{what} {name}: {target} is of type {type(loaded).__name__}, not {wanted.__name__}: name a "
            f"{wanted.__name__}"
        )
    return loaded
