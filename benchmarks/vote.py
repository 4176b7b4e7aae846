"""Ensemble size × strategy × blank rule over recorded runs, against a plain loop over `vote()`.

    python benchmarks/vote.py [--data ../shared/data/wattbot] [--loop 4]

Seven strategies, blanks ignored or not, 32 subsamples of each of eight sizes. The loop votes on the same ballots and
looks up their values' normal forms in a table. Loop and arrays take turns, size by size, the loop on every --loop-th
pair of rule and subsample (1: on all). Its time is extrapolated to all pairs, and both outcomes are compared.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

from kohaku_ray.ensemble.pool import Pool, pool_ballots
from kohaku_ray.ensemble.study import MOST_SUBSAMPLES, Marks, PartScores, expected_score, subsamples
from kohaku_ray.ensemble.vote import Ballot, Outcomes, Verdict, VoteRule, vote, vote_pool
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.sweep.study import ballots_of, marks_of
from kohaku_ray.values.normalise import Value, normalise

STRATEGIES = ("answer_priority", "independent", "ref_priority", "union", "intersection", "majority", "first_non_blank")
RULES = [
    VoteRule(strategy=strategy, ignore_blank=ignore_blank) for strategy in STRATEGIES for ignore_blank in (True, False)
]
SIZES = (1, 3, 5, 7, 9, 11, 13, 15)
N_SUBSAMPLES = 32
WANTED_S, WANTED_RATIO = 10.0, 20.0
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "wattbot"


@dataclass
class Clock:
    """Sums of wall and CPU seconds."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def __enter__(self) -> Clock:
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s += time.perf_counter() - self._began[0]
        self.cpu_s += time.process_time() - self._began[1]


@dataclass
class Loop:
    """The plain loop's time, extrapolated size by size, and the votes compared."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    n_votes: int = 0
    n_all: int = 0
    n_different: int = 0

    @property
    def share(self) -> str:
        """The share of votes that was measured, in words."""
        return "all" if self.n_votes == self.n_all else f"from {self.n_votes / self.n_all:.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--loop", type=int, default=4)
    arguments = parser.parse_args()
    files = sorted(arguments.data.glob("predictions/*.csv"))
    if not files:
        print(f"skipped: there are no recorded runs in {arguments.data}/predictions")
        return 0
    setup, counting, marking, loop = Clock(), Clock(), Clock(), Loop()
    with setup:
        truth = read_submission(arguments.data / "train_QA.csv")
        table, units = ballots_of([read_submission(path) for path in files], list(truth.rows))
        pool = pool_ballots(table, units)
        marks = marks_of(pool, truth, find_metric("wattbot"))
    normal = {
        (ballot.answer_value, unit): normalise(ballot.answer_value, unit)
        for row, unit in zip(table, units, strict=True)
        for ballot in row
    } | {("", unit): normalise("", unit) for unit in units}
    scores = {}
    for size in SIZES:
        with counting:
            drawn = subsamples(len(files), size, N_SUBSAMPLES, seed=size)
            outcomes = vote_pool(pool, drawn, RULES)
        with marking:
            scores[size] = score_of(marks.score(outcomes))
        run_loop(loop, table, units, normal, pool, drawn, outcomes, arguments.loop)
    print(f"{len(files)} recorded runs, {pool.n_questions} questions, {len(pool.chains)} with chained tolerances")
    print_scores(scores, pool, marks)
    return report(setup, counting, marking, loop)


def score_of(parts: PartScores) -> np.ndarray:
    """Shape ``(rules, subsamples)``, or ``(rules,)`` of an expectation."""
    return find_metric("wattbot").weigh({name: part.mean(1) for name, part in parts.items()})


def run_loop(
    loop: Loop,
    table: Sequence[Sequence[Ballot]],
    units: Sequence[str],
    normal: Mapping[tuple[str, str], Value],
    pool: Pool,
    drawn: np.ndarray,
    outcomes: Outcomes,
    step: int,
) -> None:
    """Vote one by one on every ``step``-th pair of rule and subsample, and compare the outcomes."""
    pairs = [(rule, draw) for rule in range(len(RULES)) for draw in range(len(drawn))]
    chosen = pairs[::step]
    casts = [[[row[member] for member in drawn[draw]] for row in table] for _, draw in chosen]
    clock = Clock()
    with patch("kohaku_ray.values.normalise.normalise", lambda value, unit: normal[value, unit]), clock:
        verdicts = [
            [vote(cast, RULES[rule], unit) for cast, unit in zip(row, units, strict=True)]
            for (rule, _), row in zip(chosen, casts, strict=True)
        ]
    loop.wall_s += clock.wall_s * len(pairs) / len(chosen)
    loop.cpu_s += clock.cpu_s * len(pairs) / len(chosen)
    loop.n_all += len(pairs) * len(table)
    for (rule, draw), row in zip(chosen, verdicts, strict=True):
        loop.n_votes += len(row)
        loop.n_different += sum(
            not same_verdict(pool, question, verdict, outcomes, (rule, question, draw))
            for question, verdict in enumerate(row)
        )


def same_verdict(
    pool: Pool, question: int, verdict: Verdict, outcomes: Outcomes, position: tuple[int, int, int]
) -> bool:
    blank = bool(outcomes.is_blank[position])
    value = "" if blank else pool.spellings[question][outcomes.spelling[position]]
    refs = frozenset(ref.lower() for ref in verdict.ref_ids)
    return (verdict.is_blank, verdict.answer_value, refs) == (
        blank,
        value,
        pool.refs_of(question, outcomes.words[position]),
    )


def print_scores(scores: Mapping[int, np.ndarray], pool: Pool, marks: Marks) -> None:
    """The WattBot score of ``answer_priority`` by size: mean ± sd over subsamples, and exactly where countable."""
    chosen = [
        VoteRule(strategy="answer_priority", ignore_blank=True),
        VoteRule(strategy="answer_priority", ignore_blank=False),
    ]
    columns = [RULES.index(rule) for rule in chosen]
    print(f"\n{'answer_priority':<17}{'blanks ignored':^26}{'blanks vote':^26}")
    print(f"{'size':>4}{'':<13}" + f"{'mean ± sd':<16}{'exact':<10}" * 2)
    for size, score in scores.items():
        exact = ["–", "–"]
        if math.comb(pool.n_members, size) <= MOST_SUBSAMPLES:
            exact = [f"{mean:.4f}" for mean in score_of(expected_score(pool, size, chosen, marks))]
        cells = [
            f"{score[column].mean():.4f} ± {score[column].std(ddof=1):.4f} {text:<10}"
            for column, text in zip(columns, exact, strict=True)
        ]
        print(f"{size:>4}{'':<13}{''.join(cells)}".rstrip())


def report(setup: Clock, counting: Clock, marking: Clock, loop: Loop) -> int:
    """Print the times and the ratio; 1 if a target is missed or a cell differs."""
    study = Clock(counting.wall_s + marking.wall_s, counting.cpu_s + marking.cpu_s)
    total_s = setup.wall_s + study.wall_s
    ratio, cpu_ratio = loop.wall_s / study.wall_s, loop.cpu_s / study.cpu_s
    print(f"\n{'':<44}{'wall s':>9}{'CPU s':>9}")
    for name, clock in (
        ("reading and normalising", setup),
        ("drawing and counting", counting),
        ("scoring", marking),
        (f"loop over vote(), no scoring, {loop.share}", loop),
    ):
        print(f"{name:<44}{clock.wall_s:>9.3f}{clock.cpu_s:>9.3f}")
    print(f"total {total_s:.2f} s (target < {WANTED_S:.0f} s)")
    print(f"loop / (counting + scoring): {ratio:.0f} in wall, {cpu_ratio:.0f} in CPU (target ≥ {WANTED_RATIO:.0f})")
    print(f"{loop.n_different} of {loop.n_votes} votes compared differ")
    return 0 if total_s < WANTED_S and ratio >= WANTED_RATIO and not loop.n_different else 1


if __name__ == "__main__":
    sys.exit(main())
