"""Pictures on a run's page: small, each once, and none where a file is missing or broken."""

from __future__ import annotations

import base64
import io
import re
from types import SimpleNamespace

import pytest
from PIL import Image

from kohaku_ray.errors import DataError
from kohaku_ray.pages import evidence
from kohaku_ray.pages.evidence import PICTURE_SIDES, Pictures


def png(width, height, colour):
    written = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(written, "PNG")
    return written.getvalue()


FILES = {"wide": png(1200, 300, "red"), "small": png(80, 70, "blue"), "broken": b"<html>"}
ROWS = [
    ("a:sec0:p1", "wide"),
    ("b:sec0:p4", "wide"),
    ("a:sec0:p2", "small"),
    ("a:sec0:p3", "broken"),
    ("c:sec0:p0", "gone"),
]


@pytest.fixture(autouse=True)
def images(monkeypatch):
    def read(digest):
        if digest not in FILES:
            raise DataError(f"images/{digest}.png is missing")
        return FILES[digest]

    def opened(path):
        if path != "index":
            raise DataError(f"there is no index at {path}")
        return SimpleNamespace(rows=[{"node_id": node, "digest": digest} for node, digest in ROWS], read=read)

    monkeypatch.setattr(evidence.Images, "open", opened)


def test_an_image_in_two_places_stands_once_and_fits():
    found = Pictures("index", [node for node, _ in ROWS])
    assert found.of("a:sec0:p1") == found.of("b:sec0:p4") == "pic pic-0"
    assert found.of("a:sec0:p2") == "pic pic-1"
    rules = re.findall(
        r"^\.(pic-\d){width:(\d+)px;height:(\d+)px;background-image:url\(data:image/png;base64,([A-Za-z0-9+/=]+)\)}$",
        found.css,
        re.MULTILINE,
    )
    assert [(name, int(width), int(height)) for name, width, height, _ in rules] == [
        ("pic-0", 240, 60),
        ("pic-1", 80, 70),
    ]
    for _, width, height, data in rules:
        with Image.open(io.BytesIO(base64.b64decode(data))) as shown:
            assert shown.size == (int(width), int(height))
            assert shown.width <= PICTURE_SIDES[0]
            assert shown.height <= PICTURE_SIDES[1]
    with Image.open(io.BytesIO(base64.b64decode(rules[1][3]))) as shown:
        assert shown.convert("RGB").getpixel((40, 30)) == (0, 0, 255)


@pytest.mark.parametrize("node_id", ["a:sec0:p3", "c:sec0:p0", "nowhere"])
def test_what_cannot_be_drawn_has_no_picture_and_hinders_no_other(node_id):
    found = Pictures("index", [node_id, "a:sec0:p2"])
    assert found.of(node_id) is None
    assert found.of("a:sec0:p2") == "pic pic-0"


def test_pictures_end_where_the_page_would_grow_too_large(monkeypatch):
    monkeypatch.setattr(evidence, "PICTURE_BYTES", 10)
    found = Pictures("index", ["a:sec0:p1", "a:sec0:p2", "b:sec0:p4"])
    assert (found.of("a:sec0:p2"), found.of("b:sec0:p4")) == (None, "pic pic-0")


@pytest.mark.parametrize(("index", "nodes"), [(None, ["a:sec0:p1"]), ("index", []), ("elsewhere", ["a:sec0:p1"])])
def test_without_an_index_or_images_there_is_nothing(index, nodes):
    found = Pictures(index, nodes)
    assert (found.css, found.of("a:sec0:p1")) == ("", None)
