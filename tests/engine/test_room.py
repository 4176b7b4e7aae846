"""The engine is the room of Ray: a module that needs none belongs where it can be read and tested without."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kohaku_ray.engine

ROOM = Path(kohaku_ray.engine.__file__).parent
MODULES = [str(file.relative_to(ROOM)) for file in sorted(ROOM.rglob("*.py")) if file.name != "__init__.py"]


@pytest.mark.parametrize("module", MODULES)
def test_every_module_of_the_engine_imports_ray_or_works_in_a_session_on_it(module):
    tree = ast.parse((ROOM / module).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    packages = {name.partition(".")[0] for name in imported}
    assert "ray" in packages or "kohaku_ray.engine.session" in imported
