"""KohakuRAG's configurations: what each key becomes, what is named in a warning, and that nothing is ever run."""

from __future__ import annotations

import json
import sys
import warnings

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.cli import main
from kohaku_ray.config import build_config, load_config
from kohaku_ray.config.kohakurag import TABLE, ConfigWarning, is_flat, translate
from kohaku_ray.config.load import PRESETS
from kohaku_ray.config.schema import RoleConfig
from kohaku_ray.errors import ConfigError

TEXT_ONLY = '''"""Config for wattbot_answer.py (text-only path)

Usage:
    kogine run scripts/wattbot_answer.py --config configs/text_only/answer.py
"""

from kohakuengine import Config

# Input/Output
db = "artifacts/wattbot_text_only.db"
table_prefix = "wattbot_text"
questions = "data/test_Q.csv"
output = "artifacts/text_only_answers.csv"
metadata = "data/metadata.csv"

# LLM settings
llm_provider = "openrouter"  # Options: "openai", "openrouter"
model = "openai/gpt-oss-120b"
planner_model = None  # Falls back to model
openrouter_api_key = None  # From env: OPENROUTER_API_KEY
site_url = "https://example.org/rag"
app_name = "KohakuRAG"

# Retrieval settings
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
question_id = None
use_reordered_prompt = False


def config_gen():
    return Config.from_globals()
'''

LOCAL = '''"""WattBot Evaluation Config - Qwen 2.5 7B Instruct (Local HF)"""

db = "../artifacts/wattbot_jinav4.db"
table_prefix = "wattbot_jv4"
questions = "../data/train_QA.csv"
output = "../artifacts/submission_qwen7b.csv"
metadata = "../data/metadata.csv"
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
deduplicate_retrieval = True
rerank_strategy = "combined"
top_k_final = 10
use_reordered_prompt = True
retrieval_threshold = 0.25
max_retries = 2
max_concurrent = 2  # Conservative for local GPU
'''

RECOMMENDED = {
    "recall": (16, 3, True, None, None),
    "balanced": (16, 3, True, "frequency", 20),
    "precision": (8, 3, True, "combined", 10),
    "fast": (5, 1, False, None, None),
}
"""docs/dedup_rerank.md, "Recommended Configurations"."""


@pytest.fixture
def load(tmp_path):
    """Write a configuration and load it; returns it with the one warning's text, or an empty one."""

    def _load(text, name="answer.py", overrides=()):
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            config = load_config(str(file), overrides)
        assert len(caught) <= 1
        assert all(issubclass(entry.category, ConfigWarning) for entry in caught)
        return config, str(caught[0].message) if caught else ""

    return _load


def get(config, dotted):
    section, _, key = dotted.partition(".")
    if section == "roles":
        role, _, key = key.partition(".")
        return getattr(config.roles.get(role, RoleConfig()), key)
    value = config.settings if section == config.declaration.name else getattr(config, section)
    for part in key.split(".") if key else ():
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


# Presets


@pytest.mark.parametrize(
    ("preset", "numbers"),
    [
        ("recall", (16, 3, "node", "none", None, 0)),
        ("balanced", (16, 3, "node", "frequency", 20, 0)),
        ("precision", (8, 3, "node", "combined", 10, 0)),
        ("fast", (5, 1, "none", "none", None, 0)),
    ],
)
def test_presets_hold_the_recommended_numbers(preset, numbers):
    r = load_config(preset).settings
    assert (r.top_k, r.queries, r.dedup, r.rerank, r.top_k_final, r.bm25_top_k) == numbers
    assert (PRESETS / f"{preset}.yaml").read_text().startswith("# KohakuRAG's recommendation for ")


@pytest.mark.parametrize("preset", RECOMMENDED)
def test_presets_are_the_published_recommendations(load, preset):
    keys = ("top_k", "planner_max_queries", "deduplicate_retrieval", "rerank_strategy", "top_k_final")
    text = "".join(f"{key} = {value!r}\n" for key, value in zip(keys, RECOMMENDED[preset], strict=True))
    published, told = load(text)
    # The context budget is ours: KohakuRAG has none, and of the presets only recall does without. The recommendations
    # are for retrieval: prompt order and retries stay this package's.
    ours = {"max_context_tokens": None if preset == "recall" else 8000}
    ours |= {key: getattr(load_config().settings, key) for key in ("prompt_order", "max_retries")}
    assert load_config(preset).settings == published.settings.model_copy(update=ours)
    assert published.settings.max_context_tokens is None
    assert not told


# Whole files


def test_a_published_answer_config_loads(load):
    config, told = load(TEXT_ONLY)
    r = config.settings
    assert (r.top_k, r.queries, r.dedup, r.rerank, r.top_k_final) == (16, 3, "node", "frequency", None)
    assert (r.normalise, r.alpha, r.bm25_top_k, r.max_context_tokens) == ("max", 0.4, 0, None)
    assert (config.role("answer").model, "plan" in config.roles) == ("openrouter", False)
    assert config.role("plan").model == "openrouter"
    assert (r.prompt_order, r.max_retries) == ("question_first", 3)
    assert config.deployments["openrouter"].model_dump(exclude_defaults=True) == {
        "base_url": "https://openrouter.ai/api/v1",
        "model": "openai/gpt-oss-120b",
        "api_key_env": "OPENROUTER_API_KEY",
    }
    assert (config.index.encoder.model, config.index.encoder.trust_remote_code) == ("jinaai/jina-embeddings-v3", False)
    assert (config.index.path, config.index.paragraph_vectors) == (
        "artifacts/wattbot_text_only/wattbot_text",
        "averaged",
    )
    assert (config.run, config.questions.path) == ("artifacts/text_only_answers", "data/test_Q.csv")
    assert (config.documents.metadata, config.ensemble.members) == ("data/metadata.csv", 1)
    assert told.endswith(
        "answer.py: not taken over as written: max_concurrent (requests in flight are always bounded, by "
        "deployments.*.max_ongoing); embedding_model (jinaai/jina-embeddings-v3 runs code of its own, which only you "
        "can allow: index.encoder.trust_remote_code=true); embedding_task (it says something only with embedding_model "
        "jinav4); site_url, app_name (no such headers are sent)"
    )


def test_a_local_config_loads(load):
    config, told = load(LOCAL)
    assert config.deployments["hf_local"].model_dump(exclude_defaults=True) == {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "max_ongoing": 2,
        "engine_kwargs": {"dtype": "bfloat16"},
    }
    answer = config.role("answer")
    assert (answer.model, answer.max_tokens, answer.temperature) == ("hf_local", 512, 0.2)
    assert config.index.encoder.model_dump(exclude_defaults=True) == {
        "model": "jinaai/jina-embeddings-v4",
        "dim": 512,
        "query_task": "retrieval",
        "passage_task": "retrieval",
        "query_prompt": "query",
        "passage_prompt": "passage",
    }
    assert config.settings.prompt_order == "context_first"
    assert (config.settings.retrieval_threshold, config.settings.queries) == (0.25, 4)
    assert "embedding_model (jinaai/jina-embeddings-v4 runs code of its own" in told
    assert told.count("(") == 1


def test_what_a_file_leaves_out_is_kohakurags_default(load):
    config, told = load("top_k = 16\n")
    r = config.settings
    assert (r.queries, r.dedup, r.rerank, r.top_k_final, r.bm25_top_k) == (3, "none", "none", None, 0)
    assert (r.prompt_order, r.max_retries) == ("question_first", 3)
    assert (config.role("answer").model, config.ensemble.members) == ("extractive", 1)
    assert config.index == load_config().index
    assert load("max_retries = None\nplanner_max_queries = 3")[0].settings.top_k == 5
    assert not told


# Every key


@pytest.mark.parametrize(
    ("text", "ours", "value"),
    [
        ("top_k = 7", "kohaku.top_k", 7),
        ("top_k: int = 7", "kohaku.top_k", 7),
        ("top_k = 3\ntop_k = 7", "kohaku.top_k", 7),
        ("planner_max_queries = 4", "kohaku.queries", 4),
        ("planner_max_queries = 0", "kohaku.queries", 1),
        ("deduplicate_retrieval = True", "kohaku.dedup", "node"),
        ("deduplicate_retrieval = False", "kohaku.dedup", "none"),
        ("tree_dedup = True", "kohaku.dedup", "tree"),
        ("deduplicate_retrieval = True\ntree_dedup = True", "kohaku.dedup", "tree"),
        ("deduplicate_retrieval = True\ntree_dedup = False", "kohaku.dedup", "node"),
        ("no_overlap = True", "kohaku.dedup", "node"),
        ("no_overlap = False", "kohaku.dedup", "none"),
        ("no_overlap = True\ntree_dedup = True", "kohaku.dedup", "tree"),
        ("rerank_strategy = None\ntop_k = 3", "kohaku.rerank", "none"),
        ("rerank_strategy = 'frequency'", "kohaku.rerank", "frequency"),
        ("rerank_strategy = 'score'", "kohaku.rerank", "score"),
        ("rerank_strategy = 'Combined'", "kohaku.rerank", "combined"),
        ("top_k_final = 9", "kohaku.top_k_final", 9),
        ("top_k_final = 15", "kohaku.top_k_final", 15),
        ("top_k_final = None", "kohaku.top_k_final", None),
        ("top_k_final = 0", "kohaku.top_k_final", None),
        ("bm25_top_k = 4", "kohaku.bm25_top_k", 4),
        ("bm25_top_k = -1", "kohaku.bm25_top_k", 0),
        ("retrieval_threshold = 0.25", "kohaku.retrieval_threshold", 0.25),
        ("retrieval_threshold = -0.5", "kohaku.retrieval_threshold", -0.5),
        ("use_reordered_prompt = True", "kohaku.prompt_order", "context_first"),
        ("use_reordered_prompt = False", "kohaku.prompt_order", "question_first"),
        ("max_retries = 0", "kohaku.max_retries", 0),
        ("max_retries = -1", "kohaku.max_retries", 0),
        ("model = 'openai/gpt-4o'", "deployments.openrouter.model", "openai/gpt-4o"),
        ("model = 'gpt-4o-mini'", "deployments.openai.model", "gpt-4o-mini"),
        ("model = 'gpt-4o-mini'", "deployments.openai.base_url", "https://api.openai.com/v1"),
        ("model = 'gpt-4o-mini'", "deployments.openai.api_key_env", "OPENAI_API_KEY"),
        ("model = 'gpt-4o-mini'", "deployments.openai.max_ongoing", 10),
        ("llm_provider = 'openai'\nmodel = 'a/b'", "deployments.openai.model", "a/b"),
        ("llm_provider = 'openai'", "deployments.openai.model", "gpt-4o-mini"),
        ("llm_provider = 'openrouter'", "deployments.openrouter.model", "openai/gpt-5-nano"),
        ("model = 'm'\nbase_url = 'http://h:1/v1'", "deployments.openai.base_url", "http://h:1/v1"),
        ("model = 'm'\nmax_concurrent = 32", "deployments.openai.max_ongoing", 32),
        ("model = 'm'\nplanner_model = 'p'", "roles.plan.model", "planner"),
        ("model = 'm'\nplanner_model = 'p'", "deployments.planner.model", "p"),
        ("model = 'm'\nplanner_model = 'p'", "deployments.openai.model", "m"),
        ("model = 'm'\nplanner_model = 'p'\nmax_concurrent = 3", "deployments.planner.max_ongoing", 3),
        ("model = 'm'\nplanner_model = 'm'", "roles.plan.model", None),
        ("llm_provider = 'hf_local'", "deployments.hf_local.model", "Qwen/Qwen2.5-7B-Instruct"),
        ("llm_provider = 'hf_local'\nhf_model_id = 'o/m'", "deployments.hf_local.model", "o/m"),
        (
            "llm_provider = 'hf_local'\nhf_dtype = '4bit'",
            "deployments.hf_local.engine_kwargs",
            {"quantization": "bitsandbytes"},
        ),
        ("llm_provider = 'hf_local'\nhf_max_new_tokens = 64", "roles.answer.max_tokens", 64),
        ("llm_provider = 'hf_local'\nhf_temperature = 0", "roles.answer.temperature", 0),
        ("embedding_model = 'hf_local'", "index.encoder.model", "BAAI/bge-base-en-v1.5"),
        (
            "embedding_model = 'hf_local'\nembedding_model_id = 'intfloat/e5-base-v2'",
            "index.encoder.model",
            "intfloat/e5-base-v2",
        ),
        ("embedding_model = 'org/encoder'", "index.encoder.model", "org/encoder"),
        ("paragraph_search_mode = 'full'", "index.paragraph_vectors", "full"),
        ("paragraph_embedding_mode = 'full'", "index.paragraph_vectors", "full"),
        ("docs_dir = 'artifacts/docs'", "documents.paths", ("artifacts/docs",)),
        ("metadata = 'data/metadata.csv'", "documents.metadata", "data/metadata.csv"),
        ("questions = 'data/' + 'train_QA.csv'", "questions.path", "data/train_QA.csv"),
        ("output = 'outputs/run.1/answers.csv'", "run", "outputs/run.1/answers"),
        ("output = 's3://bucket/answers'", "run", "s3://bucket/answers"),
        ("table_prefix = 'wattbot'", "index.path", "runs/index/wattbot"),
        ("db = 'artifacts/wattbot.db'", "index.path", "artifacts/wattbot"),
        ("db = 'artifacts/w.db'\ntable_prefix = 'p'", "index.path", "artifacts/w/p"),
    ],
)
def test_every_key_goes_where_it_belongs(load, monkeypatch, text, ours, value):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    config, told = load(text)
    assert get(config, ours) == value
    assert not told


def test_the_issues_keys_are_all_in_the_table():
    named = """top_k planner_max_queries deduplicate_retrieval rerank_strategy top_k_final max_retries max_concurrent
        use_reordered_prompt retrieval_threshold embedding_model no_overlap tree_dedup bm25_top_k model planner_model
        metadata questions output table_prefix"""
    assert all(TABLE[key].ours and TABLE[key].why for key in named.split())
    assert all(row.why for row in TABLE.values())


def test_an_openai_url_comes_from_the_environment(load, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    assert load("model = 'm'")[0].deployments["openai"].base_url == "http://127.0.0.1:8000/v1"


# What is named


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("topk = 4", "topk (no such key, did you mean top_k?)"),
        ("zzzz = 4", "zzzz (no such key)"),
        (
            "with_images = True\ntop_k_images = 4",
            "with_images, top_k_images (an image is found by its caption, as text)",
        ),
        ("question_id = 'q054'", "question_id (kohaku-ray show RUN QUESTION_ID explains one question)"),
        ("top_k_final = 99", "top_k_final (it cuts nothing: top_k × planner_max_queries is 27)"),
        (
            "no_overlap = False\ndeduplicate_retrieval = True",
            "no_overlap (unless kohaku.dedup is none, a text enters",
        ),
        ("max_concurrent = 5", "max_concurrent (no model is named whose requests it could bound)"),
        ("max_concurrent = 0\nmodel = 'm'", "max_concurrent (requests in flight are always bounded, by deployments.*."),
        ("llm_provider = 'bedrock'", "llm_provider (no backend 'bedrock' here: add one to deployments and name it in"),
        ("bedrock_model = 'x'", "bedrock_model (no Bedrock backend)"),
        ("hf_dtype = 'bf16'\nmodel = 'm'", "hf_dtype (it says something only with llm_provider hf_local)"),
        ("llm_provider = 'hf_local'\nhf_dtype = '3bit'", "hf_dtype (none of bf16, fp16, auto, 4bit: see deployments."),
        (
            "llm_provider = 'hf_local'\nmodel = 'm'",
            "model (it says something only with llm_provider openrouter or openai)",
        ),
        ("hf_temperature = 0.2", "hf_temperature (it says something only with llm_provider hf_local)"),
        ("planner_model = 'p'", "planner_model (it says something only with llm_provider openrouter or openai)"),
        (
            "embedding_model = 'bedrock'",
            "embedding_model (no encoder 'bedrock' here: name a sentence-transformers model)",
        ),
        ("embedding_dim = 512", "embedding_dim (it says something only with embedding_model jinav4)"),
        ("embedding_model_id = 'a/b'", "embedding_model_id (it says something only with embedding_model hf_local)"),
        ("paragraph_embedding_mode = 'both'", "paragraph_embedding_mode (one kind is searched at a time there; it is"),
        ("use_citations = True", "use_citations (documents.paths names what is read, and nothing is downloaded)"),
    ],
)
def test_what_is_not_taken_over_is_named(load, text, told):
    _, warned = load(f"top_k = 9\n{text}")
    assert told in warned
    assert "\n" not in warned


def test_a_key_in_a_file_is_never_repeated(load):
    _, told = load("top_k = 9\nopenrouter_api_key = 'sk-or-v1-secret'")
    assert "openrouter_api_key (a key stands in the environment variable" in told
    assert "secret" not in told


def test_what_asks_for_nothing_is_not_named(load):
    assert load("top_k = 9\nwith_images = False\ntop_k_images = 0\nsite_url = None\nembedding_dim = None")[1] == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("top_k = '16'", r"answer\.py: top_k is '16', expected a whole number"),
        ("top_k = True", r"top_k is True, expected a whole number"),
        ("top_k = 1.5", r"top_k is 1\.5, expected a whole number"),
        ("deduplicate_retrieval = 'yes'", r"deduplicate_retrieval is 'yes', expected True or False"),
        ("model = ['a', 'b']", r"model is \['a', 'b'\], expected a text in quotes"),
        ("retrieval_threshold = True", r"retrieval_threshold is True, expected a number"),
        ("rerank_strategy = 'combind'", r"is 'combind', did you mean combined\? \(None, frequency, score, combined\)"),
        ("top_k = 0", r"answer\.py: kohaku\.top_k is 0: input should be greater than or equal to 1"),
        ("MODELS = ['a']", r"answer\.py holds no key of a KohakuRAG configuration, such as top_k = 16"),
        ("", r"holds no key of a KohakuRAG configuration"),
    ],
)
def test_a_value_of_the_wrong_kind_is_an_error(load, text, message):
    with pytest.raises(ConfigError, match=message):
        load(text)


# Never run


@pytest.mark.parametrize(
    ("text", "line", "shown"),
    [
        ("top_k = 8 * 2", 1, r"`8 \* 2` has to be computed"),
        ("top_k = 16\nmodel = MODEL", 2, r"`MODEL` has to be computed"),
        ("model = f'gpt-{4}'", 1, r"`f'gpt-\{4\}'` has to be computed"),
        ("output = str(1)", 1, r"`str\(1\)` has to be computed"),
        ("output = __import__('os').system('touch RAN')", 1, r"`__import__\('os'\)\.system\('touch RAN'\)` has to be"),
        ("import os\nos.system('touch RAN')", 2, r"`os\.system\('touch RAN'\)` would have to be run"),
        ("import os\nmodel = os.environ['M']", 2, r"`os\.environ\['M'\]` has to be computed"),
        ("top_k = (n := 16)", 1, r"`n := 16` has to be computed"),
        ("(top_k := 16)", 1, r"`top_k := 16` would have to be run"),
        ("top_k = [open('RAN', 'w') for _ in range(3)]", 1, r"`\[open\('RAN', 'w'\) for _ in range\(3\)\]` has to be"),
        ("top_k = (lambda: 3)()", 1, r"has to be computed"),
        ("top_k = 3 if True else 4", 1, r"has to be computed"),
        ("top_k = not 3", 1, r"`not 3` has to be computed"),
        ("top_k = {**{}}", 1, r"has to be computed"),
        ("top_k = {[]: 1}", 1, r"has to be computed"),
        ("questions = 'a' + 1", 1, r"`'a' \+ 1` has to be computed"),
        ("model = b'gpt'", 1, r"`b'gpt'` is no value that a key takes"),
        ("model = {'gpt'}", 1, r"is no value that a key takes"),
        ("top_k = 3\ntop_k += 1", 2, r"`top_k \+= 1` would have to be run"),
        ("top_k, max_retries = 3, 4", 1, r"assigns to more than a name"),
        ("x.top_k = 3", 1, r"assigns to more than a name"),
        ("if True:\n    top_k = 3", 1, r"would have to be run"),
        ("for top_k in (1, 2): pass", 1, r"would have to be run"),
        ("with capture_globals() as ctx:\n    top_k = 3", 1, r"would have to be run"),
        ("class Config:\n    top_k = 3", 1, r"would have to be run"),
        ("from base import *", 1, r"`from base import \*` takes values from another file"),
        ("from base import top_k", 1, r"takes values from another file"),
        ("from base import K as top_k", 1, r"takes values from another file"),
        (
            "def config_gen():\n    for m in MODELS:\n        yield Config(m)",
            1,
            r"`def config_gen\(\): for m in MODELS",
        ),
        ("def config_gen():\n    return Config.from_globals(top_k=3)", 1, r"would have to be run"),
        ("def config_gen(x=print()):\n    return Config.from_globals()", 1, r"would have to be run"),
        ("@print\ndef config_gen():\n    return Config.from_globals()", 2, r"would have to be run"),
        ("def other():\n    return 3", 1, r"would have to be run"),
        ("async def config_gen():\n    return Config.from_globals()", 1, r"would have to be run"),
        ("top_k = " + "[" * 30 + "]" * 30, 1, r"is nested more than 20 deep"),
    ],
)
def test_what_computes_its_values_is_refused_and_not_run(load, tmp_path, monkeypatch, text, line, shown):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=shown) as caught:
        load(text)
    assert f"answer.py:{line}: `" in str(caught.value)
    assert "a configuration is read and never run: write plain values such as top_k = 16, and put" in str(caught.value)
    assert not (tmp_path / "RAN").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("top_k = \n", r"answer\.py:1: no Python: invalid syntax"),
        ("top_k = 16\n  max_retries = 3\n", r"answer\.py:2: no Python: unexpected indent"),
        ("top_k = 1\0\n", r"answer\.py(:\d+)?.* no Python.*null bytes"),
        ("top_k = " + "[" * 5000, r"answer\.py:1: no Python: too many nested parentheses"),
        ("top_k = " + "-" * 100_000 + "1", r"answer\.py is no Python that can be read: nested too deeply"),
        ("top_k = " + "1+" * 50_000 + "1", r"answer\.py is no Python that can be read: .*recursion"),
        ("top_k = x" + ".a" * 50_000, r"answer\.py is no Python that can be read: .*recursion"),
        ("top_k = " + "9" * 5000, r"answer\.py:1: no Python: Exceeds the limit"),
        ("#" * (1 << 20) + "\n", r"answer\.py holds 1,048,577 bytes, a configuration at most 1,048,576"),
    ],
)
def test_hostile_text_is_an_error_in_plain_words(load, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load(text)
    assert len(str(caught.value)) < 500


def test_a_binary_file_is_an_error(tmp_path):
    file = tmp_path / "answer.py"
    file.write_bytes(bytes(range(256)))
    with pytest.raises(ConfigError, match=r"answer\.py cannot be read: .*utf-8"):
        load_config(str(file))


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "any.py"
    file.write_bytes(b"top_k = 3\n" + text.encode("utf-8", "surrogatepass"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            config = load_config(str(file))
        except ConfigError:
            return  # any other exception is a failure
    assert config.settings.top_k == 3


def test_a_plain_import_is_not_done(load, tmp_path, monkeypatch):
    (tmp_path / "imported_by_nobody.py").write_text("raise SystemExit('ran')")
    monkeypatch.syspath_prepend(tmp_path)
    assert load("import imported_by_nobody\ntop_k = 3\n")[0].settings.top_k == 3
    assert "imported_by_nobody" not in sys.modules


def test_harmless_lines_are_tolerated(load):
    text = (
        "#!/usr/bin/env python\n'''A docstring with an odd \\d.'''\nfrom kohakuengine import Config\n"
        "import os.path as p\ntop_k: int\ntop_k: int = 7\n...\npass\n\ndef config_gen() :\n    '''Doc.'''\n"
        "    return Config.from_globals()\n"
    )
    assert load("\ufeff" + text)[0].settings.top_k == 7


# Flat files, overrides, bases, the command


FLAT = {"top_k": 8, "planner_max_queries": 3, "rerank_strategy": "combined", "top_k_final": 10, "questions": "q.csv"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("flat.yaml", yaml.safe_dump(FLAT)),
        ("flat.json", json.dumps(FLAT, indent="\t")),
        ("flat.toml", "".join(f"{key} = {json.dumps(value)}\n" for key, value in FLAT.items())),
        ("flat.py", "".join(f"{key} = {value!r}\n" for key, value in FLAT.items())),
    ],
)
def test_flat_files_of_every_format_say_the_same(load, name, text):
    config, told = load(text, name)
    assert config == build_config(translate(FLAT, "here"), "here")
    assert (config.settings.top_k_final, config.questions.path, told) == (10, "q.csv", "")


def test_a_flat_file_names_a_typo(load):
    config, told = load("top_k: 8\nmax_retries: 1\nrerank_stratgy: score\n", "flat.yaml")
    assert "rerank_stratgy (no such key, did you mean rerank_strategy?)" in told
    assert config.settings.rerank == "none"


@pytest.mark.parametrize(
    ("values", "flat"),
    [
        (FLAT, True),
        ({"questions": "q.csv"}, True),
        ({"questions": {"path": "q.csv"}}, False),
        ({"questions": {"path": "q.csv"}, "top_k": 3}, False),
        ({"base": "paper", "top_k": 3}, False),
        ({"kohaku": {"top_k": 3}, "top_k": 3, "model": "m"}, False),
        ({"retrieval": {"top_k": 3}, "top_k": 3, "model": "m"}, False),
        ({"colour": 1, "top_k": 3}, False),
        ({True: 1}, False),
        ({}, False),
    ],
)
def test_only_kohakurags_keys_make_a_flat_file(values, flat):
    assert is_flat(values) is flat


def test_our_own_keys_may_stand_in_json_and_toml(load):
    assert load('{"kohaku": {"top_k": 3}}', "own.json")[0].settings.top_k == 3
    assert load("base = 'fast'\n[kohaku]\nmax_retries = 1\n", "own.toml")[0].settings.top_k == 5


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bad.toml", "top_k = \n", r"bad\.toml is not TOML: Invalid value"),
        ("bad.json", "{", r"bad\.json is not JSON: Expecting property name"),
        ("bad.yaml", "[" * 20_000, r"bad\.yaml is not YAML"),
    ],
)
def test_a_broken_file_names_its_format(load, name, text, message):
    with pytest.raises(ConfigError, match=message):
        load(text, name)


def test_overrides_go_on_top(load):
    config, _ = load(TEXT_ONLY, overrides=["kohaku.top_k=4", "deployments.openrouter.max_ongoing=3", "run=here"])
    assert (config.settings.top_k, config.deployments["openrouter"].max_ongoing, config.run) == (4, 3, "here")
    assert config.settings.rerank == "frequency"


def test_a_kohakurag_file_can_be_a_base(load, tmp_path):
    (tmp_path / "answer.py").write_text("top_k = 9\nrerank_strategy = 'score'\n")
    config, _ = load("base: answer.py\nkohaku: {top_k: 4}\n", "mine.yaml")
    assert (config.settings.top_k, config.settings.rerank) == (4, "score")


def test_the_warning_points_at_the_caller(tmp_path):
    file = tmp_path / "answer.py"
    file.write_text("top_k = 3\ntopk = 4\n")
    with pytest.warns(ConfigWarning, match="topk") as caught:
        load_config(str(file))
    assert caught[0].filename == __file__


def test_validate_takes_such_a_file(tmp_path, capsys):
    file = tmp_path / "answer.py"
    file.write_text("top_k = 9\nplanner_max_queries = 1\nmax_retries = 1\n")
    assert main(["validate", str(file), "--settings"]) == 0
    assert "top_k: 9" in capsys.readouterr().out
    file.write_text("top_k = 3 * 3\n")
    assert main(["validate", str(file)]) == 2
    assert f"{file}:1: `3 * 3` has to be computed" in capsys.readouterr().err
