"""Systems by name: those of the package, those of installed packages, and anybody's own as ``module:SYSTEM``."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from kohaku_ray.registry import find_registered

if TYPE_CHECKING:
    from kohaku_ray.systems.base import System

GROUP = "kohaku_ray.systems"
"""Entry-point group in which installed packages name their systems."""

DEFAULT_SYSTEM = "kohaku"
"""What answers unless the configuration says otherwise."""

_OURS = {"kohaku": "kohaku_ray.systems.kohaku:SYSTEM", "hybrid": "kohaku_ray.systems.hybrid:SYSTEM"}


def system_names() -> list[str]:
    """List every system that has a name here."""
    return sorted({*_OURS, *(point.name for point in entry_points(group=GROUP))})


@functools.cache
def find_system(name: str) -> System:
    """Import a system.

    Args:
        name: A name of the registry, or ``module:SYSTEM``, looked for in the working directory too.

    Raises:
        ConfigError: There is none of that name, it cannot be imported, or it is no system.
    """
    from kohaku_ray.systems.base import System

    return find_registered(name, _OURS, GROUP, System)
