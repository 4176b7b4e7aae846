"""What a sweep's settings cost, with the runs behind their scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kohaku_ray.sweep.compare import SweepCell, SweepRecord, SweepRun
from kohaku_ray.sweep.statistics import average_score, name_cell


@dataclass(frozen=True, slots=True)
class CellRuns:
    """The questions behind a figure."""

    number: int  # from 1, in the order of the tables
    names: list[str]  # table and labels, for every table that has it
    cell: SweepCell
    runs: list[tuple[int, SweepRun]]  # row of the cell's arrays, and its run


def list_cell_runs(sweep: SweepRecord) -> list[CellRuns]:
    """List every scored cell once, in the order of the tables."""
    runs = {run.run_id: run for run in sweep.runs}
    listed: dict[str, CellRuns] = {}
    for table in sweep.tables:
        for cell in table.cells:
            if not cell.total.size:
                continue
            name = name_cell(table, cell)
            name = f"{table.title}: {name}" if len(sweep.tables) > 1 else name
            if cell.cell_id in listed:
                listed[cell.cell_id].names.append(name)
                continue
            of_cell = [(seed, runs[run_id]) for seed, run_id in enumerate(cell.run_ids) if run_id in runs]
            listed[cell.cell_id] = CellRuns(len(listed) + 1, [name], cell, of_cell)
    return list(listed.values())


OTHERS = "others"
"""Group of the settings whose runs state no fact."""


@dataclass(frozen=True, slots=True)
class CostPoint:
    """A setting with its cost per question and its score."""

    of: CellRuns
    group: str  # label of the first fact of its runs
    cost: float  # mean over its runs
    score: float  # mean over its seeds


def cost_points(behind: Sequence[CellRuns], cost: Callable[[SweepRun], float]) -> list[CostPoint]:
    """List every setting with runs and a cost (of a whole run) that was scored on the questions of most settings."""
    asked = Counter(cell_runs.cell.question_ids for cell_runs in behind if cell_runs.cell.run_ids)
    usual = asked.most_common(1)[0][0] if asked else ()
    points = []
    for cell_runs in behind:
        prices = [cost(run) / max(len(run.predictions), 1) for _, run in cell_runs.runs]
        if any(prices) and cell_runs.cell.question_ids == usual:
            group = next(iter(cell_runs.runs[0][1].facts.values()), OTHERS)
            points.append(CostPoint(cell_runs, group, float(np.mean(prices)), average_score(cell_runs.cell).mean))
    return points


def pareto_frontier(points: Sequence[CostPoint]) -> list[CostPoint]:
    """Keep the Pareto frontier: settings that score more than all others that cost no more, the cheapest first."""
    kept: list[CostPoint] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.score)):
        if not kept or point.score > kept[-1].score:
            kept.append(point)
    return kept
