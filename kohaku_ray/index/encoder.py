"""Encode texts to unit vectors by sentence-transformers models: fast for passages, bit-stable for queries."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.index.arrays import F32, I64
from kohaku_ray.index.identity import encoder_identity
from kohaku_ray.index.image_encoder import ImageEncoder
from kohaku_ray.index.propagate import unit_rows
from kohaku_ray.index.torch_model import Device, Precision, input_ids, load_model

CPU_BATCH_TOKENS = 512
"""Padded tokens of a forward pass over passages on a CPU."""

QUERY_TOKENS = 256
"""Padded tokens of every forward pass over queries, filled with repeats: a kernel's arithmetic depends on its shape.

On one core, fewer make batches slower, and more make a single question slower for little gain.
"""

QUERY_BUCKET = 4
"""Queries are padded to a multiple of this many tokens."""

GPU_QUERY_TOKENS = 512
GPU_QUERY_BUCKET = 16
"""The same on a GPU, which needs larger batches."""


class SentenceEncoder:
    """A sentence-transformers model."""

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        query_prompt: str | None = None,
        passage_prompt: str | None = None,
        query_task: str | None = None,
        passage_task: str | None = None,
        dim: int | None = None,
        precision: Precision = "float32",
        device: Device = "auto",
        batch_tokens: int | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        """Load the model.

        Args:
            model: Name or path of a sentence-transformers model, or ``package:NAME``.
            revision: Revision on the hub.
            query_prompt: Text, or name of one of the model's own prompts, put before every query.
            passage_prompt: The same for indexed text.
            query_task: Task adapter for queries (Jina v3/v4).
            passage_task: Task adapter for indexed text.
            dim: Matryoshka dimension: vectors are cut to it and renormalised; None: the model's own.
            precision: Number format of the weights.
            device: Device it runs on; ``auto``: a GPU when one is visible.
            batch_tokens: Padded tokens in one forward pass over passages; None: ``CPU_BATCH_TOKENS`` on a CPU, on a
                GPU what its free memory holds. Where that proves too many, a pass is repeated in halves.
            trust_remote_code: Whether the model's own Python code may run.

        Raises:
            ConfigError: A setting does not fit the model, or it cannot be loaded.
        """
        self._model = load_model(model, revision, precision, device, trust_remote_code, passage_task or query_task)
        own_dim = self._model.dim
        if dim is not None and not 1 <= dim <= own_dim:
            raise ConfigError(
                f"encoder.dim is {dim} but {model} gives {own_dim}: choose 1 to {own_dim}, or leave it out"
            )
        self._dim = dim or own_dim
        self._memory = self._model.memory
        self._batch_tokens = batch_tokens or (None if self._memory else CPU_BATCH_TOKENS)
        self._query = self._role("query", query_prompt, query_task)
        self._passage = self._role("passage", passage_prompt, passage_task)
        self._query_tokens, self._query_bucket = (
            (QUERY_TOKENS, QUERY_BUCKET) if self._model.on_cpu else (GPU_QUERY_TOKENS, GPU_QUERY_BUCKET)
        )
        self._pool = self._model.pool()
        self._arguments: dict[str, Any] = {
            "model": model,
            "revision": revision,
            "query_prompt": query_prompt,
            "passage_prompt": passage_prompt,
            "query_task": query_task,
            "passage_task": passage_task,
            "dim": dim,
            "precision": precision,
        }

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self._dim

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides a vector of this encoder, as JSON values (see ``encoder_identity``)."""
        return encoder_identity(**self._arguments)

    def encode_passages(self, texts: Sequence[str]) -> F32:
        """Encode indexed texts: each distinct one once, long ones in windows averaged by length.

        Args:
            texts: Any number of them; at least 8,000 at a time keep the batches full.

        Returns:
            Shape ``(n, d)``, unit rows, in the order given.
        """
        return self._encode(texts, self._passage, self._forward_by_length)

    def encode_queries(self, texts: Sequence[str]) -> F32:
        """Encode queries: a query's vector is the same to the bit in every batch.

        Returns:
            Shape ``(n, d)``, unit rows, in the order given.
        """
        return self._encode(texts, self._query, self._forward_in_fixed_shapes)

    def images(self) -> ImageEncoder:
        """Return the model's image side, whose vectors are cut to the same length.

        Raises:
            ConfigError: It reads no images.
        """
        return ImageEncoder(self._model, self._arguments["model"], self.dim, self._arguments["passage_task"])

    def count_tokens(self, texts: Sequence[str]) -> I64:
        """Count each text's tokens, without special ones: shape ``(n,)``."""
        return self._lengths(texts, special=False)

    def _role(self, role: str, prompt: str | None, task: str | None) -> _Role:
        name = self._model.default_prompt_name if prompt is None else prompt
        resolved = None if name is None else self._model.prompts.get(name, prompt) or None
        if task is not None and not self._model.takes_task:
            raise ConfigError(f"encoder.{role}_task is {task!r} but the model takes no task: leave it out")
        longest = self._model.window
        overhead = int(self._lengths([resolved or ""], special=True)[0])
        if overhead >= longest:
            raise ConfigError(
                f"encoder.{role}_prompt takes {overhead} tokens but the model's window is {longest}: shorten the prompt"
            )
        return _Role(resolved, task, longest, overhead)

    def _lengths(self, texts: Sequence[str], *, special: bool) -> I64:
        lengths: list[int] = []
        for block in _blocks(texts, 4096):
            lengths += self._model.lengths(block, special=special)
        return np.array(lengths, dtype=np.int64)

    def _full_lengths(self, texts: Sequence[str], role: _Role) -> I64:
        return self._lengths([(role.prompt or "") + text for text in texts], special=True)

    def _encode(self, texts: Sequence[str], role: _Role, forward: Callable[..., F32]) -> F32:
        """Encode each distinct text once."""
        place = {text: at for at, text in enumerate(dict.fromkeys(texts))}
        return self._encode_windows(list(place), role, forward)[[place[text] for text in texts]]

    def _encode_windows(self, texts: list[str], role: _Role, forward: Callable[..., F32]) -> F32:
        """Encode texts of any length: those longer than the window in pieces, averaged by length."""
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        lengths = self._full_lengths(texts, role)
        pieces = list(texts)
        parts: dict[int, list[int]] = {}
        for row in np.flatnonzero(lengths > role.window).tolist():
            cut = self._cut(texts[row], role)
            parts[row] = list(range(len(pieces), len(pieces) + len(cut)))
            pieces[row] = cut[0]  # keeps its place in the batch; its vector is overwritten below
            pieces += cut
        if parts:
            lengths = self._full_lengths(pieces, role)
        vectors = forward(pieces, lengths, role)
        for row, of in parts.items():
            share = (lengths[of] - role.overhead).clip(1).astype(np.float64)
            vectors[row] = unit_rows(share @ vectors[of].astype(np.float64))
        return vectors[: len(texts)]

    def _cut(self, text: str, role: _Role) -> list[str]:
        """Cut a text into pieces that fit the window with its prompt, between words where there are any."""
        length = int(self._full_lengths([text], role)[0])
        if length <= role.window or len(text) < 2:
            return [text]
        n_pieces = -(-(length - role.overhead) // (role.window - role.overhead))
        middle = len(text) * (n_pieces // 2) // n_pieces
        space = max(text.rfind(" ", 0, middle + 1), text.rfind("\n", 0, middle + 1))
        at = space if space > middle // 2 else max(1, middle)
        return [*self._cut(text[:at], role), *self._cut(text[at:], role)]

    def _forward_by_length(self, texts: list[str], lengths: I64, role: _Role) -> F32:
        """Encode in batches of similar length, as many rows as fit the padded tokens; the longest first."""
        order = np.argsort(-lengths, kind="stable")
        batches, first = [], 0
        while first < len(order):
            longest = int(lengths[order[first]])
            n_tokens = self._batch_tokens or (
                self._memory.tokens_that_fit(longest) if self._memory else CPU_BATCH_TOKENS
            )
            n_rows = max(1, n_tokens // max(longest, 1))
            batches.append(_Batch(order[first : first + n_rows].tolist()))
            first += n_rows
        return self._forward(texts, batches, role)

    def _forward_in_fixed_shapes(self, texts: list[str], lengths: I64, role: _Role) -> F32:
        """Encode in batches of one shape per length bucket, so that no row's arithmetic depends on the others."""
        batches = []
        buckets = -(-lengths.clip(1) // self._query_bucket) * self._query_bucket
        for bucket in np.unique(buckets)[::-1].tolist():
            n_rows = max(1, self._query_tokens // bucket)
            rows = np.flatnonzero(buckets == bucket).tolist()
            batches += [_Batch(block, n_rows, min(bucket, role.window)) for block in _blocks(rows, n_rows)]
        return self._forward(texts, batches, role)

    def _forward(self, texts: list[str], batches: list[_Batch], role: _Role) -> F32:
        """Run the batches, on a CPU several in parallel, each on its own thread."""
        if self._pool is None:
            results: Iterator[F32] = (self._forward_halved(texts, batch, role) for batch in batches)
        else:
            # Tokenised here, in sequence: a tokenizer is not thread-safe.
            features = (self._features([texts[row] for row in batch.filled], role, batch.pad_to) for batch in batches)
            results = self._pool.map(functools.partial(self._forward_batch, role=role), features)
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        for batch, found in zip(batches, results, strict=True):
            vectors[batch.rows] = found[: len(batch.rows)]
        return vectors

    def _forward_halved(self, texts: list[str], batch: _Batch, role: _Role) -> F32:
        """Run a batch; where it does not fit the GPU's memory, its halves, and later batches are smaller.

        Raises:
            DataError: Not even one text fits.
        """
        rows = batch.filled
        features = self._features([texts[row] for row in rows], role, batch.pad_to)
        try:
            return self._forward_batch(features, role)
        except Exception as error:
            if self._memory is None or not self._memory.is_full(error):
                raise
            n_tokens = input_ids(features).numel()
            if len(rows) == 1:
                raise DataError(
                    f"a text of {n_tokens:,} tokens does not fit the encoder's GPU beside what it holds: give the "
                    "encoder a larger share (index.encoder_gpus, cluster.retriever.gpus) or a smaller model"
                ) from error
        self._batch_tokens = max(n_tokens // 2, 1)
        self._memory.release()
        half = len(rows) // 2
        halves = (_Batch(rows[:half], pad_to=batch.pad_to), _Batch(rows[half:], pad_to=batch.pad_to))
        return np.concatenate([self._forward_halved(texts, part, role) for part in halves])

    def _features(self, texts: list[str], role: _Role, pad_to: int) -> dict[str, Any]:
        return self._model.features(texts, role.prompt, pad_to, **role.kwargs)

    def _forward_batch(self, features: dict[str, Any], role: _Role) -> F32:
        return unit_rows(self._model.embed(features, **role.kwargs)[:, : self.dim])


@dataclass(frozen=True, slots=True)
class _Batch:
    """One forward pass.

    Attributes:
        rows: Texts it encodes.
        n_rows: Number of rows, filled with repeats; 0: as many as texts.
        pad_to: Tokens of each row; 0: the longest text's.
    """

    rows: list[int]
    n_rows: int = 0
    pad_to: int = 0

    @property
    def filled(self) -> list[int]:
        return (self.rows * self.n_rows)[: self.n_rows] or self.rows


class _Role:
    """How one side, queries or passages, is encoded."""

    def __init__(self, prompt: str | None, task: str | None, window: int, overhead: int) -> None:
        self.prompt, self.window, self.overhead = prompt, window, overhead
        self.kwargs = {} if task is None else {"task": task}


def _blocks(values: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for first in range(0, len(values), size):
        yield list(values[first : first + size])
