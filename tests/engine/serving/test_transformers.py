"""A whole job on a tiny random Llama behind Serve, by transformers alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit import tiny_gguf, tiny_llama
from kit.tiny_job import SAMPLE_TEXTS, check_replays, request, table, whole_answers

from kohaku_ray.checks.demand import deployment_demand
from kohaku_ray.config import Config
from kohaku_ray.errors import ContextOverflowError, ModelError
from kohaku_ray.models.transformers import TransformersConfig
from kohaku_ray.store.directory import baseline_note

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WINDOW = 4096


@pytest.fixture(scope="module")
def deployment(tmp_path_factory) -> dict:
    model = tiny_llama.build(tmp_path_factory.mktemp("tiny"), SAMPLE_TEXTS, window=WINDOW)
    return {"kind": "transformers", "model": model, "dtype": "float32"}


@pytest.fixture(scope="module")
def application(cluster, deployment) -> Iterator[str]:
    from kohaku_ray.engine.serving.applications import serving

    with serving({"tiny": TransformersConfig(**deployment)}) as names:
        yield names["tiny"].name


def answered_by(deployment: dict[str, object]) -> list[str]:
    return [
        f"deployments.tiny={json.dumps(deployment)}",
        "model=tiny",
        "roles.answer.max_tokens=256",
        "roles.plan.max_tokens=64",
        "kohaku.max_retries=0",
        "kohaku.max_context_tokens=1000",
        "ensemble.members=3",
    ]


@pytest.fixture
def config(application, deployment, sample_config):
    def make(*overrides: str, name: str = "run") -> Config:
        return sample_config(*answered_by(deployment), "questions.limit=4", *overrides, name=name)

    return make


def test_a_whole_job_cites_nothing_but_its_context_and_replays_to_the_byte(config, run_answer):
    first = config()
    summary = run_answer(first)
    answers, usage, whole = table(first, "answers"), table(first, "usage"), whole_answers(first)
    assert (summary.n_questions, len(answers)) == (4, 12)
    assert len({row["seed"] for row in answers}) == 12
    assert len({row["reply"] for row in whole}) > len(whole) / 2, "seeds make members differ"
    assert {row["role"] for row in usage} == {"plan", "answer"}, "`model` serves both roles"
    assert all(row["prompt_tokens"] > 0 and row["completion_tokens"] > 0 and row["service_s"] > 0 for row in usage)
    check_replays(first, config(name="again"), run_answer)


def test_contexts_are_cut_to_the_models_own_window(config, run_answer):
    deep = ("kohaku.max_context_tokens=100000", "kohaku.top_k=128", "kohaku.top_k_final=null", "ensemble.members=1")
    wide = config(*deep, "questions.limit=1", name="wide")
    run_answer(wide)
    [row] = table(wide, "answers")
    assert row["error"] is None or "was cut at" in row["error"]
    assert (row["measures"]["cut"], row["measures"]["overflowed"]) == (1, 0)
    [prompt] = [row["prompt_tokens"] for row in table(wide, "usage") if row["role"] == "answer"]
    assert WINDOW * 0.6 < prompt <= WINDOW - 256


def test_a_gguf_file_answers_through_its_deployment(deployment, cluster, sample_config, run_answer, tmp_path):
    pytest.importorskip("gguf", reason="the package gguf is not installed")
    file = tiny_gguf.write(deployment["model"], tmp_path / "tiny.gguf")
    overrides = answered_by({**deployment, "model": str(file), "window_tokens": WINDOW, "note": "It knows nothing."})
    config = sample_config(*overrides, "questions.limit=2", name="gguf")
    summary = run_answer(config)
    assert (summary.n_questions, len(table(config, "answers"))) == (2, 6)
    assert baseline_note(json.loads(Path(config.run, "run.json").read_text())) == "It knows nothing."


def test_a_replica_gives_the_same_text_alone_and_in_company_and_refuses_by_name(application):
    from ray import serve

    def outcomes(*requests):
        return [outcome for outcome, _ in handle.ask.remote(requests).result()]

    handle = serve.get_app_handle(application)
    texts = [reply.text for reply in outcomes(*(request(seed, f"How much energy? {seed} " * 20) for seed in range(6)))]
    assert len(set(texts)) == 6
    assert outcomes(request(3, "How much energy? 3 " * 20))[0].text == texts[3]
    with pytest.raises(ContextOverflowError, match=f"window_tokens is {WINDOW}"):
        outcomes(request(0, "word " * 3 * WINDOW))[0].raise_()


def test_a_probe_asks_what_runs_behind_serve(config, application):
    from kohaku_ray.engine.jobs.probe import run_probe

    [probed] = run_probe(config(f"deployments.tiny.application={application}"))
    assert probed.is_usable
    assert probed.text.startswith(f"deployments.tiny: transformers, window {WINDOW:,} tokens, JSON schema kept, ")
    [gone] = run_probe(config("deployments.tiny.application=gone"))
    assert not gone.is_usable
    assert gone.text.startswith("deployments.tiny.application is 'gone' but Serve runs ")


def test_a_model_that_cannot_be_loaded_says_so_when_it_starts(cluster, tmp_path):
    from kohaku_ray.engine.serving.applications import serving

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 512}))
    broken = TransformersConfig(model=str(tmp_path), start_tries=1)
    with (
        pytest.raises(ModelError, match=r"deployments.broken did not come up: .*cannot be loaded as a causal language"),
        serving({"broken": broken}),
    ):
        pass


def test_demand_counts_cpus_and_gpus():
    deployment = TransformersConfig(model="m", replicas=2, cpus=4, gpus=0.5, resources={"serve_node": 1})
    assert deployment_demand(deployment) == {"CPU": 8, "GPU": 1.0, "serve_node": 2}
