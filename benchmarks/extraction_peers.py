"""Run other extractors on files, for extraction.py, in the environment that it makes for them.

    python extraction_peers.py FILE… > replies.jsonl

A line per file and tool: its text, its tables as rows of cells, and its milliseconds.
"""

from __future__ import annotations

import json
import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

Grid = list[list[str]]
_PIPES = re.compile(r"^\s*\|.*\|\s*$")


def pipe_tables(text: str) -> list[Grid]:
    """Tables of Markdown."""
    grids: list[Grid] = [[]]
    for line in text.split("\n"):
        if not _PIPES.match(line):
            grids.append([])
        elif not re.fullmatch(r"[\s|:-]+", line):
            cells = re.split(r"(?<!\\)\|", line.strip()[1:-1])
            grids[-1].append([cell.replace("\\|", "|").strip() for cell in cells])
    return [grid for grid in grids if grid]


def spaced_tables(text: str) -> list[Grid]:
    """Lines with cells two spaces apart."""
    grids: list[Grid] = [[]]
    for line in text.split("\n"):
        cells = re.split(r"\s{2,}", line.strip())
        grids[-1].append(cells) if len(cells) > 1 else grids.append([])
    return [grid for grid in grids if grid]


def pymupdf4llm(path: Path) -> tuple[str, list[Grid]]:
    import pymupdf4llm as tool

    text = tool.to_markdown(str(path))
    return text, pipe_tables(text)


def pdfplumber(path: Path) -> tuple[str, list[Grid]]:
    import pdfplumber as tool

    with tool.open(path) as file:
        text = "\n".join(page.extract_text() or "" for page in file.pages)
        grids = [
            [[cell or "" for cell in row] for row in table] for page in file.pages for table in page.extract_tables()
        ]
    return text, grids or spaced_tables(text)


def pypdf(path: Path) -> tuple[str, list[Grid]]:
    import pypdf as tool

    pages = tool.PdfReader(path).pages
    return "\n".join(page.extract_text() for page in pages), spaced_tables(
        "\n".join(page.extract_text(extraction_mode="layout") for page in pages)
    )


def markitdown(path: Path) -> tuple[str, list[Grid]]:
    from markitdown import MarkItDown

    text = MarkItDown().convert(str(path)).text_content
    return text, pipe_tables(text)


def trafilatura(path: Path) -> tuple[str, list[Grid]]:
    import trafilatura as tool

    source = path.read_text(encoding="utf-8")
    text = tool.extract(source, output_format="markdown", include_formatting=True, favor_recall=True) or ""
    return text, pipe_tables(text)


TOOLS: dict[str, tuple[Callable[[Path], tuple[str, list[Grid]]], ...]] = {
    ".pdf": (pymupdf4llm, pdfplumber, pypdf, markitdown),
    ".html": (trafilatura, markitdown),
    ".docx": (markitdown,),
}


def main() -> int:
    warnings.simplefilter("ignore")
    replies = sys.stdout
    sys.stdout = sys.stderr  # some tools print
    warm: set[str] = set()
    for path in map(Path, sys.argv[1:]):
        for tool in TOOLS.get(path.suffix, ()):
            try:
                if tool.__name__ not in warm:
                    tool(path)  # imports and models are loaded
                    warm.add(tool.__name__)
                start = time.perf_counter()
                text, grids = tool(path)
                reply = {"text": text, "grids": grids, "ms": 1000 * (time.perf_counter() - start)}
            except Exception as error:  # a tool that fails on a file has nothing right in it
                reply = {"text": "", "grids": [], "ms": 0.0, "error": f"{type(error).__name__}: {error}"[:200]}
            print(json.dumps({"file": path.name, "tool": tool.__name__, **reply}), file=replies, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
