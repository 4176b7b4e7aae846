"""CONTRIBUTING's table "Where is …" is true: every file and every name is there, four openings each at most."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Where is …")[2].partition("\n## ")[0]
ROWS = dict(re.findall(r"^\| (?!…)(.+?) \| (`.+) \|$", TABLE, re.MULTILINE))
MOST_OPENINGS = 4


def names_of(tree: ast.AST, prefix: str = "") -> set[str]:
    """Every function, class, method and module constant, as ``Class.method``."""
    names = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(f"{prefix}{node.name}")
        if isinstance(node, ast.ClassDef):
            names |= names_of(node, f"{prefix}{node.name}.")
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {f"{prefix}{target.id}" for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("question", ROWS)
def test_every_file_and_name_of_the_table_is_there(question):
    openings = [re.findall(r"`([^`]+)`", opening) for opening in ROWS[question].split(" → ")]
    assert 1 <= len(openings) <= MOST_OPENINGS
    for path, *names in openings:
        file = ROOT / "kohaku_ray" / path
        assert file.is_file(), path
        assert names, f"{path}: say what to look for"
        missing = set(names) - names_of(ast.parse(file.read_text(encoding="utf-8")))
        assert not missing, f"{path} has no {', '.join(sorted(missing))}"


def test_the_table_answers_twenty_questions():
    assert len(ROWS) >= 20
    asked = " ".join(ROWS)
    for word in ("seed", "reply", "vote", "index", "vLLM", "failed call", "submission.csv", "cell", "format", "budget"):
        assert word in asked, word
