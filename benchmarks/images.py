"""Extraction of images against parsing without it, on a paper of two columns with ten figures.

The peer is bare PyMuPDF on the same images: `get_images`, a pixmap of each, the pixmap as PNG; it finds no place, no
caption and no vector figure, and lays no soft mask over white. All run in turns in one process on the same bytes.

    python benchmarks/images.py [--pages 14] [--rounds 9] [--words 850]
"""

from __future__ import annotations

import argparse
import io
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pymupdf
from PIL import Image

from kohaku_ray.collection.indexing import parse
from kohaku_ray.config import load_config
from kohaku_ray.documents.figures import ImageSource, images_of
from kohaku_ray.documents.parse import parse_documents, parse_file

MOST = 0.30
"""Largest share by which extraction may lengthen parsing."""
WORDS = re.findall(
    r"\w+",
    "energy model data centre power server training inference accelerator cooling water carbon intensity measured "
    "figure request token the of and in a to was were is that for with by on",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=14)
    parser.add_argument("--words", type=int, default=850, help="words per page without a figure")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    data = paper(arguments.pages, arguments.words)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "paper.pdf").write_bytes(data)
        return report(arguments, data, folder)


def report(arguments: argparse.Namespace, data: bytes, folder: str) -> int:
    ways: dict[str, Callable[[], object]] = {
        "parse, no images": lambda: parse_file("paper.pdf", data),
        "parse, images": lambda: parse_documents("paper.pdf", data, images=ImageSource()),
        "index job, no images": lambda: parse_stage(folder, images=False),
        "index job, images": lambda: parse_stage(folder, images=True),
        "bare get_images + pixmap": lambda: bare(data, as_png=False),
        "bare … + PNG": lambda: bare(data, as_png=True),
    }
    (document,) = parse_documents("paper.pdf", data, images=ImageSource()).documents
    images = images_of(document)
    n_words = sum(len(paragraph.text.split()) for section in document.sections for paragraph in section.paragraphs)
    megapixels = sum(image.width * image.height for _, _, image in images) / 1e6
    n_captions = sum(image.caption is not None for _, _, image in images)
    print(
        f"{arguments.pages} pages, {n_words} words, {len(data) / 2**20:.1f} MiB; {len(images)} images extracted, "
        f"{n_captions} with a caption, {megapixels:.1f} megapixels"
    )
    best = measured(ways, arguments.rounds)
    base = best["parse, no images"]
    print(f"{'best of ' + str(arguments.rounds):<28}{'CPU ms':>9}{'wall ms':>9}{'CPU, of parsing':>17}")
    for way, (cpu, wall) in best.items():
        print(f"{way:<28}{1000 * cpu:>9.1f}{1000 * wall:>9.1f}{cpu / base[0]:>17.2f}")
    added = best["parse, images"][0] - base[0]
    pixmaps, pngs = best["bare get_images + pixmap"][0], best["bare … + PNG"][0]
    stage = best["index job, images"][1] / best["index job, no images"][1] - 1
    print(
        f"extraction adds {added / base[0]:.0%} to parsing alone and {stage:.0%} to the index job's parse stage "
        f"(wanted: at most {MOST:.0%}); bare pixmaps of the embedded ones add {pixmaps / base[0]:.0%}, with their PNGs "
        f"{pngs / base[0]:.0%}; extraction takes {added / pngs:.2f} of these"
    )
    return 0 if added / base[0] <= MOST and len(images) == 10 else 1


def parse_stage(folder: str, images: bool) -> object:
    """The index job's stage on one file: child process, whose CPU time is left out, tree, token counts, keys, PNGs."""
    overrides = [f"documents.paths=[{folder}]", "documents.metadata=null", f"index.images={images}".lower()]
    index = tempfile.mkdtemp(dir=folder)
    config = load_config("demo", [*overrides, f"index.path={index}"])
    return parse(pa.table({"at": [0], "file": [f"{folder}/paper.pdf"], "name": ["paper.pdf"]}), config, index)


def measured(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, tuple[float, float]]:
    """The least CPU and wall seconds of each way; the ways take turns."""
    spent: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for work in ways.values():
        work()
    for _ in range(rounds):
        for way, work in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            spent[way].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {way: (min(cpu for cpu, _ in times), min(wall for _, wall in times)) for way, times in spent.items()}


def bare(data: bytes, as_png: bool) -> int:
    """Pixels of all embedded images, as PyMuPDF gives them."""
    n = 0
    with pymupdf.open(stream=data, filetype="pdf") as file:
        for page in file:
            for xref, *_ in page.get_images():
                pixels = pymupdf.Pixmap(file, xref)
                n += len(pixels.tobytes("png")) if as_png else pixels.size
    return n


def paper(n_pages: int, n_words: int) -> bytes:
    """A paper whose first ten pages after the first have a figure each: charts, photographs, one mask, two drawings."""
    chance = random.Random(0)
    with pymupdf.open() as file:
        for page_number in range(n_pages):
            page = file.new_page()
            number = page_number if 1 <= page_number <= 10 else 0
            for column, (x0, x1) in enumerate(((50, 290), (305, 545))):
                top = 50.0
                if number and column == page_number % 2:
                    draw(file, page, number, (x0, top, x1, top + 170))
                    page.insert_textbox(
                        (x0, top + 190, x1, top + 230), f"Figure {number}: Energy of run {number}.", fontsize=8
                    )
                    top += 235
                share = (780 - top) / 1460
                words = [chance.choice(WORDS) for _ in range(int(n_words * share))]
                for i in range(12, len(words), 14):
                    words[i] = words[i] + "."
                text = " ".join(words).capitalize()
                text = f"As Figure {number} shows, {text}" if number and column != page_number % 2 else text
                page.insert_textbox((x0, top, x1, 790), text, fontsize=9)
        return file.tobytes(deflate=True)


def draw(file: pymupdf.Document, page: pymupdf.Page, number: int, box: Sequence[float]) -> None:
    """Figure `number`: 1–4 charts, 5–7 photographs, 8 a chart with transparency, 9 and 10 drawn."""
    if number >= 9:
        shape = page.new_shape()
        for i in range(40):
            x = box[0] + 20 + i * 5
            shape.draw_rect((x, box[3] - 20 - (i * 37 % 120), x + 4, box[3] - 20))
            shape.finish(fill=(i / 40, 0.4, 0.6), width=0.3)
        shape.draw_line((box[0] + 15, box[1]), (box[0] + 15, box[3] - 20))
        shape.draw_line((box[0] + 15, box[3] - 20), (box[2], box[3] - 20))
        shape.finish(width=0.8)
        shape.commit()
        return
    out = io.BytesIO()
    if number >= 5 and number != 8:
        photograph(number).save(out, "JPEG", quality=85)
    else:
        chart(number).convert("RGBA" if number == 8 else "RGB").save(out, "PNG")
    page.insert_image(pymupdf.Rect(*box), stream=out.getvalue())


def chart(number: int) -> Image.Image:
    """A chart as a plotting library writes it, 900 × 640, on transparent paper."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawn, axes = plt.subplots(figsize=(9, 6.4), dpi=100)
    chance = np.random.default_rng(number)
    for _ in range(4):
        axes.plot(chance.normal(size=60).cumsum())
    axes.set_xlabel("Time (s)")
    axes.set_ylabel("Power (kW)")
    out = io.BytesIO()
    drawn.savefig(out, format="png", transparent=True)
    plt.close(drawn)
    image = Image.open(out).convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return image if number == 8 else Image.alpha_composite(white, image)


def photograph(number: int) -> Image.Image:
    """Smooth colours with some grain, 900 × 640."""
    chance = np.random.default_rng(number)
    coarse = Image.fromarray(chance.integers(0, 255, (12, 16, 3), np.uint8)).resize(
        (900, 640), Image.Resampling.BICUBIC
    )
    grain = chance.normal(scale=4, size=(640, 900, 3))
    return Image.fromarray(np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8))


if __name__ == "__main__":
    sys.exit(main())
