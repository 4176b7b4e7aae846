"""Images of an index: one PNG per content, named by its hash, a table row and a vector per place it stands."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from kohaku_ray.documents.figures import images_of
from kohaku_ray.documents.images import image_digest, image_name
from kohaku_ray.documents.model import Document, Image
from kohaku_ray.errors import DataError
from kohaku_ray.index.arrays import F32, I64, Keys, key_column, matrix_column
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.known import KnownVectors
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.propagate import unit_rows
from kohaku_ray.index.settings import Captions, ImageVectorKind
from kohaku_ray.index.store import REINDEX, read_manifest, read_table
from kohaku_ray.records import pluralize
from kohaku_ray.store.storage import Directory, join_path, make_directory, publish

_FILE = re.compile(r"images/([0-9a-f]{32})\.png")

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
        publish(join_path(directory.path, name), image.data)


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


@dataclass(frozen=True)
class ImagePlan:
    """How the images of an index get their vectors.

    Attributes:
        in_tree: Vector of an image paragraph in the tree.
        identity: Of the encoder of images; None: no image is encoded.
        own_space: Whether that encoder is not the texts': then the view of images holds its vectors, not the tree's.
    """

    in_tree: ImageVectorKind
    identity: Mapping[str, Any] | None
    own_space: bool

    @classmethod
    def of(cls, encoder: Mapping[str, Any], images: Mapping[str, Any] | None) -> ImagePlan:
        """Read the settings of an index: the identity of its encoder, and its images' settings."""
        kind, own_encoder = (images or {}).get("vectors", "caption"), (images or {}).get("encoder")
        if kind in ("none", "caption"):
            return cls(kind, None, False)
        if own_encoder is None:
            return cls(kind, image_identity(encoder), False)
        return cls("caption" if kind == "both" else "none", image_identity(own_encoder), True)

    @property
    def encodes_captions(self) -> bool:
        """Whether the caption of an image that has a file is encoded as the paragraph's own text."""
        return self.in_tree in ("caption", "both")


@dataclass(frozen=True)
class ImageVectors:
    """The image paragraphs of some documents, in node order.

    Attributes:
        rows: Shape ``(k,)``; their nodes, increasing.
        keys: Shape ``(k,)``; keys of their images' vectors.
        vectors: Shape ``(k, d)``; unit rows.
    """

    rows: I64
    keys: Keys
    vectors: F32

    def table(self) -> pa.Table:
        """Write it as an index holds it."""
        columns = {"row": pa.array(self.rows), "key": key_column(self.keys), "vector": matrix_column(self.vectors)}
        return pa.table(columns)


def image_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Identity of an encoder as that of images: its prompts are for text alone."""
    return {**identity, "passage_prompt": None, "modality": "image"}


def image_rows(nodes: NodeTable) -> tuple[I64, list[str]]:
    """List the paragraphs of images that have a file: their rows, shape ``(k,)``, and their ``k`` digests."""
    attached = nodes.table.select(["attachment_kind", "attachment_path"])
    rows = np.flatnonzero(attached["attachment_kind"].is_valid().to_numpy())
    images = [
        (row, match[1])
        for row, attachment in zip(rows.tolist(), attached.take(pa.array(rows)).to_pylist(), strict=True)
        if attachment["attachment_kind"] == "image" and (match := _FILE.fullmatch(attachment["attachment_path"] or ""))
    ]
    return np.array([row for row, _ in images], np.int64), [digest for _, digest in images]


def join_image_vectors(
    nodes: NodeTable, plan: ImagePlan, fresh: tuple[Keys, F32] | None, known: KnownVectors
) -> ImageVectors | None:
    """Join every image paragraph with its image's vector; None: no image is encoded.

    ``fresh`` are keys and vectors encoded for this build, in any order; ``known`` those of the previous index.

    Raises:
        DataError: An image has no vector, or one that is not finite.
    """
    if plan.identity is None:
        return None
    rows, digests = image_rows(nodes)
    keys = vector_keys(plan.identity, digests)
    both = known if fresh is None else known.behind(KnownVectors.of(*fresh))
    has_vector, vectors = both.lookup(keys)
    bad = ~has_vector
    bad[has_vector] = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"{pluralize(int(bad.sum()), 'image')} without a finite vector, the first is "
            f"{nodes.node_id(int(rows[first]))} (images/{digests[first]}.png): index again, and encode with precision "
            "float32"
        )
    # A shard may have no image, and then vectors of no length: Arrow has no such list.
    return ImageVectors(rows, keys, vectors if both.dim else np.empty((0, 1), np.float32))


def put_into_tree(given: F32, nodes: NodeTable, plan: ImagePlan, images: ImageVectors | None) -> I64:
    """Give image paragraphs their vectors in the tree, by changing ``given``, shape ``(n, d)``, those of the texts.

    Returns:
        Rows that keep what ``given`` has; zeros count for nothing in their parents.

    Raises:
        DataError: Vectors of images and of texts differ in length.
    """
    if plan.in_tree == "caption":
        return np.empty(0, np.int64)
    rows = image_rows(nodes)[0] if images is None else images.rows
    if plan.in_tree == "none" or images is None:
        given[rows] = 0
        return rows
    if len(rows) and images.vectors.shape[1] != given.shape[1]:
        raise DataError(
            f"vectors of images have {images.vectors.shape[1]} dimensions but those of texts {given.shape[1]}: the "
            "encoder has no common space, name another as index.image_encoder"
        )
    if len(rows):
        given[rows] = images.vectors if plan.in_tree == "image" else unit_rows(given[rows] + images.vectors)
    return rows
