"""Encode the images of an index: find the new ones, load the encoder, and collect what the reducers read."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from kohaku_ray.collection.indexes import index_settings, make_encoder
from kohaku_ray.config import Config
from kohaku_ray.index.arrays import F32, Keys
from kohaku_ray.index.build import IndexSettings
from kohaku_ray.index.encoder import IMAGE_BATCH
from kohaku_ray.index.images import read_png
from kohaku_ray.index.known import known_image_vectors
from kohaku_ray.index.pending import PendingVectors, without_vectors
from kohaku_ray.store.storage import Directory

IMAGES_PER_FILE = 64
"""Images whose vectors are written together; a multiple of ``IMAGE_BATCH``."""

IMAGES_PER_BLOCK = 512
"""Most images that an encoder takes at a time: its model waits for the first batch to be decoded."""

BLOCKS_PER_ENCODER = 4
"""Fewest blocks per encoder, unless a block would fall below ``IMAGES_PER_FILE``."""


def images_to_encode(tables: Sequence[pa.Table], config: Config) -> list[dict[str, Any]]:
    """List the distinct images (``IMAGE_SCHEMA``) without a vector, as encoders take them: columns digest and key."""
    identity = index_settings(config).image_plan.identity
    if identity is None:
        return []
    distinct = sorted({digest for table in tables for digest in table["digest"].to_pylist()})
    known, left = known_image_vectors(config.index.path), PendingVectors(config.index.path).keys(identity)
    new = without_vectors(distinct, identity, known, left)
    return [{"digest": digest, "key": key} for digest, key in new.items()]


def n_image_blocks(n_images: int, n_encoders: int) -> int:
    """Count the blocks in which new images are divided among their encoders."""
    size = min(max(n_images // (BLOCKS_PER_ENCODER * n_encoders), IMAGES_PER_FILE), IMAGES_PER_BLOCK)
    return -(-n_images // size)


def check_reads_images(config: Config) -> None:
    """Raise a ConfigError if the encoder of images cannot be loaded or reads text alone."""
    make_encoder(config, config.index.image_encoder).images()


class EncodeImages:
    """Encodes blocks of images and writes their vectors to the index directory (an actor of Ray Data)."""

    def __init__(self, config: Config, gpu: bool) -> None:
        # Ray does not hide the GPUs of its machine from an actor that asked for none.
        self._encoder = make_encoder(config, config.index.image_encoder, on_gpu=gpu)
        self._directory = Directory(config.index.path)
        self._pending = PendingVectors(config.index.path)
        identity = index_settings(config).image_plan.identity
        assert identity is not None, "images are encoded"
        self._identity = identity

    def __call__(self, batch: pa.Table) -> Iterator[pa.Table]:
        """Encode one block: a row whose columns digest and key are lists, one item per image.

        Yields:
            A row per file of vectors, with the number of its images.
        """
        digests, keys = (batch[name][0].as_py() for name in ("digest", "key"))
        # Not when the actor starts: there, Ray would try again, and lose the error's kind.
        read = functools.partial(read_png, self._directory)
        batches = self._encoder.images().batches(digests, read)
        for first in range(0, len(keys), IMAGES_PER_FILE):
            file_keys = keys[first : first + IMAGES_PER_FILE]
            vectors = np.concatenate(list(islice(batches, IMAGES_PER_FILE // IMAGE_BATCH)))
            self._pending.write(self._identity, file_keys, vectors)
            yield pa.table({"n_images": [len(file_keys)]})


def image_vectors(path: str, settings: IndexSettings) -> tuple[Keys, F32] | None:
    """Read the vectors of images that this job, or an interrupted one, computed; None: images are not encoded."""
    identity = settings.image_plan.identity
    return None if identity is None else PendingVectors(path).load(identity)
