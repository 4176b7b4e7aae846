"""kohaku_ray: citation-precise, ensemble question answering in batch, on Ray."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kohaku_ray.version import __version__ as __version__

if TYPE_CHECKING:
    from kohaku_ray.api import Run, Sweep, bundle, replay, score, vote
    from kohaku_ray.config import load_config

__all__ = ["Run", "Sweep", "bundle", "load_config", "replay", "score", "vote"]

_PLACES = {name: "kohaku_ray.config" if name == "load_config" else "kohaku_ray.api" for name in __all__}


def __getattr__(name: str) -> Any:
    """Import what is asked for: ``import kohaku_ray`` alone loads nothing."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'kohaku_ray' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public API, imported or not."""
    return [*__all__, "__version__"]
