"""PDF parsing against bare text extraction: pages per second of `parse_file` and of PyMuPDF's `get_text("text")`.

The parser also finds columns, headings, tables, running heads and sentences. Both run in turns in one process on the
same bytes; a middle row leaves out the sentences, to show the cost of the layout.

    python benchmarks/parse.py [--pages 200] [--rounds 5] [FILE.pdf …]
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import pymupdf

from kohaku_ray import sample
from kohaku_ray.documents.parse import parse_file
from kohaku_ray.documents.pdf import headings
from kohaku_ray.documents.pdf.document import parse_pdf
from kohaku_ray.documents.read import read_bytes

WANTED = 0.5
WORDS = re.findall(
    r"\w+",
    "energy model data centre power server training inference accelerator cooling water carbon intensity measured "
    "figure request token the of and in a to was were is that for with by on",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="PDFs to measure as well")
    parser.add_argument("--pages", type=int, default=200, help="pages of two-column text to generate")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    documents = Path(sample.path("documents"))
    corpora = {
        f"generated, {arguments.pages} pages": [generated(arguments.pages)],
        "sample": [file.read_bytes() for file in sorted(documents.glob("*.pdf"))] * 10,
        **{file.name: [read_bytes(str(file))] for file in arguments.files},
    }
    print(f"{'':<28}{'':<22}{'pages/s':>9}{'CPU ms':>9}{'wall ms':>9}{'ratio':>8}   (per page; ratio of CPU time)")
    kept = [report(name, files, arguments.rounds) for name, files in corpora.items()]
    return 0 if all(kept) else 1


def report(name: str, files: Sequence[bytes], rounds: int) -> bool:
    """Print the rows of one corpus; returns whether the parser reaches the target ratio."""
    ways: dict[str, Callable[[bytes], object]] = {
        "bare get_text": bare,
        "layout, no sentences": without_sentences,
        "parse_file": lambda data: parse_file("x.pdf", data),
    }
    n_pages = sum(pymupdf.open(stream=data).page_count for data in files)
    spent: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for work in ways.values():
        work(files[0])
    for _ in range(rounds):
        for way, work in ways.items():
            spent[way].append(timed(work, files))
    cpu = {way: statistics.median(seconds for seconds, _ in times) for way, times in spent.items()}
    for way, times in spent.items():
        wall = statistics.median(seconds for _, seconds in times)
        ratio = cpu["bare get_text"] / cpu[way]
        print(
            f"{name:<28}{way:<22}{n_pages / wall:>9.0f}{1000 * cpu[way] / n_pages:>9.2f}{1000 * wall / n_pages:>9.2f}"
            f"{ratio:>8.2f}" + (f"   target ≥ {WANTED}" if way == "parse_file" else "")
        )
        name = ""
    return cpu["bare get_text"] / cpu["parse_file"] >= WANTED


def timed(work: Callable[[bytes], object], files: Sequence[bytes]) -> tuple[float, float]:
    """CPU and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    for data in files:
        work(data)
    return time.process_time() - cpu, time.perf_counter() - wall


def bare(data: bytes) -> int:
    with pymupdf.open(stream=data, filetype="pdf") as file:
        return sum(len(page.get_text("text")) for page in file)


def without_sentences(data: bytes) -> object:
    with (
        mock.patch.object(headings, "split_sentences", return_value=()),
        mock.patch.object(headings, "split_lines", return_value=()),
    ):
        return parse_pdf("x.pdf", data)


def generated(n_pages: int) -> bytes:
    """Two-column pages with running heads and numbers, headings and paragraphs of drawn words."""
    draw = random.Random(1)
    file = pymupdf.open()
    font = pymupdf.Font("tiro")
    for number in range(n_pages):
        page = file.new_page(width=595, height=842)
        writer = pymupdf.TextWriter(page.rect)
        writer.append((50, 40), f"A Study of Power, page {number + 1}", font=font, fontsize=8)
        for x in (50, 305):
            writer.append((x, 74), f"{number + 1}.{1 + (x > 50)} {draw.choice(WORDS).title()}", font=font, fontsize=12)
            y = 95.0
            while y < 760:
                for line in paragraph(draw, font, 240):
                    writer.append((x, y), line, font=font, fontsize=9.5)
                    y += 11.5
                y += 8
        writer.write_text(page)
    return bytes(file.tobytes(garbage=3, deflate=True))


def paragraph(draw: random.Random, font: pymupdf.Font, width: float) -> list[str]:
    """Lines of three to six sentences, no wider than ``width`` points."""
    words: list[str] = []
    for _ in range(draw.randint(3, 6)):
        sentence = [draw.choice(WORDS) for _ in range(draw.randint(9, 24))]
        words += [sentence[0].title(), *sentence[1:-1], sentence[-1] + "."]
    lines = [""]
    for word in words:
        if lines[-1] and font.text_length(f"{lines[-1]} {word}", 9.5) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


if __name__ == "__main__":
    sys.exit(main())
