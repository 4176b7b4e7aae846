"""Encode texts and images to unit vectors: fast for passages, bit-stable for queries."""

from __future__ import annotations

import functools
import io
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image as Pillow

from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.index.arrays import F32, I64
from kohaku_ray.index.propagate import unit_rows
from kohaku_ray.index.torch_model import Device, Precision, TorchModel, input_ids, load_model

QUERY_TOKENS, GPU_QUERY_TOKENS = 128, 512
"""Padded tokens of every forward pass over queries, filled with repeats: a kernel's arithmetic depends on its shape.

On one core, fewer make batches slower, and more make a single question slower for little gain.
"""

QUERY_BUCKET, GPU_QUERY_BUCKET = 4, 16
"""Queries are padded to a multiple of this many tokens."""

IMAGE_BATCH = 16
"""Images of a forward pass."""

IMAGES_AHEAD = 2
"""Batches of images decoded and resized while the model computes one, each on a thread of its own."""

MOST_IMAGES_AHEAD = 8
"""The most of them, for a model on a GPU: a thread decodes and resizes 80 images of half a megapixel per second."""

Read = Callable[[str], bytes]
"""Reads an image's file by its digest."""


class SentenceEncoder:
    """The text side of a sentence-transformers model; ``dim`` is the length of a vector."""

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
        """Load the model; every argument is a setting of ``index.encoder``, and ``ConfigError`` if it does not fit."""
        self._name, self._passage_task = model, passage_task
        self._model = load_model(model, revision, precision, device, trust_remote_code, passage_task or query_task)
        own_dim = self._model.dim
        if dim is not None and not 1 <= dim <= own_dim:
            raise ConfigError(
                f"encoder.dim is {dim} but {model} gives {own_dim}: choose 1 to {own_dim}, or leave it out"
            )
        self.dim = dim or own_dim
        self._batch_tokens = batch_tokens
        self._query = self._role("query", query_prompt, query_task)
        self._passage = self._role("passage", passage_prompt, passage_task)
        on_cpu = self._model.on_cpu
        self._query_tokens, self._query_bucket = (
            (QUERY_TOKENS, QUERY_BUCKET) if on_cpu else (GPU_QUERY_TOKENS, GPU_QUERY_BUCKET)
        )
        self._pool = _one_thread_each() if on_cpu else None

    def encode_passages(self, texts: Sequence[str]) -> F32:
        """Encode indexed texts: each distinct one once, long ones in windows averaged by length.

        At least 8,000 at a time keep the batches full.

        Returns:
            Shape ``(n, d)``, unit rows, in the order given.
        """
        return self._encode(texts, self._passage, self._forward_by_length)

    def encode_queries(self, texts: Sequence[str]) -> F32:
        """Encode queries, as ``encode_passages``: a query's vector is the same to the bit in every batch."""
        return self._encode(texts, self._query, self._forward_in_fixed_shapes)

    def images(self) -> ImageEncoder:
        """Return the model's image side, its vectors cut to the same length; ``ConfigError`` if it has none."""
        if not self._model.reads_images:
            raise ConfigError(
                f"index.image_vectors asks for vectors of images but {self._name} reads text alone: name a model that "
                "reads images as index.image_encoder or index.encoder, or set index.image_vectors to caption"
            )
        return ImageEncoder(self._model, self.dim, _task(self._passage_task))

    def _role(self, role: str, prompt: str | None, task: str | None) -> _Role:
        name = self._model.default_prompt_name if prompt is None else prompt
        resolved = None if name is None else self._model.prompts.get(name, prompt) or None
        if task is not None and not self._model.takes_task:
            raise ConfigError(f"encoder.{role}_task is {task!r} but the model takes no task: leave it out")
        longest = self._model.window
        [overhead] = self._model.lengths([resolved or ""])
        if overhead >= longest:
            raise ConfigError(
                f"encoder.{role}_prompt takes {overhead} tokens but the model's window is {longest}: shorten the prompt"
            )
        return _Role(resolved, _task(task), longest, overhead)

    def _lengths(self, texts: Sequence[str], role: _Role) -> I64:
        """Tokens of each text with its prompt and special tokens."""
        prompt, lengths = role.prompt or "", []
        for block in _blocks(texts, 4096):
            lengths += self._model.lengths([prompt + text for text in block])
        return np.array(lengths, dtype=np.int64)

    def _encode(self, texts: Sequence[str], role: _Role, forward: Callable[..., F32]) -> F32:
        place = {text: at for at, text in enumerate(dict.fromkeys(texts))}
        return self._encode_windows(list(place), role, forward)[[place[text] for text in texts]]

    def _encode_windows(self, texts: list[str], role: _Role, forward: Callable[..., F32]) -> F32:
        """Encode texts of any length: those longer than the window in pieces, averaged by length."""
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        lengths = self._lengths(texts, role)
        pieces = list(texts)
        parts: dict[int, list[int]] = {}
        for row in np.flatnonzero(lengths > role.window).tolist():
            cut = self._cut(texts[row], role)
            parts[row] = list(range(len(pieces), len(pieces) + len(cut)))
            pieces[row] = cut[0]  # keeps its place in the batch; its vector is overwritten below
            pieces += cut
        if parts:
            lengths = self._lengths(pieces, role)
        vectors = forward(pieces, lengths, role)
        for row, of in parts.items():
            share = (lengths[of] - role.overhead).clip(1).astype(np.float64)
            vectors[row] = unit_rows(share @ vectors[of].astype(np.float64))
        return vectors[: len(texts)]

    def _cut(self, text: str, role: _Role) -> list[str]:
        """Cut a text into pieces that fit the window with its prompt, between words where there are any."""
        length = int(self._lengths([text], role)[0])
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
            n_tokens = self._batch_tokens or self._model.tokens_that_fit(longest)
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
        """Run a batch; where it does not fit the GPU's memory, its halves, and later batches are smaller."""
        import torch

        rows = batch.filled
        features = self._features([texts[row] for row in rows], role, batch.pad_to)
        try:
            return self._forward_batch(features, role)
        except torch.cuda.OutOfMemoryError as error:
            n_tokens = input_ids(features).numel()
            if len(rows) == 1:
                raise DataError(
                    f"a text of {n_tokens:,} tokens does not fit the encoder's GPU beside what it holds: give the "
                    "encoder a larger share (index.encoder_gpus, cluster.retriever.gpus) or a smaller model"
                ) from error
        self._batch_tokens = max(n_tokens // 2, 1)
        torch.cuda.empty_cache()
        half = len(rows) // 2
        halves = (_Batch(rows[:half], pad_to=batch.pad_to), _Batch(rows[half:], pad_to=batch.pad_to))
        return np.concatenate([self._forward_halved(texts, part, role) for part in halves])

    def _features(self, texts: list[str], role: _Role, pad_to: int) -> dict[str, Any]:
        return self._model.features(texts, role.prompt, pad_to, **role.task)

    def _forward_batch(self, features: dict[str, Any], role: _Role) -> F32:
        return unit_rows(self._model.embed(features, **role.task)[:, : self.dim])


class ImageEncoder:
    """The image side of a sentence-transformers model: images are decoded and resized on threads beside the model's."""

    def __init__(self, model: TorchModel, dim: int, task: Mapping[str, str]) -> None:
        """Wrap a loaded model that reads images; its vectors are cut to ``dim``."""
        self._model, self._dim, self._task = model, dim, task
        n_cores = len(os.sched_getaffinity(0))
        self._ahead = IMAGES_AHEAD if model.on_cpu else max(IMAGES_AHEAD, min(MOST_IMAGES_AHEAD, n_cores))

    def batches(self, digests: Sequence[str], read: Read) -> Iterator[F32]:
        """Encode images by their digests; ``read`` reads a PNG.

        Yields:
            The vectors of every ``IMAGE_BATCH`` of them, in the order given: shape ``(n, dim)``, unit rows.

        Raises:
            DataError: A file is missing or is no image; the message names it.
        """
        running: deque[Future[dict[str, Any]]] = deque()
        with ThreadPoolExecutor(self._ahead, "decode") as threads:
            for block in _blocks(digests, IMAGE_BATCH):
                running.append(threads.submit(self._features, block, read))
                if len(running) > self._ahead:
                    yield self._embed(running.popleft().result())
            while running:
                yield self._embed(running.popleft().result())

    def _embed(self, features: dict[str, Any]) -> F32:
        return unit_rows(self._model.embed(features, **self._task)[:, : self._dim])

    def _features(self, digests: Sequence[str], read: Read) -> dict[str, Any]:
        return self._model.image_features([decoded(digest, read(digest)) for digest in digests], **self._task)


def decoded(digest: str, data: bytes) -> Pillow.Image:
    """Decode an image of an index to RGB; where it is none, ``DataError`` names its file."""
    try:
        with Pillow.open(io.BytesIO(data)) as image:
            image.load()
            return image if image.mode == "RGB" else image.convert("RGB")  # which copies in any case
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"images/{digest}.png cannot be decoded ({error}): delete it, and index again") from error


@dataclass(frozen=True, slots=True)
class _Role:
    """How one side, queries or passages, is encoded; overhead: tokens of the prompt and the special ones."""

    prompt: str | None
    task: Mapping[str, str]
    window: int
    overhead: int


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


def _task(name: str | None) -> Mapping[str, str]:
    return {} if name is None else {"task": name}


def _blocks(values: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for first in range(0, len(values), size):
        yield list(values[first : first + size])


def _one_thread_each() -> ThreadPoolExecutor | None:
    """Make as many threads as torch would use, each with one torch thread; None where that is one.

    Parallel passes use the cores better than threads within a pass, and a vector is the same to the bit for any
    number of threads.
    """
    import torch

    n_threads = torch.get_num_threads()
    return ThreadPoolExecutor(n_threads, "encode", _compute_alone, (n_threads,)) if n_threads > 1 else None


def _compute_alone(n_threads: int) -> None:
    import torch

    # A thread takes the default at its first operation, or here: what is set before would not last.
    torch.get_num_threads()
    torch.set_num_threads(1)
    # That also set the default of later threads: another thread, which ends at once, restores it.
    other = threading.Thread(target=torch.set_num_threads, args=(n_threads,))
    other.start()
    other.join()
