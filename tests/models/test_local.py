"""A real tiny Llama in this process: batches, seeds, grammars, and what is refused."""

from __future__ import annotations

import asyncio
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import numpy as np
import pytest
from kit import tiny_llama
from kit.installed import OnDemand
from kit.tiny_job import SAMPLE_TEXTS

from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError, ContextOverflowError, ModelError
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.schema import answer_schema
from kohaku_ray.models.transformers import TransformersConfig, load_model
from kohaku_ray.run.checks.deployments import check_deployment

if TYPE_CHECKING:
    from kohaku_ray.models.decoding import LocalBackend

torch = OnDemand("torch")
decoding = OnDemand("kohaku_ray.models.decoding")

WINDOW = 2048
SCHEMA = answer_schema(["alpha2024", "beta2023"])
FLOAT32 = TransformersConfig(model="tiny", dtype="float32")
QUESTION = "How much energy does a data centre use? "


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return tiny_llama.build(tmp_path_factory.mktemp("tiny"), SAMPLE_TEXTS, window=WINDOW)


@pytest.fixture
def make(path):
    """Make a backend that records the shape of every forward pass: rows, tokens."""

    def make(**settings) -> LocalBackend:
        deployment = TransformersConfig(model="tiny", dtype="float32", **settings)
        model, tokenizer = load_model(Path(path), deployment)
        backend = decoding.LocalBackend(model, tokenizer, deployment, WINDOW)
        forward, backend.shapes, backend.model = model.forward, [], model

        @functools.wraps(forward)
        def recording(*args, **kwargs):
            backend.shapes.append(tuple(kwargs["input_ids"].shape))
            return forward(*args, **kwargs)

        model.forward = recording
        return backend

    return make


def most_rows(backend: LocalBackend) -> int:
    return max(rows for rows, _ in backend.shapes)


def request(seed: int = 0, user: str = QUESTION, *, schema=SCHEMA, max_tokens=150, temperature=0.7, top_p=1.0):
    messages = (("system", "You answer from references."), ("user", user))
    return ChatRequest("tiny", messages, temperature, top_p, max_tokens, seed, schema)


def ask(backend: LocalBackend, *requests: ChatRequest, errors: bool = False) -> list:
    async def run():
        return await asyncio.gather(*map(backend.chat, requests), return_exceptions=errors)

    return asyncio.run(run())


def test_a_text_depends_on_its_own_request_and_not_on_its_company(make):
    backend = make()
    requests = [request(seed, QUESTION * (1 + 3 * seed), top_p=0.9 if seed % 2 else 1.0) for seed in range(6)]
    requests[3] = request(3, "Why?", schema=None, max_tokens=40)
    together = ask(backend, *requests)
    assert most_rows(backend) == 6
    alone = [ask(backend, item)[0] for item in requests]
    assert [item.text for item in together] == [item.text for item in alone]
    assert [item.completion_tokens for item in together] == [item.completion_tokens for item in alone]
    assert len({item.text for item in together}) == 6


def test_without_a_schema_greedy_text_is_the_librarys_own(make, path):
    backend = make()
    model, tokenizer = load_model(Path(path), FLOAT32)
    messages = [{"role": "user", "content": QUESTION}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    expected = model.generate(**ids, do_sample=False, max_new_tokens=60, pad_token_id=tokenizer.eos_token_id)[0]
    n_prompt = ids["input_ids"].shape[1]
    mine = ChatRequest("tiny", (("user", QUESTION),), 0.0, 1.0, 60, 5, None)
    longer = ChatRequest("tiny", (("user", QUESTION * 4),), 0.0, 1.0, 60, 5, None)
    reply, _ = ask(backend, mine, longer)
    assert reply.text == tokenizer.decode(expected[n_prompt:], skip_special_tokens=True)
    assert reply.prompt_tokens == n_prompt


def test_a_prompt_is_computed_once_for_all_members_now_and_later(make):
    backend = make()
    members = [request(seed, max_tokens=12) for seed in range(3)]
    replies = ask(backend, *members)
    n = replies[0].prompt_tokens
    assert [tokens for _, tokens in backend.shapes if tokens > 1] == [n]
    assert [reply.cached_tokens for reply in replies] == [0, n, n]
    alone = [ask(make(), member)[0] for member in members]
    assert [reply.text for reply in replies] == [item.text for item in alone]
    assert {item.cached_tokens for item in alone} == {0}

    backend.shapes.clear()
    later, other, longer = ask(backend, request(7, max_tokens=12), request(8, "Why?"), request(9, QUESTION * 2))
    assert (later.prompt_tokens, later.cached_tokens) == (n, n)
    for reply, user in ((other, "Why?"), (longer, QUESTION * 2)):
        assert 0 < reply.cached_tokens < reply.prompt_tokens, "the start of a prompt that was computed before"
        [lone] = ask(make(), request(8 if user == "Why?" else 9, user))
        assert reply.text == lone.text
    assert sorted(tokens for _, tokens in backend.shapes if tokens > 1) == sorted(
        item.prompt_tokens - item.cached_tokens for item in (other, longer)
    )


def test_a_reply_has_the_spaces_that_vllms_grammar_writes_and_no_other(path):
    xgrammar = pytest.importorskip("xgrammar")
    _, tokenizer = load_model(Path(path), FLOAT32)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
    compiled = xgrammar.GrammarCompiler(info).compile_json_schema(json.dumps(SCHEMA), any_whitespace=False)
    ends = [tokenizer.eos_token_id]
    reply = {"explanation": "It says 3.", "answer": "3", "answer_value": "3", "answer_unit": "MWh"}
    reply["ref_id"] = ["alpha2024", "beta2023"]
    for separators in ((", ", ": "), (",", ":"), (",  ", ": "), (", ", " : "), (",\n", ": ")):
        text = json.dumps(reply, separators=separators)
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        ours = decoding.matcher(decoding.grammar_tokenizer(tokenizer, ends), SCHEMA)
        vllms = xgrammar.GrammarMatcher(compiled)
        is_written = separators == (", ", ": ")
        assert vllms.accept_string(text) is is_written
        assert (ours.try_consume_tokens(tokens) == len(tokens)) is is_written


def test_rows_come_and_go_while_others_are_decoded(make):
    async def staggered(backend) -> list:
        calls = []
        for seed in range(5):
            user, n = QUESTION * (1 + seed % 3), 10 + 25 * (seed % 2)
            calls.append(asyncio.ensure_future(backend.chat(request(seed, user, schema=None, max_tokens=n))))
            while len(backend.shapes) < 5 * (seed + 1):
                await asyncio.sleep(0.001)
        return await asyncio.gather(*calls)

    backend = make(batch_size=3)
    replies = asyncio.run(staggered(backend))
    assert most_rows(backend) == 3
    for seed, reply in enumerate(replies):
        user, n = QUESTION * (1 + seed % 3), 10 + 25 * (seed % 2)
        assert reply.text == ask(make(), request(seed, user, schema=None, max_tokens=n))[0].text


def test_a_model_with_other_state_than_keys_and_values_is_refused(path):
    model, tokenizer = load_model(Path(path), FLOAT32)
    model._is_stateful = True
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM has layers other than attention, .*: serve it by vLLM"):
        decoding.LocalBackend(model, tokenizer, FLOAT32, WINDOW)


def test_a_request_that_is_refused_fails_alone_with_its_reason(make):
    nowhere = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
    long, broken, reply = ask(
        make(), request(user="word " * 3 * WINDOW), request(schema=nowhere), request(), errors=True
    )
    with pytest.raises(ContextOverflowError, match=rf"prompt has \d+ tokens and .* 150, but window_tokens is {WINDOW}"):
        raise long
    with pytest.raises(ModelError, match="the schema of the reply does not compile: Pointer '/nowhere' does not exist"):
        raise broken
    assert reply.text


def test_a_batch_too_large_for_memory_is_halved_and_a_request_that_does_not_fit_says_so(make):
    backend = make()
    forward = backend.model.forward

    def small(**kwargs):
        rows, tokens = kwargs["input_ids"].shape
        if rows > 1 or tokens > 200:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(**kwargs)

    requests = [request(seed, schema=None, max_tokens=6) for seed in range(4)]
    whole = [item.text for item in ask(backend, *requests)]
    backend.model.forward = small
    assert [item.text for item in ask(backend, *requests)] == whole
    replies = ask(backend, request(user="word " * 400), requests[0], errors=True)
    assert "does not fit the GPU's memory even alone" in str(replies[0])
    assert replies[1].text == whole[0]
    backend.model.forward = forward
    ask(backend, *requests, *requests)
    assert most_rows(backend) > 2, "as requests fit, batches grow again"


def test_reasoning_is_free_bounded_and_no_part_of_the_reply(make):
    backend = make(reasoning_end="</think>", reasoning_tokens=20)
    [reply] = ask(backend, request(max_tokens=220))
    jsonschema.validate(json.loads(reply.text), SCHEMA)
    [plain] = ask(make(), request(max_tokens=200))
    n_end = len(backend._reasoning_end)
    assert reply.completion_tokens > 20 + n_end + plain.completion_tokens // 2
    [cut] = ask(backend, request(max_tokens=10))
    assert (cut.text, cut.finish_reason) == ("", "length")


def test_a_template_without_a_system_turn_gets_it_before_the_users(path):
    model, tokenizer = load_model(Path(path), FLOAT32)
    backend = decoding.LocalBackend(model, tokenizer, FLOAT32, WINDOW)
    tokenizer.chat_template = (
        "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "<{{ message.role }}>{{ message.content }}{% endfor %}"
    )
    ids = backend._prompt(request(user="Why?").messages)
    assert tokenizer.decode(ids) == "<user>You answer from references.\n\nWhy?"
    tokenizer.chat_template = None
    assert tokenizer.decode(backend._prompt(request(user="Why?").messages)).endswith("references.\nWhy?")


@pytest.mark.parametrize("top_p", [1.0, 0.6])
def test_a_token_is_drawn_with_its_probability(top_p):
    n = 4000
    logits = torch.tensor([0.0, 2.0, -torch.inf, 1.0, 2.0]).repeat(n + 2, 1)
    shares = np.exp(np.array([0.0, 2.0, -np.inf, 1.0, 2.0]) / 0.5)
    shares /= shares.sum()
    if top_p < 1:
        shares[[0, 3]] = 0.0  # the two likeliest hold more than top_p
        shares /= shares.sum()
    uniforms = [*((number + 0.5) / n for number in range(n)), 0.99, 1 - 1e-16]
    *drawn, greedy, last = decoding.sample(logits, [0.5] * n + [0.0, 0.5], [top_p] * (n + 2), uniforms)
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / n, shares, atol=1e-3)
    assert greedy == 1
    assert last in (1, 4)


def test_logits_that_are_no_numbers_name_the_number_format(make):
    assert decoding.sample(torch.tensor([[0.0, torch.nan], [0.0, 1.0]]), [1.0, 0.0], [1.0, 1.0], [0.5, 0.5]) == [-1, 1]
    backend = make()
    torch.nn.init.constant_(backend.model.lm_head.weight, torch.nan)
    with pytest.raises(ModelError, match="not numbers: set dtype to bfloat16 or float32"):
        ask(backend, request())


def test_a_missing_package_is_named_with_the_line_that_installs_it(path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"deployments.t: kind is transformers .* pip install 'kohaku-ray\[transf"):
        check_deployment("t", TransformersConfig(model=path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "bitsandbytes" else True)
    with pytest.raises(ConfigError, match=r"load_in_4bit is true .* pip install 'kohaku-ray\[bitsandbytes\]'"):
        check_deployment("t", TransformersConfig(model=path, load_in_4bit=True))
    check_deployment("t", TransformersConfig(model=path, load_in_4bit=True), here=False)


def test_the_window_is_the_models_own_unless_a_shorter_one_is_set(path, tmp_path):
    assert TransformersConfig(model=path).window == WINDOW
    assert TransformersConfig(model=path, window_tokens=512).window == 512
    with pytest.raises(ConfigError, match=f"window_tokens is 9999 but the model takes {WINDOW} tokens"):
        check_deployment("t", TransformersConfig(model=path, window_tokens=9999), here=False)
    with pytest.raises(
        ConfigError, match=r"window_tokens is not set .* is unknown \(its config.json cannot be read here\)"
    ):
        check_deployment("t", TransformersConfig(model=f"{tmp_path}/none"), here=False)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"config.json does not say it"):
        check_deployment("t", TransformersConfig(model=str(tmp_path)), here=False)


def test_identity_holds_what_changes_replies_and_nothing_else():
    plain = TransformersConfig(model="m")
    same = TransformersConfig(model="m", replicas=4, gpus=1, batch_size=1, window_tokens=100)
    assert plain.model_identity == same.model_identity
    others = [
        TransformersConfig(model="n"),
        TransformersConfig(model="m", revision="abc"),
        TransformersConfig(model="m", dtype="bfloat16"),
        TransformersConfig(model="m", load_in_4bit=True),
        TransformersConfig(model="m", chat_template_kwargs={"enable_thinking": False}),
        TransformersConfig(model="m", reasoning_end="</think>", reasoning_tokens=100),
    ]
    assert len({other.model_identity for other in (plain, *others)}) == 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("gpus: 1.5", "gpus is 1.5: above 1 it must be a whole number"),
        ("reasoning_end: </think>", "reasoning_end is </think> but reasoning_tokens is 0"),
        ("batch_size: 0", "deployments.t.batch_size is 0"),
    ],
)
def test_settings_that_do_not_fit(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, [f"deployments.t={{kind: transformers, model: m, {settings}}}"])
