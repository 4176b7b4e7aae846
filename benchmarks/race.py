"""Calls saved and wrong drops of a raced sweep: recorded runs are its cells, on random orders of their questions.

    python benchmarks/race.py [--data ../shared/data] [--orders 1000] [--runs '*.csv'] [--truth train_QA.csv]

The recorded runs are raced over their own questions, and over sets of 282 and 1,000 questions drawn from these with
replacement, whose means are then the true ones; each order draws its own set. A drop is wrong if the cell is the best,
or within the tolerance of the best. Limits: the best is dropped in at most 5 % of the orders, and so is any cell that
is within the tolerance; statistics take at most 5 ms per cell and shard, the intervals of all cells among them.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path

import numpy as np

from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.race import Race, shard_size
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.evaluation.truth import read_truth
from kohaku_ray.index.arrays import F64

ERROR, TOLERANCE = 0.05, 0.01
SIZES = (None, 282, 1000)
LIMIT_MS = 5.0
N_TIMED = 20  # orders whose time is taken, with the intervals of all cells after each shard
DATA = Path(os.environ.get("KOHAKU_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data") / "wattbot"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="directory of the truth and of predictions/")
    parser.add_argument("--runs", default="predictions/*.csv", help="submission files below it")
    parser.add_argument("--truth", default="train_QA.csv")
    parser.add_argument("--metric", default="wattbot")
    parser.add_argument("--orders", type=int, default=1000)
    arguments = parser.parse_args()
    metric = find_metric(arguments.metric)
    truth = read_truth(str(arguments.data / arguments.truth), [metric])
    files = sorted(arguments.data.glob(arguments.runs))
    scores = np.array([metric.shares_of(metric.score(truth, read_submission(str(file)))) for file in files])
    print(
        f"{len(files)} recorded runs, {scores.shape[1]} questions, {metric.name}, error {ERROR}, tolerance {TOLERANCE}"
    )
    print("| questions | calls that remain | 95 % of orders | best dropped | any within the tolerance | ms |")
    print("|---|---|---|---|---|---|")
    return max(report(scores, size, arguments.orders) for size in SIZES)


def report(scores: F64, size: int | None, n_orders: int) -> int:
    """Race a set of a size over random orders, and print a line; returns 1 if a limit is passed."""
    rng = np.random.default_rng(0)
    remaining, n_lost, n_within, seconds = [], 0, 0, []
    for number in range(n_orders):
        table = scores if size is None else scores[:, rng.integers(0, scores.shape[1], size)]
        means, order = table.mean(axis=1), rng.permutation(table.shape[1])
        began = time.perf_counter()
        race, n_shards = run_race(table[:, order], is_shown=number < N_TIMED)
        if number < N_TIMED:
            seconds.append((time.perf_counter() - began) / (len(table) * n_shards))
        dropped = [int(name) for name in race.left]
        remaining.append(np.mean([race.n_seen(str(row)) for row in range(len(table))]) / table.shape[1])
        n_lost += int(means.argmax()) in dropped
        n_within += any(means[row] >= means.max() - TOLERANCE - 1e-9 for row in dropped)
    mean, margin = np.mean(remaining), 1.96 * np.std(remaining) / math.sqrt(n_orders)
    low, high = np.quantile(remaining, [0.025, 0.975])
    shares = [f"{n / n_orders:.1%} ({wilson(n, n_orders)})" for n in (n_lost, n_within)]
    ms = 1e3 * float(np.mean(seconds))
    n_questions = size or scores.shape[1]
    print(f"| {n_questions} | {mean:.1%} ± {margin:.1%} | {low:.0%} to {high:.0%} | {' | '.join(shares)} | {ms:.2f} |")
    return int(max(n_lost, n_within) > ERROR * n_orders or ms > LIMIT_MS)


def run_race(table: F64, *, is_shown: bool) -> tuple[Race, int]:
    """Race cells on questions in this order, in shards of the default size; returns the shards run, too."""
    n = table.shape[1]
    race, size, n_shards = Race(np.zeros(n), np.full(n, max(table.max(), 1.0)), ERROR, TOLERANCE), shard_size(n), 0
    for row in range(len(table)):
        race.enter(str(row))
    for first in range(0, n, size):
        if len(race.in_play) > 1:
            race.observe({name: table[int(name), first : first + size] for name in race.in_play})
            if is_shown:
                race.standings()
            n_shards += 1
    # The last one in the race answers the rest alone.
    race.observe({name: table[int(name), race.n_seen(name) :] for name in race.in_play})
    return race, n_shards


def wilson(n: int, of: int) -> str:
    """Write the 95 % interval of a share (Wilson 1927)."""
    share, z = n / of, 1.96
    middle, width = share + z**2 / (2 * of), z * math.sqrt(share * (1 - share) / of + z**2 / (4 * of**2))
    low, high = ((middle + sign * width) / (1 + z**2 / of) for sign in (-1, 1))
    return f"{max(low, 0):.1%} to {high:.1%}"


if __name__ == "__main__":
    sys.exit(main())
