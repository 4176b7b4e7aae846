"""Vectors of images in an index: which paragraphs get one, what is refused, and files that are missing or damaged."""

from __future__ import annotations

import io

import numpy as np
import pytest
from figure_pdfs import as_bytes, picture
from kit import tiny_clip
from PIL import Image as Pillow

from kohaku_ray.config import load_config
from kohaku_ray.documents.figures import ImageSource
from kohaku_ray.documents.parse import parse_documents
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.flatten import flatten
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.images import ImagePlan, ImageVectors, image_rows, join_image_vectors, put_into_tree
from kohaku_ray.index.known import KnownVectors
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.settings import EncoderConfig

TEXTS, PICTURES = {"model": "texts"}, {"model": "pictures"}
MARKDOWN = b"Two plants are shown.\n\n![Figure 1: Energy](a.png)\n\nMore text.\n\n![Figure 2: Water](b.png)\n"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    for seed, name in enumerate("ab"):
        (folder / f"{name}.png").write_bytes(as_bytes(picture(seed=seed)))
    (document,) = parse_documents(str(folder / "x.md"), MARKDOWN, images=ImageSource()).documents
    return NodeTable(flatten(document))


@pytest.mark.parametrize(("kind", "in_tree"), [("image", "none"), ("both", "caption")])
def test_images_with_an_encoder_of_their_own_leave_the_tree_to_texts(kind, in_tree):
    plan = ImagePlan.of(TEXTS, {"vectors": kind, "encoder": PICTURES})
    assert (plan.in_tree, plan.own_space) == (in_tree, True)
    assert (plan.identity["model"], plan.identity["modality"]) == ("pictures", "image")


def vectors_of(nodes: NodeTable, plan: ImagePlan, dim: int = 4) -> ImageVectors:
    rows, digests = image_rows(nodes)
    vectors = np.eye(dim, dtype=np.float32)[: len(rows)]
    return ImageVectors(rows, vector_keys(plan.identity, digests), vectors)


def in_tree(nodes: NodeTable, images: dict, dim: int = 4) -> tuple[np.ndarray, list[int]]:
    """Vectors of all nodes, those of texts being ones, and the rows that are settled."""
    plan = ImagePlan.of(TEXTS, images)
    given = np.full((len(nodes), dim), 0.5, np.float32)
    kept = put_into_tree(given, nodes, plan, vectors_of(nodes, plan) if plan.identity else None)
    return given, kept.tolist()


def test_an_image_paragraph_takes_its_images_vector_its_captions_or_none(nodes):
    rows = image_rows(nodes)[0].tolist()
    assert len(rows) == 2
    others = np.setdiff1d(np.arange(len(nodes)), rows)
    wanted = {
        "caption": (np.full((2, 4), 0.5), []),
        "none": (np.zeros((2, 4)), rows),
        "image": (np.eye(4)[:2], rows),
        "both": ((np.eye(4)[:2] + 0.5) / np.linalg.norm(np.eye(4)[:2] + 0.5, axis=1, keepdims=True), rows),
    }
    for kind, (vectors, settled) in wanted.items():
        given, kept = in_tree(nodes, {"vectors": kind})
        np.testing.assert_allclose(given[rows], vectors, atol=1e-6, err_msg=kind)
        np.testing.assert_array_equal(given[others], 0.5)
        assert kept == settled, kind


def test_an_image_without_a_finite_vector_is_named(nodes):
    plan = ImagePlan.of(TEXTS, {"vectors": "image"})
    images = vectors_of(nodes, plan)
    assert join_image_vectors(nodes, ImagePlan.of(TEXTS, None), None, KnownVectors()) is None
    image_vectors = join_image_vectors(nodes, plan, (images.keys[::-1], images.vectors[::-1]), KnownVectors())
    np.testing.assert_array_equal(image_vectors.vectors, images.vectors)
    digest = image_rows(nodes)[1][1]
    with pytest.raises(DataError, match=rf"1 image without a finite vector, the first .* \(images/{digest}\.png\)"):
        join_image_vectors(nodes, plan, (images.keys[:1], images.vectors[:1]), KnownVectors())
    images.vectors[1, 0] = np.nan
    with pytest.raises(DataError, match="1 image without a finite vector"):
        join_image_vectors(nodes, plan, (images.keys, images.vectors), KnownVectors())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["index.images=false", "index.image_vectors=image"], "index.images is false: set index.images to true"),
        (["index.image_encoder.model=clip"], "index.image_encoder is set but index.image_vectors is caption"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config("default", ["index.images=true", *overrides])


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return SentenceEncoder(
        EncoderConfig(model=tiny_clip.build(tmp_path_factory.mktemp("clip"), ["a chart"]), device="cpu")
    ).images()


def test_forty_images_have_the_models_own_vectors_in_order_and_one_that_is_damaged_is_named(clip):
    files = {}
    for number in range(40):  # three batches
        png = io.BytesIO()
        Pillow.new("RGB", (20 + number, 30), (number * 6, 0, 255 - number)).save(png, "PNG")
        files[f"{number:032x}"] = png.getvalue()
    whole = list(clip.batches(list(files), files.__getitem__))
    assert [len(batch) for batch in whole] == [16, 16, 8]
    one_by_one = [next(clip.batches([digest], files.__getitem__)) for digest in files]
    np.testing.assert_allclose(np.concatenate(whole), np.concatenate(one_by_one), atol=1e-5)
    assert list(clip.batches([], files.__getitem__)) == []
    bad = f"{33:032x}"
    for data in (b"<html>", files[bad][:40], b""):
        with pytest.raises(DataError, match=rf"images/{bad}\.png cannot be decoded .* delete it, and index again"):
            list(clip.batches(list(files), (files | {bad: data}).__getitem__))
