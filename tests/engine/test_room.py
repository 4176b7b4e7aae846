"""The engine is the room of Ray: a module that needs none belongs where it can be read and tested without."""

from __future__ import annotations

import ast
from pathlib import Path

import kohaku_ray.engine

ROOM = Path(kohaku_ray.engine.__file__).parent


def needs_ray(module: Path) -> bool:
    """Whether it imports Ray, itself or by another module of the engine."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    inner = (name.removeprefix("kohaku_ray.engine.") for name in imported if name.startswith("kohaku_ray.engine."))
    others = (ROOM / f"{name.replace('.', '/')}.py" for name in inner)
    return "ray" in {name.partition(".")[0] for name in imported} or any(map(needs_ray, filter(Path.is_file, others)))


def test_every_module_of_the_engine_needs_ray():
    modules = [file for file in ROOM.rglob("*.py") if file.name != "__init__.py"]
    assert len(modules) > 20
    assert [str(module.relative_to(ROOM)) for module in modules if not needs_ray(module)] == []
