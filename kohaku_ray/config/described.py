"""Write a configuration as YAML with what each setting means above it: `validate --settings`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from kohaku_ray.config.load import plain_values
from kohaku_ray.config.schema import Config
from kohaku_ray.config.yaml_text import write_yaml
from kohaku_ray.settings import Settings, read_meanings

WIDTH = 110


def write_settings(config: Config) -> str:
    """Write every setting of a configuration, defaults included, with its meaning, type and bounds as comments.

    Returns:
        YAML that is read as the same configuration; environment variables stay references.
    """
    parts = {**{name: getattr(config, name) for name in Config.model_fields}, config.declaration.name: config.settings}
    return "\n".join(_lines(plain_values(config), parts, type(config), 0))


def _lines(values: Mapping[str, Any], parts: Mapping[str, Any], section: type[Settings], indent: int) -> Iterator[str]:
    meanings, described = read_meanings(section), section.model_json_schema()["properties"]
    for name, value in values.items():
        part = parts.get(name)
        if isinstance(part, Settings):
            yield from _section(name, value, part, indent)
        elif isinstance(part, Mapping) and any(isinstance(item, Settings) for item in part.values()):
            yield from _comment(meanings.get(name, ""), indent)
            yield f"{' ' * indent}{name}:"
            for key, item in part.items():
                yield from _section(key, value[key], item, indent + 2)
        else:
            told = meanings.get(name, "")
            kind = _type(described[name]) if name in described else ""
            yield from _comment(f"{told} ({kind})" if told and kind else told, indent)
            written = write_yaml({name: value}, WIDTH)
            yield textwrap.indent(written.rstrip("\n"), " " * indent)


def _section(name: str, values: Mapping[str, Any], part: Settings, indent: int) -> Iterator[str]:
    yield ""
    yield from _comment(" ".join((type(part).__doc__ or "").split("\n\n")[0].split()), indent)
    yield f"{' ' * indent}{name}:"
    yield from _lines(values, {key: getattr(part, key) for key in type(part).model_fields}, type(part), indent + 2)


def _comment(text: str, indent: int) -> Iterator[str]:
    start = " " * indent + "# "
    yield from textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False)


def _type(entry: Mapping[str, Any]) -> str:
    """Write a type of a JSON schema with its bounds; none for another section."""
    return " or ".join(filter(None, (_kind(option) for option in entry.get("anyOf", [entry]))))


def _kind(option: Mapping[str, Any]) -> str:
    if "enum" in option or "const" in option:
        return ", ".join(map(str, option.get("enum", [option.get("const")])))
    if option.get("type") == "array":
        return f"list of {_kind(option.get('items', {})) or 'values'}"
    names = {"string": "text", "object": "mapping"}
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    written = [f"{sign} {option[bound]:g}" for bound, sign in bounds.items() if bound in option]
    kind = option.get("type", "")
    return " ".join([names.get(kind, kind), ", ".join(written)]).strip()
