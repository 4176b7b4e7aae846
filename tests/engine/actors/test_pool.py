"""How many actors a run starts: what its replicas keep busy, and no more than the cluster has room for."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from kohaku_ray.answering.executor import block_size, waves_of
from kohaku_ray.config import Config, load_config
from kohaku_ray.engine.actors import pool
from kohaku_ray.engine.actors.pool import (
    RunWork,
    blocks_in_flight,
    contexts_cached,
    leaves_gpus,
    member_processes,
    n_ledger_shards,
    n_voters,
    runs_in_flight,
)
from kohaku_ray.engine.jobs import answer as job
from kohaku_ray.engine.jobs import sweep
from kohaku_ray.engine.serving import vllm as serving
from kohaku_ray.records import Question
from kohaku_ray.run.checks.retrievers import RetrieverPlan, wanted_retrievers
from kohaku_ray.run.record.directory import RunDirectory
from kohaku_ray.run.record.summary import AnswerSummary


def asked(n: int, *overrides: str) -> Config:
    return load_config("demo", [f"deployments.extractive={{kind: extractive, replicas: {n}}}", *overrides])


@pytest.mark.parametrize(
    ("n_replicas", "retrievers", "workers", "shards", "voters"),
    # 75 calls and 15 questions per second and replica; a shard takes 428 calls, a retriever 38 questions per second.
    [(1, 1, 1, 1, 1), (8, 4, 2, 2, 1), (64, 25, 12, 12, 5), (256, 100, 48, 45, 17)],
)
def test_actors_follow_the_replicas(n_replicas, retrievers, workers, shards, voters):
    config = asked(n_replicas, "ensemble.members=5")
    assert wanted_retrievers(config, on_gpus=False) == retrievers
    assert member_processes(config, 10_000.0) == workers
    assert (n_ledger_shards(config), n_voters(config)) == (shards, voters)


def test_replicas_of_all_models_count_and_each_member_that_prepares():
    two = "deployments={a: {kind: extractive, replicas: 32}, b: {kind: extractive, replicas: 32}}"
    mixed = load_config("demo", [two, "ensemble.models=[a, b]", "ensemble.members=5", "roles.answer.model=a"])
    assert n_ledger_shards(mixed) == n_ledger_shards(asked(64))
    each = asked(64, "ensemble.members=5", "ensemble.scope=question")
    assert wanted_retrievers(each, on_gpus=False) == 125  # five times as much to prepare: 4,800 per second


def vllm(*overrides: str, **settings: object) -> Config:
    deployment = json.dumps({"kind": "vllm", "model": "m", **settings})
    return load_config("demo", [f"deployments.big={deployment}", "model=big", "ensemble.members=5", *overrides])


def test_runs_of_a_sweep_are_as_many_as_fill_the_replicas_and_at_least_four():
    assert [runs_in_flight(vllm(replicas=n), 282) for n in (1, 16, 64)] == [4, 9, 35]
    assert runs_in_flight(vllm("cluster.blocks_in_flight=3", replicas=64), 282) == 4


def test_retrievers_that_share_gpus_with_engines_start_after_them():
    assert leaves_gpus(vllm("cluster.retriever.gpus=0.25", gpus=0.5))
    assert not leaves_gpus(vllm("cluster.retriever.gpus=0.25"))
    assert not leaves_gpus(vllm("cluster.retriever.gpus=1", gpus=0.5))


def test_what_the_configuration_says_is_what_starts():
    assert n_ledger_shards(asked(64, "ledger.shards=7")) == 7


NODE = "node 10.0.0.5"


@pytest.mark.parametrize(
    ("placed", "free", "said"),
    [
        ([NODE], 3.0, f"1 retriever is starting on {NODE}: imports, then opens the index"),
        (["", ""], 3.0, "2 retrievers are starting on a node with room: imports, then opens the index"),
        ([NODE], 0.5, "waiting for 1 retriever (1 CPU) to start and open the index: the cluster has 0.5 CPUs free"),
    ],
)
def test_a_retriever_that_starts_is_not_said_to_wait_for_room(placed, free, said, monkeypatch):
    """`waiting for 1 retriever: 3 CPUs free` was said six times while its process imported (users5.md 2.15)."""
    monkeypatch.setattr(pool, "started_on", lambda retriever: retriever)
    monkeypatch.setattr(pool.ray, "available_resources", lambda: {"CPU": free})
    assert pool._describe_waiting(load_config("demo"), placed) == said


def test_no_more_processes_answer_than_the_cluster_has_cpus():
    assert [member_processes(asked(64), n_cpus) for n_cpus in (0, 2, 6.5, 640)] == [1, 2, 6, 12]
    assert member_processes(asked(64, "cluster.autoscaling=true"), 2) == 12


def test_members_answer_in_waves_unless_votes_weigh_their_agreement():
    stops = ["ensemble.members=5", "ensemble.waves=[3, 2]", "ensemble.early_stop=row"]
    assert waves_of(load_config("demo", stops)) == [range(3), range(3, 5)]
    assert waves_of(load_config("demo", [*stops, "ensemble.vote.weights=agreement"])) == [range(5)]


def test_blocks_follow_the_replicas_and_hold_one_question_where_members_answer_in_waves():
    assert [block_size(asked(16), n) for n in (10, 640, 100_000)] == [1, 10, 32]
    assert block_size(asked(16, "ensemble.members=5", "ensemble.early_stop=row"), 100_000) == 1


def test_questions_in_flight_grow_with_the_replicas_up_to_what_they_take():
    def in_flight(replicas, max_ongoing, members, n_questions=100_000, queries=1):
        deployment = f"{{kind: extractive, replicas: {replicas}, max_ongoing: {max_ongoing}}}"
        overrides = (f"deployments.extractive={deployment}", f"ensemble.members={members}", f"kohaku.queries={queries}")
        config = load_config("demo", overrides)
        size = block_size(config, n_questions)
        return size * blocks_in_flight(config, size)

    assert in_flight(64, 8, 9) == 256  # 2 × 64 × 8 calls are fewer than 9 × 256: four per replica all the same
    assert 2 * 64 * 256 // 9 <= in_flight(64, 256, 9) <= 2 * 64 * 256 // 9 + 32
    planned = in_flight(64, 256, 9, queries=4)  # a model plans: more questions are on their way
    assert 3 * 64 * 256 // 9 <= planned <= 3 * 64 * 256 // 9 + 32
    assert in_flight(1, 4, 5, 8) == 2 * 2  # two blocks, so that one is prepared while another is answered
    assert blocks_in_flight(asked(1, "cluster.blocks_in_flight=7"), 32) == 7


def test_with_batches_a_wave_is_a_file_also_with_a_budget():
    server = "kind: openai, base_url: 'http://127.0.0.1:1/v1', model: m, api_key_env: null"
    batched = f"deployments.mine={{{server}, batch: {{max_requests: 10_000}}}}"
    config = load_config("demo", [batched, "model=mine", "ensemble.members=5"])
    assert 32 * blocks_in_flight(config, 32) >= 2 * 10_000 // 5
    budget = load_config("demo", [batched, "model=mine", "ensemble.members=5", "budget.dollars=5"])
    assert blocks_in_flight(budget, 1) == 10_000 // 5


def summed(context_tokens: int, reply_tokens: int = 0) -> AnswerSummary:
    """What a run has counted after ten questions of five calls."""
    spent = {"completion_tokens": 50 * reply_tokens}
    return AnswerSummary("", n_questions=10, context_tokens=10 * context_tokens, n_calls={"made": 50}, spent=spent)


def test_in_waves_as_many_questions_are_in_flight_as_the_kv_caches_hold():
    """Qwen3-8B takes 144 KiB a token: an H100 holds 400,000, an L4 29,000 (findings/gpu5.md, G2).

    With twice as many, vLLM's scheduler gave the place of a question whose next wave was on its way to one that waited:
    2.0 prefills per question on CPUs (`benchmarks/gpu.py --sections waves --small`), older first or not.
    """

    def in_flight(tokens, summary=None, early_stop="row", evidence="same", **settings):
        ensemble = (f"ensemble.early_stop={early_stop}", f"ensemble.evidence={evidence}")
        config = vllm(*ensemble, "kohaku.queries=1", window_tokens=16_000, **settings)
        return blocks_in_flight(config, 1, contexts_cached(config, {"big": tokens}, summary))

    assert in_flight(400_000) == 25 - 1, "at first by the window; one context is of a question that has ended"
    assert in_flight(400_000, summed(10_000)) == 40 - 1, "then by the questions' own tokens"
    assert in_flight(400_000, summed(9_700, 100)) == 40 - 1, "with the replies of a wave of three"
    assert in_flight(400_000, summed(10_000), replicas=8) == 8 * 39 // 1.25, "one may have a quarter more than the mean"
    assert in_flight(29_000, summed(10_000)) == 2
    assert in_flight(29_000, summed(30_000)) == 1
    assert in_flight(None, summed(10_000)) == in_flight(10**9) == 171, "those that its places take"
    assert in_flight(400_000, summed(10_000), early_stop="never") == 80, "all members at once: the next ones may wait"
    assert in_flight(29_000, summed(30_000), early_stop="never") == 4
    split = in_flight(400_000, summed(10_000), evidence="split")
    assert split == 27, "2 × 400,000 of three contexts each: no wave waits for what an earlier one left"


def test_replicas_that_are_not_up_hold_no_contexts(monkeypatch, tmp_path):
    """249 questions of 8 H100s on the first one take 1.70 prefills each and 30 % more time, 39 take 1.05, by
    `benchmarks/cache_simulation.py`."""
    config, up = vllm("ensemble.early_stop=row", "kohaku.queries=1", max_replicas=8, window_tokens=10_000), {"big": 1}
    work, most = SimpleNamespace(config=config, n_runs=1, under_way=nullcontext, finish=lambda *_: None), []

    def collect(pending, num_returns, timeout):
        most.append(len(pending))
        up["big"] = 1 if len(most) < 50 else 8
        return pending[:1], pending[1:]

    monkeypatch.setattr(job, "ray", SimpleNamespace(wait=collect))
    monkeypatch.setattr(job, "ray_get", lambda done: [AnswerSummary("", n_questions=len(block)) for block in done])
    work.submit = lambda number, block: (block, None)
    questions = [Question(f"q{number}", "?") for number in range(400)]
    job.answer_all(
        work, questions, RunDirectory(str(tmp_path)), *[lambda _: None] * 2, str, {"big": 400_000}, lambda: up
    )
    assert max(most[:50]) == 39
    assert max(most) == 8 * 39 // 1.25


def test_serve_scales_by_the_questions_that_a_small_cache_holds():
    """With 16 per replica, eight L4s of two contexts each stayed one: 12 questions in flight."""
    deployment = vllm(max_replicas=8).deployments["big"]
    in_flight = contexts_cached(vllm("ensemble.early_stop=row"), {"big": 29_000}, summed(10_000), {"big": 1})
    assert in_flight / serving._scale(deployment)["autoscaling_config"]["target_ongoing_requests"] > 1


def test_a_model_and_its_adapters_each_have_a_context_of_a_question():
    """vLLM's hashes of blocks have the adapter's name: members of both fill twice the cache."""
    models = "ensemble.models=[big, big + style]"
    config = vllm("ensemble.early_stop=row", models, adapters={"style": "/style"})
    assert contexts_cached(config, {"big": 400_000}, summed(10_000)) == 20 - 1
    assert contexts_cached(config, {"big": 16_384 * 20}) == 10 - 1, "at first by the window"


def test_runs_of_a_sweep_share_what_the_caches_hold(monkeypatch, tmp_path):
    """Four at once, each with as many questions in flight as the caches hold, take 1.73 prefills a question and a third
    more time on an H100 by `benchmarks/cache_simulation.py`."""
    monkeypatch.setattr(
        job, "ray", SimpleNamespace(wait=lambda pending, num_returns, timeout: (pending[:1], pending[1:]))
    )
    monkeypatch.setattr(job, "ray_get", lambda done: [AnswerSummary("", n_questions=len(block)) for block in done])
    model = "deployments={big: {kind: vllm, model: m, window_tokens: 10000}}"
    waves = ["model=big", "ensemble.members=5", "ensemble.early_stop=row", "kohaku.queries=1"]
    config, actors = load_config("demo", [model, *waves]), SimpleNamespace(runs=set())
    most = []

    class Work(RunWork):
        def __init__(self) -> None:
            self.config, self._pool, self.n_left = config, actors, 0

        def submit(self, number, block):
            self.n_left += 1
            return block, None

        def finish(self, run, tables): ...

    def answer(work) -> None:
        def show(summary) -> None:
            most[-1] = max(most[-1], work.n_left - summary.n_questions + 1)

        most.append(0)
        questions = [Question(f"q{number}", "?") for number in range(100)]
        job.answer_all(work, questions, RunDirectory(str(tmp_path)), show, show, cache_tokens={"big": 410_000})

    answer(Work())
    others = [Work() for _ in range(3)]
    with others[0].under_way(), others[1].under_way(), others[2].under_way():
        answer(Work())
    assert most == [40, 10]
    assert not actors.runs


@pytest.mark.parametrize("gpus", [0.0, 1.0])
def test_a_sweeps_pool_on_free_gpus_ends_before_other_replicas_start(monkeypatch, gpus):
    monkeypatch.setattr(sweep, "plan_on_cluster", lambda config: RetrieverPlan(1, gpus, ""))
    monkeypatch.setattr(sweep.ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 8.0})
    same, other = (asked(2, f"deployments.extractive.start_tries={n}") for n in (3, 4))
    actors = sweep._Actors(4, [same, other], None)
    needs = [actors._needs([config]) for config in (same, same, other)]
    assert needs[0] == needs[1]
    assert (needs[0] == needs[2]) == (gpus == 0.0)


@pytest.mark.parametrize(("max_ongoing", "expected"), [(64, 12), (2, 1)])
def test_with_a_budget_no_more_calls_wait_than_the_replicas_take(max_ongoing, expected):
    """What waits when the budget is spent would be paid, too."""
    deployment = f"deployments.extractive={{kind: extractive, max_ongoing: {max_ongoing}}}"
    config = load_config("demo", [deployment, "ensemble.members=5", "budget.tokens=9"])
    size = block_size(config, 1000)
    assert (size, blocks_in_flight(config, size)) == (1, expected)
