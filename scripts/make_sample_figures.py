"""Make the sample's figures and the documents that show them; their numbers stand in the pictures alone.

    python scripts/make_sample_figures.py [DIRECTORY]

Every picture carries its label, a number from 1 to 255, as a bar of black and white blocks along its lower edge: a
stand-in for a vision model reads that instead of the chart. Organisations and numbers are invented.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pymupdf
from PIL import Image, ImageDraw

FOLDER = Path(__file__).parents[1] / "kohaku_ray" / "sample" / "figures"
SIZE = 640, 440
BAR_SHARE = 0.08
"""Height of the bar, as a share of the picture's."""
BLOCKS = 16
"""Blocks of the bar: black, white, eight bits of the label, four of its check digit, white, black."""
URL = "https://example.org/figures/"


@dataclass(frozen=True)
class Figure:
    """A chart, and the question that only it answers."""

    label: int
    doc_id: str
    caption: str
    mention: str
    kind: str
    unit: str
    axis: Sequence[str]
    values: Sequence[float]
    question: str
    answer: float
    answer_unit: str


FIGURES = (
    Figure(
        17, "voss2025", "Cooling power by hall of the Voss campus.", "Figure 1 compares the halls' cooling power.",
        "bar", "Cooling power (kW)", ("North", "East", "South", "West"), (412, 287, 365, 538),
        "What is the cooling power of the West hall of the Voss campus, in kW?", 538, "kW",
    ),
    Figure(
        29, "voss2025", "Water drawn per month by the cooling towers of the Voss campus.",
        "Figure 2 shows how the towers' water rises towards summer.",
        "line", "Water (thousand m³)", ("Mar", "Apr", "May", "Jun", "Jul"), (6.2, 7.9, 11.4, 15.7, 18.3),
        "How much water, in thousand cubic metres, did the cooling towers of the Voss campus draw in June?", 15.7,
        "thousand m³",
    ),
    Figure(
        58, "voss2025", "Share of heat that is reused, by customer of the heat network.",
        "Who takes the heat is shown in Figure 3.",
        "bar", "Reused heat (%)", ("Baths", "School", "Housing", "Nursery"), (31, 14, 47, 8),
        "What share of the reused heat of the Voss campus, in percent, goes to housing?", 47, "percent",
    ),
    Figure(
        77, "quill2024", "Energy of one training run of Quill by number of accelerators.",
        "As Figure 1 shows, more accelerators shorten a run but do not make it cheaper.",
        "line", "Energy (MWh)", ("64", "128", "256", "512"), (83, 88, 97, 121),
        "How many MWh does a training run of Quill take on 256 accelerators?", 97, "MWh",
    ),
    Figure(
        101, "quill2024", "Accuracy of Quill after pruning, by share of weights removed.",
        "Figure 2 gives the accuracy after pruning.",
        "line", "Accuracy (%)", ("0", "20", "40", "60"), (81.6, 81.2, 78.9, 66.4),
        "Which accuracy, in percent, does Quill keep when 40 percent of its weights are removed?", 78.9, "percent",
    ),
    Figure(
        140, "quill2024", "Latency of Quill by batch size.", "Latency is drawn in Figure 3.",
        "bar", "Latency (ms)", ("1", "8", "32", "128"), (19, 34, 71, 233),
        "What is the latency of Quill at batch size 32, in milliseconds?", 71, "ms",
    ),
    Figure(
        186, "tarn2023", "Carbon intensity of the Tarn grid by hour of the day.",
        "Figure 1 shows when the Tarn grid is cleanest.",
        "line", "g CO₂ per kWh", ("0 h", "6 h", "12 h", "18 h"), (244, 301, 158, 379),
        "What is the carbon intensity of the Tarn grid at noon, in g CO2 per kWh?", 158, "g CO2/kWh",
    ),
    Figure(
        213, "tarn2023", "Batteries installed on the Tarn grid by year.",
        "How storage has grown is shown in Figure 2.",
        "bar", "Capacity (MWh)", ("2019", "2020", "2021", "2022"), (45, 96, 172, 268),
        "What battery capacity, in MWh, was installed on the Tarn grid in 2021?", 172, "MWh",
    ),
)  # fmt: skip

TEXTS = {
    "voss2025": (
        "Cooling and Heat Reuse at the Voss Campus",
        (
            "The Voss campus houses four halls of servers beside a district heating network. Each hall has a cooling "
            "plant of its own, because the halls were built one after the other. Operators report cooling, water and "
            "heat once a year.",
            "Cooling towers evaporate water. A hot month therefore costs water as well as power, and a dry summer may "
            "end in restrictions. The campus has asked for a second well.",
            "Waste heat leaves the halls at low temperature. Heat pumps raise it before it enters the network, whose "
            "customers are close by. Losses in the pipes are small.",
        ),
    ),
    "quill2024": (
        "Quill: a Small Model and its Costs",
        (
            "Quill is a small language model for public offices. Its makers trained it several times to learn what a "
            "run costs. Power was metered at the racks, so that networking counts.",
            "Pruning removes weights that matter little. It saves memory at once, and energy where the hardware can "
            "skip zeros. Beyond a point, quality falls.",
            "Requests are served in batches. Larger batches use the hardware better, but a request waits longer for "
            "its reply.",
        ),
    ),
    "tarn2023": (
        "The Tarn Grid and its Storage",
        (
            "The Tarn grid serves a valley with a hydro plant, solar roofs and one gas plant. When the sun shines the "
            "gas plant stands still. Data centers in the valley move their jobs accordingly.",
            "Batteries were bought in steps, each paid for by the savings of the one before. The operator expects to "
            "buy more.",
        ),
    ),
}
COLUMNS = ["id", "question", "answer", "answer_value", "answer_unit", "ref_id", "ref_url", "supporting_materials"]
COLUMNS += ["explanation", "answer_type", "split"]


def main(folder: Path) -> None:
    """Write the documents, the pictures, the questions and the table of labels."""
    documents = folder / "documents"
    documents.mkdir(parents=True, exist_ok=True)
    pictures = {figure.label: png(figure) for figure in FIGURES}
    by_document = {doc_id: [figure for figure in FIGURES if figure.doc_id == doc_id] for doc_id in TEXTS}
    (documents / "voss2025.pdf").write_bytes(paper("voss2025", by_document["voss2025"], pictures))
    (documents / "quill2024.md").write_text(markdown("quill2024", by_document["quill2024"]), "utf-8")
    (documents / "tarn2023.html").write_text(html("tarn2023", by_document["tarn2023"]), "utf-8")
    for doc_id in ("quill2024", "tarn2023"):
        for number, figure in enumerate(by_document[doc_id], 1):
            (documents / f"{doc_id}-{number}.png").write_bytes(pictures[figure.label])
    write_csv(folder / "questions.csv", COLUMNS, [gold(number, figure) for number, figure in enumerate(FIGURES, 1)])
    names = ["label", "doc_id", "question_id", "answer_value", "description"]
    write_csv(folder / "labels.csv", names, [label_row(number, figure) for number, figure in enumerate(FIGURES, 1)])
    metadata = [{"id": doc_id, "title": title, "url": URL + doc_id} for doc_id, (title, _) in TEXTS.items()]
    write_csv(folder / "metadata.csv", ["id", "title", "url"], metadata)


def png(figure: Figure) -> bytes:
    """Draw a chart and its label."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    height = SIZE[1] * (1 - BAR_SHARE)
    drawn, axes = plt.subplots(figsize=(SIZE[0] / 100, height / 100), dpi=100)
    if figure.kind == "bar":
        bars = axes.bar(figure.axis, figure.values, color="#3b6ea5")
        axes.bar_label(bars)
    else:
        axes.plot(figure.axis, figure.values, marker="o", color="#a5503b")
        for position, value in enumerate(figure.values):
            axes.annotate(f"{value:g}", (position, value), textcoords="offset points", xytext=(0, 8), ha="center")
    axes.set_ylabel(figure.unit)
    axes.margins(y=0.15)
    drawn.tight_layout()
    out = io.BytesIO()
    drawn.savefig(out, format="png", metadata={"Software": None})
    plt.close(drawn)
    chart = Image.open(out).convert("RGB")
    whole = Image.new("RGB", SIZE, "white")
    whole.paste(chart, (0, 0))
    draw_label(whole, figure.label)
    packed = io.BytesIO()
    whole.quantize(32, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    return packed.getvalue()


def draw_label(picture: Image.Image, label: int) -> None:
    """Draw a label along the whole lower edge: it is found again in any size of the picture."""
    check = (label * 7 + 3) % 16
    bits = [
        1,
        0,
        *(label >> shift & 1 for shift in range(7, -1, -1)),
        *(check >> shift & 1 for shift in range(3, -1, -1)),
        0,
        1,
    ]
    width, height = picture.size
    draw = ImageDraw.Draw(picture)
    edges = np.linspace(0, width, BLOCKS + 1).round().astype(int).tolist()
    for left, right, bit in zip(edges, edges[1:], bits, strict=False):
        box = left, round(height * (1 - BAR_SHARE)), right - 1, height - 1
        draw.rectangle(box, fill="black" if bit else "white")


def paper(doc_id: str, figures: Sequence[Figure], pictures: dict[int, bytes]) -> bytes:
    """Make a PDF of a text and its figures."""
    title, paragraphs = TEXTS[doc_id]
    with pymupdf.open() as file:
        page, top = file.new_page(), 60.0

        def write(text: str, size: float, height: float) -> None:
            nonlocal top
            page.insert_textbox(pymupdf.Rect(70, top, 525, top + height), text, fontsize=size, fontname="tiro")
            top += height

        write(title, 18, 40)
        for number, (figure, text) in enumerate(zip(figures, paragraphs, strict=True), 1):
            if top > 480:
                page, top = file.new_page(), 60.0
            write(f"{text} {figure.mention}", 11, 70)
            page.insert_image(pymupdf.Rect(120, top, 440, top + 220), stream=pictures[figure.label])
            top += 228
            write(f"Figure {number}: {figure.caption}", 9.5, 40)
        file.set_metadata({"title": title})
        return file.tobytes(garbage=3, deflate=True, no_new_id=True)


def markdown(doc_id: str, figures: Sequence[Figure]) -> str:
    """Make a Markdown file of a text and its figures."""
    title, paragraphs = TEXTS[doc_id]
    parts = [f"# {title}"]
    for number, (figure, text) in enumerate(zip(figures, paragraphs, strict=True), 1):
        parts += [f"{text} {figure.mention}", f"![Figure {number}: {figure.caption}]({doc_id}-{number}.png)"]
    return "\n\n".join(parts) + "\n"


def html(doc_id: str, figures: Sequence[Figure]) -> str:
    """Make a web page of a text and its figures."""
    title, paragraphs = TEXTS[doc_id]
    parts = [f"<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8><title>{title}</title></head><body>"]
    parts.append(f"<h1>{title}</h1>")
    for number, (figure, text) in enumerate(zip(figures, paragraphs, strict=True), 1):
        parts.append(f"<p>{text} {figure.mention}</p>")
        caption = f"<figcaption>Figure {number}: {figure.caption}</figcaption>"
        parts.append(f'<figure><img src="{doc_id}-{number}.png" alt="Chart">{caption}</figure>')
    return "\n".join([*parts, "</body></html>"]) + "\n"


def gold(number: int, figure: Figure) -> dict[str, str]:
    """A figure's question with its gold answer."""
    value = f"{figure.answer:g}"
    return {
        "id": f"f{number:03}",
        "question": figure.question,
        "answer": f"{value} {figure.answer_unit}",
        "answer_value": value,
        "answer_unit": figure.answer_unit,
        "ref_id": json.dumps([figure.doc_id]),
        "ref_url": json.dumps([URL + figure.doc_id]),
        "supporting_materials": f"{figure.doc_id}: a figure, “{figure.caption}”",
        "explanation": "Read from the figure.",
        "answer_type": "number",
        "split": "public",
    }


def label_row(number: int, figure: Figure) -> dict[str, str]:
    """What a model sees in a figure, by its label."""
    points = ", ".join(f"{name}: {value:g}" for name, value in zip(figure.axis, figure.values, strict=True))
    return {
        "label": str(figure.label),
        "doc_id": figure.doc_id,
        "question_id": f"f{number:03}",
        "answer_value": f"{figure.answer:g}",
        "description": f"A {figure.kind} chart of {figure.unit}. {points}.",
    }


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[dict[str, str]]) -> None:
    """Write rows as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", type=Path, default=FOLDER)
    main(parser.parse_args().directory)
