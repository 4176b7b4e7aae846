"""Read a configuration, apply overrides, and say clearly what does not fit."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from kohaku_ray.config import kohakurag
from kohaku_ray.config.schema import Config
from kohaku_ray.errors import ConfigError, ConflictError, did_you_mean
from kohaku_ray.systems.base import System
from kohaku_ray.systems.registry import DEFAULT_SYSTEM, find_system, system_names

M = TypeVar("M", bound=BaseModel)

MOVED = {
    "generation.model": "roles.answer.model",
    "generation.temperature": "roles.answer.temperature",
    "generation.top_p": "roles.answer.top_p",
    "generation.max_tokens": "roles.answer.max_tokens",
    "generation.prompts": "prompts",
    "ensemble.stop": "ensemble.early_stop",
    "cluster.lanes": "cluster.workers_per_member",
}
"""Keys of earlier versions with their new places; each system has its own too."""

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
    return build_config(read_values([path] if path is not None else [], overrides), where=path or "the defaults")


def read_values(paths: Sequence[str], overrides: Sequence[str] = (), beside: str | None = None) -> dict[str, Any]:
    """Read configuration files as plain values, each on top of those before it, and the overrides on top of all.

    Args:
        paths: As of ``load_config``.
        overrides: ``a.b=c`` each, ``c`` in YAML.
        beside: The file that names them, beside which they are looked for first.

    Raises:
        ConfigError: A file cannot be read, or an override has no key.
    """
    values: dict[str, Any] = {}
    for path in paths:
        values = merge(values, _read(path, (beside,) if beside else ()))
    for text in overrides:
        override(values, text)
    return values


def build_config(values: Mapping[str, Any], where: str) -> Config:
    """Check a plain mapping and freeze it.

    Raises:
        ConfigError: A key is unknown or has moved, or a value does not fit; all of them are named.
        ConflictError: Each value fits, but not together.
    """
    system = system_of(values)
    if unknown := unknown_keys(values):
        raise ConfigError(f"{where}: " + "; ".join(unknown))
    references: dict[str, str] = {}
    expanded = expand(values, references)
    section = expanded.pop(system.name, None)
    errors: list[Any] = []
    settings, config = _validated(system.settings, {} if section is None else section, errors, f"{system.name}."), None
    if settings is not None or isinstance(section, Mapping):
        config = _validated(Config, {**expanded, "settings": settings or system.settings()}, errors)
    if errors or config is None:
        together = all(entry["type"] == "value_error" for entry in errors)
        text = "; ".join(explain(one, where) for one in errors)
        raise (ConflictError if together else ConfigError)(hidden(text, references))
    config._references.update(references)
    return config


def _validated(model: type[M], values: Any, errors: list[Any], prefix: str = "") -> M | None:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        errors += [
            {**one, "loc": (f"{prefix}{one['loc'][0]}", *one["loc"][1:]) if one["loc"] else (prefix.rstrip("."),)}
            for one in error.errors()
        ]
    return None


def system_of(values: Mapping[str, Any]) -> System:
    """Find the system that plain values name.

    Raises:
        ConfigError: There is none, or it cannot be imported.
    """
    name = values.get("system", DEFAULT_SYSTEM)
    if not isinstance(name, str):
        raise ConfigError(f"system is {name!r}: name a system, such as {DEFAULT_SYSTEM}, or module:SYSTEM")
    return find_system(name)


def as_yaml(config: Config) -> str:
    """Write the whole configuration, defaults included, as YAML; what the environment gave stays a reference to it."""
    values = config.model_dump(mode="json")
    settings, name = values.pop("settings"), config.declaration.name
    shown = {key: value for key, value in values.items() if key not in ("roles", "prompts")}
    ordered: dict[str, Any] = {}
    for key, value in shown.items():
        if key == "ensemble":
            ordered |= {name: settings, "roles": values["roles"], "prompts": values["prompts"]}
        ordered[key] = value
    for key, reference in config._references.items():
        _put_back(ordered, key.split("\0"), reference)
    return yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True)


def _put_back(values: Any, path: Sequence[str], reference: str) -> None:
    *parents, last = path
    for key in parents:
        values = values[int(key)] if isinstance(values, list) else values.get(key, {})
    if isinstance(values, list):
        values[int(last)] = reference
    elif last in values:
        values[last] = reference


def hidden(text: str, references: Mapping[str, str]) -> str:
    """Put the reference in the place of every value that came from the environment."""
    for reference in references.values():
        for match in _VARIABLE.finditer(reference):
            value = os.environ.get(match[1], "")
            if len(value) > 3:
                text = text.replace(value, f"${{{match[1]}}}")
    return text


def keys_of(model: type[BaseModel] = Config, prefix: str = "", system: System | None = None) -> list[str]:
    """List every dotted key there is, the system's own under its name."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if model is Config and name == "settings":
            chosen = system or find_system(DEFAULT_SYSTEM)
            keys += keys_of(chosen.settings, f"{chosen.name}.")
        elif isinstance(inner, type) and issubclass(inner, BaseModel):
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
    values = parse_file(file)
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds a {type(values).__name__} at its top, expected keys such as `system:`")
    if kohakurag.is_flat(values):
        return kohakurag.translate(values, str(file))
    base = values.pop("base", None)
    return values if base is None else merge(_read(str(base), (*seen, str(file))), values)


def parse_file(file: Path) -> Any:
    """Read a YAML, JSON or TOML file as plain values.

    Raises:
        ConfigError: It cannot be read.
    """
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


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Put values on top of others, section by section."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        same_kind = isinstance(old, Mapping) and isinstance(value, Mapping)
        # Another kind of backend shares no keys with the one below it.
        if same_kind and value.get("kind", old.get("kind")) == old.get("kind"):  # type: ignore[union-attr]
            merged[key] = merge(old, value)  # type: ignore[arg-type]
        else:
            merged[key] = value
    return merged


def override(values: dict[str, Any], text: str) -> None:
    """Set what ``a.b=c`` says, ``c`` in YAML, in place.

    Raises:
        ConfigError: It has no key, or what stands above it is no section.
    """
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}: expected KEY=VALUE, such as --set seed=1")
    try:
        value = yaml.safe_load(raw) if raw.strip() else ""
    except yaml.YAMLError:
        value = raw
    put(values, key.strip(), value, where=f"--set {text}")


def put(values: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Set a dotted key of plain values, in place.

    Raises:
        ConfigError: What stands above it is no section.
    """
    *parents, last = key.split(".")
    here = values
    for parent in parents:
        inner = here.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{where}: {parent} is {inner!r}, which has no keys in it")
        here = inner
    here[last] = value


def unknown_keys(values: Mapping[str, Any]) -> list[str]:
    """Say of every key that no configuration has that it is unknown, and what it may have meant."""
    system = system_of(values)
    own = {name: value for name, value in values.items() if name == system.name}
    found = list(_unknown_keys({"settings": own.get(system.name)}, system)) if own else []
    for name, value in values.items():
        if name == "settings":
            found.append(f"no key settings: the settings of system {system.name} stand under {system.name}")
        elif name not in own:
            found += _unknown_keys({name: value}, system)
    return found


def expand(value: Any, references: dict[str, str] | None = None, path: tuple[str, ...] = ()) -> Any:
    """Put environment variables in the place of ``${NAME}`` and ``${NAME:-default}``, however deep.

    Args:
        value: Plain values.
        references: Takes, by path (its keys joined by NUL), each text that the environment filled in, with the
            references themselves where it did and the defaults where it did not.
        path: Where the value stands.

    Raises:
        ConfigError: The environment has no such variable, and there is no default.
    """
    if isinstance(value, Mapping):
        return {key: expand(inner, references, (*path, str(key))) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [expand(inner, references, (*path, str(at))) for at, inner in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], match[2])
        if found is None:
            raise ConfigError(f"{value}: the environment has no {match[1]}; set it or write ${{{match[1]}:-default}}")
        return found

    if references is not None and any(match[1] in os.environ for match in _VARIABLE.finditer(value)):
        kept = _VARIABLE.sub(lambda match: match[0] if match[1] in os.environ else match[2], value)
        references["\0".join(path)] = kept
    return _VARIABLE.sub(replace, value)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _unknown_keys(values: Any, system: System, model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        if model is Config and key == "settings":
            yield from _unknown_keys(value, system, system.settings, f"{system.name}.")
            continue
        if not isinstance(key, str) or key not in model.model_fields:
            yield _unknown(f"{prefix}{key}", value, system, [prefix + name for name in model.model_fields])
            continue
        inner = list(_models_in(model.model_fields[key].annotation))
        named = get_origin(model.model_fields[key].annotation) is dict
        if len(inner) == 1 and not named:
            yield from _unknown_keys(value, system, inner[0], f"{prefix}{key}.")
        elif inner and isinstance(value, Mapping):
            by_kind = {one.model_fields["kind"].default: one for one in inner if "kind" in one.model_fields}
            for name, entry in value.items():
                kind = entry.get("kind") if isinstance(entry, Mapping) else None
                of = inner[0] if len(inner) == 1 else by_kind.get(kind) if isinstance(kind, str) else None
                if of is not None:
                    yield from _unknown_keys(entry, system, of, f"{prefix}{key}.{name}.")


def _unknown(key: str, value: Any, system: System, beside: Sequence[str]) -> str:
    """Say what a key that is none may have meant: one that has moved, another system's section, or a slip."""
    moved = {**MOVED, **system.moved}
    inside = [f"{key}.{name}" for name in value] if isinstance(value, Mapping) and value else [key]
    if any(old in moved for old in inside):
        return "; ".join(f"{old} has moved to {moved[old]}" if old in moved else f"no key {old}" for old in inside)
    if key in system_names():
        return f"{key} are settings of another system, and system is {system.name}: set system to {key}, or drop them"
    return f"no key {key}{_did_you_mean(key, [*beside, *keys_of(system=system)])}"


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    last = word.rsplit(".", 1)[-1]
    elsewhere = [key for key in known if key.rsplit(".", 1)[-1] == last]
    return did_you_mean(word, known) or (f", did you mean {elsewhere[0]}?" if elsewhere else "")


def explain(entry: Any, where: str) -> str:
    """Say in one line what pydantic found."""
    key = ".".join(str(part) for part in entry["loc"])
    message = str(entry["msg"]).removeprefix("Value error, ")
    if entry["type"] == "value_error":
        return f"{where}: {message}"
    if entry["type"] == "union_tag_not_found":
        kinds = "extractive, openai, vllm, cross_encoder"
        return f"{where}: {key} has no kind: name one, such as kind: openai (kinds: {kinds})"
    got = entry.get("input")
    shown = "" if entry["type"] == "missing" else f" is {got!r}:"
    return f"{where}: {key}{shown} {message[:1].lower()}{message[1:]}"
