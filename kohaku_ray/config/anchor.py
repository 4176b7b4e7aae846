"""Paths in a configuration file are relative to that file; those of presets and overrides, to the working directory."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kohaku_ray.config.environment import expand
from kohaku_ray.errors import ConfigError
from kohaku_ray.storage import below

_HERE = Path(__file__).resolve()
PRESETS = next((p for p in (_HERE.parents[2] / "configs", _HERE.parent / "presets") if p.is_dir()), _HERE.parent)
"""Directory of the presets: configs/ of a checkout, or its copy in an installed package."""

PATHS = ("run", "prompts", "documents.metadata", "questions.path", "index.path", "ledger.path")
"""Keys of single paths."""

LISTS = ("documents.paths",)
"""Keys of lists of paths."""

SWEEP_PATHS = ("output", "runs", "indexes")
"""Keys of a sweep file that hold paths; tables and cells may set those of a configuration."""

_OTHER_PLACES = ("sample:", "package:")
_MODELS = ("model", "tokenizer")


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


def described_presets(path: str) -> str:
    """List the presets of the folder that a path names, and how many there are in the others."""
    by_folder: dict[str, list[str]] = {}
    for name in preset_names():
        by_folder.setdefault(os.path.dirname(name), []).append(name)
    wanted = by_folder.pop(os.path.dirname(path), None) or by_folder.pop("")
    others = [f"{len(names)} {folder}/NAME" for folder, names in by_folder.items() if folder]
    return "; ".join([f"presets: {', '.join(wanted)}", *others])


def anchored(values: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Make the relative paths of one file's values relative to the working directory.

    A model is a path only if it begins with a dot; URIs, ``~`` and ``sample:`` stay as they are. A text with
    environment variables stays a reference.

    Args:
        values: Plain values of the file.
        directory: The file's directory, absolute or relative to the working directory.
    """
    copy = dict(values)

    def join(text: Any) -> Any:
        return joined(text, directory)

    for key in (*PATHS, *LISTS):
        _change(copy, key.split("."), lambda found: _each(found, directory))
    _change(copy, ["index", "encoder", "model"], lambda text: join(text) if _is_dotted(text) else text)
    deployments = copy.get("deployments")
    if isinstance(deployments, Mapping):
        copy["deployments"] = {name: _deployment(entry, join) for name, entry in deployments.items()}
    return copy


def anchored_sweep(values: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Do the same with the values of a sweep file, or of one of its tables."""
    found = {key: joined(value, directory) if key in SWEEP_PATHS else value for key, value in values.items()}
    if isinstance(found.get("set"), Mapping):
        found["set"] = _keyed(found["set"], directory)
    if isinstance(found.get("axes"), Mapping):
        found["axes"] = {name: _axis(name, choices, directory) for name, choices in found["axes"].items()}
    for name, change in (("cells", _keyed), ("tables", anchored_sweep)):
        if isinstance(found.get(name), list):
            found[name] = [change(one, directory) if isinstance(one, Mapping) else one for one in found[name]]
    _change(found, ["pool", "files"], lambda files: _each(files, directory))
    return found


def with_index(values: Mapping[str, Any], run: str) -> dict[str, Any]:
    """Put the index into the run's directory unless it has a path: two collections must not share one by default.

    Args:
        values: Plain values of a configuration, before its environment variables are expanded or after.
        run: The run's default directory.
    """
    index, at = values.get("index", {}), below(str(values.get("run", run)), "index")
    if isinstance(index, Mapping) and not index.get("path"):
        return {**values, "index": {**index, "path": at}}
    if getattr(index, "path", None) == "":
        return {**values, "index": index.model_copy(update={"path": at})}
    return dict(values)


def _axis(name: str, choices: Any, directory: str) -> Any:
    if isinstance(choices, Mapping):
        return {
            label: _keyed(keys, directory) if isinstance(keys, Mapping) else _keyed({name: keys}, directory)[name]
            for label, keys in choices.items()
        }
    return [_keyed({name: one}, directory)[name] for one in choices] if isinstance(choices, list) else choices


def _keyed(values: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Change the paths among values under dotted keys."""
    return {key: _each(value, directory) if key in (*PATHS, *LISTS) else value for key, value in values.items()}


def _each(value: Any, directory: str) -> Any:
    return [joined(one, directory) for one in value] if isinstance(value, list) else joined(value, directory)


def joined(text: Any, directory: str) -> Any:
    """Join a path to the directory it is relative to; any other value stays."""
    if not directory or not isinstance(text, str) or not text:
        return text
    try:
        meant = expand(text)
    except ConfigError:
        return text  # reported with its key when the configuration is built
    if os.path.isabs(meant) or meant.startswith(("~", *_OTHER_PLACES)) or "://" in meant:
        return text
    return os.path.normpath(os.path.join(directory, text)) if text == meant else os.path.join(directory, text)


def _deployment(entry: Any, join: Callable[[Any], Any]) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    return {key: join(value) if key in _MODELS and _is_dotted(value) else value for key, value in entry.items()}


def _is_dotted(text: Any) -> bool:
    return isinstance(text, str) and text.startswith(("./", "../"))


def _change(values: dict[str, Any], keys: list[str], change: Callable[[Any], Any]) -> None:
    """Change the value under these keys, if it is there; sections on the way are copied."""
    key, *rest = keys
    if key not in values:
        return
    if not rest:
        values[key] = change(values[key])
    elif isinstance(values[key], Mapping):
        values[key] = dict(values[key])
        _change(values[key], rest, change)
