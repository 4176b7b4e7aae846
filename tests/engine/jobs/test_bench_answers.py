"""The questions of the benchmark's answer runs, whom they ask, and what a machine is known to compute."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit import tiny_llama
from kit.runs_here import index_here
from kit.tiny_job import SAMPLE_TEXTS

from kohaku_ray.collection.sources import questions_of
from kohaku_ray.config import load_config
from kohaku_ray.engine.jobs import bench_answers
from kohaku_ray.engine.jobs.bench import Grid
from kohaku_ray.engine.jobs.bench_answers import gpus_of, n_parameters, number_text, run_on, with_index
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.store import Index
from kohaku_ray.models.vllm import VllmConfig


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return tiny_llama.build(tmp_path_factory.mktemp("tiny"), SAMPLE_TEXTS)


def test_questions_are_those_of_the_file_then_pairs_and_no_two_are_equal():
    texts = [f"question {letter}?" for letter in "abcd"]
    made = [number_text(texts, number) for number in range(100)]
    assert made[:4] == texts
    assert made[4] == "4. question a? question b?"
    assert len(set(made)) == 100
    pairs = [text.split(". ")[1] for text in made[4:16]]
    assert len(set(pairs)) == 12, "different pairs first: they find different evidence"


def test_a_run_asks_one_deployment_for_every_role_and_member_and_leaves_the_rest_as_configured(tmp_path):
    other = json.dumps({"kind": "openai", "model": "other", "base_url": "http://127.0.0.1:1/v1"})
    mixed = ["ensemble.models=[mine, other]", "ensemble.members=4", "ensemble.early_stop=row"]
    roles = ["roles.plan.model=other", "roles.answer.model=mine", "roles.answer.temperature=0.3"]
    mine = json.dumps({"kind": "vllm", "model": "some/model"})
    config = load_config(
        "demo", [f"deployments.mine={mine}", f"deployments.other={other}", "kohaku.top_k=5", *mixed, *roles]
    )
    two = VllmConfig(model="some/model", replicas=2)
    run = run_on(config, "mine", two, 9, range(100), str(tmp_path))
    assert run.used_deployments == {"mine": two}
    assert (run.ensemble.members, run.ensemble.early_stop, run.settings.top_k) == (9, "row", 5)
    assert run.role("answer").temperature == 0.3
    assert {Path(path).parent for path in (run.run, run.ledger.path, run.questions.path)} == {tmp_path}

    sample, questions = questions_of(config), questions_of(run)
    assert len(questions) == 100
    assert [(question.text, question.answer_unit, question.answer_type) for question in questions[:41]] == [
        (question.text, question.answer_unit, question.answer_type) for question in sample
    ]
    assert len({question.text for question in questions}) == 100


def test_where_there_is_no_index_the_sample_is_indexed(tmp_path, tiny_encoder, monkeypatch):
    monkeypatch.setattr(bench_answers, "run_index", index_here)
    own = ["questions.path=none.csv", "documents.paths=[none]", f"index.encoder.model={tiny_encoder}"]
    config = with_index(load_config("demo", [f"index.path={tmp_path}/none", *own]), str(tmp_path))
    assert config.index.path == f"{tmp_path}/index"
    assert len(Index.open(config.index.path).documents) > 10
    assert len(questions_of(config)) == 41
    assert with_index(config, str(tmp_path)) is config, "now there is one"


def test_the_sample_does_not_stand_in_for_another_systems_index(tmp_path):
    config = load_config("hybrid", [f"index.path={tmp_path}/none"])
    with pytest.raises(ConfigError, match=r"system hybrid does not read the sample collection: run `kohaku-ray index`"):
        with_index(config, str(tmp_path))


@pytest.mark.parametrize(
    ("given", "cpus", "n"), [(None, None, 320), (None, 2, 0), (5, 2, 5), (0, None, 0)], ids=["gpu", "cpu", "said", "no"]
)
def test_a_run_is_ten_waves_of_questions_on_gpus_and_none_on_cpus_unless_it_is_asked_for(given, cpus, n):
    assert Grid(answer_questions=given).questions_to_answer(VllmConfig(model="m", cpus=cpus)) == n


def test_parameters_are_counted_from_the_configuration_alone(tiny, tmp_path):
    from safetensors.numpy import load_file

    n = sum(weight.size for weight in load_file(f"{tiny}/model.safetensors").values())
    bare = tmp_path / "bare"
    bare.mkdir()
    shape = json.loads(Path(tiny, "config.json").read_text())
    (bare / "config.json").write_text(json.dumps(shape))
    assert n_parameters(VllmConfig(model=str(bare))) == n
    (bare / "config.json").write_text(json.dumps({**shape, "architectures": ["MixtralForCausalLM"]} | MIXTRAL))
    assert n_parameters(VllmConfig(model=str(bare))) is None, "a token takes a part of a mixture's experts"
    assert n_parameters(VllmConfig(model="no/such-model")) is None


MIXTRAL = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


def test_what_a_gpu_computes_is_known_where_all_are_of_one_known_kind(tiny):
    def flops(*kinds: str, **settings) -> float | None:
        resources = {f"accelerator_type:{kind}": 1.0 for kind in kinds}
        return gpus_of(VllmConfig(model=tiny, tensor_parallel=2, **settings), resources).flops

    assert flops("H100") == 989e12
    assert flops("A100", "A100-80G", accelerator="A100-80G") == 312e12
    assert flops("H100", "L4") is None
    assert flops("T4") is None
    assert gpus_of(VllmConfig(model=tiny, tensor_parallel=2, data_parallel=2), {"accelerator_type:L4": 1}).n_gpus == 4
    assert gpus_of(VllmConfig(model=tiny, cpus=2), {"accelerator_type:L4": 1}) is None
