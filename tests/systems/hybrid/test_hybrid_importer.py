import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.config import load_config
from kohaku_ray.config.flat import read_env
from kohaku_ray.sweep.load import load_sweep
from kohaku_ray.systems.hybrid.importer import OLLAMA, translate
from kohaku_ray.systems.hybrid.settings import HybridSettings
from kohaku_ray.systems.hybrid.stages import STAGES

ENV = """
# retrieval
INITIAL_CONTEXT_SIZE=40   # comment
export MMR_RELEVANCE_WEIGHT="0.8"
NETLOC_CAP=false
MIN_RELEVANCE=null
LLM_MODEL='qwen3:8b'
CROSS_ENCODER_MODEL=cross-encoder/ms-marco-MiniLM-L6-v2
OPENAI_API_KEY=sk-123
MMR_TOPK=50
CHROMA_DIR=./db#1
"""


def test_a_dot_env_file_becomes_our_keys():
    keys, left_out = translate(read_env(ENV, "theirs.env"))
    assert keys == {
        "system": "hybrid",
        "hybrid.initial_context_size": 40,
        "hybrid.mmr_relevance_weight": 0.8,
        "hybrid.netloc_cap": False,
        "hybrid.min_relevance": None,
        "roles.answer.model": "llm",
        "deployments.llm.kind": "openai",
        "deployments.llm.base_url": OLLAMA,
        "deployments.llm.api_key_env": None,
        "deployments.llm.model": "qwen3:8b",
        "hybrid.cross_encoder": "ranker",
        "deployments.ranker.kind": "cross_encoder",
        "deployments.ranker.model": "cross-encoder/ms-marco-MiniLM-L6-v2",
    }
    assert left_out == {
        "OPENAI_API_KEY": "a key stands in the environment variable that deployments.*.api_key_env names, never in a "
        "file",
        "MMR_TOPK": "it has no meaning here, did you mean mmr_top_k?",
        "CHROMA_DIR": "it has no meaning here",
    }


def test_a_yaml_file_means_the_same():
    values = {"initial_context_size": 40, "llm_model": "m", "llm_base_url": "http://h/v1", "chunk_size": 300}
    keys, left_out = translate(values)
    assert left_out == {}
    assert keys["deployments.llm.base_url"] == "http://h/v1"
    assert (keys["hybrid.initial_context_size"], keys["index.chunks.size"]) == (40, 300)


def test_every_setting_is_read_under_its_own_name(tmp_path):
    keys, left_out = translate({name.upper(): value for name, value in HybridSettings().model_dump().items()})
    assert left_out == {}
    assert keys == {"system": "hybrid"} | {f"hybrid.{k}": v for k, v in HybridSettings().model_dump().items()}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"system": "hybrid"}))
    dotted = [f"{key}={yaml.safe_dump(value).splitlines()[0]}" for key, value in keys.items()]
    assert load_config(str(file), dotted).settings == HybridSettings()


def test_an_address_without_a_model_is_left_out():
    assert translate({"LLM_BASE_URL": "http://h"}) == (
        {"system": "hybrid"},
        {"LLM_BASE_URL": "it says something only with llm_model"},
    )


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=60) | st.integers() | st.none(), max_size=5))
def test_every_key_is_translated_or_left_out_with_a_reason(values):
    keys, left_out = translate(values)
    assert set(left_out) <= set(map(str, values))
    assert all(left_out.values())
    assert len(keys) - 1 >= len({key.strip().lower() for key in values} - {k.strip().lower() for k in left_out})


def test_the_sweep_switches_each_stage_off_in_turn():
    [table] = load_sweep("hybrid_stages").sweep.tables
    off = [key for setting in table.settings() for key, value in setting.values.items() if value is False]
    assert off == [f"hybrid.{stage}" for stage in STAGES]
    assert table.n_cells == len(STAGES) + 1


@pytest.mark.parametrize("preset", ["hybrid", "hybrid_ollama", "hybrid_vllm"])
def test_presets_name_what_they_ask(preset):
    config = load_config(preset)
    assert config.system == "hybrid"
    assert config.index.bm25.language == "fr"
    assert config.ensemble.vote.strategy == "ref_priority"
    ranked_by = {"hybrid": None}.get(preset, "ranker")
    assert config.uses.cross_encoder == ranked_by
