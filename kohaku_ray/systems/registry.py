"""Systems by name: the package's, those of installed packages, and your own as ``module:SYSTEM``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from kohaku_ray.extensions import BUILT_IN, find_registered, installed

if TYPE_CHECKING:
    from kohaku_ray.systems.base import System

DEFAULT_SYSTEM = "kohaku"
"""The default of ``system``."""


def system_names() -> tuple[str, ...]:
    """List the names of all systems, sorted."""
    return tuple(sorted({*BUILT_IN["systems"], *installed("kohaku_ray.systems")}))


@functools.cache
def find_system(name: str) -> System:
    """Import a system.

    Args:
        name: A name of the registry, or ``module:SYSTEM``, also searched in the working directory.

    Raises:
        ConfigError: There is no system of that name, it cannot be imported, or it is no system.
    """
    from kohaku_ray.systems.base import System

    return find_registered("systems", name, System)
