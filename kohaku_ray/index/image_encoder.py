"""Encode images to unit vectors: decoded and resized on threads beside the model's."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image as Pillow

from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.index.arrays import F32
from kohaku_ray.index.propagate import unit_rows
from kohaku_ray.index.torch_model import TorchModel

BATCH = 16
"""Images of a forward pass."""

AHEAD = 2
"""Batches decoded and resized while the model computes one, each on a thread of its own."""

MOST_AHEAD = 8
"""The most of them, for a model on a GPU: a thread decodes and resizes 80 images of half a megapixel per second."""

Read = Callable[[str], bytes]
"""Reads an image's file by its digest."""


class ImageEncoder:
    """The image side of a sentence-transformers model."""

    def __init__(self, model: Any, name: str, dim: int, task: str | None = None) -> None:
        """Wrap a loaded model.

        Args:
            model: Of a ``SentenceEncoder``.
            name: Its name, for messages.
            dim: Length of a vector; the model's are cut to it.
            task: Its task adapter for passages.

        Raises:
            ConfigError: It reads no images.
        """
        if not isinstance(model, TorchModel) or not model.reads_images:
            raise ConfigError(
                f"index.image_vectors asks for vectors of images but {name} reads text alone: name a model that reads "
                "images as index.image_encoder or index.encoder, or set index.image_vectors to caption"
            )
        self._model, self._dim = model, dim
        self._task = {} if task is None else {"task": task}
        self._ahead = AHEAD if model.on_cpu else max(AHEAD, min(MOST_AHEAD, len(os.sched_getaffinity(0))))

    def encode(self, digests: Sequence[str], read: Read) -> F32:
        """Encode images.

        Args:
            digests: Their digests.
            read: Reads a PNG by its digest.

        Returns:
            Shape ``(n, dim)``, unit rows, in the order given.

        Raises:
            DataError: A file is missing or is no image; the message names it.
        """
        return np.concatenate([np.empty((0, self._dim), np.float32), *self.batches(digests, read)])

    def batches(self, digests: Sequence[str], read: Read) -> Iterator[F32]:
        """Encode images, and yield the vectors of every `BATCH` of them; see ``encode``."""
        blocks = [digests[first : first + BATCH] for first in range(0, len(digests), BATCH)]
        running: deque[Future[dict[str, Any]]] = deque()
        with ThreadPoolExecutor(self._ahead, "decode") as threads:
            for block in blocks:
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
    """Decode an image of an index to RGB.

    Raises:
        DataError: It is none; the message names its file.
    """
    try:
        with Pillow.open(io.BytesIO(data)) as image:
            image.load()
            return image if image.mode == "RGB" else image.convert("RGB")  # which copies in any case
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"images/{digest}.png cannot be decoded ({error}): delete it, and index again") from error
