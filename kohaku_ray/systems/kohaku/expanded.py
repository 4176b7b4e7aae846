"""Measures of the context as KohakuRAG's paper counts it: every match with its parent, then deduplicated."""

from __future__ import annotations

from kohaku_ray.index.arrays import I64
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.retrieval.deduplicate import with_parents
from kohaku_ray.systems.base import Rows
from kohaku_ray.systems.kohaku.settings import KohakuSettings


def snippets_with_parents(trace: Rows, nodes: NodeTable, settings: KohakuSettings) -> float:
    """Count the matches and their parents that ``dedup`` leaves."""
    return float(len(_expanded(trace, nodes, settings)))


def characters_with_parents(trace: Rows, nodes: NodeTable, settings: KohakuSettings) -> float:
    """Sum the characters of the matches and their parents that ``dedup`` leaves."""
    return float(nodes.chars[_expanded(trace, nodes, settings)].sum())


def _expanded(trace: Rows, nodes: NodeTable, settings: KohakuSettings) -> I64:
    matches = nodes.rows_of([row["node_id"] for row in trace if row["step"] == "evidence"])
    return with_parents(matches, nodes.parent, settings.dedup)
