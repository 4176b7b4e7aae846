import pytest

from kohaku_ray.config import load_config
from kohaku_ray.sweep.load import load_sweep
from kohaku_ray.systems.hybrid.stages import STAGES


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
