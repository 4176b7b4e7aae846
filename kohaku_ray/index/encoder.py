"""Texts in, unit vectors out: sentence-transformers models, fast for passages and bit-stable for queries."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from kohaku_ray.arrays import F32, I64
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.identity import encoder_identity
from kohaku_ray.index.models import Backend, Device, Precision, load_model, native_dim, padded, window
from kohaku_ray.tree.propagate import unit_rows

QUERY_ROWS = 8
"""Rows of every forward pass over queries on a GPU, filled up by repeats: a kernel's arithmetic depends on its shape.

On a CPU queries go one by one, which is as fast there and wastes nothing on small batches.
"""

QUERY_BUCKET = 16
"""On a GPU queries are padded to a multiple of so many tokens."""


class Encoder(Protocol):
    """Whatever turns texts into vectors."""

    @property
    def dim(self) -> int:
        """Length of a vector."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides a vector of this encoder, as JSON values."""
        ...

    def encode_passages(self, texts: Sequence[str]) -> F32:
        """Encode indexed texts: shape ``(n, d)``, unit rows, in the order given."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> F32:
        """Encode queries: shape ``(n, d)``, unit rows, bit for bit independent of what else is in the batch."""
        ...

    def count_tokens(self, texts: Sequence[str]) -> I64:
        """Count each text's tokens, special ones left out: shape ``(n,)``."""
        ...


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
        backend: Backend = "torch",
        precision: Precision = "float32",
        device: Device = "auto",
        batch_tokens: int = 1024,
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
            dim: Matryoshka dimension, cut to and renormalised; None: the model's own.
            backend: What computes the model; ``onnx`` and ``openvino`` need their own libraries.
            precision: Number format of the weights; ``int8`` takes the model's own quantised onnx or openvino file.
            device: Where it runs; ``auto``: a GPU when one is visible.
            batch_tokens: Padded tokens in one forward pass over passages.
            trust_remote_code: Whether the model's own Python code may run.

        Raises:
            ConfigError: A setting does not fit the model, or a library is missing.
        """
        self._model = load_model(model, revision, backend, precision, device, trust_remote_code)
        own_dim = native_dim(self._model)
        if dim is not None and not 1 <= dim <= own_dim:
            raise ConfigError(
                f"encoder.dim is {dim} but {model} gives {own_dim}: choose 1 to {own_dim}, or leave it out"
            )
        self._dim = dim or own_dim
        self._batch_tokens = batch_tokens
        self._query = self._role("query", query_prompt, query_task)
        self._passage = self._role("passage", passage_prompt, passage_task)
        # quantised kernels scale by the whole batch, so those too take queries one by one
        self._query_rows = 1 if self._model.device.type == "cpu" or precision == "int8" else QUERY_ROWS
        self._arguments: dict[str, Any] = {
            "model": model,
            "revision": revision,
            "query_prompt": query_prompt,
            "passage_prompt": passage_prompt,
            "query_task": query_task,
            "passage_task": passage_task,
            "dim": dim,
            "backend": backend,
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
        place = {text: at for at, text in enumerate(dict.fromkeys(texts))}
        vectors = self._encode_windows(list(place), self._passage, self._forward_by_length)
        return vectors[[place[text] for text in texts]]

    def encode_queries(self, texts: Sequence[str]) -> F32:
        """Encode queries: a query's vector is the same to the bit whatever else is in the batch.

        Returns:
            Shape ``(n, d)``, unit rows, in the order given.
        """
        return self._encode_windows(list(texts), self._query, self._forward_in_fixed_shapes)

    def count_tokens(self, texts: Sequence[str]) -> I64:
        """Count each text's tokens, special ones left out: shape ``(n,)``."""
        return self._lengths(texts, special=False)

    def _role(self, role: str, prompt: str | None, task: str | None) -> _Role:
        known = self._model.prompts or {}
        name = self._model.default_prompt_name if prompt is None else prompt
        resolved = known.get(name, prompt) or None
        takes_task = "task" in self._model.get_model_kwargs()
        if task is not None and not takes_task:
            raise ConfigError(f"encoder.{role}_task is {task!r} but the model takes no task: leave it out")
        longest = window(self._model)
        overhead = int(self._lengths([resolved or ""], special=True)[0])
        if overhead >= longest:
            raise ConfigError(
                f"encoder.{role}_prompt takes {overhead} tokens but the model's window is {longest}: shorten the prompt"
            )
        return _Role(resolved, task, longest, overhead)

    def _lengths(self, texts: Sequence[str], *, special: bool) -> I64:
        tokenizer = self._model.tokenizer
        lengths: list[int] = []
        for block in _blocks(texts, 4096):
            ids = tokenizer(block, add_special_tokens=special, truncation=False, padding=False, verbose=False)[
                "input_ids"
            ]
            lengths += map(len, ids)
        return np.array(lengths, dtype=np.int64)

    def _full_lengths(self, texts: Sequence[str], role: _Role) -> I64:
        return self._lengths([(role.prompt or "") + text for text in texts], special=True)

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
        """Encode in batches of like length, as many rows as fit the padded tokens; the longest first."""
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        order = np.argsort(-lengths, kind="stable")
        first = 0
        while first < len(order):
            n_rows = max(1, self._batch_tokens // int(lengths[order[first]]))
            batch = order[first : first + n_rows]
            vectors[batch] = self._forward([texts[row] for row in batch], role)
            first += n_rows
        return vectors

    def _forward_in_fixed_shapes(self, texts: list[str], lengths: I64, role: _Role) -> F32:
        """Encode in batches of one shape a length bucket, so that no row's arithmetic depends on its neighbours."""
        if self._query_rows == 1:
            return np.concatenate([self._forward([text], role) for text in texts])
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        buckets = -(-lengths.clip(1) // QUERY_BUCKET) * QUERY_BUCKET
        for bucket in np.unique(buckets).tolist():
            for batch in _blocks(np.flatnonzero(buckets == bucket).tolist(), self._query_rows):
                filled = [texts[row] for row in (batch * self._query_rows)[: self._query_rows]]
                vectors[batch] = self._forward(filled, role, min(bucket, role.window))[: len(batch)]
        return vectors

    def _forward(self, texts: list[str], role: _Role, pad_to: int = 0) -> F32:
        import torch

        task = {} if role.task is None else {"task": role.task}
        features = self._model.preprocess(texts, prompt=role.prompt, **task)
        if pad_to:
            features = padded(features, pad_to, self._model.tokenizer)
        moved = {
            key: value.to(self._model.device) if torch.is_tensor(value) else value for key, value in features.items()
        }
        with torch.inference_mode():
            vectors = self._model(moved, **task)["sentence_embedding"]
        return unit_rows(vectors[:, : self.dim].float().cpu().numpy())


class _Role:
    """How one side, queries or passages, is encoded."""

    def __init__(self, prompt: str | None, task: str | None, window: int, overhead: int) -> None:
        self.prompt, self.task, self.window, self.overhead = prompt, task, window, overhead


def _blocks(values: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for first in range(0, len(values), size):
        yield list(values[first : first + size])
