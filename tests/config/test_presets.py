"""Presets of models and encoders: each composes with every system, and its settings reach the model."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from kohaku_ray.config import as_yaml, build_config, load_config
from kohaku_ray.config.paths import preset_names
from kohaku_ray.errors import ConfigError
from kohaku_ray.index import encoder as encoder_module
from kohaku_ray.index.torch_model import TorchModel
from kohaku_ray.models.prompts import Prompt
from kohaku_ray.run.deployments import check_vision, model_identity
from kohaku_ray.run.indexes import make_encoder
from kohaku_ray.run.models import chat_request, models_of

MODELS = [name for name in preset_names() if name.startswith("models/")]
ENCODERS = [name for name in preset_names() if name.startswith("encoders/")]

PROMPTS = {
    "encoders/jina_v3": {
        "retrieval.query": "Represent the query for retrieving evidence documents: ",
        "retrieval.passage": "Represent the document for retrieval: ",
    },
    "encoders/jina_v4": {"query": "Query: ", "passage": "Passage: "},
    "encoders/qwen3_embedding": {
        "query": "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
        "document": "",
    },
}
"""The prompts that the models themselves name, as their config_sentence_transformers.json holds them."""

SEEN = {
    "encoders/minilm": ((None, None), (None, None)),
    "encoders/bge_m3": ((None, None), (None, None)),
    "encoders/multilingual_e5": (("query: ", None), ("passage: ", None)),
    "encoders/jina_v3": tuple(
        (PROMPTS["encoders/jina_v3"][task], task) for task in ("retrieval.query", "retrieval.passage")
    ),
    "encoders/jina_v4": (("Query: ", "retrieval"), ("Passage: ", "retrieval")),
    "encoders/qwen3_embedding": ((PROMPTS["encoders/qwen3_embedding"]["query"], None), (None, None)),
}
"""Prompt and task that the model computes with, for a query and for a passage."""


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


def test_a_gateways_model_is_the_users_to_name(monkeypatch, tmp_path):
    monkeypatch.delenv("KOHAKU_MODEL")
    with pytest.raises(ConfigError, match="KOHAKU_MODEL"):
        load_config(["demo", "models/openai"])
    own = tmp_path / "my.yaml"
    own.write_text("base: [demo, models/openai]\ndeployments: {gateway: {model: mine, price: {prompt: 2}}}\n")
    gateway = load_config(str(own)).deployments["gateway"]
    assert (gateway.model, gateway.price.prompt, gateway.api_key_env) == ("mine", 2, "OPENAI_API_KEY")


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


def test_reasoning_effort_is_part_of_a_models_identity_and_leaves_others_as_they_were():
    low, high = (
        load_config(None, [f"deployments.m={{kind: vllm, model: m, {text}}}"]).deployments["m"]
        for text in ("reasoning_effort: low", "reasoning_effort: high")
    )
    plain = load_config(None, ["deployments.m={kind: vllm, model: m}"]).deployments["m"]
    assert len({model_identity(one) for one in (low, high, plain)}) == 3
    assert model_identity(plain) == 'vllm:m {"engine":{},"revision":null,"template":{}}'


class Recording:
    """A real ``SentenceTransformer`` with another's prompts, which records each pass's prompt and task."""

    def __init__(self, real, prompts, takes_task: bool) -> None:
        self._real, self.prompts, self.seen = real, prompts, set()
        self._takes_task = takes_task

    def __getattr__(self, name):
        return getattr(self._real, name)

    def __getitem__(self, place: int):
        return self._real[place]

    def get_model_kwargs(self) -> list[str]:
        return ["task"] if self._takes_task else []

    def preprocess(self, texts, prompt: str | None = None, task: str | None = None):
        self.seen.add((prompt, task))
        return self._real.preprocess(texts, prompt=prompt)

    def __call__(self, features, task: str | None = None):
        assert task in {seen for _, seen in self.seen}
        return self._real(features)


@pytest.mark.parametrize("preset", ENCODERS)
def test_an_encoders_prompts_and_tasks_reach_the_model(monkeypatch, tiny_encoder, preset):
    from sentence_transformers import SentenceTransformer

    config = load_config(["demo", preset])
    takes_task = config.index.encoder.query_task is not None
    assert config.index.encoder.trust_remote_code == takes_task, "only Jina's models need their own code"
    recording = Recording(SentenceTransformer(tiny_encoder, device="cpu"), PROMPTS.get(preset, {}), takes_task)
    monkeypatch.setattr(encoder_module, "load_model", lambda *arguments: TorchModel(recording, arguments[-1]))
    short = {} if config.index.encoder.dim is None else {"dim": 16}
    encoder = make_encoder(config, precision="float32", **short)
    seen = []
    for encode in (encoder.encode_queries, encoder.encode_passages):
        recording.seen.clear()
        vectors = encode(["How much energy does a data centre use?"])
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        [one] = recording.seen
        seen.append(one)
    assert tuple(seen) == SEEN[preset]


def test_later_bases_win_and_the_file_wins_over_all(tmp_path):
    (tmp_path / "one.yaml").write_text("seed: 1\nkohaku: {top_k: 5, queries: 2}\nrun: one\n")
    (tmp_path / "two.yaml").write_text("seed: 2\nkohaku: {top_k: 6}\n")
    (tmp_path / "top.yaml").write_text("base: [one.yaml, two.yaml]\nrun: top\n")
    config = load_config(str(tmp_path / "top.yaml"))
    assert (config.seed, config.settings.top_k, config.settings.queries, config.run) == (2, 6, 2, f"{tmp_path}/top")
    config = load_config([str(tmp_path / "two.yaml"), str(tmp_path / "one.yaml")], ["seed=9"])
    assert (config.seed, config.settings.top_k, config.run) == (9, 5, f"{tmp_path}/one")


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("{a: 1}", r"base is .*: name a file or a preset, or a list such as \[demo, models/ollama\]"),
        ("[demo, 3]", "base is .*name a file or a preset"),
        ("[demo, models/olama]", r"did you mean models/ollama\?"),
        ("[demo, me.yaml]", "is its own base"),
    ],
)
def test_bases_that_cannot_be_used_say_why(tmp_path, base, message):
    (tmp_path / "me.yaml").write_text(f"base: {base}\n")
    with pytest.raises(ConfigError, match=message):
        load_config(str(tmp_path / "me.yaml"))


def test_a_roles_own_model_wins_over_the_models_of_all():
    config = load_config(["demo", "models/ollama"], ["roles.plan.model=extractive"])
    assert (config.role("plan").model, config.role("answer").model) == ("extractive", "ollama")
