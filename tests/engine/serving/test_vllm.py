"""The real engine: two vLLM replicas of a tiny random Llama behind Ray Serve, on CPUs."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import psutil
import pyarrow.parquet as pq
import pytest
from kit import tiny_llama

import kohaku_ray.sample
from kohaku_ray.config import Config
from kohaku_ray.errors import ContextOverflowError, ModelError
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.schema import answer_schema

pytest.importorskip("vllm", reason="vLLM is not installed: make setup with PIP_FIND_LINKS naming a CPU torch")
pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]

WINDOW = 4096
SAMPLE = Path(kohaku_ray.sample.__file__).parent


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    """Path of the model."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(SAMPLE.rglob("*.md"))]
    return tiny_llama.build(tmp_path_factory.mktemp("tiny"), texts)


@pytest.fixture(scope="module")
def deployment(tiny) -> dict:
    return {"kind": "vllm", "model": tiny, "cpus": 1, "replicas": 2, "window_tokens": WINDOW, "start_timeout_s": 600}


@pytest.fixture(scope="module")
def application(cluster, deployment) -> Iterator[str]:
    """Name of the running application: it stays up between the jobs of this file."""
    from kohaku_ray.config.deployments import VllmConfig
    from kohaku_ray.engine.serving.applications import serving

    with serving({"tiny": VllmConfig(**deployment)}) as names:
        yield names["tiny"]


@pytest.fixture
def config(application, deployment, sample_config):
    def make(*overrides: str, name: str = "run") -> Config:
        own = [
            f"deployments.tiny={json.dumps(deployment)}",
            "roles.answer.model=tiny",
            "roles.answer.max_tokens=256",
            "roles.plan.max_tokens=64",
            "kohaku.max_retries=0",
            "kohaku.max_context_tokens=1500",
            "ensemble.members=3",
            "questions.limit=8",
            "cluster.block_size=4",
        ]
        return sample_config(*own, *overrides, name=name)

    return make


@pytest.fixture
def replicas(application):
    from ray import serve

    return serve.get_app_handle(application)


def request(seed: int, question: str, user: str, max_tokens: int = 200, temperature: float = 0.7) -> ChatRequest:
    return ChatRequest(
        model="tiny",
        messages=(("system", "You answer from references."), ("user", user)),
        temperature=temperature,
        top_p=1.0,
        max_tokens=max_tokens,
        seed=seed,
        schema=answer_schema(["alpha2024", "beta2023"]),
        session_id=question,
    )


def ask(handle, one: ChatRequest):
    return handle.options(session_id=one.session_id).ask.remote(one)


def table(config: Config, name: str) -> list[dict]:
    return pq.read_table(f"{config.run}/{name}.parquet").to_pylist(maps_as_pydicts="strict")


def test_the_driver_says_nothing_of_triton(tiny):
    code = (
        "from kohaku_ray.config.deployments import VllmConfig\n"
        "from kohaku_ray.engine.serving.vllm import bind_vllm\n"
        f"bind_vllm('a', 'tiny', VllmConfig(kind='vllm', model={tiny!r}, cpus=1))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, "Triton" in done.stdout + done.stderr) == (0, False), done.stderr


def test_a_whole_job_cites_nothing_but_its_context_and_shares_its_prefixes(config, run_answer):
    first = config()
    summary = run_answer(first)
    answers, usage = table(first, "answers"), table(first, "usage")
    evidence = [row for row in table(first, "trace") if row["step"] == "evidence"]
    assert summary.n_questions == 8
    assert len(answers) == 24
    shown = {(row["question_id"], row["attempt"]): set() for row in evidence}
    for row in evidence:
        shown[row["question_id"], row["attempt"]].add(row["doc_id"])
    whole = [row for row in answers if row["error"] is None and "cut" not in row["flags"]]
    assert len(whole) >= 18, [row["error"] for row in answers]
    for row in whole:
        doc_ids = shown[row["question_id"], row["attempt"]]
        jsonschema.validate(json.loads(row["reply"]), answer_schema(sorted(doc_ids)))
        assert set(json.loads(row["reply"])["ref_id"]) <= doc_ids
        assert row["n_foreign_refs"] == 0
    for row in answers:
        if row["error"] is not None:
            assert "was cut at" in row["error"]
            assert row["ref_ids"] == []
    replies = {}
    for row in whole:
        replies.setdefault(row["question_id"], []).append(row["reply"])
    assert all(len(set(texts)) == len(texts) for texts in replies.values()), "seeds make members differ"

    asked = [row for row in usage if row["role"] == "answer"]
    homes = {}
    for row in usage:
        homes.setdefault(row["question_id"], set()).add(row["replica"])
    assert all(len(replicas) == 1 for replicas in homes.values()), "all calls of a question meet on one replica"
    assert len(set.union(*homes.values())) == 2, "and both replicas work"
    for question in homes:
        counts = sorted(row["cached_tokens"] for row in asked if row["question_id"] == question)
        assert counts[1] > 0, "from the second member on the context comes from the prefix cache"
    assert all(row["service_s"] > 0 and row["queue_s"] >= 0 and row["gpu_s"] == 0 for row in usage)
    assert summary.n_placed["tiny"] == 8
    assert sum(summary.spent[name] for name in ("prompt_tokens", "completion_tokens")) > 0

    again = config(name="again")
    replayed = run_answer(again)
    assert replayed.n_calls["made"] == 0
    for name in ("answers.parquet", "submission.csv"):
        assert Path(again.run, name).read_bytes() == Path(first.run, name).read_bytes()


def test_a_seed_gives_the_same_text_alone_and_in_company(replicas):
    user = "How much energy does a data centre use? " * 20
    together = [ask(replicas, request(seed, f"question {seed}", user + str(seed))) for seed in range(6)]
    texts = [one.result().text for one in together]
    assert len(set(texts)) == 6
    assert ask(replicas, request(3, "question 3", user + "3")).result().text == texts[3]


def test_what_does_not_fit_the_window_is_refused_by_name(replicas):
    with pytest.raises(ContextOverflowError, match=f"{WINDOW}"):
        ask(replicas, request(0, "long", "word " * 3 * WINDOW)).result()
    with pytest.raises(ContextOverflowError):
        ask(replicas, request(0, "long", "word " * 100, max_tokens=WINDOW)).result()


def test_contexts_are_cut_to_the_window_by_the_models_own_tokenizer(config, run_answer):
    deep = ("kohaku.max_context_tokens=100000", "kohaku.top_k=128", "kohaku.top_k_final=null")
    own = config(*deep, "questions.limit=2", name="wide")
    run_answer(own)
    rows = table(own, "answers")
    assert all(row["error"] is None or "was cut at" in row["error"] for row in rows)
    assert [(row["measures"]["cut"], row["measures"]["overflowed"]) for row in rows] == [(1, 0)] * len(rows)
    prompts = [row["prompt_tokens"] for row in table(own, "usage") if row["role"] == "answer"]
    assert WINDOW * 0.6 < max(prompts) <= WINDOW - 256


def test_a_grammar_that_does_not_compile_is_an_error_of_its_call_alone(replicas):
    broken = dataclasses.replace(
        request(0, "grammar", "Why?"), schema={"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
    )
    with pytest.raises(ModelError, match="tiny"):
        ask(replicas, broken).result()
    assert ask(replicas, request(0, "grammar", "Why?")).result().text


def replica_processes(application: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["name"]) if application in (process.info["name"] or "")]


@pytest.mark.parametrize("victim", ["engine", "replica"])
def test_what_is_killed_on_the_way_loses_nothing(config, run_answer, application, victim):
    from ray import serve

    deadline = time.monotonic() + 400
    while serve.status().applications[application].status != "RUNNING" or len(replica_processes(application)) < 2:
        assert time.monotonic() < deadline, "the replica killed before has not come back"
        time.sleep(1)
    own = config("ensemble.members=4", "questions.limit=12", "roles.answer.max_tokens=200", name=f"killed-{victim}")
    replica = replica_processes(application)[0]
    [engine] = [child for child in replica.children(recursive=True) if "EngineCore" in child.name()]
    dying = engine if victim == "engine" else replica
    timer = threading.Timer(3.0, lambda: os.kill(dying.pid, signal.SIGKILL))
    timer.start()
    summary = run_answer(own)
    timer.join()
    gone, _ = psutil.wait_procs([replica], 30)
    assert gone, "a replica without its engine ends itself"
    rows = table(own, "answers")
    assert len(rows) == 48
    assert summary.n_questions == 12
    assert all(row["error"] is None or "was cut at" in row["error"] for row in rows), {row["error"] for row in rows}
