"""CONTRIBUTING is true: every file and name of "Where is …" and of the core's twelve files is there."""

import ast
import re
from pathlib import Path

from kit.rows import check_rows

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TABLE = TEXT.partition("## Where is …")[2].partition("\n## ")[0]
ROWS = dict(re.findall(r"^\| (?!…)(.+?) \| (`.+) \|$", TABLE, re.MULTILINE))
MOST_OPENINGS = 4
CORE = re.findall(r"^\d+\. (`.+`): \S", TEXT.partition("## The house")[2].partition("\n| ")[0], re.MULTILINE)
"""The files that tell the core, in the order in which to read them."""


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


def check_opening(opening: str) -> None:
    path, *names = re.findall(r"`([^`]+)`", opening)
    file = ROOT / "kohaku_ray" / path
    assert file.is_file(), path
    assert names, f"{path}: say what to look for"
    missing = set(names) - names_of(ast.parse(file.read_text(encoding="utf-8")))
    assert not missing, f"{path} has no {', '.join(sorted(missing))}"


@check_rows("question", ROWS)
def test_every_file_and_name_of_the_table_is_there(question):
    openings = ROWS[question].split(" → ")
    assert 1 <= len(openings) <= MOST_OPENINGS
    for opening in openings:
        check_opening(opening)


def test_twelve_files_tell_the_core_from_the_command_to_the_submission():
    assert len(CORE) == 12
    for opening in CORE:
        check_opening(opening)
    assert "`answer`" in CORE[0]
    assert "`write_run`" in CORE[-1]


def test_every_room_stands_in_the_house():
    rooms = {file.parent.name for file in (ROOT / "kohaku_ray").glob("*/__init__.py")} - {"sample"}
    table = TEXT.partition("| room |")[2].partition("\n\n")[0]
    assert {room for room in rooms if f"`{room}/`" not in table} == set()
