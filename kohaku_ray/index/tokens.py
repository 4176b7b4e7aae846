"""Count tokens without loading a model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kohaku_ray.errors import ConfigError
from kohaku_ray.index.arrays import I64
from kohaku_ray.index.identity import model_directory

Counter = Callable[[Sequence[str]], I64]


@functools.lru_cache(maxsize=4)
def token_counter(model: str, revision: str | None = None) -> Counter:
    """Make a function that counts each text's tokens, without special ones, for a model as of ``locate_model``."""
    fast = model_directory(model, revision) / "tokenizer.json"
    if fast.is_file():
        # Only the tokenizer: transformers takes seconds to import, in every worker.
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(fast))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # Without offsets, which nobody reads.
        encode = functools.partial(tokenizer.encode_batch_fast, add_special_tokens=False)
        return lambda texts: np.array([len(found.ids) for found in encode(list(texts))], np.int64)
    slow = functools.partial(_tokenizer(model, revision), add_special_tokens=False, truncation=False)
    return lambda texts: np.array([len(slow(text)["input_ids"]) for text in texts], np.int64)


@functools.lru_cache(maxsize=4)
def prompt_counter(model: str, revision: str | None = None) -> Callable[[str, str], int]:
    """Make a function that counts a system and a user message as the model's chat template renders them."""
    tokenizer = _tokenizer(model, revision)
    if tokenizer.chat_template is None:
        return lambda system, user: len(tokenizer(f"{system}\n{user}")["input_ids"])

    def count(system: str, user: str) -> int:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return len(tokenizer(rendered, add_special_tokens=False, truncation=False)["input_ids"])

    return count


def _tokenizer(model: str, revision: str | None) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model_directory(model, revision))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{model!r} has no tokenizer that can be loaded ({error}): name a model with one") from error
