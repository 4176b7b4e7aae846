"""Images in requests: which one, how large, and its bytes as a data URI."""

from __future__ import annotations

import base64
import functools
import io
import math
import posixpath
from collections.abc import Sequence
from typing import NamedTuple

from kohaku_ray.errors import DataError, ModelError
from kohaku_ray.storage import read_file

CACHED = 32
"""Images kept encoded per process: members of a question send the same ones."""


class PromptImage(NamedTuple):
    """An image of a prompt.

    Attributes:
        path: Path or URI of a PNG, named by the hash of its bytes.
        max_pixels: Most pixels that are sent; a larger image is scaled down.
    """

    path: str
    max_pixels: int

    @property
    def digest(self) -> str:
        """The hash of its bytes, from its name."""
        return posixpath.splitext(posixpath.basename(self.path.replace("\\", "/")))[0]


def fitting_size(width: int, height: int, max_pixels: int) -> tuple[int, int]:
    """Scale a size down, in proportion, to at most ``max_pixels``; a smaller one stays."""
    if width * height <= max_pixels:
        return width, height
    scale = math.sqrt(max_pixels / (width * height))
    wide, high = max(int(width * scale), 1), max(int(height * scale), 1)
    return min(wide, max_pixels // high or 1), min(high, max_pixels)


def data_uris(images: Sequence[PromptImage]) -> list[str]:
    """Read, scale and encode images.

    Raises:
        ModelError: A file is missing or no image; the message names it.
    """
    return [_data_uri(image) for image in images]


@functools.lru_cache(maxsize=CACHED)
def _data_uri(image: PromptImage) -> str:
    try:
        data = read_file(image.path)
    except (OSError, DataError) as error:
        raise ModelError(f"{image.path}, an image of the prompt, cannot be read ({error}): index again") from None
    return "data:image/png;base64," + base64.b64encode(_scaled(data, image)).decode("ascii")


def _scaled(data: bytes, image: PromptImage) -> bytes:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as opened:
            size = fitting_size(opened.width, opened.height, image.max_pixels)
            if size == opened.size:
                return data
            written = io.BytesIO()
            opened.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(written, "PNG")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ModelError(f"{image.path} is no image that can be sent ({error}): index again") from None
    return written.getvalue()
