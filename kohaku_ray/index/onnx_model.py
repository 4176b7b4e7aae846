"""A model of only a tokenizer, a transformer and a pooling: it needs no torch, and loads in half a second.

Whether a model is one is not read from its configuration but tested on texts of every kind.
"""

from __future__ import annotations

import json
import os
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kohaku_ray.index.arrays import F32, I64
from kohaku_ray.index.propagate import unit_rows
from kohaku_ray.index.tokens import token_ids
from kohaku_ray.index.torch_model import GpuMemory, TorchModel

Compute = Callable[[Mapping[str, I64]], F32]
"""Named inputs of shape ``(rows, tokens)`` in, token vectors of shape ``(rows, tokens, d)`` out."""

TOKENIZER = "tokenizer.json"
DESCRIPTION = "plain.json"
INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})

TOLERANCE = 1e-6
"""Largest difference of an entry of a pooled unit vector from the library's."""

LONGEST_TRIED = 4096
"""Longest window, in tokens, for which truncation is tested."""

PROMPT = "query: "


@dataclass(frozen=True, slots=True)
class Description:
    """Properties of a model that its ONNX and tokenizer files lack.

    Attributes:
        dim: Length of a vector.
        window: Longest text, in tokens, special ones included.
        pooling: Key of ``POOLINGS``.
        pad_id: Token that pads a batch.
        pads_left: Whether padding precedes the text.
        prompts: The model's own prompts, by name.
        default_prompt_name: The prompt it uses by default.
    """

    dim: int
    window: int
    pooling: str
    pad_id: int
    pads_left: bool
    prompts: Mapping[str, str]
    default_prompt_name: str | None


class OnnxModel:
    """A ``Model`` out of an export's directory."""

    takes_task = False
    on_cpu = True
    memory: GpuMemory | None = None

    def __init__(self, directory: Path, compute: Compute) -> None:
        """Read what ``describe`` wrote.

        Args:
            directory: Holds the description and the tokenizer.
            compute: The transformer.
        """
        from tokenizers import Tokenizer

        self._described = Description(**json.loads((directory / DESCRIPTION).read_text(encoding="utf-8")))
        self._compute = compute
        # One that truncates and one that does not: switching a single one is not thread-safe.
        self._cutting = Tokenizer.from_file(str(directory / TOKENIZER))
        self._whole = Tokenizer.from_file(str(directory / TOKENIZER))
        self._whole.no_truncation()
        self._measured: dict[str, list[int]] = {}
        self.dim, self.window = self._described.dim, self._described.window
        self.prompts = self._described.prompts
        self.default_prompt_name = self._described.default_prompt_name

    def pool(self) -> ThreadPoolExecutor | None:
        """See ``Model``."""
        n_threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
        return ThreadPoolExecutor(n_threads, "encode") if n_threads > 1 else None

    def lengths(self, texts: Sequence[str], *, special: bool) -> list[int]:
        """See ``Model``."""
        rows = token_ids(self._whole, texts, special=special)
        if special:  # usually encoded next: an encoder sorts by length first
            measured = zip(texts, rows, strict=True)
            self._measured = {text: ids for text, ids in measured if len(ids) <= self.window}
        return list(map(len, rows))

    def features(self, texts: Sequence[str], prompt: str | None, pad_to: int, **_: Any) -> dict[str, I64]:
        """See ``Model``."""
        full = [(prompt or "") + text for text in texts]
        measured = self._measured
        new = [text for text in full if text not in measured]
        ids = ChainMap(measured, dict(zip(new, token_ids(self._cutting, new), strict=True)))
        return _batch([ids[text] for text in full], pad_to, self._described.pad_id, self._described.pads_left)

    def embed(self, features: Mapping[str, I64], **_: Any) -> F32:
        """See ``Model``."""
        return POOLINGS[self._described.pooling](self._compute(features), features["attention_mask"])


def is_described(directory: Path) -> bool:
    """Whether an export's directory holds all of a model."""
    return (directory / DESCRIPTION).is_file()


def describe(directory: Path, model: TorchModel, inputs: Sequence[str]) -> None:
    """Write the files that ``OnnxModel`` reads, if it then gives the library's vectors.

    Args:
        directory: Of the export.
        model: The model, on the CPU.
        inputs: Names of its transformer's inputs.
    """
    tokenizer = model.loaded.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not set(inputs) <= INPUTS:
        return
    _save_tokenizer(directory / TOKENIZER, backend, model.window, tokenizer.truncation_side)
    for pooling in POOLINGS:
        description = Description(
            dim=model.dim,
            window=model.window,
            pooling=pooling,
            pad_id=tokenizer.pad_token_id or 0,
            pads_left=tokenizer.padding_side == "left",
            prompts=dict(model.prompts),
            default_prompt_name=model.default_prompt_name,
        )
        (directory / DESCRIPTION).write_text(json.dumps(asdict(description), sort_keys=True), encoding="utf-8")
        if _does_as(model, inputs, directory):
            return
    (directory / DESCRIPTION).unlink()
    (directory / TOKENIZER).unlink()


def _save_tokenizer(path: Path, backend: Any, window: int, truncation_side: str) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.no_padding()
    tokenizer.enable_truncation(window, direction=truncation_side)
    tokenizer.save(str(path))


def _does_as(model: TorchModel, inputs: Sequence[str], directory: Path) -> bool:
    """Whether the model in a directory gives the library's vectors for every kind of text."""
    sorts = [
        ["One sentence of some LENGTH.", " another\n", "Größe: 5 µm²; 能耗 😀 naïve [SEP] </s>", ""],
        ["word " * (min(model.window, LONGEST_TRIED) + 8)],
    ]
    return all(_agrees(model, inputs, directory, texts, prompt) for texts in sorts for prompt in (None, PROMPT))


def _agrees(model: TorchModel, inputs: Sequence[str], directory: Path, texts: list[str], prompt: str | None) -> bool:
    wanted = model.features(texts, prompt, 0)
    vectors = _any_vectors(*wanted["input_ids"].shape, model.loaded[0].auto_model.config.hidden_size)
    plain = OnnxModel(directory, lambda _: vectors)
    found = plain.features(texts, prompt, 0)
    if not all(np.array_equal(wanted[name], found[name]) for name in inputs):
        return False
    pooled, right = unit_rows(plain.embed(found)), unit_rows(_pooled_by_library(model, wanted, vectors))
    return pooled.shape == right.shape and bool(np.abs(pooled - right).max() <= TOLERANCE)


def _any_vectors(*shape: int) -> F32:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _pooled_by_library(model: TorchModel, features: dict[str, Any], vectors: F32) -> F32:
    """Run all modules but the transformer on token vectors."""
    import torch

    features = features | {"token_embeddings": torch.from_numpy(vectors)}
    with torch.inference_mode():
        for module in list(model.loaded)[1:]:
            features = module(features)
    pooled: F32 = features["sentence_embedding"].numpy()
    return pooled


def _batch(rows: Sequence[Sequence[int]], pad_to: int, pad_id: int, pads_left: bool) -> dict[str, I64]:
    """Put token ids into a matrix, padded to the longest row or, if larger, to ``pad_to``."""
    n_tokens = max(pad_to, *map(len, rows))
    ids, mask = np.full((len(rows), n_tokens), pad_id, np.int64), np.zeros((len(rows), n_tokens), np.int64)
    for at, row in enumerate(rows):
        place = slice(n_tokens - len(row), None) if pads_left else slice(0, len(row))
        ids[at, place], mask[at, place] = row, 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def _mean(vectors: F32, mask: I64) -> F32:
    """Average the tokens of each row that are not padding."""
    share = mask / mask.sum(axis=1, keepdims=True).clip(1)
    pooled: F32 = np.matmul(share.astype(np.float32)[:, None], vectors)[:, 0]
    return pooled


def _first(vectors: F32, mask: I64) -> F32:
    """Take each row's first token that is not padding."""
    pooled: F32 = vectors[np.arange(len(vectors)), mask.argmax(axis=1)]
    return pooled


def _last(vectors: F32, mask: I64) -> F32:
    """Take each row's last token that is not padding."""
    pooled: F32 = vectors[np.arange(len(vectors)), mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)]
    return pooled


POOLINGS: Mapping[str, Callable[[F32, I64], F32]] = {"mean": _mean, "first": _first, "last": _last}
"""Poolings of the token vectors, shape ``(rows, tokens, d)``, and the mask, shape ``(rows, tokens)``."""
