"""How many actors a run starts: what its replicas keep busy, and no more than the cluster has room for."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group

from kohaku_ray.answering.executor import block_size, waves_of
from kohaku_ray.checks.demand import n_retrievers
from kohaku_ray.config import Config, load_config
from kohaku_ray.engine.actors import pool
from kohaku_ray.engine.actors.pool import (
    ActorPool,
    RunWork,
    blocks_in_flight,
    contexts_cached,
    member_processes,
    n_ledger_shards,
    n_voters,
    runs_in_flight,
)
from kohaku_ray.engine.jobs import answer as job
from kohaku_ray.engine.jobs import sweep
from kohaku_ray.engine.serving import vllm as serving
from kohaku_ray.engine.session import Session
from kohaku_ray.errors import ConfigError, KohakuRayError
from kohaku_ray.models.summary import AnswerSummary
from kohaku_ray.records import Question
from kohaku_ray.settings import resolve_paths
from kohaku_ray.store.parts import RunParts
from kohaku_ray.store.tables import SCHEMAS


def asked(n: int, *overrides: str) -> Config:
    return load_config("demo", [f"deployments.extractive={{kind: extractive, replicas: {n}}}", *overrides])


@pytest.mark.parametrize(
    ("n_replicas", "retrievers", "workers", "shards", "voters"),
    # 75 calls and 15 questions per second and replica; a shard takes 428 calls, a retriever 38 questions per second.
    [(1, 1, 1, 1, 1), (8, 4, 2, 2, 1), (64, 25, 12, 12, 5), (256, 100, 48, 45, 17)],
)
def test_actors_follow_the_replicas(n_replicas, retrievers, workers, shards, voters):
    config = asked(n_replicas, "ensemble.members=5")
    assert n_retrievers(config, 1, None) == retrievers
    assert member_processes(config, 10_000.0) == workers
    assert (n_ledger_shards(config), n_voters(config)) == (shards, voters)


def test_replicas_of_all_models_count_and_each_member_that_prepares():
    two = "deployments={a: {kind: extractive, replicas: 32}, b: {kind: extractive, replicas: 32}}"
    mixed = load_config("demo", [two, "ensemble.models=[a, b]", "ensemble.members=5", "roles.answer.model=a"])
    assert n_ledger_shards(mixed) == n_ledger_shards(asked(64))
    each = asked(64, "ensemble.members=5", "ensemble.scope=question")
    assert n_retrievers(each, 1, None) == 125  # five times as much to prepare: 4,800 per second


def vllm(*overrides: str, **settings: object) -> Config:
    deployment = json.dumps({"kind": "vllm", "model": "m", **settings})
    return load_config("demo", [f"deployments.big={deployment}", "model=big", "ensemble.members=5", *overrides])


def test_runs_of_a_sweep_are_as_many_as_fill_the_replicas_and_at_least_four():
    assert [runs_in_flight(vllm(replicas=n), 282) for n in (1, 16, 64)] == [4, 9, 35]
    assert runs_in_flight(vllm("cluster.blocks_in_flight=3", replicas=64), 282) == 4


@pytest.mark.parametrize(
    ("config", "is_early"),
    [
        (vllm("cluster.retriever.gpus=0.25", gpus=0.5), False),
        (vllm("cluster.retriever.gpus=0.25", tensor_parallel=4), False),
        (vllm(), True),
        (asked(1, "cluster.retriever.gpus=1"), True),
    ],
)
def test_retrievers_on_gpus_start_after_the_replicas_that_need_gpus(monkeypatch, config, is_early):
    session = Session(config.cluster)
    monkeypatch.setattr(session, "_start_pool", lambda config: "pool")
    assert (session.start_early_pool(config) == "pool") == is_early


def test_what_the_configuration_says_is_what_starts():
    assert n_ledger_shards(asked(64, "ledger.shards=7")) == 7


NODE = "node 10.0.0.5"


@pytest.mark.parametrize(
    ("placed", "has_room", "said"),
    [
        ([NODE], True, f"1 retriever is starting on {NODE}: imports, then opens the index"),
        (["", ""], True, "2 retrievers are starting on a node with room: imports, then opens the index"),
        ([NODE], False, "waiting for room for 1 retriever (1 CPU): the cluster has 0.5 CPUs free"),
    ],
)
def test_a_retriever_that_starts_is_not_said_to_wait_for_room(placed, has_room, said, monkeypatch):
    """`waiting for 1 retriever: 3 CPUs free` was said six times while its process imported (users5.md 2.15)."""
    monkeypatch.setattr(pool, "find_node", lambda retriever: retriever)
    monkeypatch.setattr(pool.ray, "available_resources", lambda: {"CPU": 0.5})
    assert pool._describe_waiting(load_config("demo").cluster.retriever, placed, has_room=has_room) == said


def test_an_actor_may_die_ten_times_an_hour(monkeypatch):
    """engine6 A9: ten restarts in its lifetime ended a run of a week."""
    now, n_restarts = 0.0, 0
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(pool, "actors", lambda _: {"Name": "kohaku_ray retriever 1", "NumRestarts": n_restarts})
    actor = type("Actor", (), {"_actor_id": SimpleNamespace(hex=lambda: "a")})()
    running = ActorPool.__new__(ActorPool)
    running.retrievers, running.members, running.voters = [actor], [], []
    running._restarts, running._looked_s = {}, -pool.LOOK_S
    for _ in range(100):
        now, n_restarts = now + 3600 / 9, n_restarts + 1
        running.check_restarts()
    now, n_restarts = now + 10, n_restarts + 1
    running.check_restarts()  # nine an hour, and now the tenth
    now, n_restarts = now + 10, n_restarts + 1
    with pytest.raises(KohakuRayError, match=r"retriever 1 died and was started again 102 times, the last 11 within"):
        running.check_restarts()


def test_no_more_processes_answer_than_the_cluster_has_cpus():
    assert [member_processes(asked(64), n_cpus) for n_cpus in (0, 2, 6.5, 640)] == [1, 2, 6, 12]
    assert member_processes(asked(64, "cluster.autoscaling=true"), 2) == 12


def test_members_answer_in_waves_unless_votes_weigh_their_agreement():
    stops = ["ensemble.members=5", "ensemble.early_stop=row"]
    assert waves_of(load_config("demo", stops)) == [range(3), range(3, 4), range(4, 5)]
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
    batched = f"deployments.mine={{{server}, batch: true}}"
    config = load_config("demo", [batched, "model=mine", "ensemble.members=5"])
    assert 32 * blocks_in_flight(config, 32) >= 2 * 50_000 // 5
    budget = load_config("demo", [batched, "model=mine", "ensemble.members=5", "budget.dollars=5"])
    assert blocks_in_flight(budget, 1) == 50_000 // 5


def summed(context_tokens: int, reply_tokens: int = 0) -> AnswerSummary:
    """What a run has counted after ten questions of five calls."""
    spent = {"completion_tokens": 50 * reply_tokens}
    return AnswerSummary("", n_questions=10, context_tokens=10 * context_tokens, n_calls={"made": 50}, spent=spent)


def test_in_waves_as_many_questions_are_in_flight_as_the_kv_caches_hold():
    """Qwen3-8B takes 144 KiB a token: an H100 holds 400,000, an L4 29,000 (findings/gpu5.md, G2).

    With twice as many, vLLM's scheduler gave the place of a question whose next wave was on its way to one that waited:
    2.0 prefills per question on CPUs (`benchmarks/gpu.py --sections waves --small`), older first or not.
    """

    def in_flight(tokens, summary=None, early_stop="row", scope="answer", **settings):
        ensemble = (f"ensemble.early_stop={early_stop}", f"ensemble.scope={scope}")
        config = vllm(*ensemble, "kohaku.queries=1", window_tokens=16_000, **settings)
        return blocks_in_flight(config, 1, contexts_cached(config, {"big": tokens}, summary))

    assert in_flight(400_000) == 25 - 1, "at first by the window; one context is of a question that has ended"
    assert in_flight(400_000, summed(10_000)) == 40 - 1, "then by the questions' own tokens"
    assert in_flight(400_000, summed(9_700, 100)) == 40 - 1, "with the replies of a wave of three"
    assert in_flight(400_000, summed(10_000), replicas=8) == 8 * 39
    assert in_flight(29_000, summed(10_000)) == 2
    assert in_flight(29_000, summed(30_000)) == 1
    assert in_flight(None, summed(10_000)) == in_flight(10**9) == 171, "those that its places take"
    assert in_flight(400_000, summed(10_000), early_stop="never") == 80, "all members at once: the next ones may wait"
    assert in_flight(29_000, summed(30_000), early_stop="never") == 4
    apart = in_flight(400_000, summed(10_000), scope="question")
    assert apart == 27, "2 × 400,000 of three contexts each: no wave waits for what an earlier one left"


def test_replicas_that_are_not_up_hold_no_contexts(monkeypatch, tmp_path):
    """249 questions of 8 H100s on the first one take 1.70 prefills each and 30 % more time, 39 take 1.05, by
    `benchmarks/cache_simulation.py`."""
    config, up = vllm("ensemble.early_stop=row", "kohaku.queries=1", max_replicas=8, window_tokens=10_000), {"big": 1}
    parts, most = RunParts(str(tmp_path), "run"), []
    work = SimpleNamespace(config=config, parts=parts, n_runs=1, under_way=nullcontext, finish=lambda _: None)

    def collect(pending, num_returns, timeout):
        most.append(len(pending))
        up["big"] = 1 if len(most) < 50 else 8
        return pending[:1], pending[1:]

    monkeypatch.setattr(job, "ray", SimpleNamespace(wait=collect))
    monkeypatch.setattr(job, "ray_get", lambda done: [AnswerSummary("", n_questions=len(block)) for block in done])
    work.submit = lambda number, block: block
    questions = [Question(f"q{number}", "?") for number in range(400)]
    watch = job.RunWatch(*[lambda _: None] * 2, str, {"big": 400_000}, lambda: up)
    job.answer_all(work, questions, {}, watch)
    assert max(most[:50]) == 39
    assert max(most) == 8 * 39


def test_a_start_answers_what_no_part_of_an_earlier_one_has(monkeypatch, tmp_path, capsys):
    """Of six questions one is whole; one lacks a reply, and one is torn."""
    config, parts = load_config("demo", ["cluster.block_size=1"]), RunParts(str(tmp_path), "run")
    empty = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
    for key, n_unanswered in (("q0", 0), ("q1", 1), ("q2", 0)):
        counts = AnswerSummary("", n_questions=1, n_answers=5, n_unanswered=n_unanswered, shortened={"m": (1, 2)})
        name = parts.write([key], empty, asdict(counts))
    (tmp_path / "parts" / name).write_bytes(b"torn")
    RunParts(str(tmp_path), "another").write(["q3"], empty, {})
    found = job.find_parts(parts)
    told = capsys.readouterr().err
    assert "1 part of another run removed from" in told
    assert f"{name} is damaged (it is torn" in told
    assert "1 question found that an earlier start answered" in told
    submitted, joined = [], []
    work = SimpleNamespace(
        config=config, parts=parts, n_runs=1, under_way=nullcontext, finish=lambda names: joined.extend(names)
    )
    work.submit = lambda number, block: submitted.append((number, block[0].question_id)) or block
    monkeypatch.setattr(job, "ray", SimpleNamespace(wait=lambda pending, **_: (pending[:1], pending[1:])))
    monkeypatch.setattr(job, "ray_get", lambda done: [AnswerSummary("", n_questions=len(block)) for block in done])
    questions = [Question(f"q{number}", "?") for number in range(6)]
    watch = job.RunWatch(*[lambda _: None] * 2, str, {}, dict)
    summary = job.answer_all(work, questions, found, watch)
    assert submitted == [(number, f"q{number}") for number in range(1, 6)]
    assert joined == [parts.name([question.question_id]) for question in questions]
    assert (summary.n_questions, summary.n_answers, summary.shortened) == (6, 5, {"m": (1, 2)})
    assert job.find_parts(parts, is_renewed=True) == {}, "whoever asks for new replies gets no old rows"


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
            self.parts = RunParts(str(tmp_path), "run")

        def submit(self, number, block):
            self.n_left += 1
            return block

        def finish(self, names): ...

    def answer(work) -> None:
        def show(summary) -> None:
            most[-1] = max(most[-1], work.n_left - summary.n_questions + 1)

        most.append(0)
        questions = [Question(f"q{number}", "?") for number in range(100)]
        watch = job.RunWatch(show, show, str, {"big": 410_000}, dict)
        job.answer_all(work, questions, {}, watch)

    answer(Work())
    others = [Work() for _ in range(3)]
    with others[0].under_way(), others[1].under_way(), others[2].under_way():
        answer(Work())
    assert most == [40, 10]
    assert not actors.runs


@pytest.mark.parametrize("gpus", [0.0, 1.0])
def test_a_sweeps_pool_on_gpus_ends_before_other_replicas_start(monkeypatch, gpus):
    monkeypatch.setattr(sweep, "open_index", lambda config: SimpleNamespace(n_shards=1))
    monkeypatch.setattr(sweep, "most_resources", lambda cluster: {"CPU": 8.0, "GPU": 8.0})
    monkeypatch.setattr(sweep.ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 8.0})
    on_gpus = f"cluster.retriever.gpus={gpus}"
    same, other = (asked(2, f"deployments.extractive.start_tries={n}", on_gpus) for n in (3, 4))
    actors = sweep._Actors(4, [same, other])
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


def wait_for_free_cpus(n: float) -> None:
    """Wait until the cluster has so many CPUs free: it gives back those of what ended in a moment."""
    end = time.monotonic() + 30
    while (free := ray.available_resources().get("CPU", 0.0)) != n:
        assert time.monotonic() < end, f"{free:g} CPUs are free, not {n:g}"
        time.sleep(0.1)


def test_retrievers_without_room_are_refused_and_give_back_their_room(cluster, sample_here, monkeypatch):
    monkeypatch.setattr(pool, "ROOM_S", 1.0)
    monkeypatch.setattr(pool, "SAY_EVERY_S", 0.5)
    config = resolve_paths(load_config("demo", [f"index.path={sample_here}", "cluster.retriever.replicas=2"]))
    total, free = ray.cluster_resources()["CPU"], ray.available_resources()["CPU"]
    other = placement_group([{"CPU": free - 1}])
    wait_for_free_cpus(1)
    actors = ActorPool(config, 1)
    message = (
        rf"2 retrievers \(1 CPU each\) got no room on the nodes in 1 s: the cluster has {total:g} CPUs of which 1 "
        r"free: lower cluster\.retriever\.replicas, .* end the jobs that hold the rest, or add nodes"
    )
    with pytest.raises(ConfigError, match=message):
        actors.wait_until_ready()
    actors.close()
    remove_placement_group(other)
    wait_for_free_cpus(free)
    actors = ActorPool(config, 1)
    actors.wait_until_ready()
    wait_for_free_cpus(free - 2)
    actors.close()
    wait_for_free_cpus(free)
