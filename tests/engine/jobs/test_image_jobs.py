"""Index jobs with images: a model describes each new one once, and an encoder of theirs sees it once.

Descriptions go through the ledger; one that fails leaves the printed caption.
"""

from __future__ import annotations

import asyncio
import functools
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from figure_pdfs import as_bytes, picture, scan
from kit import tiny_clip
from kit.answers import deployment
from kit.fake_openai import Action, SentImage, completion, error_body, text_of
from kit.runs_here import index_here
from kit.vision_server import VisionServer, charts, label_of, read_label
from PIL import Image

from kohaku_ray import sample
from kohaku_ray.answering.local_index import LocalIndex
from kohaku_ray.config import Config, load_config
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.engine.jobs.index_stream import IndexSummary
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.images import Images
from kohaku_ray.index.nodes import KINDS
from kohaku_ray.index.store import Index
from kohaku_ray.store.segments import SegmentStore

pytestmark = pytest.mark.slow

FIGURES = {"quill2024", "tarn2023", "voss2025"}
DRAWN = Path(sample.path("figures/documents/tarn2023-1.png")).read_bytes()


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    with open(f"{sample.path('figures')}/documents/quill2024.md", encoding="utf-8") as file:
        return tiny_clip.build(tmp_path_factory.mktemp("clip"), [file.read()])


@pytest.fixture
def config_of(small_config):
    return functools.partial(small_config, "demo_figures", "kohaku.image_top_k=2")


def rows_of(config: Config) -> dict[str, dict]:
    return {row["node_id"]: row for row in Images.open(config.index.path).rows}


def encoded(clip: str, path: str) -> dict[str, np.ndarray]:
    """The library's own vector of every image of an index, by its node."""
    from sentence_transformers import SentenceTransformer

    model, images = SentenceTransformer(clip, device="cpu"), Images.open(path)
    pixels = [Image.open(io.BytesIO(images.read(row["digest"]))).convert("RGB") for row in images.rows]
    vectors = model.encode(pixels, normalize_embeddings=True)
    return dict(zip([row["node_id"] for row in images.rows], vectors, strict=True))


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


def add(folder: Path, name: str, seed: int) -> None:
    (folder / f"{name}.png").write_bytes(as_bytes(picture(seed=seed)))
    Path(folder / f"{name}.md").write_text(f"# Plant\n\nA plant.\n\n![Figure 1: Plant]({name}.png)\n")


def write_images(folder: Path) -> Path:
    """A PDF with one image that is drawn twice, and a page: documents of images alone."""
    folder.mkdir()
    (folder / "scan.pdf").write_bytes(scan(DRAWN, DRAWN))
    (folder / "page.html").write_text("<img src='plant.png'>")
    (folder / "plant.png").write_bytes(as_bytes(picture(seed=2)))
    return folder


@dataclass
class Jobs:
    """Two jobs on the sample's figures and other images: a model that misbehaves, then one that describes them."""

    config: Config
    first: IndexSummary
    rows: dict[str, dict]  # of the first
    requests: list[tuple[str, list[SentImage]]]  # of the first: its last message, and images
    second: IndexSummary
    n_second: int  # requests


@pytest.fixture(scope="module")
def jobs(cluster, tiny_encoder, clip, tmp_path_factory) -> Jobs:
    home, is_bad = tmp_path_factory.mktemp("described"), True
    folder = write_images(home / "docs")
    add(folder, "one", 1)
    add(folder, "two", 1)  # the same image, title and caption: one call
    with VisionServer(lambda index, body: misbehave(index, body) if is_bad else None) as server:
        eyes = json.dumps(deployment(server, vision=True, timeout_s=2, max_tries=1))
        overrides = [
            *(f"deployments.eyes={eyes}", "roles.caption.model=eyes", "index.captions=model"),
            *(f"documents.paths=['sample:figures/documents', '{folder}']", f"index.path={home}/index"),
            *(f"ledger.path={home}/ledger", "index.encoders=1", f"index.encoder.model={tiny_encoder}"),
            *("index.image_vectors=both", f"index.image_encoder.model={clip}"),
        ]
        config = load_config("demo_figures", overrides)
        first, rows = run_index(config), rows_of(config)
        requests = [(text_of(request.body["messages"][-1]), request.images) for request in server.log]
        is_bad = False
        add(folder, "three", 3)
        # The index knows what was described: its ledger is not asked.
        moved = load_config("demo_figures", [*overrides, f"ledger.path={home}/empty", "index.shards=2"])
        second = run_index(moved)
        return Jobs(moved, first, rows, requests, second, server.n_requests - len(requests))


def test_captions_are_the_text_of_image_paragraphs(jobs):
    by_caption = {row["printed"]: row for row in jobs.rows.values() if row["doc_id"] in FIGURES}
    assert len(by_caption) == 8
    good = by_caption["Figure 3: Share of heat that is reused, by customer of the heat network."]
    assert good["caption_from"] == "model"
    assert good["error"] is None
    assert (
        good["caption"]
        == f"{good['printed']} A bar chart of Reused heat (%). Baths: 31, School: 14, Housing: 47, Nursery: 8."
    )
    index = Index.open(jobs.config.index.path)
    image_row = index.nodes.row_of(good["node_id"])
    assert index.nodes.text_of(image_row) == good["caption"]
    leaves = [index.nodes.text_of(row) for row in index.nodes.children(image_row)]
    assert " ".join(leaves) == good["caption"]
    assert {KINDS[index.nodes.kind[row]] for row in index.nodes.children(image_row)} == {"sentence"}

    [(message, [sent])] = [(text, images) for text, images in jobs.requests if "Share of heat" in text]
    assert (sent.width, sent.height, sent.digest, sent.before_text) == (640, 440, good["digest"], True)
    assert label_of(sent) == 58
    assert "The document says: Who takes the heat is shown in Figure 3." in message
    assert "Document: Cooling and Heat Reuse at the Voss Campus" in message


def test_a_caption_that_fails_leaves_the_printed_one_and_is_asked_again_by_the_next_job(jobs):
    errors = {row["printed"].partition(":")[2][:9]: row["error"] for row in jobs.rows.values() if row["error"]}
    assert sorted(errors) == [" Batterie", " Cooling ", " Latency ", " Water dr"]
    failed = [row for row in jobs.rows.values() if row["error"]]
    assert all(row["caption"] == row["printed"] and row["caption_from"] == "printed" for row in failed)
    assert "not allowed" in errors[" Cooling "]
    assert "1,048,576 characters, at most 8,000" in errors[" Water dr"]
    assert "no reply within timeout_s of 2 s" in errors[" Latency "]
    assert "the model refused: I'm sorry" in errors[" Batterie"]
    captions = jobs.first.captions
    assert (captions.n_asked, len(captions.errors), len(jobs.requests)) == (11, 4, 11)
    assert "7 captions asked, 0 known, 4 failed (the printed caption stays)" in jobs.first.text()
    ledger = Path(jobs.config.ledger.path).with_name("ledger")
    kept = SegmentStore(str(ledger)).load(lambda _: True).entries.values()
    assert len(kept) == 8, "the seven descriptions and the refusal, not the ten megabytes"
    assert max(len(entry.reply.text) for entry in kept) < 8000
    assert {row["error"] for row in rows_of(jobs.config).values()} == {None}


def test_known_captions_are_not_asked_again_and_documents_of_images_alone_are_found_by_them(jobs, config_of, tmp_path):
    folder = write_images(tmp_path / "docs")
    bare = config_of(f"documents.paths=[{folder}]", "documents.metadata=null", "index.captions=none")
    counts = index_here(bare)["counts"]
    assert (counts["n_documents"], counts["n_images"], counts["n_sentences"], counts["n_vectors"]) == (2, 2, 0, 0)
    assert searched(bare, "heat that is reused") == []

    assert jobs.first.n_rejects == 0
    texts = {row["doc_id"]: row["caption"] for row in jobs.rows.values()}
    assert texts["page"] == "A picture without a chart."
    assert texts["scan"] == charts()[read_label(Image.open(io.BytesIO(DRAWN)))]["description"]
    assert {node_id.partition(":")[0] for node_id in searched(jobs.config, texts["scan"])} >= {"scan"}

    captions = jobs.second.captions
    assert (captions.n_known, captions.n_asked, jobs.n_second) == (7, 1 + 4, 1 + 4), "what is new, and what had failed"
    after = {row["doc_id"]: row["caption"] for row in rows_of(jobs.config).values()}
    assert {after[name] for name in ("one", "two", "three")} == {"Figure 1: Plant. A picture without a chart."}
    assert {row["caption_from"] for row in rows_of(jobs.config).values()} == {"model"}


def searched(config: Config, query: str) -> list[str]:
    """What the default view finds: ids of nodes, the best first."""
    nodes, found = Index.open(config.index.path).nodes, []
    for number in range(Index.open(config.index.path).n_shards):
        part = LocalIndex.open(config, number=number)
        (vector,) = asyncio.run(part.embed([query], False))
        (hits,) = asyncio.run(part.run_alone("search", [vector], (("sentence", "paragraph"), 3, None)))
        found += zip(hits.scores, map(int, hits.rows), strict=True)
    return [nodes.node_id(row) for _, row in sorted(found, reverse=True)[:3]]


def test_images_with_an_encoder_of_their_own_are_encoded_once_and_a_view_of_their_own(jobs, clip):
    assert (jobs.first.n_images_encoded, jobs.second.n_images_encoded) == (10, 1), "the scan shows a figure again"
    config = jobs.config
    index, wanted = Index.open(config.index.path), encoded(clip, config.index.path)
    rows = {node_id: index.nodes.row_of(node_id) for node_id in wanted}
    assert index.node_vectors(np.array(list(rows.values()))).shape == (len(rows), 32), "the tree has the texts' vectors"
    parts = [LocalIndex.open(config, number=number) for number in range(index.n_shards)]
    assert len(parts) == 2
    (query,) = asyncio.run(parts[0].embed(["battery capacity"], True))
    assert query.shape == (16,)
    scores = {
        int(row): score
        for part in parts
        for hits in asyncio.run(part.run_alone("search", [query], (("image",), len(rows), None)))
        for row, score in zip(hits.rows, hits.scores, strict=True)
    }
    assert scores.keys() == set(rows.values())
    for node_id, vector in wanted.items():
        assert scores[rows[node_id]] == pytest.approx(float(vector @ query), abs=1e-6)


def test_images_in_the_texts_space_are_encoded_once_and_join_the_tree(config_of, clip):
    config = config_of(f"index.encoder.model={clip}", "index.image_vectors=image")
    assert index_here(config)["n_images_encoded"] == 8
    index, wanted = Index.open(config.index.path), encoded(clip, config.index.path)
    node_rows = {node_id: index.nodes.row_of(node_id) for node_id in wanted}
    rows = np.array(list(node_rows.values()))
    np.testing.assert_allclose(index.node_vectors(rows), np.stack(list(wanted.values())), atol=1e-6)
    results = index.shards[0].vectors(("image",)).search(np.stack(list(wanted.values())), 1)
    np.testing.assert_allclose([hits.scores[0] for hits in results], 1, atol=1e-6)

    both = config_of(f"index.encoder.model={clip}", "index.image_vectors=both")
    assert index_here(both)["n_images_encoded"] == 0, "they are known"


def test_an_encoder_that_reads_no_images_is_refused_before_documents_are_parsed(cluster, config_of, tmp_path):
    with pytest.raises(ConfigError, match=r"reads text alone: name a model that reads images as index\.image_encoder"):
        run_index(config_of("index.image_vectors=image"))
    assert not (tmp_path / "index" / "images").exists(), "a parser writes the images it finds"
