"""Vectors of images: by the text encoder or one of their own, computed once, and searched by queries of theirs."""

from __future__ import annotations

import asyncio
import functools
import io

import numpy as np
import pytest
from kit import tiny_clip
from kit.runs_here import index_here
from PIL import Image as Pillow

from kohaku_ray import sample
from kohaku_ray.answering.local_index import LocalIndex
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.images import Images
from kohaku_ray.index.store import Index


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    with open(f"{sample.path('figures')}/documents/quill2024.md", encoding="utf-8") as file:
        return tiny_clip.build(tmp_path_factory.mktemp("clip"), [file.read()])


@pytest.fixture
def config_of(small_config):
    return functools.partial(small_config, "demo_figures", "kohaku.image_top_k=2")


def encoded(clip: str, path: str) -> dict[str, np.ndarray]:
    """The library's own vector of every image of an index, by its node."""
    from sentence_transformers import SentenceTransformer

    model, images = SentenceTransformer(clip, device="cpu"), Images.open(path)
    pixels = [Pillow.open(io.BytesIO(images.read(row["digest"]))).convert("RGB") for row in images.rows]
    vectors = model.encode(pixels, normalize_embeddings=True)
    return dict(zip([row["node_id"] for row in images.rows], vectors, strict=True))


@pytest.mark.slow
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


@pytest.mark.slow
def test_images_with_an_encoder_of_their_own_are_a_view_of_their_own(cluster, config_of, clip):
    config = config_of("index.image_vectors=both", f"index.image_encoder.model={clip}", "index.shards=3")
    assert run_index(config).n_images_encoded == 8
    index, wanted = Index.open(config.index.path), encoded(clip, config.index.path)
    rows = {node_id: index.nodes.row_of(node_id) for node_id in wanted}
    assert index.node_vectors(np.array(list(rows.values()))).shape == (8, 32), "the tree has the texts' vectors"
    parts = [LocalIndex.open(config, number=number) for number in range(index.n_shards)]
    (query,) = asyncio.run(parts[0].embed(["battery capacity"], True))
    assert query.shape == (16,)
    scores = {
        int(row): score
        for part in parts
        for hits in asyncio.run(part.run_alone("search", [query], (("image",), 8, None)))
        for row, score in zip(hits.rows, hits.scores, strict=True)
    }
    assert scores.keys() == set(rows.values())
    for node_id, vector in wanted.items():
        assert scores[rows[node_id]] == pytest.approx(float(vector @ query), abs=1e-6)


@pytest.mark.slow
def test_an_encoder_that_reads_no_images_is_refused_before_documents_are_parsed(cluster, config_of, tmp_path):
    with pytest.raises(ConfigError, match=r"reads text alone: name a model that reads images as index\.image_encoder"):
        run_index(config_of("index.image_vectors=image"))
    assert not (tmp_path / "index" / "images").exists(), "a parser writes the images it finds"
