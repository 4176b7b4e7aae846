"""Paths in a configuration: relative to its file, or, in presets and overrides, to the working directory."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BeforeValidator

from kohaku_ray.settings import Section
from kohaku_ray.storage import below, is_uri

SAMPLE = "sample:"
"""Prefix of a path inside the package's own collection."""

_HERE = Path(__file__).resolve()
PRESETS = next((p for p in (_HERE.parents[2] / "configs", _HERE.parent / "presets") if p.is_dir()), _HERE.parent)
"""Directory of the presets: configs/ of a checkout, or its copy in an installed package."""

S = TypeVar("S", bound=Section)


class Placed(str):
    """A text of a configuration file that knows the directory which paths in that file are relative to."""

    directory: str

    def __new__(cls, text: str, directory: str = "") -> Placed:  # noqa: D102
        placed = super().__new__(cls, text)
        placed.directory = directory
        return placed

    def like(self, text: str) -> Placed:
        """Place another text where this one is."""
        return Placed(text, self.directory)


def joined(text: Any) -> Any:
    """Join a placed path to its directory; URIs, ``~``, ``sample:`` and any other value stay as they are."""
    if not isinstance(text, Placed) or not text or not text.directory:
        return text
    if os.path.isabs(text) or text.startswith(("~", SAMPLE, "package:")) or is_uri(text):
        return str(text)
    return os.path.normpath(os.path.join(text.directory, text))


def _joined_model(text: Any) -> Any:
    """A model is a path only if it begins with a dot or is a GGUF file; otherwise it is a name."""
    return joined(text) if isinstance(text, str) and (text.startswith(("./", "../")) or _is_gguf(text)) else text


FilePath = Annotated[str, "a path", BeforeValidator(joined)]
"""A path or a URI."""

ModelPath = Annotated[str, "a model", BeforeValidator(_joined_model)]
"""The name of a model, or its path."""


def resolved(section: S) -> S:
    """Make every relative path of a section and those below it absolute: actors may run in another directory."""
    update: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value, how = getattr(section, name), _how(field.annotation, field.metadata)
        if isinstance(value, Section):
            update[name] = resolved(value)
        elif isinstance(value, dict):
            kept = how or (lambda one: one)
            update[name] = {key: resolved(one) if isinstance(one, Section) else kept(one) for key, one in value.items()}
        elif how:
            update[name] = tuple(map(how, value)) if isinstance(value, tuple) else value and how(value)
    return section.model_copy(update={name: new for name, new in update.items() if new != getattr(section, name)})


def is_directory(model: str) -> bool:
    """Return whether a model's name is a path, existing or not; otherwise it is a name on a hub or in a package."""
    return model.startswith((".", "/", "~")) or os.path.isdir(model) or _is_gguf(model)


def _is_gguf(model: str) -> bool:
    return model.endswith(".gguf") and not model.startswith("package:")


def _how(annotation: Any, metadata: Any) -> Callable[[str], str] | None:
    """Return what makes a field's paths absolute; None: it holds none."""
    for kind, how in (("a path", _absolute), ("a model", _absolute_model)):
        if kind in metadata:
            return how
    inner = [one for one in get_args(annotation) if not isinstance(one, str)]
    return next(filter(None, (_how(one, getattr(one, "__metadata__", ())) for one in inner)), None)


def _absolute(path: str) -> str:
    return path if is_uri(path) or path.startswith(SAMPLE) else os.path.abspath(os.path.expanduser(path))


def _absolute_model(name: str) -> str:
    return os.path.abspath(os.path.expanduser(name)) if is_directory(name) else name


def with_index(values: Mapping[str, Any], run: str) -> dict[str, Any]:
    """Put the index into the run's directory unless it has a path: two collections must not share one by default.

    ``values`` are plain, before their environment variables are expanded or after; ``run`` is the default directory.
    """
    index, home = values.get("index", {}), values.get("run", run)
    at: str = below(str(home), "index")
    at = home.like(at) if isinstance(home, Placed) else at
    if isinstance(index, Mapping) and not index.get("path"):
        return {**values, "index": {**index, "path": at}}
    if getattr(index, "path", None) == "":
        return {**values, "index": index.model_copy(update={"path": joined(at)})}
    return dict(values)


def in_shared(values: Mapping[str, Any], run: str, ledger: str) -> dict[str, Any]:
    """Put relative paths of outputs into the directory ``shared``, if the plain values of a configuration name one."""
    shared = joined(values.get("shared"))
    if not isinstance(shared, str) or not shared:
        return dict(values)

    def moved(path: Any) -> Any:
        is_relative = isinstance(path, str) and path and not path.startswith(("/", "~")) and not is_uri(path)
        return below(shared, os.path.normpath(path)) if is_relative else path

    moves = {**values, "run": moved(values.get("run", run))}
    for name, default in (("index", ""), ("ledger", ledger)):
        section = values.get(name, {})
        if isinstance(section, Mapping):
            moves[name] = {**section, "path": moved(section.get("path", default))}
    return moves


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
