"""Presets of models and encoders: each composes with every system, and its settings reach the model."""

from __future__ import annotations

import pytest
import yaml

from kohaku_ray.config import as_yaml, build_config, load_config
from kohaku_ray.config.paths import preset_names
from kohaku_ray.errors import ConfigError
from kohaku_ray.models.prompts import Prompt
from kohaku_ray.run.deployments import check_vision, model_identity
from kohaku_ray.run.models import chat_request, models_of

CAPTIONERS = ("models/openrouter_qwen_vl", "models/vllm_qwen3_vl")
MODELS = [name for name in preset_names() if name.startswith("models/") and name not in CAPTIONERS]
ENCODERS = [name for name in preset_names() if name.startswith("encoders/")]

JINA = ("encoders/jina_v3", "encoders/jina_v4")
PROMPTS = {
    "encoders/minilm": (None, None),
    "encoders/bge_m3": (None, None),
    "encoders/multilingual_e5": ("query: ", "passage: "),
    "encoders/jina_v3": ("retrieval.query", "retrieval.passage"),
    "encoders/jina_v4": ("query", "passage"),
    "encoders/qwen3_embedding": ("query", None),
}
"""Prompt of a query and of a passage: a text, or a name in the model's own config_sentence_transformers.json."""


@pytest.fixture(autouse=True)
def _named(monkeypatch):
    monkeypatch.setenv("KOHAKU_MODEL", "some/model")


@pytest.mark.parametrize(
    ("preset", "system"),
    [
        (preset, system)
        for preset in MODELS
        for system in ("demo", "hybrid", "narrative")
        if preset != "models/tiny" or system == "demo"  # it sets kohaku's budget
    ],
)
def test_a_model_preset_serves_every_role_of_every_system(preset, system):
    config = load_config([system, preset])
    [(name, deployment)] = config.chat_deployments.items()
    assert (name, deployment.model) == (config.model, "some/model")
    assert build_config(yaml.safe_load(as_yaml(config)), "printed") == config
    assert model_identity(deployment)
    for role in config.uses.roles:
        longest = config.role(role).max_tokens + deployment.reasoning_tokens
        assert deployment.window_tokens is None or deployment.window_tokens >= 8000 + longest


@pytest.mark.parametrize("preset", CAPTIONERS)
def test_a_preset_for_captions_describes_images_beside_whichever_model_answers(preset, monkeypatch):
    monkeypatch.delenv("KOHAKU_CAPTION_MODEL", raising=False)
    alone, beside = load_config(["demo", preset]), load_config(["demo", "models/openrouter", preset])
    for config, answering in ((alone, "extractive"), (beside, "gateway")):
        assert config.role("answer").model == answering
        assert list(config.chat_deployments) == [answering]
        [(name, deployment)] = config.caption_deployments.items()
        assert (name, deployment.vision) == ("eyes", True)
        assert "qwen3-vl" in deployment.model.lower(), "KOHAKU_MODEL names the model that answers"
        assert config.index.images
        assert config.index.captions == "model"


def test_the_figures_of_the_sample_say_which_model_they_need():
    with pytest.raises(ConfigError, match="--with models/openrouter_vision, or send none"):
        check_vision(load_config("demo_figures"))
    check_vision(load_config(["demo_figures", "models/openrouter_vision"]))
    check_vision(load_config(["demo_figures", "models/openai"], ["deployments.gateway.vision=true"]))
    check_vision(load_config("demo_figures", ["kohaku.send_images=false"]))


def test_reasoning_has_room_beside_the_answer_and_none_in_the_context():
    config = load_config(["demo", "models/vllm_gpt_oss_20b", "models/vllm_qwen3"])
    plain = models_of(config, {"qwen": "app"}, 0)["answer"]
    config = load_config(["demo", "models/vllm_gpt_oss_20b"])
    model = models_of(config, {"gpt_oss": "app"}, 0)["answer"]
    prompt = Prompt(system="s", user="u", variables={})
    assert (plain.max_tokens, plain.window_tokens) == (1024, 32768)
    assert (model.max_tokens, model.window_tokens) == (1024, 32768 - 4096)
    assert chat_request(plain, prompt, 0, None).max_tokens == 1024
    assert chat_request(model, prompt, 0, None).max_tokens == 1024 + 4096
    assert chat_request(model, prompt, 0, None, max_tokens=2000).max_tokens == 2000 + 4096


@pytest.mark.parametrize("preset", ENCODERS)
def test_an_encoders_prompts_and_tasks_are_its_models(preset):
    encoder = load_config(["demo", preset]).index.encoder
    assert (encoder.query_prompt, encoder.passage_prompt) == PROMPTS[preset]
    assert (encoder.query_task is not None) == (preset in JINA), "their adapters need one"
    assert encoder.trust_remote_code == (preset in JINA), "only Jina's models need their own code"


def test_later_bases_win_and_the_file_wins_over_all(tmp_path):
    (tmp_path / "one.yaml").write_text("seed: 1\nkohaku: {top_k: 5, queries: 2}\nrun: one\n")
    (tmp_path / "two.yaml").write_text("seed: 2\nkohaku: {top_k: 6}\n")
    (tmp_path / "top.yaml").write_text("base: [one.yaml, two.yaml]\nrun: top\n")
    config = load_config(str(tmp_path / "top.yaml"))
    assert (config.seed, config.settings.top_k, config.settings.queries, config.run) == (2, 6, 2, f"{tmp_path}/top")
    config = load_config([str(tmp_path / "two.yaml"), str(tmp_path / "one.yaml")], ["seed=9"])
    assert (config.seed, config.settings.top_k, config.run) == (9, 5, f"{tmp_path}/one")
