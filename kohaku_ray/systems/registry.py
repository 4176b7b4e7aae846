"""Systems by name: the package's, those of installed packages, and your own as ``module:SYSTEM``."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from kohaku_ray.settings import find_registered

if TYPE_CHECKING:
    from kohaku_ray.systems.base import System

GROUP = "kohaku_ray.systems"
"""Entry-point group in which installed packages name their systems."""

DEFAULT_SYSTEM = "kohaku"
"""The default of ``system``."""

_OURS = {name: f"kohaku_ray.systems.{name}:SYSTEM" for name in ("kohaku", "hybrid", "narrative")}


@functools.cache
def system_names() -> tuple[str, ...]:
    """List the names of all systems, sorted; packages installed later are seen by the next process."""
    # Reads the metadata of every installed package: about 20 ms.
    return tuple(sorted({*_OURS, *(point.name for point in entry_points(group=GROUP))}))


@functools.cache
def find_system(name: str) -> System:
    """Import a system.

    Args:
        name: A name of the registry, or ``module:SYSTEM``, also searched in the working directory.

    Raises:
        ConfigError: There is no system of that name, it cannot be imported, or it is no system.
    """
    from kohaku_ray.systems.base import System

    return find_registered(name, _OURS, GROUP, System)
