"""README and docs/ as tests read them: their commands, their YAML files, their links."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """A line of a bash block."""

    page: Path
    line: str

    @property
    def words(self) -> list[str]:
        """Its words, without a comment."""
        return shlex.split(self.line, comments=True)

    def __str__(self) -> str:
        return f"{self.page.stem}: {self.line}"


def blocks(page: Path, *languages: str) -> list[str]:
    """Return a page's fenced blocks in some languages."""
    return [text for language, text in _FENCE.findall(page.read_text(encoding="utf-8")) if language in languages]


def commands(page: Path) -> list[Command]:
    """Return every command of a page's bash blocks."""
    lines = [line.strip() for block in blocks(page, "bash", "sh") for line in block.split("\n")]
    return [Command(page, line) for line in lines if line and not line.startswith("#")]


def yaml_files(page: Path) -> dict[str, str]:
    """Return a page's YAML blocks that begin with a file's name, by that name."""
    found = (re.match(r"# (\S+\.yaml)\n", block) for block in blocks(page, "yaml"))
    return {match[1]: match.string for match in found if match}


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title.lower())).strip("-") for title in titles}


def links(page: Path) -> list[str]:
    """Return the targets of a page's links and pictures."""
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text(encoding="utf-8")))
    return re.findall(r"\]\(([^)\s]+)\)", text)
