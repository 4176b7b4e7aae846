"""Views of an index: sets of node kinds, each searched by vectors, by terms, or both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from kohaku_ray.errors import ConfigError, IndexMismatchError
from kohaku_ray.index.arrays import I64, Mask
from kohaku_ray.index.nodes import KINDS, NodeTable

IMAGE = "image"
"""Kind of a view's nodes that are no level of the tree: the paragraphs of images."""


@dataclass(frozen=True, slots=True)
class View:
    """Node kinds that are searched together.

    Attributes:
        kinds: Kinds of nodes (``sentence``, ``paragraph``, ``section``, ``document``, ``chunk``); ``image``: paragraphs
            of images, in an index with images.
        dense: Whether their vectors are searched.
        lexical: Whether their terms are searched (BM25).
        on_demand: An index has it only where a run uses it.
    """

    kinds: tuple[str, ...]
    dense: bool = False
    lexical: bool = False
    on_demand: bool = False

    def __post_init__(self) -> None:
        """Check the kinds."""
        unknown = [kind for kind in self.kinds if kind not in (*KINDS, IMAGE)]
        if unknown or not self.kinds or not (self.dense or self.lexical):
            raise ConfigError(
                f"a view has the kinds {', '.join(self.kinds) or 'none'}, dense {self.dense}, lexical {self.lexical}: "
                f"name kinds of {', '.join((*KINDS, IMAGE))}, and search them by vectors, terms or both"
            )

    @property
    def key(self) -> str:
        """Name of the kinds, whatever their order: views of equal kinds share files."""
        return kinds_key(self.kinds)


def kinds_key(kinds: Iterable[str]) -> str:
    """Name a set of kinds."""
    return "+".join(sorted(set(kinds)))


def united(*many: Iterable[View]) -> tuple[View, ...]:
    """Join views of equal kinds: dense and lexical where any of them is; sorted by their kinds."""
    by_kinds: dict[str, View] = {}
    for view in (view for views in many for view in views):
        known = by_kinds.get(view.key, view)
        kinds = tuple(sorted(set(view.kinds)))
        by_kinds[view.key] = View(kinds, view.dense or known.dense, view.lexical or known.lexical)
    return tuple(by_kinds[key] for key in sorted(by_kinds))


def views_of(manifest: Mapping[str, Any]) -> tuple[View, ...]:
    """Read an index's views from its manifest."""
    return tuple(View(tuple(view["kinds"]), view["dense"], view["lexical"]) for view in manifest["views"])


def as_plain(views: Iterable[View]) -> list[dict[str, Any]]:
    """Write views as a manifest has them."""
    return [{"kinds": list(view.kinds), "dense": view.dense, "lexical": view.lexical} for view in united(views)]


def check_views(path: str, views: Iterable[View], needed: Iterable[View]) -> None:
    """Check that an index has all views that will be searched, else ``IndexMismatchError`` with the way out."""
    have = {view.key: view for view in views}
    for view in united(needed):
        indexed = have.get(view.key)
        for way in ("dense", "lexical"):
            if getattr(view, way) and not (indexed is not None and getattr(indexed, way)):
                ways = {
                    name: " and ".join(way for way in ("dense", "lexical") if getattr(known, way))
                    for name, known in have.items()
                }
                known = ", ".join(f"{name} ({way})" for name, way in ways.items()) or "none"
                raise IndexMismatchError(
                    f"the index at {path} has no {way} view of {view.key}; its views are {known}: "
                    "`kohaku-ray index CONFIG`, or `run.index()` in Python, adds it without encoding anything twice"
                )


def rows_of(nodes: NodeTable, kinds: Iterable[str]) -> I64:
    """List the nodes of some kinds that have text: increasing rows."""
    has_text = nodes.table["n_chars"].to_numpy() > 0
    return np.flatnonzero(of_kinds(nodes, kinds) & has_text).astype(np.int64)


def of_kinds(nodes: NodeTable, kinds: Iterable[str]) -> Mask:
    """Mark the nodes of some kinds: shape ``(n,)``."""
    wanted = set(kinds)
    mask: Mask = np.isin(nodes.kind, [KINDS.index(kind) for kind in wanted - {IMAGE}])
    if IMAGE in wanted:
        mask |= pc.fill_null(pc.equal(nodes.table["attachment_kind"], IMAGE), False).to_numpy()
    return mask
