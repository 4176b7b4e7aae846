"""The stages of the index job with images: files, table, what is left out, and what a second run writes again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from figure_pdfs import as_bytes, one_page, paper, picture, raw_image
from kit.runs_here import index_here

from kohaku_ray.collection.indexes import open_index
from kohaku_ray.config import load_config
from kohaku_ray.documents.images import read_image
from kohaku_ray.engine.jobs.index_stream import IndexSummary
from kohaku_ray.errors import DataError, IndexMismatchError
from kohaku_ray.index.images import Images
from kohaku_ray.index.store import Index

TEXT = "The plant uses energy, as Figure 1 shows.\n\n![Figure 1: Energy per year]({})\n"


@pytest.fixture(scope="module")
def config_of(tiny_encoder):
    def make(home: Path, *overrides: str):
        defaults = [f"documents.paths=[{home}/docs]", "documents.metadata=null", f"index.path={home}/index"]
        defaults += ["index.encoders=1", f"index.encoder.model={tiny_encoder}", "index.images=true"]
        return load_config("demo", [*defaults, *overrides])

    return make


@pytest.fixture(scope="module")
def built(config_of, tmp_path_factory):
    """Documents and their index, and what was found."""
    home = tmp_path_factory.mktemp("images")
    documents(home)
    return home, index_here(config_of(home))


def documents(folder: Path) -> Path:
    docs = folder / "docs"
    docs.mkdir()
    (docs / "paper.pdf").write_bytes(paper())
    for name, seed in (("one", 11), ("two", 11), ("three", 12)):  # one and two show the same picture
        (docs / f"{name}.png").write_bytes(as_bytes(picture(seed=seed)))
        (docs / f"{name}.md").write_text(TEXT.format(f"{name}.png"))
    header = "/Filter/FlateDecode/Width 300/Height 200/BitsPerComponent 8/ColorSpace/DeviceRGB"
    broken = one_page(lambda file, page: raw_image(file, page, (100, 200, 260, 320), b"no stream", header))
    (docs / "broken.pdf").write_bytes(broken)
    (docs / "icon.md").write_text("A text about power.\n\n![](small.png)\n")
    (docs / "small.png").write_bytes(as_bytes(picture((20, 20))))
    return docs


def stamps(path: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in path.iterdir() if file.suffix == ".png"}


@pytest.mark.slow
def test_images_are_kept_and_counted(built):
    home, found = built
    docs, path = home / "docs", home / "index"
    images = Images.open(str(path))
    assert [row["doc_id"] for row in images.rows] == ["one", *["paper"] * 3, "three", "two"]
    digests = [row["digest"] for row in images.rows]
    assert digests[0] == digests[-1]
    assert len(set(digests)) == 5
    assert sorted(stamps(path / "images")) == sorted(f"{digest}.png" for digest in set(digests))
    first = images.rows[0]
    assert images.read(first["digest"]) == read_image(as_bytes(picture(seed=11))).data
    assert first["printed"] == first["caption"] == "Figure 1: Energy per year"
    assert (first["caption_from"], first["error"], first["width"], first["height"]) == ("printed", None, 320, 240)
    assert first["mentions"] == ["The plant uses energy, as Figure 1 shows."]
    nodes = Index.open(str(path)).nodes
    row = nodes.row_of(first["node_id"])
    assert nodes.text_of(row) == first["caption"]
    assert nodes.column("attachment_path", np.array([row])) == [f"images/{first['digest']}.png"]
    counts, work = found["counts"], found["work"]
    assert (counts["n_images"], work.images_left_out) == (6, {"small": 1})
    (reject,) = work.rejects
    assert reject[0] == f"{docs}/broken.pdf: page 1, image 1"
    assert counts["n_documents"] == 6
    of_files = {"n_files": 6, "n_rejects": 1, "n_rejected_files": 0, "rejects": work.rejects, "paths": (str(docs),)}
    took = dict.fromkeys(("parse_s", "encode_s", "reduce_s", "wall_s"), 1.0)
    facts = {"counts": counts, "texts_by_encoder": (1,), "images_left_out": work.images_left_out}
    said = IndexSummary(path=str(path), **facts, **of_files, **took).text()
    assert "6 images, 1 image left out (1 small)" in said
    assert "1 part of files rejected" in said
    more = of_files | {"n_rejects": 5, "n_rejected_files": 1}
    assert "\n1 file and 4 parts of files rejected:\n" in IndexSummary(path=str(path), **facts, **more, **took).text()


@pytest.mark.slow
def test_known_images_are_not_written_again_and_settings_decide_what_is_kept(built, config_of, tmp_path):
    shutil.copytree(built[0], tmp_path, dirs_exist_ok=True)
    docs, path = tmp_path / "docs", tmp_path / "index"
    digests = [row["digest"] for row in Images.open(str(path)).rows]
    before = stamps(path / "images")
    (docs / "three.md").unlink()
    (docs / "four.png").write_bytes(as_bytes(picture(seed=14)))
    (docs / "four.md").write_text(TEXT.format("four.png"))
    again = index_here(config_of(tmp_path))
    after = stamps(path / "images")
    assert {name: stamp for name, stamp in after.items() if name in before} == {
        name: stamp for name, stamp in before.items() if name != f"{digests[4]}.png"
    }, "known images are not written again, and one that no document shows goes"
    assert len(after) == 5
    assert again["counts"]["n_images"] == 6

    images = Images.open(str(path))
    os.unlink(path / "images" / f"{digests[0]}.png")
    with pytest.raises(DataError, match=rf"images/{digests[0]}\.png is missing: re-index"):
        images.read(digests[0])
    without = config_of(tmp_path, "index.captions=none", "index.shards=3")
    with pytest.raises(IndexMismatchError, match=r"images\.captions 'printed' but the configuration says 'none'"):
        open_index(without)
    assert index_here(without)["counts"]["n_images"] == 6
    images = Images.open(str(path))
    assert [row["doc_id"] for row in images.rows] == ["four", "one", *["paper"] * 3, "two"]
    assert images.read(digests[0])
    row = images.rows[1]
    assert (row["printed"], row["caption"], row["caption_from"]) == ("Figure 1: Energy per year", None, "none")
    nodes = Index.open(str(path)).nodes
    assert nodes.text_of(nodes.row_of(row["node_id"])) == ""

    index_here(config_of(tmp_path, "index.images=false"))
    assert not list(path.glob("images/*"))
    index = Index.open(str(path))
    assert "images" not in {**index.manifest["files"], **index.manifest["settings"]}
    assert "n_images" not in index.manifest["counts"]
    with pytest.raises(DataError, match=r"was built without images: set index.images to true"):
        Images.open(str(path))
