"""Read YAML and JSON as a person does: no key twice, no number in another base, no text that unfolds without end.

And write YAML that is read as what it was.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from kohaku_ray.errors import ConfigError

MOST_VALUES = 100_000
"""Most values of a file, each counted as often as aliases repeat it."""

MOST_DEPTH = 64
"""Most lists and sections inside each other."""


_INT, _FLOAT, _BOOL, _MERGE = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "merge"))


class _Loader(yaml.SafeLoader):
    """PyYAML's loader but for YAML 1.1's numbers: 010 is ten, not eight, and 1:30 is a text, not ninety."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # as the base class has it
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_INT, _FLOAT)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_WHOLE = r"[-+]?[0-9][0-9_]*$|0o[0-7]+$|0x[0-9a-fA-F]+$"
_DECIMAL = r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?$|[-+]?\.(?:inf|Inf)$|\.(?:nan|NaN)$"


class _Dumper(yaml.SafeDumper):
    """PyYAML's dumper, which also quotes texts that are numbers to ``_Loader`` alone: ``1e5``."""


for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver(_INT, re.compile(_WHOLE), list("-+0123456789"))
    _each.add_implicit_resolver(_FLOAT, re.compile(_DECIMAL), list("-+0123456789."))


_Loader.add_constructor(
    _INT, lambda _, node: int(node.value.replace("_", ""), {"0o": 8, "0x": 16}.get(node.value[:2], 10))
)


def read_yaml(text: str | bytes) -> Any:
    """Read a YAML document as plain values.

    Raises:
        ConfigError: It has a key twice, or unfolds to more than ``MOST_VALUES`` values or ``MOST_DEPTH`` sections.
        ValueError: It is no YAML.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _measure(node, {}, [])
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError(f"more than {MOST_DEPTH} lists and sections stand inside each other: write fewer") from None
    except Exception as error:  # PyYAML may raise anything if a tag does not fit its text
        # its name of a text tells a reader nothing: the caller says which file it is
        raise ValueError(" ".join(str(error).replace('in "<unicode string>", line', "in line").split())) from None


def write_yaml(values: Any, width: int = 80) -> str:
    """Write plain values as YAML that `read_yaml` reads as these, in their order; ``width``: of its lines."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)


def read_json(text: str) -> Any:
    """Read a JSON document as plain values.

    Raises:
        ConfigError: It has a key twice.
        ValueError: It is no JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ConfigError("too many lists and objects stand inside each other: write fewer") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"key {name} is there twice: leave one")
    return values


def _measure(node: yaml.Node, sizes: dict[int, int], above: list[yaml.Node]) -> int:
    """Count a node's values, with those that aliases repeat; ``sizes`` are those of nodes that are counted already."""
    if id(node) in sizes:
        return sizes[id(node)]
    line = node.start_mark.line + 1
    if any(node is parent for parent in above):
        raise ConfigError(f"the value in line {line} holds itself, by an alias (*): write it out")
    if len(above) > MOST_DEPTH:
        raise ConfigError(
            f"line {line}: more than {MOST_DEPTH} lists and sections stand inside each other: write fewer"
        )
    inner = list(node.value) if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        _check_keys(node)
        inner = [part for pair in node.value for part in pair]
    size = 1 + sum(_measure(part, sizes, [*above, node]) for part in inner)
    if size > MOST_VALUES:
        raise ConfigError(
            f"the value in line {line} unfolds to more than {MOST_VALUES:,} values: write fewer aliases (*)"
        )
    sizes[id(node)] = size
    return size


def _check_keys(node: yaml.MappingNode) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"line {line}: a list or section stands where a key should: write a text in quotes")
        if key.tag in (_INT, _FLOAT) and node.flow_style and isinstance(value, yaml.ScalarNode) and not value.value:
            raise ConfigError(
                f"line {line}: within braces a comma ends a value, so that {key.value} is a key: "
                "write numbers as 2_000_000 or 1.5"
            )
        name = key.tag, key.value.lower() if key.tag == _BOOL else key.value
        if name in lines:
            way_out = "write one, <<: [*a, *b]" if key.tag == _MERGE else "leave one"
            raise ConfigError(f"key {key.value} is there twice, in lines {lines[name]} and {line}: {way_out}")
        lines[name] = line
