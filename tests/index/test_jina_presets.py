"""Every option of the Jina presets reaches the model: stand-ins with the real modules' signatures record it.

As published, their code does not load with transformers 5: that is one line, which names the model and the way out.

The last test takes the real weights: hf download jinaai/jina-embeddings-v3; pytest -m weights
"""

from __future__ import annotations

import io
import re
from importlib.util import find_spec

import numpy as np
import pytest
from kit import jina_stand_ins
from kit.rows import check_rows
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
    settings = load_config(["default", f"encoders/jina_{version}"]).index.encoder
    return SentenceEncoder(settings.model_copy(update={"model": folder, "device": "cpu", **changed}))


@pytest.fixture(scope="module")
def encoder(version, folder):
    return encoder_of(version, folder)


@check_rows(
    ("version", "broken", "error"),
    [
        ("v3", "post_init", "AttributeError: 'Model' object has no attribute 'all_tied_weights_keys'"),
        (
            "v4",
            "peft",
            "ImportError: This modeling file requires the following packages .*: peft. Run `pip install peft`",
        ),
        ("v4", "rope", "KeyError: 'default'"),
    ],
)
def test_published_code_that_does_not_load_is_one_line(tmp_path, version, broken, error):
    """Its KeyError ended `kohaku-ray index` in a traceback, without the model's name."""
    if broken == "peft" and find_spec("peft"):
        pytest.skip("peft is installed")
    folder = jina_stand_ins.build(tmp_path / f"{version}_{broken}", version, TEXTS, broken)
    with pytest.raises(ConfigError) as raised:
        encoder_of(version, folder)
    line = str(raised.value)
    name = re.escape(folder)
    assert re.match(
        rf"encoder\.model '{name}' cannot be loaded \({error}\): its own code must fit transformers 5\.", line
    )
    assert line.endswith("or serve the model (docs/models.md: Jina v3 and v4)")
    assert "\n" not in line


def test_what_own_code_raises_at_the_first_text_is_one_line_too(tmp_path):
    folder = jina_stand_ins.build(tmp_path / "v3", "v3", TEXTS)
    with pytest.raises(
        ConfigError, match=r"v3' cannot be loaded \(ValueError: Unsupported task nonsense\): its own code"
    ):
        encoder_of("v3", folder, passage_task="nonsense")


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
        prefix = jina_stand_ins.PROMPTS[version][prompt[version]]
        assert set(calls_of(encoder, "forward")) == {task[version]}
        assert {text for batch in calls_of(encoder, "tokenize") for text in batch} == {prefix + text for text in TEXTS}
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


@check_rows("dim", [128, 256, 512, 1024, 2048])
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
    expected = module(module.tokenize(given), task="retrieval")["sentence_embedding"].numpy()[:, :512]
    np.testing.assert_allclose(vectors, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-4)


def test_a_text_that_is_an_address_or_a_file_is_no_image(encoder, tmp_path, monkeypatch):
    """Jina v4's own code fetches addresses and opens files: a document's sentences must not make it do so."""
    (tmp_path / "Water").write_text("no image")
    monkeypatch.chdir(tmp_path)
    hostile = ["http://127.0.0.1/image.png", "https://example.org", "Water"]
    assert encoder.encode_passages(hostile).shape[0] == encoder.encode_queries(hostile).shape[0] == 3


PASSAGES = [
    "Training the model consumed 1,287 MWh of electricity.",
    "The harbour of Lisbon was rebuilt after the earthquake.",
    "Der Hund schläft unter dem Tisch.",
]


@pytest.fixture(scope="module")
def real(version) -> SentenceEncoder:
    """The preset's encoder, if its weights and its code are in the local cache."""
    from huggingface_hub import try_to_load_from_cache

    settings = load_config(["default", f"encoders/jina_{version}"]).index.encoder
    if not isinstance(try_to_load_from_cache(settings.model, "config.json", revision=settings.revision), str):
        pytest.skip(f"{settings.model} is not in the local cache: download it first")
    return SentenceEncoder(settings)


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_with_real_weights_a_question_finds_its_passage_and_an_image_its_description(real, version):
    question = "How much energy did the training use?"
    (query,), passages = real.encode_queries([question]), real.encode_passages(PASSAGES)
    assert passages.shape == (3, {"v3": 768, "v4": 512}[version])
    np.testing.assert_allclose(np.linalg.norm(passages, axis=1), 1, atol=1e-3)
    assert int(np.argmax(passages @ query)) == 0
    assert float(query @ real.encode_passages([question])[0]) < 0.999, "queries and passages have prompts of their own"
    assert float(query @ np.asarray(own_vectors(real, version, [question])[0], np.float32)) > 0.999
    if version == "v4":  # v3 reads text alone
        files = {colour: png(colour, 224, 224) for colour in ("red", "blue")}
        [images] = real.images().batches(list(files), files.__getitem__)
        scores = real.encode_queries(["a plain red square", "a plain blue square"]) @ images.T
        assert scores.argmax(axis=1).tolist() == [0, 1]
