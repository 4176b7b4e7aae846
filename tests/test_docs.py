"""README and docs: commands that parse, links that lead somewhere, tables that are the code's."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kohaku_ray.cli import _parser
from kohaku_ray.config import load_config
from kohaku_ray.runs.tables import SCHEMAS

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text(encoding="utf-8")) if language in languages]


def commands_of(page: Path) -> list[list[str]]:
    lines = (line for body in blocks(page, "bash", "sh") for line in body.splitlines())
    return [words for line in lines if (words := shlex.split(line, comments=True))]


COMMANDS = [(page.name, words) for page in PAGES for words in commands_of(page)]


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=lambda part: part if isinstance(part, str) else part[0])
def test_every_command_parses(page, words):
    if words[:3] == ["ray", "job", "submit"]:
        words = words[words.index("--") + 1 :]
    if words[0] == "make":
        targets = (ROOT / "Makefile").read_text()
        assert all(re.search(rf"^{re.escape(target)}:", targets, re.MULTILINE) for target in words[1:])
    elif words[0] == "kohaku-ray":
        assert isinstance(_parser().parse_args(words[1:]), argparse.Namespace)
    else:
        raise AssertionError(f"{page}: {words[0]} is neither make nor kohaku-ray: say how it is tested")


def test_readme_shows_enough_commands():
    assert len(COMMANDS) > 15


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_link_is_dead(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = page if not name else (page.parent / name).resolve()
        assert there.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(there), f"{page.name} links to {target}; there are {sorted(anchors(there))}"


def test_the_configuration_page_is_what_the_schema_says():
    script = ROOT / "scripts" / "configuration_page.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\|\s*\|\n", (ROOT / "docs" / "configuration.md").read_text()) is None, "a key has no meaning"


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_column_is_explained(table):
    text = (ROOT / "docs" / "outputs.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {table}\n")[1].split("\n## ")[0]
    named = [
        name for cell in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    ]
    assert sorted(named) == sorted(SCHEMAS[table].names)


def test_every_page_is_in_the_navigation_and_in_the_readme():
    listed = {next(iter(entry.values())) for entry in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]}
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert listed == pages
    readme = (ROOT / "README.md").read_text()
    assert {name for name in pages if f"(docs/{name})" in readme} == pages


def test_the_readme_is_one_page_and_its_own_configuration_ten_lines(tmp_path, monkeypatch):
    readme = ROOT / "README.md"
    assert len(readme.read_text().splitlines()) <= 90
    [own] = blocks(readme, "yaml")
    assert own == blocks(ROOT / "docs" / "index.md", "yaml")[0]
    assert len([line for line in own.splitlines() if not line.startswith("#")]) <= 10
    (tmp_path / "my.yaml").write_text(own)
    config = load_config(str(tmp_path / "my.yaml"))
    assert config.role("answer").model == "big"
    assert config.documents.paths == (str(tmp_path / "docs"),)
