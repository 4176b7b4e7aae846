"""The sample's figures: their numbers stand in the pictures alone, and the stand-in can read every label."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from kit.vision_server import charts, read_label
from PIL import Image

from kohaku_ray import sample
from kohaku_ray.documents.figures import ImageSource, images_of
from kohaku_ray.documents.find import find_files
from kohaku_ray.documents.parse import parse_documents
from kohaku_ray.documents.read import read_bytes

FOLDER = Path(sample.path("figures"))


@pytest.fixture(scope="module")
def documents():
    files = find_files([str(FOLDER / "documents")])
    parsed = [parse_documents(file, read_bytes(file), images=ImageSource()).documents[0] for file in files]
    return {document.doc_id: document for document in parsed}


def gold():
    with (FOLDER / "questions.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_figure_is_extracted_with_its_caption_and_its_mention(documents):
    assert not [document.image_rejects for document in documents.values() if document.image_rejects]
    shown = {doc_id: [image for _, _, image in images_of(document)] for doc_id, document in documents.items()}
    assert {doc_id: len(images) for doc_id, images in shown.items()} == {"voss2025": 3, "quill2024": 3, "tarn2023": 2}
    for images in shown.values():
        for number, image in enumerate(images, 1):
            assert image.caption.startswith(f"Figure {number}: ")
            assert len(image.mentions) == 1
            assert f"Figure {number}" in image.mentions[0]


@pytest.mark.parametrize("width", [None, 224])
def test_labels_are_read_in_any_size(documents, width):
    labels = set()
    for doc_id, document in documents.items():
        for _, _, image in images_of(document):
            picture = Image.open(io.BytesIO(image.data))
            if width:
                picture = picture.resize((width, round(width * picture.height / picture.width)))
            out = io.BytesIO()
            picture.save(out, "JPEG", quality=60)
            label = read_label(Image.open(out))
            assert charts()[label]["doc_id"] == doc_id
            labels.add(label)
    assert labels == set(charts())


def test_no_answer_stands_in_any_text(documents):
    texts = " ".join(
        " ".join([document.title, *(p.text for s in document.sections for p in s.paragraphs)])
        for document in documents.values()
    )
    for row in gold():
        assert not re.search(rf"(?<![\d.]){re.escape(row['answer_value'])}(?![\d.]*\d)", texts), row["id"]
        assert json.loads(row["ref_id"])[0] in documents
