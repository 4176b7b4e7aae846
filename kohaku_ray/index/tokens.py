"""Count tokens without loading a model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from kohaku_ray.arrays import I64
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.identity import model_directory

Counter = Callable[[Sequence[str]], I64]


@functools.lru_cache(maxsize=4)
def token_counter(model: str, revision: str | None = None) -> Counter:
    """Make a function that counts each text's tokens, special ones left out.

    Args:
        model: Name or path of a model, or ``package:NAME``.
        revision: Revision on the hub.

    Raises:
        ConfigError: There is no such model, or it has no tokenizer.
    """
    fast = model_directory(model, revision) / "tokenizer.json"
    if fast.is_file():
        # The tokenizer alone: transformers takes seconds to import, in every worker.
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(fast))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return lambda texts: _lengths(
            [len(encoding.ids) for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False)]
        )
    return _slow_counter(model, revision)


def _slow_counter(model: str, revision: str | None) -> Counter:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_directory(model, revision))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{model!r} has no tokenizer that can be loaded ({error}): name a model with one") from error
    return lambda texts: _lengths(
        [len(tokenizer(text, add_special_tokens=False, truncation=False)["input_ids"]) for text in texts]
    )


def _lengths(lengths: list[int]) -> I64:
    return np.array(lengths, np.int64)
