"""Generative rerankers in sentence-transformers: the score is that of "yes" over "no" after Qwen3-Reranker's prompt."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from kit import tiny_llama

from kohaku_ray.errors import ConfigError
from kohaku_ray.models.cross_encoder import CrossEncoderConfig

PAIRS = [("power of hall 3", "Hall 3 draws 4 MW."), ("power of hall 3", "Water is cold, and yes, it is."), ("q", "d")]
PROMPT = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web '
    "search query, retrieve relevant passages that answer the query\n<Query>: {}\n<Document>: {}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    texts = ["yes yes yes no no no"] * 50 + [PROMPT.format(*pair) for pair in PAIRS]
    path = tiny_llama.build(tmp_path_factory.mktemp("llama"), texts)
    llama = LlamaForCausalLM.from_pretrained(path)
    with torch.no_grad():
        for weight in llama.parameters():  # larger: the last token's logits must tell a document from another
            if weight.ndim == 2:
                weight.normal_(0.0, 0.3)
    llama.save_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(path)
    return path


def scores_by_hand(model: str, prompts: list[str]) -> list[float]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, llama = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model).eval()
    yes, no = (tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))
    assert None not in (yes, no)
    assert yes != no
    with torch.no_grad():
        last = [llama(**tokenizer(prompt, return_tensors="pt")).logits[0, -1] for prompt in prompts]
        return [torch.sigmoid(logits[yes] - logits[no]).item() for logits in last]


def test_scores_are_those_of_yes_and_no_alone_and_in_a_batch(model):
    expected = scores_by_hand(model, [PROMPT.format(*pair) for pair in PAIRS])
    assert np.ptp(expected) > 0.01
    loaded = CrossEncoderConfig(model=model).load()
    for size in (1, 8):
        np.testing.assert_allclose(loaded.predict(PAIRS, batch_size=size, show_progress_bar=False), expected, atol=1e-5)


def test_a_model_with_a_prompt_for_pairs_keeps_it(model, tmp_path):
    template = (
        "{{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }} ? "
        "{{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }} :"
    )
    for file in Path(model).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    scores = CrossEncoderConfig(model=str(tmp_path)).load().predict(PAIRS, batch_size=8, show_progress_bar=False)
    np.testing.assert_allclose(scores, scores_by_hand(str(tmp_path), [f"{q} ? {d} :" for q, d in PAIRS]), atol=1e-5)


def test_a_model_without_the_words_is_refused_where_every_score_would_be_the_same(tmp_path):
    from transformers import AutoTokenizer

    path = tiny_llama.build(tmp_path, ["the water is cold in hall three"] * 50)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.pad_token = tokenizer.unk_token = tokenizer.eos_token
    tokenizer.save_pretrained(path)
    with pytest.raises(ConfigError, match=r'has no token "yes" or "no".*name a reranker'):
        CrossEncoderConfig(model=path).load()
