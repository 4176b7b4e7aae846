"""Images of an index: one PNG per content, named by its hash, and one table row per place it stands."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from kohaku_ray.documents.figures import images_of
from kohaku_ray.documents.images import image_digest, image_name
from kohaku_ray.documents.model import Document, Image
from kohaku_ray.errors import DataError
from kohaku_ray.index.store import REINDEX, read_manifest, read_table
from kohaku_ray.storage import Directory, below, make_directory, publish

Captions = Literal["printed", "model", "none"]
"""Text of an image paragraph: the printed caption, that and a model's description, or none."""

IMAGE_SCHEMA = pa.schema(
    [
        pa.field("digest", pa.string(), nullable=False),
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("node_id", pa.string(), nullable=False),
        pa.field("page", pa.int32()),
        pa.field("bbox", pa.list_(pa.float32())),
        pa.field("width", pa.int32(), nullable=False),
        pa.field("height", pa.int32(), nullable=False),
        pa.field("printed", pa.string()),
        pa.field("mentions", pa.list_(pa.string()), nullable=False),
        pa.field("caption", pa.string()),
        pa.field("caption_from", pa.string(), nullable=False),
        pa.field("caption_key", pa.string()),
        pa.field("error", pa.string()),
    ]
)
"""One row per image paragraph, in the order of the nodes.

``caption`` is the paragraph's text, ``caption_from`` printed, model or none; ``caption_key`` is the ledger's key of the
call that described the image, ``error`` why it failed.
"""


@dataclass(frozen=True)
class Images:
    """The images of an index on disk: its directory, and rows of ``IMAGE_SCHEMA``."""

    directory: Directory
    table: pa.Table

    @classmethod
    def open(cls, path: str) -> Images:
        """Open the images of the index in a directory, on any pyarrow filesystem; without any, ``DataError``."""
        directory = Directory(path, REINDEX)
        entry = read_manifest(directory)["files"].get("images")
        if entry is None:
            raise DataError(f"the index at {path} was built without images: set index.images to true, and {REINDEX}")
        return cls(directory, read_table(directory, entry))

    @functools.cached_property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, as ``IMAGE_SCHEMA`` describes them."""
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows

    def path(self, digest: str) -> str:
        """Path or URI of an image's file."""
        return below(self.directory.path, image_name(digest))

    def read(self, digest: str) -> bytes:
        """Read an image's PNG; where it is missing, ``DataError`` names it."""
        return read_png(self.directory, digest)


def read_png(directory: Directory, digest: str) -> bytes:
    """Read the PNG of an image of an index; see ``Images.read``."""
    name = image_name(digest)
    if directory.size(name) is None:
        raise DataError(f"{directory.full(name)} is missing: {REINDEX}")
    return bytes(directory.read(name).to_pybytes())


def write_image(directory: Directory, image: Image) -> None:
    """Write an image's PNG into an index, unless it is there."""
    name = image_name(image.digest)
    if directory.size(name) == len(image.data) and image_digest(directory.read(name)) == image.digest:
        return
    if directory.is_local:
        make_directory(directory.full("images"))
        publish(directory.full(name), image.data)
    else:
        publish(below(directory.path, name), image.data)


def image_table(document: Document, captions: Captions) -> pa.Table:
    """List the images of a document (``IMAGE_SCHEMA``), with their printed captions unless ``captions`` is none."""
    return pa.Table.from_pylist(
        [
            {
                "digest": image.digest,
                "doc_id": document.doc_id,
                "node_id": node_id,
                "page": paragraph.page,
                "bbox": None if paragraph.bbox is None else list(paragraph.bbox),
                "width": image.width,
                "height": image.height,
                "printed": image.caption,
                "mentions": list(image.mentions),
                "caption": image.caption if captions != "none" else None,
                "caption_from": "printed" if image.caption and captions != "none" else "none",
            }
            for node_id, paragraph, image in images_of(document)
        ],
        schema=IMAGE_SCHEMA,
    )


def known_captions(path: str) -> dict[str, str]:
    """Find the descriptions that an index holds, by the key of the call that made them; none without an index."""
    try:
        rows: Sequence[Mapping[str, Any]] = Images.open(path).rows
    except DataError:
        return {}
    return {row["caption_key"]: row["caption"] for row in rows if row["caption_from"] == "model"}
