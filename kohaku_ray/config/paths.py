"""Where the presets are, which directory a file's paths are relative to, and where a run's outputs go by default."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kohaku_ray.settings import RelativeToFile, join_to_file
from kohaku_ray.store.storage import is_uri, join_path

_HERE = Path(__file__).resolve()
PRESETS = next((p for p in (_HERE.parents[2] / "configs", _HERE.parent / "presets") if p.is_dir()), _HERE.parent)
"""Directory of the presets: configs/ of a checkout, or its copy in an installed package."""
DOCS = next((p for p in (_HERE.parents[1] / "docs", _HERE.parents[2] / "docs") if p.is_dir()), _HERE.parent)
"""Directory of the documentation: the copy in an installed package, or docs/ of a checkout."""


def with_index_path(values: Mapping[str, Any], run: str) -> dict[str, Any]:
    """Put the index into the run's directory unless it has a path: two collections must not share one by default.

    ``values`` are plain, before their environment variables are expanded or after; ``run`` is the default directory.
    """
    index, home = values.get("index", {}), values.get("run", run)
    path = join_path(str(home), "index")
    path = home.with_text(path) if isinstance(home, RelativeToFile) else path
    if isinstance(index, Mapping) and not index.get("path"):
        return {**values, "index": {**index, "path": path}}
    if getattr(index, "path", None) == "":
        return {**values, "index": index.model_copy(update={"path": join_to_file(path)})}
    return dict(values)


def move_to_shared(values: Mapping[str, Any], run: str, ledger: str) -> dict[str, Any]:
    """Put relative paths of outputs into the directory ``shared``, if the plain values of a configuration name one."""
    shared = join_to_file(values.get("shared"))
    if not isinstance(shared, str) or not shared:
        return dict(values)

    moves = {**values, "run": join_shared(shared, values.get("run", run))}
    for name, default in (("index", ""), ("ledger", ledger)):
        section = values.get(name, {})
        if isinstance(section, Mapping):
            moves[name] = {**section, "path": join_shared(shared, section.get("path", default))}
    tracking = values.get("tracking", {})
    if isinstance(tracking, Mapping):
        moves["tracking"] = {**tracking, "store": join_shared(shared, tracking.get("store") or ".")}
    return moves


def join_shared(shared: str, path: Any) -> Any:
    """Put a relative path into the directory ``shared``; leave every other value as it is."""
    is_relative = isinstance(path, str) and path and not path.startswith(("/", "~")) and not is_uri(path)
    return join_path(shared, os.path.normpath(path)) if is_relative else path


def directory_of(file: Path) -> str:
    """Return the directory that a file's paths are relative to: its own; empty, the working directory, for presets."""
    return "" if file.resolve().is_relative_to(PRESETS.resolve()) else os.path.dirname(file)


def preset_names() -> list[str]:
    """List the presets: whole configurations, then those of models and encoders, ``models/NAME``."""
    return [
        file.relative_to(PRESETS).with_suffix("").as_posix()
        for folder in ("", "models", "encoders")
        for file in sorted((PRESETS / folder).glob("*.yaml"))
    ]


def list_presets(path: str) -> str:
    """List the presets of the folder that a path names, and how many there are in the others."""
    by_folder: dict[str, list[str]] = {}
    for name in preset_names():
        by_folder.setdefault(os.path.dirname(name), []).append(name)
    wanted = by_folder.pop(os.path.dirname(path), None) or by_folder.pop("")
    others = [f"{len(names)} {folder}/NAME" for folder, names in by_folder.items() if folder]
    return "; ".join([f"presets: {', '.join(wanted)}", *others])
