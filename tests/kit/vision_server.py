"""A stand-in for a vision model: it reads the label in each image that it is sent, and knows the chart of each label.

    with VisionServer() as server:
        client_of(server.base_url, "vision", ...)
        server.labels_seen                    # per request, the labels of its images

Asked to describe an image, it gives the chart's values. Asked a question of `sample:figures`, it answers from the
images of that request alone: without the right one, its answer is blank.
"""

from __future__ import annotations

import csv
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from kit.fake_openai import Action, FakeOpenAI, Script, SentImage, completion, doc_ids_of, is_plan, sent_images, text_of
from kohaku_ray import sample

BLOCKS = 16
BAR_SHARE = 0.08


def read_label(image: Image.Image) -> int | None:
    """The label in the bar along the lower edge, in any size of the picture; None: there is none."""
    grey = image.convert("L")
    width, height = grey.size
    y = min(height - 1, round(height * (1 - BAR_SHARE / 2)))
    shades = [grey.getpixel((int((number + 0.5) * width / BLOCKS), y)) for number in range(BLOCKS)]
    if any(60 < shade < 195 for shade in shades):
        return None
    bits = [int(shade < 128) for shade in shades]
    label = int("".join(map(str, bits[2:10])), 2)
    check = int("".join(map(str, bits[10:14])), 2)
    return label if (bits[:2], bits[14:], check) == ([1, 0], [0, 1], (label * 7 + 3) % 16) else None


def label_of(sent: SentImage) -> int | None:
    """The label in an image of a request."""
    with Image.open(io.BytesIO(sent.data)) as image:
        return read_label(image)


def _rows(name: str) -> list[dict[str, str]]:
    with Path(sample.path(f"figures/{name}")).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def charts() -> dict[int, dict[str, str]]:
    """What the model sees in each chart, by its label: doc_id, question_id, answer_value, description."""
    return {int(row["label"]): row for row in _rows("labels.csv")}


@cache
def questions() -> dict[str, str]:
    """The text of each question, by its id."""
    return {row["id"]: row["question"] for row in _rows("questions.csv")}


def is_caption(body: dict[str, Any]) -> bool:
    """A description is asked for with one image and without a schema."""
    return "response_format" not in body and len(sent_images(body)) == 1 and not _asks(body)


def _asks(body: dict[str, Any]) -> bool:
    text = "\n".join(map(text_of, body["messages"]))
    return any(question in text for question in questions().values())


def description(body: dict[str, Any]) -> str:
    """The values of the chart that a request shows."""
    labels = [label_of(image) for image in sent_images(body)]
    known = [charts()[label]["description"] for label in labels if label in charts()]
    return " ".join(known) or "A picture without a chart."


def answer(body: dict[str, Any]) -> str:
    """Answer a question of the sample from the images of its request; blank without the right one."""
    text = "\n".join(map(text_of, body["messages"]))
    asked = next((item for item, question in questions().items() if question in text), None)
    shown = [charts().get(label_of(image) or 0) for image in sent_images(body)]
    chart = next((chart for chart in shown if chart is not None and chart["question_id"] == asked), None)
    allowed = doc_ids_of(body)
    value = chart["answer_value"] if chart else "is_blank"
    reply = {
        "explanation": "Read from the figure." if chart else "No figure shows it.",
        "answer": f"It is {value}." if chart else "Unable to answer.",
        "answer_value": value,
        "answer_unit": "",
        "ref_id": [chart["doc_id"]] if chart and chart["doc_id"] in allowed else [],
        "is_blank": chart is None,
    }
    return json.dumps(reply)


class VisionServer(FakeOpenAI):
    """The server; `before` may script a request otherwise, as for `FakeOpenAI`."""

    def __init__(self, before: Script | None = None) -> None:
        def script(index: int, body: dict[str, Any]) -> Action | None:
            action = before(index, body) if before else None
            if action is not None:
                return action
            if is_caption(body):
                return Action(body=completion(description(body)))
            if is_plan(body):
                return None
            return Action(body=completion(answer(body)))

        super().__init__(script)

    @property
    def labels_seen(self) -> list[list[int | None]]:
        """Per request, the labels of its images."""
        return [[label_of(image) for image in received.images] for received in self.log]
