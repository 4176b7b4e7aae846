"""The suite as a thing people live with: what it costs before its first test, and which tier starts what."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.installed import IMPORTED

TESTS = Path(__file__).parents[1]
LONGEST_SLEEP_S = 5.0


@functools.cache
def files() -> dict[str, ast.Module]:
    return {str(file.relative_to(TESTS)): ast.parse(file.read_text(encoding="utf-8")) for file in TESTS.rglob("*.py")}


def test_collection_imports_nothing_that_takes_seconds():
    assert IMPORTED == {}, "import it in the test, or use kit.installed"


def test_nothing_sleeps_for_long():
    """A test waits for what happens; what is to be killed, or to answer too late, may sleep: it stands in a lambda."""
    long = {
        f"{name}:{node.lineno}"
        for name, tree in files().items()
        if not name.startswith("kit/")
        for node in outside_lambdas(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
        if isinstance(node.args[0], ast.Constant) and node.args[0].value > LONGEST_SLEEP_S
    }
    assert not long, "make the interval an argument"


def outside_lambdas(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.Lambda):
            yield node
            yield from outside_lambdas(node)


@pytest.mark.parametrize(("variable", "markers"), [("ON_RAY", {"ray", "vllm"}), ("KILLED", {"chaos"})])
def test_the_tiers_name_the_rooms_of_their_tests(variable, markers):
    """`make` collects a tier's tests in these rooms alone."""
    [rooms] = re.findall(rf"^{variable} := (.*)", (TESTS.parent / "Makefile").read_text(), re.MULTILINE)
    named = tuple(room.removeprefix("tests/") for room in rooms.split())
    marked = {
        name
        for name, tree in files().items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in markers and ast.unparse(node.value) == "pytest.mark")
        or ("ray" in markers and isinstance(node, ast.FunctionDef) and "cluster" in [a.arg for a in node.args.args])
        if Path(name).name.startswith("test_")
    }
    assert marked
    assert {name for name in marked if not name.startswith(named)} == set()
