"""The Jina presets on the real weights, wherever a machine has downloaded them; elsewhere these tests are skipped.

hf download jinaai/jina-embeddings-v3; pytest -m weights tests/index/test_jina_weights.py
"""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from kohaku_ray.config import load_config
from kohaku_ray.index.encoder import SentenceEncoder

pytestmark = [pytest.mark.weights, pytest.mark.slow, pytest.mark.timeout(1800)]

QUESTION = "How much energy did the training use?"
PASSAGES = [
    "Training the model consumed 1,287 MWh of electricity.",
    "The harbour of Lisbon was rebuilt after the earthquake.",
    "Der Hund schläft unter dem Tisch.",
]


def encoder_of(version: str) -> SentenceEncoder:
    """The preset's encoder, if its weights and its code are in the local cache."""
    from huggingface_hub import try_to_load_from_cache

    settings = load_config(["default", f"encoders/jina_{version}"]).index.encoder
    if not isinstance(try_to_load_from_cache(settings.model, "config.json", revision=settings.revision), str):
        pytest.skip(f"{settings.model} is not in the local cache: download it first")
    return SentenceEncoder(**settings.model_dump())


@pytest.fixture(scope="module", params=["v3", "v4"])
def version(request):
    return request.param


@pytest.fixture(scope="module")
def encoder(version):
    return encoder_of(version)


def test_a_question_finds_its_passage_and_tasks_differ(encoder, version):
    (query,), passages = encoder.encode_queries([QUESTION]), encoder.encode_passages(PASSAGES)
    assert passages.shape == (3, {"v3": 768, "v4": 512}[version])
    np.testing.assert_allclose(np.linalg.norm(passages, axis=1), 1, atol=1e-3)
    assert int(np.argmax(passages @ query)) == 0
    assert float(query @ encoder.encode_passages([QUESTION])[0]) < 0.999, (
        "queries and passages have prompts of their own"
    )


def test_vectors_are_those_of_the_models_own_encode(encoder, version):
    loaded = encoder._model.loaded
    task, name = {"v3": ("retrieval.query",) * 2, "v4": ("retrieval", "query")}[version]
    own = loaded.encode([QUESTION], task=task, prompt_name=name, truncate_dim=encoder.dim, normalize_embeddings=True)
    found = encoder.encode_queries([QUESTION])
    assert float(found[0] @ np.asarray(own[0], np.float32)) > 0.999


def test_an_image_is_nearer_to_its_description(encoder, version):
    if version == "v3":
        pytest.skip("v3 reads text alone")
    files = {}
    for colour in ("red", "blue"):
        png = io.BytesIO()
        Image.new("RGB", (224, 224), colour).save(png, "PNG")
        files[colour] = png.getvalue()
    [images] = encoder.images().batches(list(files), files.__getitem__)
    texts = encoder.encode_queries(["a plain red square", "a plain blue square"])
    scores = texts @ images.T
    assert scores[0, 0] > scores[0, 1]
    assert scores[1, 1] > scores[1, 0]
