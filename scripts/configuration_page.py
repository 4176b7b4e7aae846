"""Write docs/configuration.md from the schema: every key with its type, bounds, default and meaning.

python scripts/configuration_page.py            # writes the page
python scripts/configuration_page.py --check    # exits 1 where the page is not what the schema says
"""

from __future__ import annotations

import json
import re
import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kohaku_ray.config.deployments import (
    CrossEncoderConfig,
    ExtractiveConfig,
    OpenAIConfig,
    TransformersConfig,
    VllmConfig,
)
from kohaku_ray.config.schema import Config
from kohaku_ray.config.sweep_schema import PoolConfig, SweepConfig, TableConfig
from kohaku_ray.systems.registry import find_system, system_names

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"

HEAD = """# Configuration

<!-- Written by scripts/configuration_page.py from the schema: change the docstrings there. -->

One YAML file per run (also `.toml`, `.json`, and KohakuRAG's own `.py`, read as literals and never run). Every key may
be given on the command line as `--set a.b=c`; an unknown key answers "did you mean", a key that moved its new place.

```yaml
base: [demo, models/ollama]     # presets or files in this file's directory; later ones win
run: runs/mine                  # relative paths in a file are relative to that file
documents: {paths: [docs/]}
questions: {path: questions.csv}
kohaku: {top_k: 16}             # the section of the system has its name
```

`${NAME}` takes a value from the environment; it is used and never written. `kohaku-ray validate CONFIG --settings`
prints every key of a configuration with its value.
"""


def main() -> int:
    """Write or check the page."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text
    if stale:
        print(f"{PAGE.name} is not what the schema says: python scripts/configuration_page.py", file=sys.stderr)  # noqa: T201
    return int(stale)


def page() -> str:
    """Return the whole page."""
    skipped = {"settings", "deployments", "roles"}
    top = [(name, field) for name, field in Config.model_fields.items() if name not in skipped]
    plain = [(name, field) for name, field in top if _section(field) is None]
    parts = [HEAD, "## The run\n", _table(plain)]
    for name, field in top:
        section = _section(field)
        if section is not None:
            parts += [f"## {name}\n", f"{_one_line(section.__doc__)}\n", _table(_flat(section, ""))]
    parts += ["## roles\n", "`roles.NAME`: model and sampling of a role, such as `plan` and `answer`.\n"]
    parts.append(_table(_flat(_value_section(Config.model_fields["roles"]), "")))
    for name in system_names():
        system = find_system(name)
        doc = _one_line(system.settings.__doc__)
        parts += [f"## {name}\n", f"{doc}\n", _table(_flat(system.settings, ""))]
    parts.append("## deployments\n")
    parts.append("`deployments.NAME`: a model backend; `kind` decides which keys it has.\n")
    for kind in (OpenAIConfig, VllmConfig, TransformersConfig, CrossEncoderConfig, ExtractiveConfig):
        label = kind.model_fields["kind"].default
        parts += [f"### kind: {label}\n", f"{_one_line(kind.__doc__)}\n", _table(_flat(kind, ""), skip=("kind",))]
    parts += ["## A sweep's file\n", f"{_one_line(SweepConfig.__doc__)}\n", _table(_flat(SweepConfig, ""))]
    parts += ["### pool\n", f"{_one_line(PoolConfig.__doc__)}\n", _table(_flat(PoolConfig, ""))]
    own = [(name, field) for name, field in _flat(TableConfig, "") if name not in SweepConfig.model_fields]
    parts += ["### tables\n", f"{_one_line(TableConfig.__doc__)}\n", _table(own)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _flat(section: type[BaseModel], prefix: str) -> list[tuple[str, FieldInfo]]:
    found: list[tuple[str, FieldInfo]] = []
    for name, field in section.model_fields.items():
        inner = _section(field)
        if inner is not None and not issubclass(inner, PoolConfig | TableConfig):
            found += _flat(inner, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", field))
    return found


def _table(fields: list[tuple[str, FieldInfo]], skip: tuple[str, ...] = ()) -> str:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in fields:
        if name not in skip:
            cells = (f"`{name}`", _type(field), _default(field), _one_line(field.description).replace("None:", "null:"))
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _section(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a field holds, if it is one."""
    options = [field.annotation, *get_args(field.annotation)]
    found = [one for one in options if isinstance(one, type) and issubclass(one, BaseModel)]
    is_mapping = get_origin(field.annotation) in (dict, tuple, list)
    return found[0] if found and not is_mapping else None


def _value_section(field: FieldInfo) -> type[BaseModel]:
    return typing.cast("type[BaseModel]", get_args(field.annotation)[1])


def _type(field: FieldInfo) -> str:
    bounds = {}
    for rule in field.metadata:
        for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
            if getattr(rule, name, None) is not None:
                bounds[sign] = getattr(rule, name)
    shown, inner = _type_name(field.annotation)
    bounds |= inner
    return shown + "".join(f", {sign} {value:g}" for sign, value in bounds.items())


def _type_name(kind: Any) -> tuple[str, dict[str, float]]:
    origin, args = get_origin(kind), get_args(kind)
    if origin is typing.Annotated:
        name, bounds = _type_name(args[0])
        for rule in args[1:]:
            for rules in (rule, *getattr(rule, "metadata", ())):
                for key, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
                    if getattr(rules, key, None) is not None:
                        bounds[sign] = getattr(rules, key)
        return name, bounds
    if origin is Literal:
        return " · ".join(f"`{_yaml(one)}`" for one in args), {}
    if origin in (typing.Union, types.UnionType):
        names, bounds = [], {}
        for one in args:
            name, own = ("null", {}) if one is type(None) else _type_name(one)
            names.append(name)
            bounds |= own
        return " or ".join(names), bounds
    if origin in (tuple, list):
        return f"list of {_type_name(args[0])[0]}", {}
    if origin in (dict, typing.Mapping) or (origin is not None and "Mapping" in str(origin)):
        return "mapping", {}
    names = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}
    return names.get(kind, getattr(kind, "__name__", str(kind))), {}


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel):
        return ""
    return f"`{_yaml(value)}`"


def _yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    return json.dumps(value) if isinstance(value, dict) else f"{value:g}" if isinstance(value, float) else str(value)


def _one_line(text: str | None) -> str:
    first = re.split(r"\n\s*\n|\n\s*Attributes:", (text or "").strip())[0]
    return " ".join(first.replace("``", "`").split())


if __name__ == "__main__":
    sys.exit(main())
