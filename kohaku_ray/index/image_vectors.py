"""Vectors of images: which rows of an index have one, and where it goes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from kohaku_ray.errors import DataError
from kohaku_ray.index.arrays import F32, I64, Keys, key_column, matrix_column
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.known import KnownVectors
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.propagate import unit_rows

Kind = Literal["none", "caption", "image", "both"]
"""Vector of an image paragraph: none, its caption's, its image's, or the mean of both."""

_FILE = re.compile(r"images/([0-9a-f]{32})\.png")


@dataclass(frozen=True)
class ImagePlan:
    """How the images of an index get their vectors.

    Attributes:
        in_tree: Vector of an image paragraph in the tree.
        identity: Of the encoder of images; None: no image is encoded.
        own_space: Whether that encoder is not the texts': then the view of images holds its vectors, not the tree's.
    """

    in_tree: Kind
    identity: Mapping[str, Any] | None
    own_space: bool

    @classmethod
    def of(cls, encoder: Mapping[str, Any], images: Mapping[str, Any] | None) -> ImagePlan:
        """Read the settings of an index: the identity of its encoder, and its images' settings."""
        kind, own = (images or {}).get("vectors", "caption"), (images or {}).get("encoder")
        if kind in ("none", "caption"):
            return cls(kind, None, False)
        if own is None:
            return cls(kind, image_identity(encoder), False)
        return cls("caption" if kind == "both" else "none", image_identity(own), True)

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
    found = [
        (row, match[1])
        for row, one in zip(rows.tolist(), attached.take(pa.array(rows)).to_pylist(), strict=True)
        if one["attachment_kind"] == "image" and (match := _FILE.fullmatch(one["attachment_path"] or ""))
    ]
    return np.array([row for row, _ in found], np.int64), [digest for _, digest in found]


def placed(
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
    there, vectors = both.lookup(keys)
    bad = ~there
    bad[there] = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"{int(bad.sum()):,} images have no finite vector, the first is that of {nodes.node_id(int(rows[at]))} "
            f"(images/{digests[at]}.png): index again, and encode with precision float32"
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
