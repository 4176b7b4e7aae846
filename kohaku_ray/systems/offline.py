"""The offline baseline of a system as a deployment: its settings, and how it is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from kohaku_ray.models.backend import BackendConfig
from kohaku_ray.settings import PositiveInt
from kohaku_ray.systems.registry import DEFAULT_SYSTEM, find_system


class ExtractiveConfig(BackendConfig):
    """A baseline to compare models with, which the system provides: no weights, no GPU."""

    kind: Literal["extractive"] = "extractive"
    system: str = DEFAULT_SYSTEM
    """System whose stand-in it is. Default: the configuration's system."""
    max_ongoing: PositiveInt = 64
    """Requests in flight per replica."""
    window_tokens: PositiveInt = 131072
    """Longest prompt, in tokens."""

    # It reads no prompts and no images, does not reason, and has no weights.
    tokenizer: ClassVar[None] = None
    reasoning_tokens: ClassVar[int] = 0
    vision: ClassVar[bool] = False
    revision: ClassVar[None] = None

    @property
    def window(self) -> int:
        """Longest prompt, in tokens."""
        return self.window_tokens

    @property
    def model_identity(self) -> str:
        """The baseline's rules and settings."""
        return str(self.make_backend().identity)

    def check(self, here: bool) -> None:
        """Check that there is such a system; see ``BackendConfig.check``."""
        self.make_backend()

    def make_backend(self, limiter: Any = None, *, with_key: bool = True) -> Any:
        """Build the system's baseline; see ``BackendConfig.make_backend``."""
        offline = find_system(self.system).offline
        if offline is None:
            from kohaku_ray.models.baseline import Dummy  # every actor imports the settings

            offline = Dummy
        return offline(self.window_tokens)


def with_default_system(key: str, entry: Any, system: str) -> Any:
    """Set the configuration's system in an extractive deployment that names none; leave other deployments unchanged."""
    if isinstance(entry, ExtractiveConfig):
        entry = {"kind": entry.kind, **entry.model_dump(exclude_unset=True)}
    elif isinstance(entry, Mapping) and key == "extractive":
        entry = {"kind": "extractive", **entry}
    if not isinstance(entry, Mapping) or entry.get("kind") != "extractive":
        return entry
    return {"system": system, **entry}
