"""Read a configuration, apply overrides, and say clearly what does not fit."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from kohaku_ray.config import kohakurag
from kohaku_ray.config.schema import Config
from kohaku_ray.errors import ConfigError

_HERE = Path(__file__).resolve()
PRESETS = next((p for p in (_HERE.parents[2] / "configs", _HERE.parent / "presets") if p.is_dir()), _HERE.parent)
"""Where the presets lie: configs/ of a checkout, or their copy in an installed package."""

_FORMATS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    ".json": ("JSON", json.loads),
    ".toml": ("TOML", tomllib.loads),
}
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def load_config(path: str | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file and put the overrides on top.

    A file may name a ``base``, another one beside it (or a preset of ``configs/``), whose values it changes.
    ``${NAME}`` and ``${NAME:-default}`` in a value stand for environment variables. KohakuRAG's own configurations,
    ``.py`` files and flat ones, are translated (``config/kohakurag.py``).

    Args:
        path: The YAML, JSON, TOML or KohakuRAG ``.py`` file, or the name of a preset; None: the package's defaults.
        overrides: ``a.b=c`` each, ``c`` in YAML.

    Raises:
        ConfigError: The file cannot be read, a key is unknown, or a value does not fit.
    """
    values = _read(path, ()) if path is not None else {}
    for text in overrides:
        _override(values, text)
    return build_config(values, where=path or "the defaults")


def build_config(values: Mapping[str, Any], where: str) -> Config:
    """Check a plain mapping and freeze it.

    Raises:
        ConfigError: A key is unknown or a value does not fit; all of them are named.
    """
    unknown = list(_unknown_keys(values, Config, ""))
    if unknown:
        raise ConfigError(f"{where}: " + "; ".join(unknown))
    try:
        return Config.model_validate(_expand(values))
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(entry, where) for entry in error.errors())) from None


def as_yaml(config: Config) -> str:
    """Write the whole configuration, defaults included, as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def keys_of(model: type[BaseModel] = Config, prefix: str = "") -> list[str]:
    """List every dotted key there is."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            keys += keys_of(inner, f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys


def _read(path: str, seen: tuple[str, ...]) -> dict[str, Any]:
    file = _find(path, seen)
    if str(file) in seen:
        raise ConfigError(f"{file} is its own base, by way of {' → '.join(seen)}: remove one `base`")
    if file.suffix == ".py":
        return kohakurag.translate(kohakurag.read_python(file), str(file))
    values = _parsed(file)
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds a {type(values).__name__} at its top, expected keys such as `retrieval:`")
    if kohakurag.is_flat(values):
        return kohakurag.translate(values, str(file))
    base = values.pop("base", None)
    return values if base is None else _merge(_read(str(base), (*seen, str(file))), values)


def _parsed(file: Path) -> Any:
    name, parse = _FORMATS.get(file.suffix, ("YAML", yaml.safe_load))
    try:
        return parse(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not {name}: {' '.join(str(error).split())}") from None


def _find(path: str, seen: tuple[str, ...]) -> Path:
    beside = [Path(seen[-1]).parent / path] if seen else []
    for candidate in (*beside, Path(path), PRESETS / path, PRESETS / f"{path}.yaml"):
        if candidate.is_file():
            return candidate
    presets = sorted(file.stem for file in PRESETS.glob("*.yaml"))
    raise ConfigError(
        f"{path}: no such file and no such preset{_did_you_mean(path, presets)}; presets: {', '.join(presets)}"
    )


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        same_kind = isinstance(old, Mapping) and isinstance(value, Mapping)
        # Another kind of backend shares no keys with the one below it.
        if same_kind and value.get("kind", old.get("kind")) == old.get("kind"):  # type: ignore[union-attr]
            merged[key] = _merge(old, value)  # type: ignore[arg-type]
        else:
            merged[key] = value
    return merged


def _override(values: dict[str, Any], text: str) -> None:
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}: expected KEY=VALUE, such as --set retrieval.top_k=8")
    try:
        value = yaml.safe_load(raw) if raw.strip() else ""
    except yaml.YAMLError:
        value = raw
    *parents, last = key.strip().split(".")
    here = values
    for parent in parents:
        inner = here.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {text}: {parent} is {inner!r}, which has no keys in it")
        here = inner
    here[last] = value


def _expand(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _expand(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_expand(inner) for inner in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], match[2])
        if found is None:
            raise ConfigError(f"{value}: the environment has no {match[1]}; set it or write ${{{match[1]}:-default}}")
        return found

    return _VARIABLE.sub(replace, value)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _unknown_keys(values: Any, model: type[BaseModel], prefix: str) -> Iterator[str]:
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        if key not in model.model_fields:
            beside = [prefix + name for name in model.model_fields]
            yield f"no key {prefix}{key}{_did_you_mean(prefix + key, beside + keys_of())}"
            continue
        inner = list(_models_in(model.model_fields[key].annotation))
        if len(inner) == 1:
            yield from _unknown_keys(value, inner[0], f"{prefix}{key}.")
        elif inner and isinstance(value, Mapping):
            by_kind = {candidate.model_fields["kind"].default: candidate for candidate in inner}
            for name, entry in value.items():
                kind = entry.get("kind") if isinstance(entry, Mapping) else None
                if kind in by_kind:
                    yield from _unknown_keys(entry, by_kind[kind], f"{prefix}{key}.{name}.")


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    last = word.rsplit(".", 1)[-1]
    elsewhere = [key for key in known if key.rsplit(".", 1)[-1] == last]
    return kohakurag.did_you_mean(word, known) or (f", did you mean {elsewhere[0]}?" if elsewhere else "")


def _explain(entry: Any, where: str) -> str:
    key = ".".join(str(part) for part in entry["loc"])
    message = str(entry["msg"]).removeprefix("Value error, ")
    if entry["type"] == "value_error":
        return f"{where}: {message}"
    if entry["type"] == "union_tag_not_found":
        return f"{where}: {key} has no kind: name one, such as kind: openai (kinds: extractive, openai, vllm)"
    got = entry.get("input")
    shown = "" if entry["type"] == "missing" else f" is {got!r}:"
    return f"{where}: {key}{shown} {message[:1].lower()}{message[1:]}"
