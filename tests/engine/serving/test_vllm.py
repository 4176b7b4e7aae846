"""The real engine: two vLLM replicas of a tiny random Llama behind Ray Serve, on CPUs."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import psutil
import pytest
from kit import tiny_llama, tiny_lora
from kit.installed import needs
from kit.ray_processes import reached_from_elsewhere
from kit.replies import reply_of
from kit.tiny_job import SAMPLE_TEXTS, check_replays, request, table, whole_answers

from kohaku_ray.answering import executor
from kohaku_ray.config import Config
from kohaku_ray.errors import ContextOverflowError, ModelError
from kohaku_ray.models.request import ChatRequest

pytestmark = [needs("vllm"), pytest.mark.ray, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]

WINDOW = 4096
BLOCK = 32
"""Tokens of a block of the KV cache, as ``engine_kwargs`` has it on CPUs."""
CACHE_BLOCKS = 4 * 2200 // BLOCK
"""A replica's KV cache has room for the contexts of four questions, of up to 2,200 tokens."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    """Path of the model."""
    return tiny_llama.build(tmp_path_factory.mktemp("tiny"), SAMPLE_TEXTS)


@pytest.fixture(scope="module")
def adapters(tiny, tmp_path_factory) -> dict[str, str]:
    """Paths of two adapters."""
    path = tmp_path_factory.mktemp("adapters")
    return {name: tiny_lora.build(path / name, tiny, seed=seed) for seed, name in enumerate(("style", "tone"))}


@pytest.fixture(scope="module")
def deployment(tiny, adapters) -> dict:
    engine = {"kind": "vllm", "model": tiny, "cpus": 1, "replicas": 2, "window_tokens": WINDOW}
    engine["engine_kwargs"] = {"num_gpu_blocks_override": CACHE_BLOCKS}
    return {**engine, "adapters": adapters, "start_timeout_s": 600}


@pytest.fixture(scope="module")
def application(cluster, deployment) -> Iterator[str]:
    """Name of the running application: it stays up between the jobs of this file."""
    from kohaku_ray.engine.serving.applications import serving
    from kohaku_ray.models.vllm import VllmConfig

    with serving({"tiny": VllmConfig(**deployment)}) as names:
        yield names["tiny"].name


@pytest.fixture
def config(application, deployment, sample_config):
    def make(*overrides: str, name: str = "run") -> Config:
        defaults = [
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
        return sample_config(*defaults, *overrides, name=name)

    return make


@pytest.fixture
def replicas(application):
    from ray import serve

    return serve.get_app_handle(application)


def ask(handle, chat_request: ChatRequest):
    return handle.options(session_id=chat_request.session_id).ask.remote([chat_request])


def test_a_whole_job_cites_nothing_but_its_context_and_shares_its_prefixes(config, run_answer):
    first = config()
    summary = run_answer(first)
    usage = table(first, "usage")
    assert (summary.n_questions, len(table(first, "answers"))) == (8, 24)
    replies = {}
    for row in whole_answers(first):
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
    assert sum(summary.spent[name] for name in ("prompt_tokens", "completion_tokens")) > 0

    check_replays(first, config(name="again"), run_answer)
    mixed = config("ensemble.models=[tiny, tiny + style]", "questions.limit=4", name="mixed")
    calls = run_answer(mixed).n_calls
    assert (calls["ledger"], calls["made"]) == (4 + 8, 4), "plans and members 0 and 2 keep their keys"
    asked = [row for row in table(mixed, "usage") if row["role"] == "answer"]
    assert {(row["member"], row["deployment"]) for row in asked} == {(0, "tiny"), (1, "tiny + style"), (2, "tiny")}


def test_in_waves_each_question_is_prefilled_once_though_the_caches_hold_few_contexts(
    config, run_answer, application, monkeypatch
):
    """First come, first served, later waves found their contexts evicted: 1.9 prefills a question (gpu5.md, G2)."""
    from ray import serve

    assert serve.get_app_handle(application).cache_tokens.remote().result() == CACHE_BLOCKS * BLOCK
    monkeypatch.setattr(executor, "default_waves", lambda n_members: (1,) * n_members)
    one_by_one = ("ensemble.early_stop=row", "ensemble.members=5")
    # Replies are cut, so that members abstain, and three of five settle a question: three waves.
    waves = config(*one_by_one, "questions.limit=40", "roles.answer.max_tokens=24", "cluster.block_size=null")
    run_answer(waves)
    asked = [row for row in table(waves, "usage") if row["role"] == "answer"]
    assert len(asked) >= 3 * 40
    # The engine computes a call's last block again, of which it keeps whole blocks alone. A later attempt has a prompt
    # of its own.
    whole = {(row["question_id"], row["prompt_tokens"]): (row["prompt_tokens"] - 1) // BLOCK for row in asked}
    assert CACHE_BLOCKS / 10 < max(whole.values()) <= CACHE_BLOCKS / 4
    computed = sum((row["prompt_tokens"] - 1) // BLOCK - row["cached_tokens"] // BLOCK for row in asked)
    assert computed / sum(whole.values()) <= 1.05, (len(asked), len(whole))


def test_a_seed_gives_the_same_text_alone_and_in_company(replicas):
    user = "How much energy does a data centre use? " * 20
    together = [ask(replicas, request(seed, user + str(seed), question=f"question {seed}")) for seed in range(6)]
    texts = [reply_of(response).text for response in together]
    assert len(set(texts)) == 6
    assert reply_of(ask(replicas, request(3, user + "3", question="question 3"))).text == texts[3]


def test_what_does_not_fit_the_window_is_refused_by_name(replicas):
    with pytest.raises(ContextOverflowError, match=f"{WINDOW}"):
        reply_of(ask(replicas, request(0, "word " * 3 * WINDOW)))
    with pytest.raises(ContextOverflowError):
        reply_of(ask(replicas, request(0, "word " * 100, max_tokens=WINDOW)))


def test_a_grammar_that_does_not_compile_is_an_error_of_its_call_alone(replicas):
    nowhere = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
    broken = dataclasses.replace(request(0, "Why?"), schema=nowhere)
    with pytest.raises(ModelError, match="tiny"):
        reply_of(ask(replicas, broken))
    assert reply_of(ask(replicas, request(0, "Why?"))).text


def greedy(model, tokenizer, chat_request: ChatRequest) -> str:
    """The model's reply at temperature 0, by transformers."""
    messages = [{"role": role, "content": content} for role, content in chat_request.messages]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    made = model.generate(
        **ids, do_sample=False, max_new_tokens=chat_request.max_tokens, pad_token_id=tokenizer.eos_token_id
    )
    return tokenizer.decode(made[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)


def test_calls_with_and_without_adapters_share_an_engine_and_each_gets_its_own_models_reply(replicas, tiny, adapters):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    users = [f"How much energy does hall {hall} use?" for hall in range(4)]
    asked = [dataclasses.replace(request(0, user, 24, "one question"), temperature=0.0, schema=None) for user in users]
    made = {
        name: [ask(replicas, dataclasses.replace(chat_request, adapter=name)) for chat_request in asked]
        for name in (None, *adapters)
    }
    texts = {name: [reply_of(response).text for response in answers] for name, answers in made.items()}
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    for name, replies in texts.items():
        model = AutoModelForCausalLM.from_pretrained(tiny).eval()
        if name is not None:
            tiny_lora.merge(model, adapters[name])
        assert replies == [greedy(model, tokenizer, chat_request) for chat_request in asked], name
    assert len({text for replies in texts.values() for text in replies}) >= 3, "replies tell the models apart"
    with pytest.raises(ModelError, match=r"tiny \+ none.*does not exist"):
        reply_of(ask(replicas, dataclasses.replace(asked[0], adapter="none")))


def test_a_prompt_is_rendered_once_for_all_its_calls(tiny):
    """By vLLM's own renderer, in a replica without an engine."""
    from vllm.config import ModelConfig
    from vllm.config import VllmConfig as EngineConfig
    from vllm.renderers import renderer_from_config
    from vllm.renderers.online_renderer import OnlineRenderer

    from kohaku_ray.engine.serving.vllm_replica import PROMPTS, VllmReplica
    from kohaku_ray.models.completion import completion_body

    model = ModelConfig(model=tiny, max_model_len=WINDOW)
    renderer = renderer_from_config(EngineConfig(model_config=model))
    online = OnlineRenderer(
        model, renderer, request_logger=None, chat_template=None, chat_template_content_format="auto"
    )
    rendered = []

    class Chat:
        class online_renderer:
            @staticmethod
            async def render_chat(request):
                rendered.append(request.messages)
                return await online.render_chat(request)

    replica = SimpleNamespace(_rendered={}, engine=SimpleNamespace(_oai_serving_chat=Chat))
    replica._render = functools.partial(VllmReplica._render, replica)

    async def ids(*requests):
        bodies = [await completion_body(chat_request, "tiny", "json_schema") for chat_request in requests]
        return await asyncio.gather(
            *(VllmReplica._prompt_ids(replica, *pair) for pair in zip(requests, bodies, strict=True))
        )

    members = [request(seed, "How much energy does a hall use?") for seed in range(9)]
    too_long = [request(seed, "word " * 3 * WINDOW) for seed in range(2)]
    prompts = asyncio.run(ids(*members, *too_long))
    tokenizer = renderer.get_tokenizer()
    assert "How much energy does a hall use?" in tokenizer.decode(prompts[0].tolist())
    assert prompts == [prompts[0]] * 9 + [None] * 2
    assert len(rendered) == 2
    asyncio.run(ids(*(request(0, f"Why {n}?") for n in range(2 * PROMPTS))))
    assert len(replica._rendered) == PROMPTS


@pytest.mark.usefixtures("application")
def test_engines_and_their_replicas_listen_on_loopback_alone():
    listening, open_to_all = reached_from_elsewhere()
    assert not open_to_all
    assert any(name.startswith("ray::ServeReplica") for name in listening)


def replica_processes(application: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["name"]) if application in (process.info["name"] or "")]


def test_an_engine_that_is_killed_on_the_way_loses_nothing(config, run_answer, application):
    killed = config("ensemble.members=4", "questions.limit=12", "roles.answer.max_tokens=200", name="killed")
    replica = replica_processes(application)[0]
    [engine] = [child for child in replica.children(recursive=True) if "EngineCore" in child.name()]
    idle_s, has_killed = sum(engine.cpu_times()[:2]), threading.Event()

    def kill_at_work() -> None:
        while sum(engine.cpu_times()[:2]) < idle_s + 0.3:
            time.sleep(0.02)
        engine.kill()
        has_killed.set()

    threading.Thread(target=kill_at_work, daemon=True).start()
    summary = run_answer(killed)
    assert has_killed.is_set(), "it was killed after its last call"
    gone, _ = psutil.wait_procs([replica], 30)
    assert gone, "a replica without its engine ends itself"
    rows = table(killed, "answers")
    assert len(rows) == 48
    assert summary.n_questions == 12
    assert all(row["error"] is None or "was cut at" in row["error"] for row in rows), {row["error"] for row in rows}
