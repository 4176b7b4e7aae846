"""Documents of images alone: kept with their images, and refused with a reason where none can be used."""

from __future__ import annotations

import json

import pymupdf
import pytest
from figure_pdfs import as_bytes, picture, scan

from kohaku_ray.documents import parse
from kohaku_ray.documents.bounded import UnfinishedError
from kohaku_ray.documents.figures import ImageSource, images_of
from kohaku_ray.documents.parse import parse_documents, parse_file
from kohaku_ray.errors import DataError
from kohaku_ray.index.flatten import flatten


def read(folder, name, data, directory=None, timeout_s=None):
    (folder / name).write_bytes(data)
    (folder / "chart.png").write_bytes(as_bytes(picture(seed=1)))
    (document,) = parse_documents(str(folder / name), data, timeout_s, images=ImageSource(directory)).documents
    return document


PLACEHOLDER = json.dumps(
    {"sections": [{"paragraphs": [{"text": "[Image page=1 idx=1 name=chart.png] Size: 9x9, Data: 9 bytes"}]}]}
).encode()


@pytest.mark.parametrize(
    ("name", "data", "titles", "n_images"),
    [
        ("x.pdf", scan(as_bytes(picture(seed=1)), as_bytes(picture(seed=2))), ["x"], 2),
        ("x.pdf", scan(as_bytes(picture(seed=1)), as_bytes(picture(seed=2)), size=(960, 540)), ["x"], 2),
        ("x.html", b"<html><body><img src='chart.png'></body></html>", ["x"], 1),
        ("x.md", b"# Plant\n\n![](chart.png)\n", ["Plant"], 1),
        ("x.json", PLACEHOLDER, [""], 1),
    ],
)
@pytest.mark.parametrize("timeout_s", [None, 30])
def test_a_document_of_images_alone_is_kept(tmp_path, name, data, titles, n_images, timeout_s):
    document = read(tmp_path, name, data, str(tmp_path), timeout_s)
    assert [section.title for section in document.sections] == titles
    paragraphs = [paragraph for section in document.sections for paragraph in section.paragraphs]
    assert [paragraph.text for paragraph in paragraphs] == [""] * n_images
    assert [image.caption for _, _, image in images_of(document)] == [None] * n_images
    nodes = flatten(document).to_pylist()
    kept = [row["attachment_path"] for row in nodes if row["kind"] == "paragraph"]
    assert kept == [f"images/{image.digest}.png" for _, _, image in images_of(document)]
    assert not [row for row in nodes if row["kind"] == "sentence"]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.pdf", scan(as_bytes(picture()))),
        ("x.html", b"<html><body><img src='chart.png'></body></html>"),
        ("x.md", b"![](chart.png)\n"),
        ("x.json", PLACEHOLDER),
    ],
)
def test_without_images_it_is_refused_and_told_how_to_turn_them_on(name, data):
    with pytest.raises(DataError, match=r"no text.* set index\.images to true to index (its images\.|them\)\.)$"):
        parse_file(name, data)


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("x.pdf", scan(as_bytes(picture((20, 30)))), r"x\.pdf has no text and no image .* \(1 left out: small\)"),
        ("x.html", b"<img src='none.png'>", r"\(image none\.png: cannot be read: .*none\.png cannot be read"),
        ("x.md", b"![](https://example.org/a.png)", r"\(1 left out: remote\): repair them, or leave the file out"),
        (
            "x.html",
            b"".join(b"<img src='%d.png'>" % number for number in range(5)),
            r"image 0\.png: .*image 2\.png: .*; 2 more\)",
        ),
        (
            "x.json",
            PLACEHOLDER,
            r"\(1 left out: without a file\): name the directory of its images as documents\.images",
        ),
    ],
)
def test_a_document_none_of_whose_images_can_be_used_says_why(tmp_path, name, data, why):
    with pytest.raises(DataError, match=why):
        read(tmp_path, name, data)


def test_neither_text_nor_image_is_no_document_with_images_on():
    with pytest.raises(DataError, match=r"x\.html has no text: nothing in it can be searched\.$"):
        parse_documents("x.html", b"<title>Title</title>", images=ImageSource())
    with pymupdf.open() as file:
        file.new_page()
        data = file.tobytes()
    with pytest.raises(DataError, match=r"x\.pdf has 1 page but no text on any of them: it is a scan.* the result\.$"):
        parse_documents("x.pdf", data, images=ImageSource())


def test_a_scan_whose_images_take_too_long_says_that_and_not_to_turn_images_on(monkeypatch):
    whole = parse.parse_file

    def slow(name, data, timeout_s=None, images=False):
        if images:
            raise UnfinishedError("not parsed after 1 s")
        return whole(name, data, timeout_s)

    monkeypatch.setattr(parse, "parse_file", slow)
    with pytest.raises(DataError, match=r"^not parsed after 1 s$"):
        parse_documents("x.pdf", scan(as_bytes(picture())), images=ImageSource())
