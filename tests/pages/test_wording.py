"""What messages and pages never show: made-up plurals, names that only the code knows, Markdown's backticks."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from kit.rows import check_rows

import kohaku_ray
from kohaku_ray.checks.demand import shortage
from kohaku_ray.pages.text import write_duration
from kohaku_ray.records import pluralize

PACKAGE = Path(kohaku_ray.__file__).parent


def test_no_text_has_a_plural_in_brackets():
    """A count is written with its noun by ``pluralize``."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts = re.findall(r"\w+\((?:s|es)\)", node.value)
                assert [text for text in texts if text != "http(s)"] == [], f"{file.name}, line {node.lineno}"


def test_no_template_shows_backticks():
    for file in (PACKAGE / "pages/templates").glob("*.html.j2"):
        shown = re.sub(r"\{#.*?#\}|\{%.*?%\}|<script.*?</script>", "", file.read_text(), flags=re.DOTALL)
        assert "`" not in shown, file.name


def test_no_template_writes_a_plural_behind_any_count():
    for file in (PACKAGE / "pages/templates").glob("*.html.j2"):
        counts = re.findall(r"(?<!of )\{\{ (?!limits)[^{}]*\|count \}\} \w+s\b", file.read_text())
        assert counts == [], file.name


@check_rows(("n", "text"), [(1, "1 CPU"), (1.0, "1 CPU"), (0.5, "0.5 CPUs"), (0, "0 CPUs"), (12_345, "12,345 CPUs")])
def test_counts_and_amounts_agree_with_their_noun(n, text):
    assert pluralize(n, "CPU") == text


def test_one_of_a_kind_needs_and_several_need():
    resources = {"CPU": 1.0, "GPU": 0.0}
    assert shortage("1 retriever", {"CPU": 2}, resources) == "the cluster has 1 CPU but 1 retriever needs 2"
    both = "1 retriever and 1 replica of big"
    assert shortage(both, {"GPU": 1}, resources) == f"the cluster has 0 GPUs but {both} need 1"


@check_rows(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min 0 s"), (1265, "21 min 5 s"), (15_600, "4 h 20 min"), (7200, "2 h 0 min")],
)
def test_a_duration_has_its_two_largest_units(seconds, text):
    assert write_duration(seconds) == text
