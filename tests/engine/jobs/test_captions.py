"""Captions by a vision model: asked once per new image, through the ledger; a failed one leaves the printed caption."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from figure_pdfs import as_bytes, picture, scan
from kit.answers import deployment
from kit.fake_openai import Action, completion, error_body, text_of
from kit.runs_here import index_here
from kit.vision_server import VisionServer, charts, label_of, read_label
from PIL import Image

from kohaku_ray import sample
from kohaku_ray.answering.local_index import LocalIndex
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.index.images import Images
from kohaku_ray.index.nodes import KINDS
from kohaku_ray.index.store import Index
from kohaku_ray.run.segments import SegmentStore

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture
def config_of(small_config):
    def make(server, *overrides: str):
        eyes = json.dumps(deployment(server, vision=True, timeout_s=2, max_tries=1))
        defaults = [f"deployments.eyes={eyes}", "roles.caption.model=eyes", "index.captions=model"]
        return small_config("demo_figures", *defaults, *overrides)

    return make


def rows(config):
    return {row["node_id"]: row for row in Images.open(config.index.path).rows}


def test_captions_are_the_text_of_image_paragraphs(cluster, config_of):
    def misbehave(index, body):
        """Refuse one figure, cut off another, return ten megabytes for a third, say nothing of a fourth."""
        text = "\n".join(map(text_of, body["messages"]))
        if "Figure 1: Cooling power" in text:
            return Action(400, error_body("this image is not allowed"))
        if "Figure 2: Water drawn" in text:
            return Action(body=completion("a" * 2**20))
        if "Latency of Quill" in text:
            return Action(delay_s=3)
        return Action(body=completion("I'm sorry, I can't help with that.")) if "Batteries" in text else None

    with VisionServer(misbehave) as server:
        config = config_of(server)
        summary = run_index(config)
    by_caption = {row["printed"]: row for row in rows(config).values()}
    assert len(by_caption) == 8
    good = by_caption["Figure 3: Share of heat that is reused, by customer of the heat network."]
    assert good["caption_from"] == "model"
    assert good["error"] is None
    assert (
        good["caption"]
        == f"{good['printed']} A bar chart of Reused heat (%). Baths: 31, School: 14, Housing: 47, Nursery: 8."
    )
    index = Index.open(config.index.path)
    image_row = index.nodes.row_of(good["node_id"])
    assert index.nodes.text_of(image_row) == good["caption"]
    leaves = [index.nodes.text_of(row) for row in index.nodes.children(image_row)]
    assert " ".join(leaves) == good["caption"]
    assert {KINDS[index.nodes.kind[row]] for row in index.nodes.children(image_row)} == {"sentence"}

    failed = {row["printed"].partition(":")[2][:9]: row for row in by_caption.values() if row["error"]}
    assert sorted(failed) == [" Batterie", " Cooling ", " Latency ", " Water dr"]
    assert all(row["caption"] == row["printed"] and row["caption_from"] == "printed" for row in failed.values())
    assert "not allowed" in failed[" Cooling "]["error"]
    assert "1,048,576 characters, at most 8,000" in failed[" Water dr"]["error"]
    assert "no reply within timeout_s of 2 s" in failed[" Latency "]["error"]
    assert "the model refused: I'm sorry" in failed[" Batterie"]["error"]
    assert summary.captions is not None
    assert (summary.captions.n_asked, len(summary.captions.errors)) == (8, 4)
    assert "4 captions asked, 0 known, 4 failed (the printed caption stays)" in summary.text()
    kept = SegmentStore(config.ledger.path).load(lambda _: True).entries.values()
    assert len(kept) == 5, "the four descriptions and the refusal, not the ten megabytes"
    assert max(len(entry.reply.text) for entry in kept) < 8000

    request = next(request for request in server.log if "Share of heat" in text_of(request.body["messages"][-1]))
    (sent,) = request.images
    assert (sent.width, sent.height, sent.digest, sent.before_text) == (640, 440, good["digest"], True)
    assert label_of(sent) == 58
    assert "The document says: Who takes the heat is shown in Figure 3." in text_of(request.body["messages"][-1])
    assert "Document: Cooling and Heat Reuse at the Voss Campus" in text_of(request.body["messages"][-1])


def test_known_captions_are_not_asked_again_and_documents_of_images_alone_are_found_by_them(
    cluster, config_of, tmp_path
):
    folder = tmp_path / "docs"
    folder.mkdir()

    def add(name: str, seed: int) -> None:
        (folder / f"{name}.png").write_bytes(as_bytes(picture(seed=seed)))
        Path(folder / f"{name}.md").write_text(f"# Plant\n\nA plant.\n\n![Figure 1: Plant]({name}.png)\n")

    drawn = Path(sample.path("figures/documents/tarn2023-1.png")).read_bytes()
    (folder / "scan.pdf").write_bytes(scan(drawn, drawn))  # one image, drawn twice
    (folder / "page.html").write_text("<img src='plant.png'>")
    (folder / "plant.png").write_bytes(as_bytes(picture(seed=2)))
    paths = [f"documents.paths=[{folder}]", "documents.metadata=null"]
    with VisionServer() as server:
        bare = config_of(server, *paths, "index.captions=none", f"index.path={tmp_path}/bare")
        counts = index_here(bare)["counts"]
        assert (counts["n_documents"], counts["n_images"], counts["n_sentences"], counts["n_vectors"]) == (2, 2, 0, 0)
        assert searched(bare, "heat that is reused") == []

        add("one", 1)
        add("two", 1)  # the same image, title and caption: one call
        config = config_of(server, *paths)
        first = run_index(config)
        assert (first.captions.n_asked, first.captions.errors, server.n_requests) == (3, [], 3)
        assert first.n_rejects == 0
        texts = {row["doc_id"]: row["caption"] for row in rows(config).values()}
        assert texts["page"] == "A picture without a chart."
        assert texts["scan"] == charts()[read_label(Image.open(io.BytesIO(drawn)))]["description"]
        assert {node_id.partition(":")[0] for node_id in searched(config, texts["scan"])} == {"scan"}

        add("three", 3)
        moved = config_of(server, *paths, f"ledger.path={tmp_path}/empty", "index.shards=2")  # the index knows them
        second = run_index(moved)
        assert (second.captions.n_known, second.captions.n_asked, server.n_requests) == (3, 1, 4)
        captions = {row["doc_id"]: row["caption"] for row in rows(moved).values()}
        assert {captions[name] for name in ("one", "two", "three")} == {"Figure 1: Plant. A picture without a chart."}
        assert {row["caption_from"] for row in rows(moved).values()} == {"model"}


def searched(config, query: str) -> list[str]:
    """What the default view finds: ids of nodes, the best first."""
    index = LocalIndex.open(config)
    (vector,) = asyncio.run(index.embed([query], False))
    (hits,) = asyncio.run(index.search([vector], ("sentence", "paragraph"), 3, None))
    nodes = Index.open(config.index.path).nodes
    return [nodes.node_id(int(row)) for row in hits.rows]
