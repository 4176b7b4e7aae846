"""Encode images to unit vectors: decoded and resized on threads beside the model's."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image as Pillow

from kohaku_ray.arrays import F32
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.index.torch_model import TorchModel
from kohaku_ray.tree.propagate import unit_rows

BATCH = 16
"""Images of a forward pass."""

AHEAD = 2
"""Batches decoded and resized while the model computes one, each on a thread of its own."""

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
        vectors = np.empty((len(digests), self._dim), np.float32)
        first = 0
        for features, n_images in self._batches(digests, read):
            found = self._model.embed(features, **self._task)[:, : self._dim]
            vectors[first : first + n_images] = unit_rows(found)
            first += n_images
        return vectors

    def _batches(self, digests: Sequence[str], read: Read) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield what each forward pass takes, a few batches ahead of the model."""
        blocks = [digests[first : first + BATCH] for first in range(0, len(digests), BATCH)]
        running: deque[tuple[Future[dict[str, Any]], int]] = deque()
        with ThreadPoolExecutor(AHEAD, "decode") as threads:
            for block in blocks:
                running.append((threads.submit(self._features, block, read), len(block)))
                if len(running) > AHEAD:
                    ready, n_images = running.popleft()
                    yield ready.result(), n_images
            for ready, n_images in running:
                yield ready.result(), n_images

    def _features(self, digests: Sequence[str], read: Read) -> dict[str, Any]:
        return self._model.image_features([decoded(digest, read(digest)) for digest in digests], **self._task)


def decoded(digest: str, data: bytes) -> Pillow.Image:
    """Decode an image of an index to RGB.

    Raises:
        DataError: It is none; the message names its file.
    """
    try:
        with Pillow.open(io.BytesIO(data)) as image:
            return image.convert("RGB")
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"images/{digest}.png cannot be decoded ({error}): delete it, and index again") from error
