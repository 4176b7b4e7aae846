"""A sweep's scores on groups of the questions, such as the public and the private ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from kohaku_ray.evaluation.grid import SweepGroups, Table, TableCell
from kohaku_ray.evaluation.metrics import Metric, Score
from kohaku_ray.evaluation.report import labels_of
from kohaku_ray.evaluation.splits import split_of
from kohaku_ray.evaluation.submissions import Submission


def group_scores(
    by: str, tables: Sequence[Table], truths: Sequence[Submission], metric: Metric
) -> tuple[SweepGroups | None, tuple[str, ...]]:
    """Score every distinct setting on each group of the questions; returns the scores, and notes for the reader.

    Args:
        by: Column of the gold answers that makes the groups.
        tables: The sweep's tables; settings that were scored on other questions than most are left out.
        truths: The gold answers.
        metric: The metric of the sweep.
    """
    named = [truth for truth in truths if by in truth.header]
    label = {key: one for truth in named for key, one in zip(truth.rows, labels_of(truth, by), strict=True)}
    is_blank = {key: metric.unanswerable(row) for truth in named for key, row in truth.rows.items()}
    cells: dict[str, tuple[str, TableCell]] = {}
    for table in tables:
        for cell in table.cells:
            if cell.is_scored and all(key in label for key in cell.question_ids):
                name = ", ".join(f"{axis.rpartition('.')[2]} {label}" for axis, label in cell.at.items())
                cells.setdefault(cell.cell_id, (name, cell))
    asked = Counter(cell.question_ids for _, cell in cells.values())
    if not asked:
        there = ", ".join(truths[0].header) if truths else "none"
        return None, (f"Scores are not shown by {by}: the gold answers have no such column; they have {there}.",)
    usual = asked.most_common(1)[0][0]
    kept = [(name, cell) for name, cell in cells.values() if cell.question_ids == usual]
    groups: dict[str, list[int]] = {}
    for at, key in enumerate(usual):
        groups.setdefault(label[key], []).append(at)
    blank = np.array([is_blank[key] for key in usual])
    scores = {one: tuple(_score(cell, at, blank, metric) for _, cell in kept) for one, at in groups.items()}
    left_out = len(cells) - len(kept)
    notes = (f"By {by}: {left_out} settings were scored on other questions than most and are left out.",)
    return SweepGroups(tuple(name for name, _ in kept), split_of(by, scores)), notes if left_out else ()


def _score(cell: TableCell, at: Sequence[int], blank: np.ndarray, metric: Metric) -> Score:
    """Score a cell on some of its questions, mean over its seeds."""
    parts: Mapping[str, np.ndarray] = {name: part[:, at] for name, part in cell.parts.items()}
    total = metric.shares(parts, blank[at])
    return Score(float(total.mean()), {name: float(part.mean()) for name, part in parts.items()}, len(at), 0)
