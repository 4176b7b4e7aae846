"""What the parser made of each file: lines, trees, odd pages, and files that are read back."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pyarrow as pa
import pymupdf
import pytest
from kit.rows import check_rows
from PIL import Image

from kohaku_ray.collection.documents import (
    describe_reject,
    describe_rejected_gold,
    parse_collection,
    rejected_gold,
    write_trees,
)
from kohaku_ray.config import load_config
from kohaku_ray.documents.parse import parse_file
from kohaku_ray.pages.run_text import describe_collection, describe_tree
from kohaku_ray.sample import path as sample_path

PROSE = "The meters were read every hour, and what they said was kept in a plain table."


def config_of(*paths, **keys):
    keys = {"documents.metadata": "null"} | {key.replace("__", "."): value for key, value in keys.items()}
    return load_config("demo", [f"documents.paths=[{', '.join(paths)}]", *(f"{k}={v}" for k, v in keys.items())])


def grey():
    pixels = pymupdf.Pixmap(pymupdf.csRGB, pymupdf.IRect(0, 0, 200, 200))
    pixels.set_rect(pixels.irect, (120, 120, 120))
    return pixels


def odd_pdf():
    """Pages: prose; a scan; a few words; a table; prose on a page that is turned; nothing."""
    file = pymupdf.open()
    for _ in range(6):
        file.new_page(width=595, height=842)
    pages = list(file)
    for page in (pages[0], pages[4]):
        for i in range(6):
            page.insert_text((72, 100 + 40 * i), f"{i} {PROSE}", fontsize=10)
    pages[1].insert_image(pymupdf.Rect(72, 72, 500, 700), pixmap=grey())
    pages[2].insert_text((72, 100), "Left blank on purpose.", fontsize=10)
    for row, cells in enumerate(
        [("System", "Power", "Energy"), ("Alpha", "480 W", "1,220 MWh"), ("Beta", "600 W", "9")]
    ):
        for column, cell in enumerate(cells):
            pages[3].insert_text((76 + 100 * column, 154 + 20 * row), cell, fontsize=10)
    for i in range(4):
        pages[3].draw_line((72, 140 + 20 * i), (372, 140 + 20 * i), width=0.6)
        pages[3].draw_line((72 + 100 * i, 140), (72 + 100 * i, 200), width=0.6)
    pages[4].set_rotation(90)
    return file.tobytes()


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    home = tmp_path_factory.mktemp("docs")
    (home / "odd.pdf").write_bytes(odd_pdf())
    (home / "broken.json").write_text("{")
    long = "word " * 500 + "end."
    paragraphs = [{"text": "One. Two."}, {"text": long, "sentences": [{"text": long}]}]
    section = {"title": "<script>alert(1)</script>", "paragraphs": paragraphs}
    (home / "a.json").write_text(json.dumps({"title": "A", "sections": [section]}))
    (home / "z.json").write_text('{"document_id": "a", "text": "The same id."}')
    config = config_of(str(home))
    return parse_collection(config)


def test_odd_pages_rejects_and_doubled_ids_are_named(collection):
    lines = describe_collection(collection).splitlines()
    assert [line.split("  ")[0] for line in lines if not line.startswith("  ")][:2] == ["a", "odd"]
    assert lines[1] == "  odd: sec0:p1: a sentence of 2,504 characters"
    assert lines[3] == (
        "  odd: page 2: no text, but a picture: a scan without OCR; page 3: little text (22 characters); "
        "page 5: rotated; page 6: blank"
    )
    assert lines[4].startswith("rejected: /")
    assert lines[4].endswith("/broken.json is not valid JSON: Expecting property name enclosed in double quotes at "
                             "line 1, column 2.")  # fmt: skip
    assert "doc_id 'a' is already that of" in lines[5]
    assert lines[6].startswith("2 documents of 4 files, ")
    assert lines[6].endswith("2 rejected, 2 documents with something odd")


@check_rows(
    ("file", "reason", "expected"),
    [
        ("/d/docs/msft.csv", "/d/docs/msft.csv: line 2 is not CSV", "msft.csv: line 2 is not CSV"),
        ("/d/docs/a/bad.pdf", "/d/docs/a/bad.pdf is not a PDF", "a/bad.pdf is not a PDF"),
        ("/d/docs/a.md", "the same text as /d/docs/b.md, word for word", "a.md: the same text as b.md, word for word"),
        ("/d/docs/a.json: row 3", "no text", "a.json: row 3: no text"),
        ("/d/one/c.md", "empty", "c.md: empty"),
        ("/else/c.md", "empty", "/else/c.md: empty"),
    ],
)
def test_a_reject_is_named_once_below_its_path(file, reason, expected):
    assert describe_reject(file, reason, ("/d/docs/", "/d/one/c.md", "sample:documents")) == expected


def test_a_reject_below_a_relative_path_is_named_below_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = f"{tmp_path}/docs/old/docs/blank.docx"
    assert describe_reject(file, f"{file} has no text", ("docs/",)) == "old/docs/blank.docx has no text"
    assert describe_reject(f"/srv{file}", "no text", ("docs/",)) == f"/srv{file}: no text"


def test_gold_that_cites_a_rejected_document_is_told_from_gold_that_cites_none():
    config = config_of("/d/docs")
    rejects = [("/d/docs/MSFT.csv", "line 2 is not CSV"), ("/d/docs/a.pdf", "the same id as that of a.md")]
    index = SimpleNamespace(
        rejects=pa.Table.from_pylist([{"file": file, "reason": reason} for file, reason in rejects]),
        documents=pa.table({"doc_id": ["a"]}),
    )
    by_doc_id = rejected_gold(config, index, ["msft", "a", "nowhere"])
    assert by_doc_id == {"msft": "MSFT.csv: line 2 is not CSV"}
    assert describe_rejected_gold(by_doc_id) == (
        "the gold answers cite msft, which was rejected: MSFT.csv: line 2 is not CSV"
    )


def test_what_was_dropped_is_named_per_file(tmp_path):
    file = pymupdf.open()
    for number in range(3):
        page = file.new_page()
        for i in range(6):
            page.insert_text((72, 260 + 14 * i), PROSE, fontsize=11)
        page.insert_text((280, 810), f"{number + 1}", fontsize=9)
    (tmp_path / "draft.pdf").write_bytes(file.tobytes())
    collection = parse_collection(config_of(str(tmp_path)))
    assert describe_collection(collection).splitlines()[1] == "  dropped: 3 page numbers: '1', '2', '3'"


def test_trees_are_indexed_again_as_they_were(tmp_path):
    config = config_of(sample_path("documents"))
    views = parse_collection(config).documents
    paths = write_trees(views, str(tmp_path / "trees"))
    assert len(paths) == 13
    for view, path in zip(views, paths, strict=True):
        with open(path, "rb") as file:
            assert parse_file(path, file.read()) == view.document
    again = parse_collection(config_of(str(tmp_path / "trees"))).documents
    assert [item.document for item in again] == [view.document for view in views]


def test_images_are_shown_counted_and_written(tmp_path, capsys):
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, size in (("chart", (200, 200)), ("icon", (20, 20))):
        Image.new("RGB", size, "red").save(folder / f"{name}.png")
    (folder / "bad.png").write_bytes(b"<html>")
    images = "![A chart](chart.png) ![](icon.png) ![Bad](bad.png)"
    (folder / "plant.md").write_text(f"# Plant\n\nA plant uses energy.\n\n{images}\n")
    documents = parse_collection(config_of(str(folder), index__images="true"))
    text = describe_collection(documents)
    assert f"rejected: {folder}/plant.md: image bad.png: the file is HTML or XML" in text
    assert "1 document of 1 file" in text
    assert "1 rejected" in text
    assert text.endswith("1 image left out (1 small)")
    (view,) = documents.documents
    (path,) = write_trees(documents.documents, str(tmp_path / "trees"))
    (png,) = (tmp_path / "trees" / "images").iterdir()
    assert f"images/{png.name}" in describe_tree(view)
    with open(path, "rb") as file:
        again = parse_file(path, file.read())
    assert [p.text for s in again.sections for p in s.paragraphs] == [
        p.text for s in view.document.sections for p in s.paragraphs
    ]
    without = parse_collection(config_of(str(folder)))
    assert "left out" not in describe_collection(without)
    assert not without.rejects
