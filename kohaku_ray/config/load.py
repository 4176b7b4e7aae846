"""Read a configuration, apply overrides, and report every error with its key."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from kohaku_ray.config.paths import PRESETS, directory_of, list_presets, preset_names, with_index_path
from kohaku_ray.config.plain import Environment, KeyPath, label_of, leaves, misread, remember_directory, shown, value_at
from kohaku_ray.config.plain import expand as expand
from kohaku_ray.config.schema import Config
from kohaku_ray.config.yaml_text import read_json, read_yaml, write_yaml
from kohaku_ray.errors import ConfigError, ConflictError, did_you_mean
from kohaku_ray.index.identity import model_directory
from kohaku_ray.removed import removed_key
from kohaku_ray.settings import check_working_directory
from kohaku_ray.systems.base import System
from kohaku_ray.systems.registry import DEFAULT_SYSTEM, find_system, system_names

M = TypeVar("M", bound=BaseModel)
_UNWRITABLE = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")  # others are bytes of names that are not UTF-8
_GROUPED = re.compile(r"[0-9]{1,3}(?:[ ,.'\u00a0\u202f][0-9]{3})+")


def load_config(path: str | Sequence[str] | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file and apply the overrides.

    A file may name a ``base``, a file in its directory or a preset of ``configs/``, whose values it changes; a list of
    them is merged first, later ones winning: ``base: [demo, models/ollama]``. Relative paths in a file are relative to
    that file, those of presets and overrides to the working directory.
    ``${NAME}`` and ``${NAME:-default}`` in a value are environment variables.

    Args:
        path: YAML or JSON file, or the name of a preset; of several, later ones win. Default: the defaults.
        overrides: Overrides ``a.b=c`` with ``c`` in YAML.

    Raises:
        ConfigError: The file cannot be read, a key is unknown, or a value does not fit.
    """
    paths = [] if path is None else [path] if isinstance(path, str) else list(path)
    return build_config(read_values(paths, overrides), where=" + ".join(paths) or "the defaults")


def read_values(paths: Sequence[str], overrides: Sequence[str] = (), beside: str | None = None) -> dict[str, Any]:
    """Read configuration files as plain values; later files win over earlier ones, the overrides over all.

    The directory of the file ``beside``, which names them, is searched first.

    Raises:
        ConfigError: A file cannot be read, or an override has no key.
    """
    check_working_directory()
    values: dict[str, Any] = {}
    known: dict[Path, dict[str, Any]] = {}
    for path in paths:
        values = merge(values, _read(path, (beside,) if beside else (), known))
    for text in overrides:
        override(values, text)
    return values


def build_config(values: Mapping[str, Any], where: str) -> Config:
    """Build a frozen configuration from plain values.

    Raises:
        ConfigError: A key is unknown, or a value does not fit; all of them are named.
        ConflictError: Each value fits, but not together.
    """
    values, environment = with_index_path(remember_directory(values), Config.model_fields["run"].default), Environment()
    for key_path, value in leaves(values):
        if isinstance(value, str) and _UNWRITABLE.search(value):
            raise ConfigError(
                f"{where}: {'.'.join(key_path)} is {shown(value)}, with a character that no path can hold (NUL, half a "
                "surrogate pair): remove it"
            )
    try:
        expanded = _with_preferred_encoder(environment.expand(values))
        environment.find_literals(expanded)
        system = system_of(expanded)
    except ConfigError as error:
        raise ConfigError(f"{where}: {environment.hide(str(error))}") from None
    if key := next((key for key in ("axes", "tables") if key in expanded), None):
        raise ConfigError(f"{where} is a sweep (it has {key}) and no run: give it to `kohaku-ray sweep`")
    if "settings" in expanded:
        raise ConfigError(f"{where}: no key settings: the settings of system {system.name} stand under {system.name}")
    errors: list[Any] = []
    # The system's section, and the rest even if the section is invalid.
    section, rest = expanded.get(system.name), {key: expanded[key] for key in expanded if key != system.name}
    settings = validated(system.settings, {} if section is None else section, errors, (system.name,))
    settings = settings or validated(system.settings, {}, [])
    config = None if settings is None else validated(Config, {**rest, "settings": settings}, errors)
    made = _ordered(config) if config is not None else {}
    faults = misread(expanded, made)
    if config is None or errors or faults:
        together = not faults and all(entry["type"] == "value_error" for entry in errors)
        texts = [explain(error, system, values, environment.hide) for error in errors] + faults
        raise (ConflictError if together else ConfigError)(f"{where}: " + "; ".join(texts))
    environment.made = {path: value_at(made, path) for path in environment.references}
    config._environment = environment
    return config


def _with_preferred_encoder(values: dict[str, Any]) -> dict[str, Any]:
    """Lay the first of ``index.prefer`` that is here under ``index.encoder``, unless that names a model itself."""
    index = values.get("index")
    names = index.get("prefer") if isinstance(index, Mapping) else None
    if not isinstance(names, list) or value_at(index, ("encoder", "model")) is not None:
        return values
    for name in names:
        settings = encoder_preset(name)
        if missing_encoder(settings) is None:
            return merge({"index": {"encoder": settings}}, values)
    return values


def encoder_preset(name: Any) -> dict[str, Any]:
    """Read the encoder of a preset that ``index.prefer`` names; a ``ConfigError`` if it is none of ``encoders/``."""
    encoders = [preset for preset in preset_names() if preset.startswith("encoders/")]
    if name not in encoders:
        raise ConfigError(
            f"index.prefer has {shown(name)}, no preset of an encoder{did_you_mean(str(name), encoders)}: name one of "
            f"{', '.join(encoders)}"
        )
    return dict(read_values([name])["index"]["encoder"])


def missing_encoder(settings: Mapping[str, Any]) -> str | None:
    """Name the model of an encoder that is not on this machine; None: it is here."""
    try:
        model_directory(settings["model"], settings.get("revision"))
    except ConfigError:
        return str(settings["model"])
    return None


def validated(model: type[M], values: Any, errors: list[Any], parents: KeyPath = ()) -> M | None:
    """Build a section, its keys below ``parents``; None, with entries in ``errors``, if the values do not fit."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        errors += [{**entry, "loc": tuple(map(str, (*parents, *entry["loc"])))} for entry in error.errors()]
    return None


def _place(loc: KeyPath) -> KeyPath:
    """Return a value's place in the file: pydantic puts a deployment's kind after its name."""
    has_kind = loc[:1] == ("deployments",) or loc[:2] == ("index", "encoder")
    return loc[:2] + loc[3:] if has_kind else loc


def system_of(values: Mapping[str, Any]) -> System:
    """Find the system that plain values name, which must not be called like another section."""
    name = values.get("system", DEFAULT_SYSTEM)
    if not isinstance(name, str):
        raise ConfigError(f"system is {name!r}: name a system, such as {DEFAULT_SYSTEM}, or module:SYSTEM")
    system = find_system(name)
    if system.name in Config.model_fields:
        raise ConfigError(f"system {name} is called {system.name}, a section that is there already: rename it")
    return system


def as_yaml(config: Config) -> str:
    """Write the whole configuration, defaults included, as YAML; environment variables stay references."""
    return write_yaml(plain_values(config))


def plain_values(config: Config) -> dict[str, Any]:
    """Return the whole configuration as plain values in a file's order; environment variables stay references."""
    values = _ordered(config)
    config._environment.restore(values)
    return values


def _ordered(config: Config) -> dict[str, Any]:
    """Return plain values in a file's order: the system's section under its name, before the ensemble."""
    values = config.model_dump(mode="json")
    of_system = {
        config.declaration.name: values.pop("settings"),
        **{key: values.pop(key) for key in ("roles", "prompts")},
    }
    ordered: dict[str, Any] = {}
    for key, value in values.items():
        ordered |= of_system if key == "ensemble" else {}
        ordered[key] = value
    return ordered


def keys_of(model: type[BaseModel] = Config, prefix: str = "", system: System | None = None) -> list[str]:
    """List every dotted key, the system's own under its name."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if model is Config and name == "settings":
            chosen = system or find_system(DEFAULT_SYSTEM)
            keys += keys_of(chosen.settings, f"{chosen.name}.")
        elif isinstance(inner, type) and issubclass(inner, BaseModel):
            keys += keys_of(inner, f"{prefix}{name}.")
        elif name == "encoder":  # of several kinds
            keys += dict.fromkeys(key for kind in _models_in(inner) for key in keys_of(kind, f"{prefix}{name}."))
        else:
            keys.append(prefix + name)
    return keys


def _read(path: str, seen: tuple[str, ...], known: dict[Path, dict[str, Any]]) -> dict[str, Any]:
    """Read a file with its bases below it; one that is ``known``, since others name it too, is read once."""
    file = _find(path, seen)
    if file in known:
        return known[file]
    if str(file) in seen:
        raise ConfigError(f"{file} is its own base, by way of {' → '.join(seen)}: remove one `base`")
    if file.suffix == ".py" or file.name.endswith(".env"):
        raise ConfigError(
            f"{file} is another program's configuration: write `base: paper` (KohakuRAG) or `base: hybrid` into a YAML "
            "file, and what differs below it"
        )
    values = parse_file(file, directory_of(file))
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds a {type(values).__name__} at its top, expected keys such as `system:`")
    below: dict[str, Any] = {}
    base = values.pop("base", None)
    bases = [] if base is None else base if isinstance(base, list) else [base]
    if not all(isinstance(name, str) for name in bases):
        raise ConfigError(
            f"{file}: base is {shown(base)}: name a file or a preset, or a list such as [demo, models/ollama]"
        )
    for name in bases:
        below = merge(below, _read(name, (*seen, str(file)), known))
    known[file] = merge(below, values)
    return known[file]


def parse_file(file: Path, directory: str = "") -> Any:
    """Read a YAML or JSON file as plain values; its paths are relative to ``directory``, or the working directory.

    Raises:
        ConfigError: It cannot be read.
    """
    name, parse = ("JSON", read_json) if file.suffix == ".json" else ("YAML", read_yaml)
    try:
        values = parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{file} is not {name}: {error}") from None
    return remember_directory(values, directory)


def _find(path: str, seen: tuple[str, ...]) -> Path:
    beside = [Path(seen[-1]).parent / path] if seen else []
    for candidate in (*beside, Path(path), PRESETS / path, PRESETS / f"{path}.yaml"):
        if os.path.isfile(candidate):
            return candidate
    presets = preset_names()
    what = "a directory and no file" if os.path.isdir(path) else "no such file and no such preset"
    raise ConfigError(f"{path[:200]}: {what}{did_you_mean(path, presets)}; {list_presets(path)}")


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings section by section; the values of ``above`` win."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        same_kind = isinstance(old, Mapping) and isinstance(value, Mapping)
        # Another kind of backend replaces the one below it: they share no keys.
        if same_kind and value.get("kind", old.get("kind")) == old.get("kind"):  # type: ignore[union-attr]
            merged[key] = merge(old, value)  # type: ignore[arg-type]
        else:
            merged[key] = value
    return merged


def override(values: dict[str, Any], text: str) -> None:
    """Apply one override ``a.b=c``, with ``c`` in YAML, in place.

    Raises:
        ConfigError: It has no key, or a parent of the key is no section.
    """
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}: expected KEY=VALUE, such as --set seed=1")
    try:
        value = read_yaml(raw) if raw.strip() else ""
    except ConfigError as error:
        raise ConfigError(f"--set {text[:200]}: {error}") from None
    except ValueError:
        value = raw
    put(values, key.strip(), value, where=f"--set {text[:200]}")


def put(values: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Set a dotted key of plain values, in place; a ``ConfigError`` names a parent that is no section."""
    *parents, last = key.split(".")
    here = values
    for parent in parents:
        inner = here.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{where}: {parent} is {shown(inner)}, which has no keys in it")
        here = inner
    here[last] = value


def _unknown(loc: tuple[str, ...], system: System) -> str:
    """Say what an unknown key may have meant: another system's section, or a misspelled key."""
    key, *parents = ".".join(_place(loc)), *loc[:-1]
    if key in system_names():
        return f"{key} are settings of another system, and system is {system.name}: set system to {key}, or drop them"
    if instead := removed_key(key):
        return instead
    keys = [name.split(".") for name in keys_of(system=system)]
    known = list(dict.fromkeys(".".join(parts[:n]) for parts in keys for n in range(1, len(parts) + 1)))
    known += [f"{key.rpartition('.')[0]}.{name}" for name in _section_at(parents).model_fields]
    last = loc[-1]
    elsewhere = next((f" (did you mean {name}?)" for name in known if name.rpartition(".")[2] == last), "")
    return f"no key {key}{did_you_mean(key, known) or elsewhere}"


def _section_at(parents: Sequence[str]) -> type[BaseModel]:
    """Return the section at a place; of several kinds, the one that pydantic's location names."""
    sections: list[type[BaseModel]] = [Config]
    for parent in parents:
        fields = sections[0].model_fields
        if parent in fields:
            sections = list(_models_in(fields[parent].annotation)) or sections
        else:  # the name of an entry, or its kind
            kinds = {
                section.model_fields["kind"].default: section for section in sections if "kind" in section.model_fields
            }
            sections = [kinds[parent]] if parent in kinds else sections
    return sections[0]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def explain(entry: Any, system: System | None = None, given: Any = None, hide: Callable[[str], str] = str) -> str:
    """Describe a pydantic error in one line.

    An unknown key is compared with those of ``system``. ``given`` holds all values as written, environment variables as
    references, and ``hide`` replaces the variables' values in a text.
    """
    if system is not None and entry["type"] == "extra_forbidden":
        return _unknown(entry["loc"], system)
    key = ".".join(_place(entry["loc"]))
    message = hide(str(entry["msg"]).removeprefix("Value error, "))
    if entry["type"] == "value_error":
        return message
    if entry["type"] == "union_tag_not_found":
        kinds = "extractive, openai, vllm, transformers, cross_encoder"
        deployments = value_at(given, ("deployments",), {})
        others = [name for name, value in deployments.items() if isinstance(value, Mapping) and "kind" in value]
        meant = f"; did you mean {' or '.join(f'deployments.{name}' for name in others)}?" if others else ""
        return f"{key} has no kind: name one, such as kind: openai (kinds: {kinds}){meant}"
    if entry["type"] == "invalid_key":
        where = f"{key.rpartition('.')[0]}: key " if "." in key else "key "
        return f"{where}{label_of(entry['input'])} is no text: put it in quotes, or correct it"
    got = shown(value_at(given, _place(entry["loc"]), entry.get("input")), hide)
    text = "" if entry["type"] == "missing" else f" is {got}:"
    if entry["type"] in ("int_parsing", "float_parsing") and _GROUPED.fullmatch(str(entry.get("input"))):
        message += ": write it as 2_000_000 or 2000000"
    if entry["type"] == "tuple_type":
        message = f"a list is needed{f', such as [{got}]' if isinstance(entry['input'], str) else ''}"
    elif entry["type"] in ("model_type", "dict_type", "model_attributes_type"):
        section = _section_at(entry["loc"])
        is_known = entry["type"] == "model_type" and section is not Config  # a system's own section is not in it
        keys = f", with keys such as {', '.join([*section.model_fields][:3])}" if is_known else ""
        message = f"a section is needed{keys}"
    return f"{key}{text} {message[:1].lower()}{message[1:]}"
