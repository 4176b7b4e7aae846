"""Encode texts and images to unit vectors: fast for passages, bit-stable for queries."""

from __future__ import annotations

import io
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image as Pillow

from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.index.arrays import F32, I32, I64
from kohaku_ray.index.chunks import cut_near, without_header
from kohaku_ray.index.propagate import unit_rows
from kohaku_ray.index.settings import EncoderConfig
from kohaku_ray.index.torch_model import PROBES, Tokens, TorchModel, input_ids, load_model

QUERY_TOKENS, GPU_QUERY_TOKENS = 96, 512
"""Padded tokens of every forward pass over queries, filled with repeats: a kernel's arithmetic depends on its shape.

On one core, fewer make batches slower, and more make a single question slower for little gain.
"""

QUERY_BUCKET, GPU_QUERY_BUCKET = 8, 16
"""Queries are padded to a multiple of this many tokens."""

BATCHES_AHEAD = 2
"""Batches of texts that are made while a GPU computes one."""

IMAGE_BATCH = 16
"""Images of a forward pass."""

IMAGES_AHEAD, GPU_IMAGES_AHEAD = 2, 8
"""Batches of images decoded and resized, each on a thread of its own, while the model computes one.

A thread makes 80 images of half a megapixel per second.
"""

Read = Callable[[str], bytes]
"""Reads an image's file by its digest."""

Features = dict[str, Any]
"""What a forward pass takes."""

Vectors = Callable[[], F32]
"""Waits for the unit rows of a forward pass that was started."""


class SentenceEncoder:
    """The text side of a sentence-transformers model; ``dim`` is the length of a vector."""

    def __init__(self, settings: EncoderConfig, *, context_header: bool = False) -> None:
        """Load the model.

        Args:
            settings: The model, and how texts are given to it.
            context_header: Whether passages have a header (``index.context_header``).

        Raises:
            ConfigError: The model cannot be loaded, or a setting does not fit it.
        """
        self._settings, self._has_headers = settings, context_header
        self._model = load_model(settings)
        model_dim = self._model.dim
        if settings.dim is not None and settings.dim > model_dim:
            raise ConfigError(
                f"encoder.dim is {settings.dim} but {settings.model} gives {model_dim}: choose 1 to {model_dim}, or "
                "leave it out"
            )
        self.dim = settings.dim or model_dim
        self._batch_tokens = settings.batch_tokens
        self._query = self._role("query", settings.query_prompt, settings.query_task)
        self._passage = self._role("passage", settings.passage_prompt, settings.passage_task)
        on_cpu = self._model.on_cpu
        self._query_tokens, self._query_bucket = (
            (QUERY_TOKENS, QUERY_BUCKET) if on_cpu else (GPU_QUERY_TOKENS, GPU_QUERY_BUCKET)
        )
        self._pool = _one_thread_each() if on_cpu else None
        self._maker = ThreadPoolExecutor(1, "batches")  # makes batches where there is no pool

    def tokenises_as(self, tokenise: Callable[[Sequence[str]], pa.ListArray]) -> bool:
        """Whether a function gives passages the ids that this encoder does (see ``passage_tokenizer``)."""
        expected = self._tokens(PROBES, self._passage)
        same = self._model.tokens_of([np.array(row, np.int32) for row in tokenise(PROBES).to_pylist()])
        return all(
            row.keys() == other.keys() and all(np.array_equal(row[key], other[key]) for key in row)
            for row, other in zip(expected, same, strict=True)
        )

    def encode_passages(self, texts: Sequence[str], ids: Sequence[I32] | None = None) -> F32:
        """Encode indexed texts: each distinct one once, long ones without header, in windows averaged by length.

        At least 8,000 at a time keep the batches full. Several threads may call: one makes batches while a GPU computes
        another's.

        Args:
            texts: The texts, without the prompt.
            ids: Their tokens with prompt and special tokens, as a function gives them of which ``tokenises_as`` is
                true. Default: they are tokenised here.

        Returns:
            Shape ``(n, d)``, unit rows, in the order given.
        """
        return self._encode(texts, self._passage, self._forward_by_length, ids)

    def encode_queries(self, texts: Sequence[str]) -> F32:
        """Encode queries, as ``encode_passages``: a query's vector is the same to the bit in every batch."""
        return self._encode(texts, self._query, self._forward_in_fixed_shapes)

    def images(self) -> ImageEncoder:
        """Return the model's image side, its vectors cut to the same length; ``ConfigError`` if it has none."""
        if not self._model.reads_images:
            raise ConfigError(
                f"index.image_vectors asks for vectors of images but {self._settings.model} reads text alone: name a "
                "model that reads images as index.image_encoder or index.encoder, or set index.image_vectors to caption"
            )
        return ImageEncoder(self._model, self.dim, _task(self._settings.passage_task))

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
        beside = self._model.beside_tokens(resolved, **_task(task))
        return _Role(resolved, _task(task), longest, overhead, beside)

    def _tokens(self, texts: Sequence[str], role: _Role) -> list[Tokens]:
        """Tokens of each text with its prompt and special tokens."""
        prompt, tokens = role.prompt or "", []
        for block in _blocks(texts, 4096):
            tokens += self._model.tokens([prompt + text for text in block])
        return tokens

    def _encode(
        self, texts: Sequence[str], role: _Role, forward: Callable[..., F32], ids: Sequence[I32] | None = None
    ) -> F32:
        row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        if ids is not None and len(row_of) == len(texts):
            return self._encode_windows(list(texts), role, forward, self._model.tokens_of(ids))
        return self._encode_windows(list(row_of), role, forward)[[row_of[text] for text in texts]]

    def _encode_windows(
        self, texts: list[str], role: _Role, forward: Callable[..., F32], tokens: list[Tokens] | None = None
    ) -> F32:
        """Encode texts of any length: those longer than the window in pieces, averaged by length."""
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        tokens = self._tokens(texts, role) if tokens is None else tokens
        lengths = _counts(tokens)
        pieces = list(texts)
        parts: dict[int, list[int]] = {}
        for row in np.flatnonzero(lengths > role.window).tolist():
            is_headed = self._has_headers and role is self._passage
            cut = self._cut(without_header(texts[row]) if is_headed else texts[row], role)
            parts[row] = list(range(len(pieces), len(pieces) + len(cut)))
            pieces += cut
        if parts:
            tokens += self._tokens(pieces[len(texts) :], role)
            for row, (first, *_) in parts.items():  # keeps its place in the batch; its vector is overwritten below
                pieces[row], tokens[row] = pieces[first], tokens[first]
            lengths = _counts(tokens)

        def make(batch: _Batch) -> Features:
            rows = batch.filled
            return self._features([pieces[row] for row in rows], [tokens[row] for row in rows], role, batch.pad_to)

        vectors = forward(make, lengths, role)
        for row, of in parts.items():
            share = (lengths[of] - role.overhead).clip(1).astype(np.float64)
            vectors[row] = unit_rows(share @ vectors[of].astype(np.float64))
        return vectors[: len(texts)]

    def _cut(self, text: str, role: _Role) -> list[str]:
        """Cut a text into pieces that fit the window with its prompt, between words where there are any."""
        length = int(_counts(self._tokens([text], role))[0])
        if length <= role.window or len(text) < 2:
            return [text]
        n_pieces = -(-(length - role.overhead) // (role.window - role.overhead))
        first, second = cut_near(text, len(text) * (n_pieces // 2) // n_pieces)
        return [*self._cut(first, role), *self._cut(second, role)]

    def _forward_by_length(self, make: _Make, lengths: I64, role: _Role) -> F32:
        """Encode in batches of similar length, as many rows as fit the padded tokens; the longest first."""
        order = np.argsort(-lengths, kind="stable")
        batches, first = [], 0
        while first < len(order):
            longest = int(lengths[order[first]])
            n_tokens = self._batch_tokens or self._model.tokens_that_fit(longest)
            n_rows = max(1, n_tokens // max(longest, 1))
            batches.append(_Batch(order[first : first + n_rows].tolist()))
            first += n_rows
        return self._forward(make, batches, len(lengths), role)

    def _forward_in_fixed_shapes(self, make: _Make, lengths: I64, role: _Role) -> F32:
        """Encode in batches of one shape per length bucket, so that no row's arithmetic depends on the others."""
        batches = []
        buckets = -(-lengths.clip(1) // self._query_bucket) * self._query_bucket
        for bucket in np.unique(buckets)[::-1].tolist():
            n_rows = max(1, self._query_tokens // bucket)
            rows = np.flatnonzero(buckets == bucket).tolist()
            batches += [_Batch(block, n_rows, min(bucket, role.window)) for block in _blocks(rows, n_rows)]
        return self._forward(make, batches, len(lengths), role)

    def _forward(self, make: _Make, batches: list[_Batch], n_texts: int, role: _Role) -> F32:
        if self._pool is None:
            results = self._forward_ahead(make, batches, role)
        else:
            # Made here, in sequence: a tokenizer is not thread-safe.
            results = self._pool.map(lambda features: self._forward_batch(features, role)(), map(make, batches))
        vectors = np.empty((n_texts, self.dim), dtype=np.float32)
        for batch, embedded in zip(batches, results, strict=True):
            vectors[batch.rows] = embedded[: len(batch.rows)]
        return vectors

    def _forward_ahead(self, make: _Make, batches: list[_Batch], role: _Role) -> Iterator[F32]:
        """Run batches on one device: a thread makes the next ones, and vectors are taken once the next pass runs."""
        # Halves are made by that thread too: a tokenizer is not thread-safe.
        ahead = (self._maker.submit(make, batch) for batch in batches)
        made = deque(itertools.islice(ahead, BATCHES_AHEAD))
        before: Vectors | None = None
        for batch in batches:
            features = made.popleft()
            made.extend(itertools.islice(ahead, 1))
            started = self._forward_halved(make, batch, features.result(), role)
            if before is not None:
                yield before()
            before = started
        if before is not None:
            yield before()

    def _forward_halved(self, make: _Make, batch: _Batch, features: Features, role: _Role) -> Vectors:
        """Start a batch; where it does not fit the GPU's memory, its halves, and later batches are smaller."""
        import torch

        rows = batch.filled
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
        started = [
            self._forward_halved(make, part, self._maker.submit(make, part).result(), role)
            for part in (_Batch(rows[:half], pad_to=batch.pad_to), _Batch(rows[half:], pad_to=batch.pad_to))
        ]
        return lambda: np.concatenate([vectors() for vectors in started])

    def _features(self, texts: list[str], tokens: list[Tokens], role: _Role, pad_to: int) -> Features:
        if role.beside is None or _counts(tokens).max() > role.window:  # a character of more tokens than the window
            return self._model.features(texts, role.prompt, pad_to, **role.task)
        return self._model.padded(tokens, role.beside, pad_to)

    def _forward_batch(self, features: Features, role: _Role) -> Vectors:
        vectors = self._model.embed(features, **role.task)
        return lambda: unit_rows(vectors()[:, : self.dim])


class ImageEncoder:
    """The image side of a sentence-transformers model: images are decoded and resized on threads beside the model's."""

    def __init__(self, model: TorchModel, dim: int, task: Mapping[str, str]) -> None:
        """Wrap a loaded model that reads images; its vectors are cut to ``dim``."""
        self._model, self._dim, self._task = model, dim, task
        self._ahead = IMAGES_AHEAD if model.on_cpu else GPU_IMAGES_AHEAD

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
        return unit_rows(self._model.embed(features, **self._task)()[:, : self._dim])

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
    """How one side, queries or passages, is encoded.

    Attributes:
        prompt: Put before each text.
        task: As the model takes it.
        window: Longest text, in tokens, prompt and special ones included.
        overhead: Tokens of the prompt and the special ones.
        beside: See ``TorchModel.beside_tokens``.
    """

    prompt: str | None
    task: Mapping[str, str]
    window: int
    overhead: int
    beside: Mapping[str, Any] | None


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


_Make = Callable[[_Batch], Features]


def _counts(tokens: Sequence[Tokens]) -> I64:
    return np.array([len(row["input_ids"]) for row in tokens], dtype=np.int64)


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
