"""Small pictures of a run's images; each stands once on the page, however often it is shown."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping

from markupsafe import Markup

from kohaku_ray.errors import DataError
from kohaku_ray.index.images import Images

SIDES = (240, 180)
"""Largest width and height of a picture, in pixels."""

COLOURS = 64
"""Colours of a picture: charts need few."""

MAX_BYTES = 4_000_000
"""Largest size of all pictures of a page; further images are shown by their captions alone."""


class Pictures:
    """The pictures of the images at some nodes."""

    def __init__(self, index: str | None, node_ids: Iterable[str]) -> None:
        """Read and scale the images.

        Args:
            index: Directory of the index; None: there is none, and no picture.
            node_ids: Paragraphs of images, those that matter most first.
        """
        self._class_of: dict[str, str] = {}
        self._rules: list[str] = []
        wanted = list(dict.fromkeys(node_ids))
        if index is None or not wanted:
            return
        try:
            images = Images.open(index)
        except DataError:
            return
        self._draw(images, wanted, {row["node_id"]: row["digest"] for row in images.rows})

    def of(self, node_id: str) -> str | None:
        """Return the classes of an element that shows a node's image; None: it is not to be had."""
        return self._class_of.get(node_id)

    @property
    def css(self) -> Markup:
        """The rules that hold the pictures."""
        return Markup("\n".join(self._rules))  # noqa: S704 - numbers and base64

    def _draw(self, images: Images, wanted: Iterable[str], digests: Mapping[str, str]) -> None:
        drawn: dict[str, str] = {}
        n_bytes = 0
        for node_id in wanted:
            digest = digests.get(node_id)
            if digest is not None and digest not in drawn and n_bytes <= MAX_BYTES:
                try:
                    data, (width, height) = _small(images.read(digest))
                except (DataError, OSError, ValueError):
                    continue
                name = f"pic-{len(drawn)}"
                drawn[digest] = f"pic {name}"
                look = f"width:{width}px;height:{height}px;background-image:url(data:image/png;base64,{data})"
                self._rules.append(f".{name}{{{look}}}")
                n_bytes += len(self._rules[-1])
            if digest in drawn:
                self._class_of[node_id] = drawn[str(digest)]


def _small(data: bytes) -> tuple[str, tuple[int, int]]:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as opened:
        small = opened.convert("RGB")
        small.thumbnail(SIDES, Image.Resampling.LANCZOS)
        written = io.BytesIO()
        small.quantize(COLOURS).save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode("ascii"), small.size
