"""Every option of the Jina presets reaches the model: stand-ins with the real modules' signatures record it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from kit import jina_stand_ins
from PIL import Image

from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.encoder import SentenceEncoder

TEXTS = ["Training used 5 kWh of power.", "Water", "The campus used water and power in the same year ."]


@pytest.fixture(scope="module", params=["v3", "v4"])
def version(request):
    return request.param


@pytest.fixture(scope="module")
def folder(version, tmp_path_factory):
    return jina_stand_ins.build(tmp_path_factory.mktemp("jina") / version, version, TEXTS)


def encoder_of(version: str, folder: str, **changed) -> SentenceEncoder:
    """The preset's encoder, with the stand-in as its model."""
    settings = load_config(["default", f"encoders/jina_{version}"]).index.encoder.model_dump()
    return SentenceEncoder(**{**settings, "model": folder, "device": "cpu", **changed})


@pytest.fixture(scope="module")
def encoder(version, folder):
    return encoder_of(version, folder)


def calls_of(encoder: SentenceEncoder, kind: str) -> list:
    return [value for name, value in encoder._model.loaded[0].calls if name == kind]


def test_tasks_and_prompts_reach_the_model(encoder, version):
    for encode, task, prompt in (
        (
            encoder.encode_queries,
            {"v3": "retrieval.query", "v4": "retrieval"},
            {"v3": "retrieval.query", "v4": "query"},
        ),
        (
            encoder.encode_passages,
            {"v3": "retrieval.passage", "v4": "retrieval"},
            {"v3": "retrieval.passage", "v4": "passage"},
        ),
    ):
        encoder._model.loaded[0].calls.clear()
        vectors = encode(TEXTS)
        own = jina_stand_ins.PROMPTS[version][prompt[version]]
        assert set(calls_of(encoder, "forward")) == {task[version]}
        assert {text for batch in calls_of(encoder, "tokenize") for text in batch} == {own + text for text in TEXTS}
        assert vectors.shape == (3, {"v3": 768, "v4": 512}[version])
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_vectors_are_those_of_the_models_own_encode(encoder, version):
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), own_vectors(encoder, version, TEXTS), atol=1e-4)


def own_vectors(encoder: SentenceEncoder, version: str, texts: list[str]) -> np.ndarray:
    task, name = {"v3": ("retrieval.query",) * 2, "v4": ("retrieval", "query")}[version]
    more = {"truncate_dim": encoder.dim, "normalize_embeddings": True}
    return encoder._model.loaded.encode(texts, task=task, prompt_name=name, **more)


def png(colour: str, *size: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("dim", [128, 2048])
def test_a_shorter_vector_is_the_first_part_of_the_longest(version, folder, dim):
    most = jina_stand_ins.DIMS[version]
    if dim > most:
        with pytest.raises(ConfigError, match=rf"encoder\.dim is {dim} but .* gives {most}"):
            encoder_of(version, folder, dim=dim)
        return
    short, whole = (encoder_of(version, folder, dim=n).encode_passages(TEXTS) for n in (dim, None))
    assert short.shape == (3, dim)
    assert whole.shape == (3, most)
    cut = whole[:, :dim] / np.linalg.norm(whole[:, :dim], axis=1, keepdims=True)
    np.testing.assert_allclose(short, cut, atol=1e-5)


def test_images_take_the_passages_task_and_length(encoder, version):
    if version == "v3":
        with pytest.raises(ConfigError, match="reads text alone"):
            encoder.images()
        return
    files = {"30": png("black", 30, 20), "50": png("black", 50, 50)}
    encoder._model.loaded[0].calls.clear()
    [vectors] = encoder.images().batches(list(files), files.__getitem__)
    assert vectors.shape == (2, 512)
    assert calls_of(encoder, "forward") == ["retrieval"]
    [given] = calls_of(encoder, "tokenize")
    assert [image.size for image in given] == [(30, 20), (50, 50)]
    module = encoder._model.loaded[0]
    own = module(module.tokenize(given), task="retrieval")["sentence_embedding"].numpy()[:, :512]
    np.testing.assert_allclose(vectors, own / np.linalg.norm(own, axis=1, keepdims=True), atol=1e-4)


def test_a_text_that_is_an_address_or_a_file_is_no_image(encoder, tmp_path, monkeypatch):
    """Jina v4's own code fetches addresses and opens files: a document's sentences must not make it do so."""
    (tmp_path / "Water").write_text("no image")
    monkeypatch.chdir(tmp_path)
    hostile = ["http://127.0.0.1/image.png", "https://example.org", "Water"]
    assert encoder.encode_passages(hostile).shape[0] == encoder.encode_queries(hostile).shape[0] == 3
