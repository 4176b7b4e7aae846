"""kohaku_ray: citation-precise, ensemble question answering in batch, on Ray."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kohaku_ray.version import __version__ as __version__

if TYPE_CHECKING:
    from kohaku_ray.api import Run, Sweep, score, vote
    from kohaku_ray.config import load_config

__all__ = ["Run", "Sweep", "load_config", "score", "vote"]

_PLACES = dict.fromkeys(("Run", "Sweep", "score", "vote"), "kohaku_ray.api") | {"load_config": "kohaku_ray.config"}


def __getattr__(name: str) -> Any:
    """Import what is asked for: ``import kohaku_ray`` alone loads nothing."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'kohaku_ray' has no attribute {name!r}")
