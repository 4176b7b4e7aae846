"""A map of the index: each node a point, coloured by document, shaped by kind (KohakuRAG, Figure 6)."""

from __future__ import annotations

import importlib
import io
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from kohaku_ray.errors import DataError
from kohaku_ray.index.arrays import F32, F64, I64
from kohaku_ray.index.images import image_rows
from kohaku_ray.index.nodes import KINDS, PARAGRAPH
from kohaku_ray.index.store import Index
from kohaku_ray.pages.plots import INK, drawing, legend_name, new_figure
from kohaku_ray.records import pluralize
from kohaku_ray.store.storage import is_uri, publish

MAX_NODES = 20_000
"""Most nodes drawn; a larger index is sampled."""

MAX_UMAP_NODES = 10_000
"""Most nodes for UMAP, which takes minutes for more; above that, principal components are used."""

N_COLOURS = 20
"""Documents with a colour of their own, the largest first; all others are grey."""

_GREY = "#999999"
_LABEL_CHARS = 28
_MARKS = {
    "sentence": (".", 34),
    "paragraph": ("^", 24),
    "full paragraph": ("v", 24),
    "image": ("P", 42),
    "section": ("D", 30),
    "document": ("*", 190),
    "chunk": ("s", 30),
}
"""Mark and size of each kind, many small points below, few large ones on top.

A full paragraph is the vector of a paragraph's own text, an image the paragraph of an image that has a file.
"""
_SHOWN = (*KINDS, "full paragraph", "image")
_FULL, _IMAGE = len(KINDS), len(KINDS) + 1

_ROOMY = 250  # up to this many marks of a kind have full size; more are drawn smaller
_RASTER_FROM = 3_000


def write_index_map(index_path: str, output: str | None = None, max_nodes: int = MAX_NODES) -> str:
    """Draw an index's node vectors in two dimensions; the same index gives the same file, byte by byte.

    UMAP is used where it is installed and the nodes are not too many, principal components otherwise; the title says
    which.

    Args:
        index_path: The index's directory.
        output: An .svg or .png file; None: ``map.svg`` in the index's directory.
        max_nodes: Most nodes drawn, evenly spaced ones of each kind.

    Raises:
        DataError: There is no index, it has no vectors, or the file cannot be written.
    """
    if output is None and is_uri(index_path):
        raise DataError(f"the index is at {index_path}, no local directory: say where the map goes (output)")
    target = output if output is not None else os.path.join(index_path, "map.svg")
    suffix = os.path.splitext(target)[1].lower()
    if suffix not in {".svg", ".png"}:
        raise DataError(f"{target}: the map is an .svg or a .png file, not {suffix or 'one without a suffix'}.")
    index = Index.open(index_path)
    shown = _display_kinds(index)
    rows = sample_rows(shown, max_nodes)
    paragraphs = rows[shown[rows] == PARAGRAPH]
    full = index.node_vectors(paragraphs, own_text=True)
    has_full = full.any(axis=1)
    vectors = np.concatenate([index.node_vectors(rows), full[has_full]])
    marks = np.concatenate([shown[rows], np.full(int(has_full.sum()), _FULL)])
    rows = np.concatenate([rows, paragraphs[has_full]])
    has_vector = np.any(vectors != 0, axis=1)
    rows, vectors, marks = rows[has_vector], vectors[has_vector], marks[has_vector]
    if not len(rows):
        raise DataError(f"the index at {index_path} has no node vectors to draw: its documents hold no text")
    points, method = _project(vectors)
    counts = []
    for code, kind in enumerate(_SHOWN):
        drawn, n_nodes = int(np.sum(marks == code)), int(np.sum(shown == code))
        if drawn:
            counts.append(f"{drawn:,} of {pluralize(n_nodes, kind)}" if drawn < n_nodes else pluralize(drawn, kind))
    notes = [f"A sample of at most {max_nodes:,}: evenly spaced nodes of each kind."] if len(shown) > max_nodes else []
    if not has_vector.all():
        notes.append("Nodes without text have no vector and are left out.")
    doc_ids = index.nodes.table["doc_id"].take(rows).to_pylist()
    caption = "\n".join(filter(None, [", ".join(counts), " ".join(notes)]))
    publish(target, _draw(doc_ids, marks, points, f"{len(rows):,} node vectors by {method}", caption, suffix[1:]))
    return target


def _display_kinds(index: Index) -> I64:
    """What each node is shown as: shape ``(n,)``, places in ``_SHOWN``."""
    shown = index.nodes.kind.astype(np.int64)
    if index.manifest["settings"]["paragraph_vectors"] == "full":
        shown[shown == PARAGRAPH] = _FULL
    shown[image_rows(index.nodes)[0]] = _IMAGE
    return shown


def sample_rows(kind: I64, limit: int) -> I64:
    """Choose at most ``limit`` rows, ascending, evenly spaced within each kind (shape ``(n,)``, one code per row).

    Rare kinds are kept whole: each kind, from the rarest, takes up to an even share of the remaining rows.
    """
    rows_of_kinds = sorted((np.flatnonzero(kind == code) for code in np.unique(kind)), key=len)
    chosen, left = [np.empty(0, np.int64)], limit
    for number, rows in enumerate(rows_of_kinds):
        n = min(len(rows), left // (len(rows_of_kinds) - number))
        chosen.append(rows[np.linspace(0, len(rows) - 1, n).astype(np.int64)] if n else rows[:0])
        left -= n
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def _project(vectors: F32) -> tuple[F64, str]:
    """Project on two axes: shape ``(n, 2)``, and the name of the method."""
    try:
        umap: Any = importlib.import_module("umap") if 3 < len(vectors) <= MAX_UMAP_NODES else None
    except ImportError:
        umap = None
    if umap is None:
        points, share = principal(vectors)
        return points, f"PCA (two components hold {share:.1%} of the variance)"
    n_neighbors = min(15, len(vectors) - 1)
    model = umap.UMAP(n_components=2, metric="cosine", n_neighbors=n_neighbors, random_state=0, n_jobs=1)
    return np.asarray(model.fit_transform(vectors), np.float64), "UMAP"


def principal(vectors: F32) -> tuple[F64, float]:
    """Project vectors, shape ``(n, d)``, on their two directions of largest variance.

    Each sign makes its direction's largest component positive. Returns shape ``(n, 2)``, and the share of the variance
    that the two explain (1.0 where there is none).
    """
    centred = vectors.astype(np.float64)
    centred -= centred.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)
    top = directions[:, ::-1][:, :2]
    top = top * np.where(top[np.abs(top).argmax(axis=0), np.arange(top.shape[1])] < 0, -1.0, 1.0)
    points = np.zeros((len(vectors), 2))
    points[:, : top.shape[1]] = centred @ top
    total = float(values.clip(0).sum())
    return points, float(values[::-1][:2].clip(0).sum()) / total if total > 0 else 1.0


def _draw(doc_ids: Sequence[str], marks: I64, points: F64, title: str, caption: str, form: str) -> bytes:
    with drawing():
        figure, axes = new_figure(8.6, 6.2)
        colours = document_colours(doc_ids)
        own_colours = [colours.get(doc_id, _GREY) for doc_id in doc_ids]
        handles: list[Any] = []
        for kind, (mark, size) in _MARKS.items():
            kind_rows = np.flatnonzero(marks == _SHOWN.index(kind))
            if len(kind_rows):
                axes.scatter(
                    points[kind_rows, 0],
                    points[kind_rows, 1],
                    s=size * float(np.clip(_ROOMY / len(kind_rows), 0.35, 1)),
                    marker=mark,
                    c=[own_colours[row] for row in kind_rows.tolist()],
                    alpha=0.55 if kind == "sentence" else 0.9,
                    linewidths=0 if kind == "sentence" else 0.5,
                    edgecolors="none" if kind == "sentence" else INK,
                    rasterized=len(kind_rows) > _RASTER_FROM,
                )
                handles += axes.plot([], [], mark, color=INK, markersize=6, label=kind)
        for doc_id, colour in colours.items():
            name = legend_name(doc_id)
            short = name if len(name) <= _LABEL_CHARS else f"{name[: _LABEL_CHARS - 1]}…"
            handles += axes.plot([], [], "s", color=colour, markersize=7, label=short)
        if (n_others := len(set(doc_ids)) - len(colours)) > 0:
            handles += axes.plot([], [], "s", color=_GREY, markersize=7, label=pluralize(n_others, "smaller one"))
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("first axis (no unit)")
        axes.set_ylabel("second axis (no unit)")
        axes.set_aspect("equal", adjustable="datalim")
        figure.legend(handles=handles, loc="outside right upper", fontsize=8, handletextpad=0.4)
        figure.supxlabel(caption, fontsize=8)
        buffer = io.BytesIO()
        metadata: dict[str, Any] = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        figure.savefig(buffer, format=form, dpi=150, facecolor="white", metadata=metadata)
        return buffer.getvalue()


def document_colours(doc_ids: Sequence[str]) -> dict[str, str]:
    """Give the ``N_COLOURS`` documents with most nodes a colour each."""
    import matplotlib as mpl
    from matplotlib.colors import to_hex

    largest = sorted(Counter(doc_ids).items(), key=lambda item: (-item[1], item[0]))[:N_COLOURS]
    colours = mpl.colormaps["tab20"](range(N_COLOURS))
    return {doc_id: to_hex(colour) for (doc_id, _), colour in zip(sorted(largest), colours, strict=False)}
