"""Evidence on a page: matches in their paragraphs, and small pictures of images, each once."""

import base64
import io
import re
from types import SimpleNamespace

import pytest
from PIL import Image
from run_files import TABLE, TEXT, index

from kohaku_ray.errors import DataError
from kohaku_ray.pages import evidence
from kohaku_ray.pages.evidence import PICTURE_SIDES, Excerpt, NodeLocation, NodeLocations, Pictures, excerpt, open_index


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    opened, reason = open_index([str(index(tmp_path_factory.mktemp("index"), "a2024", "b2025"))])
    assert reason == ""
    return opened.nodes


def find(nodes, node_id, text):
    return NodeLocations(nodes, [node_id], {}).find(node_id, text)


def test_a_sentence_is_marked_inside_its_paragraph(nodes):
    text = "The hall drew 41 MW in May."
    location = find(nodes, "a2024:sec0:p0:s1", text)
    assert location.path == ("Report", "Load", "paragraph 0", "sentence 1")
    assert location.page == 4
    assert excerpt(location, text, 900, 300) == Excerpt("Servers hum. ", text, " Fans spin faster in June.", False)


@pytest.mark.parametrize(
    ("node_id", "text", "shown"),
    [
        ("a2024:sec0:p0", TEXT, Excerpt("", TEXT, "", True)),
        ("a2024:sec0:p0", TEXT[:20], Excerpt("", TEXT, "", True)),  # the run has cut it: shown whole
        ("b2025:sec0:p1", TABLE, Excerpt("", TABLE, "", True, has_rows=True)),
        ("a2024:sec0:p0:s1", "The hall drew 7 MW.", Excerpt("", "The hall drew 7 MW.", "", True)),  # another index
    ],
)
def test_a_match_without_surroundings_stands_alone(nodes, node_id, text, shown):
    location = find(nodes, node_id, text)
    assert excerpt(location, text, 900, 300) == shown
    assert (location.path[0] == "Report") == (shown.match != "The hall drew 7 MW.")


def test_long_surroundings_and_matches_are_cut():
    location = NodeLocation(("d",), None, "a" * 50 + "MATCH" + "b" * 50, 50, 55)
    assert excerpt(location, "MATCH", 900, 10) == Excerpt(f"… {'a' * 10}", "MATCH", f"{'b' * 10} …", False)
    assert excerpt(location, "MATCH", 2, 10).match == "MA … [3 more characters]"


def test_a_node_that_no_index_has_keeps_its_id_as_path(nodes):
    assert find(nodes, "gone:sec0:p0", "x") == NodeLocation(("gone", "sec0", "p0"))
    titled = NodeLocations(None, ["a2024:sec0:p1"], {"a2024": "Annual report"})
    assert titled.find("a2024:sec0:p1", "x").path == ("Annual report", "sec0", "p1")


def test_the_first_index_that_can_be_read_is_taken(tmp_path):
    path = str(index(tmp_path / "index", "a2024"))
    opened, reason = open_index([str(tmp_path / "nowhere"), path])
    assert (opened.directory.path, reason) == (path, "")
    opened, reason = open_index([str(tmp_path / "nowhere")])
    assert opened is None
    assert f"there is no index at {tmp_path / 'nowhere'}" in reason


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


@pytest.fixture
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


def test_an_image_in_two_places_stands_once_and_fits(images):
    pictures = Pictures("index", [node for node, _ in ROWS])
    assert pictures.of("a:sec0:p1") == pictures.of("b:sec0:p4") == "pic pic-0"
    assert pictures.of("a:sec0:p2") == "pic pic-1"
    rules = re.findall(
        r"^\.(pic-\d){width:(\d+)px;height:(\d+)px;background-image:url\(data:image/png;base64,([A-Za-z0-9+/=]+)\)}$",
        pictures.css,
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
def test_what_cannot_be_drawn_has_no_picture_and_hinders_no_other(images, node_id):
    pictures = Pictures("index", [node_id, "a:sec0:p2"])
    assert pictures.of(node_id) is None
    assert pictures.of("a:sec0:p2") == "pic pic-0"
