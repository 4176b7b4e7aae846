"""Configurations of KohakuRAG and of the hybrid pipeline, made ours: every key's place, what is named, nothing run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from kit.rows import check_rows

from kohaku_ray.cli import main
from kohaku_ray.config import load_config
from kohaku_ray.config.load import PRESETS
from kohaku_ray.errors import ConfigError
from kohaku_ray.run.exchange.convert import convert

TEXT_ONLY = '''"""Config for wattbot_answer.py (text-only path)"""

from kohakuengine import Config

db = "artifacts/wattbot_text_only.db"
table_prefix = "wattbot_text"
questions = "data/test_Q.csv"
output = "artifacts/text_only_answers.csv"
metadata = "data/metadata.csv"
llm_provider = "openrouter"  # Options: "openai", "openrouter"
model = "openai/gpt-oss-120b"
planner_model = None  # Falls back to model
openrouter_api_key = None  # From env: OPENROUTER_API_KEY
site_url = "https://example.org/rag"
app_name = "KohakuRAG"
top_k = 16
planner_max_queries = 3
deduplicate_retrieval = True
rerank_strategy = "frequency"  # Options: None, "frequency", "score", "combined"
top_k_final = (
    None  # Truncate to this many results (None = no truncation)
)
embedding_model = "jina"
embedding_dim = None
embedding_task = "retrieval"
paragraph_search_mode = "averaged"
with_images = False
top_k_images = 0
send_images_to_llm = False
max_retries = 3
max_concurrent = -1
single_run_debug = False
use_reordered_prompt = False


def config_gen():
    return Config.from_globals()
'''

LOCAL = """
llm_provider = "hf_local"
hf_model_id = "Qwen/Qwen2.5-7B-Instruct"
hf_dtype = "bf16"
hf_max_new_tokens = 512
hf_temperature = 0.2
embedding_model = "jinav4"
embedding_dim = 512
embedding_task = "retrieval"
top_k = 8
planner_max_queries = 4
use_reordered_prompt = True
retrieval_threshold = 0.25
max_concurrent = 2
"""

ENV = """# theirs
GENERATION_MODEL='qwen3:8b'
OLLAMA_BASE_URL=http://box:11434/
TEMPERATURE=0.3
MAX_TOKENS=5000
export TOP_P="0.9"
QUESTION_EXPANSION_TEMPERATURE=0.9
QUESTION_EXPANSION_MAX_TOKENS=500  # fewer
CLUSTER_LAPLACE_SMOOTHING=0.4
MMR_TOP_K=40
CROSS_ENCODER_MODEL=cross-encoder/ms-marco-MiniLM-L6-v2
EMBEDDING_MODEL=nomic-embed-text:v1.5
NETLOC_CAP=false
DATA_FILEPATH=data/corpus.csv
CHROMA_PERSIST=./db#1
OPENAI_API_KEY=sk-123
MMR_TOPK=50
"""
RECOMMENDED = {
    "recall": (16, 3, True, None, None),
    "balanced": (16, 3, True, "frequency", 20),
    "precision": (8, 3, True, "combined", 10),
    "fast": (5, 1, False, None, None),
}
"""docs/dedup_rerank.md, "Recommended Configurations"."""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Convert a text by the command; returns the configuration and what was left out, with the reasons."""
    monkeypatch.chdir(tmp_path)

    def _made(text, name="answer.py"):
        Path(name).write_text(text, encoding="utf-8")
        Path("my.yaml").unlink(missing_ok=True)
        converted = convert(name)
        Path("my.yaml").write_text(converted.text(name, "."))
        return load_config("my.yaml"), converted.left_out

    return _made


@pytest.mark.parametrize("preset", RECOMMENDED)
def test_presets_are_the_published_recommendations(made, preset):
    keys = ("top_k", "planner_max_queries", "deduplicate_retrieval", "rerank_strategy", "top_k_final")
    text = "".join(f"{key} = {value!r}\n" for key, value in zip(keys, RECOMMENDED[preset], strict=True))
    published, left_out = made(text)
    # The recommendations are for retrieval: prompt order and retries stay this package's.
    ours = {key: getattr(load_config().settings, key) for key in ("prompt_order", "max_retries", "widen_final")}
    assert load_config(preset).settings == published.settings.model_copy(update=ours)
    assert (PRESETS / f"{preset}.yaml").read_text().startswith("# KohakuRAG's recommendation for ")
    assert left_out == {}


def test_a_published_answer_config(made):
    config, left_out = made(TEXT_ONLY)
    r = config.settings
    assert (r.top_k, r.queries, r.dedup, r.rerank, r.top_k_final) == (16, 3, "node", "frequency", None)
    assert (r.bm25_top_k, r.max_context_tokens, r.prompt_order, r.max_retries) == (0, None, "question_first", 3)
    assert not r.widen_final
    assert (config.role("answer").model, config.role("plan").model) == ("openrouter", "openrouter")
    assert config.deployments["openrouter"].model_dump(exclude_defaults=True) == {
        "base_url": "https://openrouter.ai/api/v1",
        "model": "openai/gpt-oss-120b",
        "api_key_env": "OPENROUTER_API_KEY",
    }
    assert (config.index.encoder.model, config.index.paragraph_vectors) == ("jinaai/jina-embeddings-v3", "averaged")
    assert (config.index.path, config.run) == (
        "artifacts/wattbot_text_only/wattbot_text",
        "artifacts/text_only_answers",
    )
    assert (config.questions.path, config.documents.metadata) == ("data/test_Q.csv", "data/metadata.csv")
    assert config.ensemble.members == 1
    assert left_out.keys() == {"embedding_model", "embedding_task", "site_url", "app_name"}
    assert "only you can allow: index.encoder.trust_remote_code" in left_out["embedding_model"]


def test_a_local_config(made):
    config, left_out = made(LOCAL)
    local = {"model": "Qwen/Qwen2.5-7B-Instruct", "max_ongoing": 2, "dtype": "bfloat16"}
    assert config.deployments["hf_local"].model_dump(exclude_defaults=True) == local
    assert config.deployments["hf_local"].kind == "transformers"
    answer = config.role("answer")
    assert (answer.model, answer.max_tokens, answer.temperature) == ("hf_local", 512, 0.2)
    tasks = dict.fromkeys(("query_task", "passage_task"), "retrieval")
    prompts = {"query_prompt": "query", "passage_prompt": "passage"}
    encoder = {"model": "jinaai/jina-embeddings-v4", "dim": 512, **tasks, **prompts}
    assert config.index.encoder.model_dump(exclude_defaults=True) == encoder
    assert (config.settings.prompt_order, config.settings.retrieval_threshold) == ("context_first", 0.25)
    assert left_out.keys() == {"embedding_model"}


def test_a_hybrid_env_file(made):
    config, left_out = made(ENV, "theirs.env")
    assert config.system == "hybrid"
    assert (config.settings.mmr_top_k, config.settings.smoothing, config.settings.netloc_cap) == (40, 0.4, False)
    llm = {"base_url": "http://box:11434/v1", "model": "qwen3:8b", "api_key_env": None}
    llm["extra_body"] = {"reasoning_effort": "none", "top_k": 5}
    assert config.deployments["llm"].model_dump(exclude_defaults=True) == llm
    answer, expand = config.role("answer"), config.role("expand")
    assert (answer.model, answer.temperature, answer.top_p, answer.max_tokens) == ("llm", 0.3, 0.9, 5000)
    assert (expand.model, expand.temperature, expand.max_tokens) == ("llm", 0.9, 500)
    assert config.uses.cross_encoder == "ranker"
    assert config.index.encoder.model == "nomic-ai/nomic-embed-text-v1.5"
    assert (config.index.bm25.language, config.documents.paths) == ("fr", ("data/corpus.csv",))
    assert left_out.keys() == {"chroma_persist", "openai_api_key", "mmr_topk", "embedding_model"}
    assert left_out["mmr_topk"] == "no such name (did you mean mmr_top_k?)"
    assert "sk-123" not in Path("my.yaml").read_text() + str(left_out)


def test_what_a_hybrid_file_leaves_out_is_its_own_default(made):
    config, left_out = made("GENERATION_MODEL=qwen3:8b\nTOP_K=7\nRRF_K=30\nMMR_TOP_K=50\n", "theirs.env")
    preset = load_config("hybrid_ollama")
    assert config.role("answer") == replace(preset.role("answer"), model="llm")
    assert config.role("expand") == replace(preset.role("expand"), model="llm")
    assert config.deployments["llm"].extra_body == {"reasoning_effort": "none", "top_k": 7}
    assert (config.settings.rrf_k, config.uses.cross_encoder) == (30, "ranker")
    assert left_out == {"top_k": "Ollama's OpenAI API takes none: set `PARAMETER top_k 7` in the model's Modelfile"}
    ranker = preset.deployments["ranker"].model
    assert config.deployments["ranker"].model == ranker == "cross-encoder/ms-marco-MiniLM-L6-v2"


@pytest.mark.parametrize("dtype", ["bf16", "4bit"])
def test_images_for_a_local_model_are_written_as_captions_and_the_rest_is_named(made, dtype):
    images = "with_images = True\ntop_k_images = 4\nsend_images_to_llm = True\n"
    config, left_out = made(f"top_k = 8\nllm_provider = 'hf_local'\nhf_dtype = '{dtype}'\n{images}")
    assert (config.index.images, config.settings.image_top_k, config.settings.images) == (True, 4, "near")
    assert (config.settings.send_images, config.deployments["hf_local"].vision) == (False, False)
    assert left_out.keys() == {"send_images_to_llm"}
    assert "the model that answers here reads no images" in left_out["send_images_to_llm"]
    assert "# Not taken over as written: send_images_to_llm (the model that" in Path("my.yaml").read_text()


@pytest.mark.parametrize("provider", ["", "llm_provider = 'bedrock'\n"])
def test_images_without_a_model_that_reads_them_are_written_as_captions(made, provider):
    config, left_out = made(f"top_k = 8\n{provider}with_images = True\ntop_k_images = 4\nsend_images_to_llm = True\n")
    assert (config.settings.send_images, config.settings.image_top_k) == (False, 4)
    assert "reads no images" in left_out["send_images_to_llm"]


def test_what_a_file_leaves_out_is_kohakurags_default(made):
    config, _ = made("top_k = 16\n")
    r = config.settings
    assert (r.queries, r.dedup, r.rerank, r.top_k_final, r.bm25_top_k) == (3, "none", "none", None, 0)
    assert (config.role("answer").model, config.index.encoder) == ("extractive", load_config().index.encoder)


@pytest.mark.parametrize(
    ("text", "ours", "value"),
    [
        ("top_k: int = 7", "settings.top_k", 7),
        ("planner_max_queries = 0", "settings.queries", 1),
        ("tree_dedup = True", "settings.dedup", "tree"),
        ("rerank_strategy = 'Combined'", "settings.rerank", "combined"),
        ("retrieval_threshold = -0.5", "settings.retrieval_threshold", -0.5),
        ("with_images = True\ntop_k_images = 4", "settings.image_top_k", 4),
        (
            "llm_provider = 'openai'\nwith_images = True\ntop_k_images = 4\nsend_images_to_llm = True",
            "settings.send_images",
            True,
        ),
        ("with_images=True\ntop_k_images=4\nsend_images_to_llm=True\nmodel='m'", "deployments.openai.vision", True),
        ("model = 'openai/gpt-4o'", "deployments.openrouter.model", "openai/gpt-4o"),
        ("model = 'gpt-4o-mini'", "deployments.openai.base_url", "https://api.openai.com/v1"),
        ("llm_provider = 'openai'", "deployments.openai.model", "gpt-4o-mini"),
        ("model = 'm'\nbase_url = 'http://h:1/v1'", "deployments.openai.base_url", "http://h:1/v1"),
        ("model = 'm'\nplanner_model = 'p'", "roles.plan.model", "planner"),
        ("model = 'm'\nplanner_model = 'm'", "roles.plan", None),
        ("llm_provider = 'hf_local'\nhf_dtype = '4bit'", "deployments.hf_local.load_in_4bit", True),
        ("llm_provider = 'hf_local'\nhf_temperature = 0", "roles.answer.temperature", 0),
        ("embedding_model = 'hf_local'\nembedding_model_id = 'o/e5'", "index.encoder.model", "o/e5"),
        ("paragraph_search_mode = 'full'", "index.paragraph_vectors", "full"),
        ("paragraph_embedding_mode = 'both'", "index.paragraph_vectors", "averaged"),
        ("docs_dir = 'artifacts/docs'", "documents.paths", ("artifacts/docs",)),
        ("output = 'outputs/run.1/answers.csv'", "run", "outputs/run.1/answers"),
        ("db = 'artifacts/w.db'\ntable_prefix = 'p'", "index.path", "artifacts/w/p"),
    ],
)
def test_every_key_goes_where_it_belongs(made, monkeypatch, text, ours, value):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    config, left_out = made(text)
    for part in ours.split("."):
        config = config.get(part) if isinstance(config, dict) else getattr(config, part)
    assert config == value
    assert left_out == {}


@check_rows(
    ("text", "name", "reason"),
    [
        ("topk = 4", "topk", "no such name (did you mean top_k?)"),
        ("top_k_final = 99", "top_k_final", "it cuts nothing: top_k × planner_max_queries is 27"),
        ("max_concurrent = 5", "max_concurrent", "no part of a run here"),
        ("llm_provider = 'bedrock'", "llm_provider", "no such backend here: add one to deployments"),
        ("embedding_model = 'bedrock'", "embedding_model", "name a sentence-transformers model"),
        ("openrouter_api_key = 'sk-or-v1-secret'", "openrouter_api_key", "a key stands in the environment variable"),
    ],
)
def test_what_is_not_taken_over_is_named(made, text, name, reason):
    _, left_out = made(f"top_k = 9\n{text}")
    assert reason in left_out[name]
    written = Path("my.yaml").read_text()
    assert f"# Not taken over as written: {name} (" in written
    assert "secret" not in written.replace("_key", "")


@check_rows(
    ("text", "message"),
    [
        ("max_retries = 'x'", r"answer\.py holds a value of another kind than KohakuRAG takes"),
        ("llm_provider = 'hf_local'\nhf_dtype = '3bit'", r"a value of another kind than KohakuRAG takes \('3bit'\)"),
        ("rerank_strategy = 'combind'", r"kohaku\.rerank is 'combind'"),
        ("top_k = 0", r"answer\.py: kohaku\.top_k is 0: input should be greater than or equal to 1"),
        ("MODELS = ['a']", r"answer\.py holds no name of a configuration of KohakuRAG"),
        ("top_k = 16\nmodel = MODEL", r"answer\.py:2: `model = MODEL` would have to be run"),
        ("import os\nos.system('touch RAN')", r":2: `os\.system\('touch RAN'\)` would have to be run"),
        ("if True:\n    top_k = 3", r"would have to be run"),
        ("from base import *", r"would have to be run"),
        ("def config_gen():\n    for m in MODELS:\n        yield Config(m)", r"would have to be run"),
        ("top_k = \n", r"answer\.py is no Python that can be read: invalid syntax"),
    ],
)
def test_what_cannot_be_read_is_refused_and_nothing_is_run(made, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        made(text)
    assert len(str(caught.value)) < 500
    assert not Path("RAN").exists()


def test_the_command_writes_it_once_relative_to_its_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("answer.py").write_text(TEXT_ONLY)
    assert main(["validate", "answer.py"]) == 2
    assert "`kohaku-ray init --from answer.py` makes a YAML file of it" in capsys.readouterr().err
    assert main(["init", "new", "--from", "answer.py", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["files"] == ["my.yaml"]
    assert "not taken over as written: site_url (no part of a run here)" in err
    config = load_config("new/my.yaml")
    assert (config.questions.path, config.run) == ("data/test_Q.csv", "artifacts/text_only_answers")
    assert main(["init", "new", "--from", "answer.py"]) == 1
    assert "new has my.yaml already" in capsys.readouterr().err
