"""Count the calls that early_stop saves: the recorded runs are members of an ensemble that answers in waves.

    python benchmarks/decide.py [--data ../shared/data]

Seven strategies, blanks ignored or not, 32 subsamples of three sizes, early_stop value and row, default waves. A
question ends with the first wave that settles it; its outcome is compared with the vote of all its members. The bound
holds for unanimous members: only the first wave, a bare majority, is called. Default of --data: KOHAKU_DATA.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
from vote import N_SUBSAMPLES, RULES
from vote import ballots_of as counted_ballots_of

from kohaku_ray.ensemble.decide import Stop, default_waves, settled
from kohaku_ray.ensemble.study import subsamples
from kohaku_ray.ensemble.vote import Ballot, Verdict, VoteRule, vote
from kohaku_ray.evaluation.submissions import Submission, read_submission

SIZES = (5, 9, 15)
STOPS: tuple[Stop, ...] = ("value", "row")
WANTED_SAVING, WANTED_SIZE, WANTED_RULE = 0.25, 9, VoteRule(strategy="answer_priority", ignore_blank=True)
WANTED_S = 1e-3  # a call of settled, at any size here
DATA = Path(os.environ.get("KOHAKU_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


@dataclass
class Tally:
    """Calls saved by one rule and early_stop over all questions and subsamples of a size."""

    n_calls: int = 0
    n_members: int = 0
    n_outcomes: int = 0
    n_changed: int = 0
    seconds: list[float] = field(default_factory=list)
    """Seconds per call of ``settled``."""

    @property
    def saving(self) -> float:
        """The share of calls saved."""
        return 1 - self.n_calls / self.n_members


Tallies = dict[tuple[int, VoteRule, Stop], Tally]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--subsamples", type=int, default=N_SUBSAMPLES, help="of each size")
    arguments = parser.parse_args()
    folder = arguments.data / "wattbot"
    files = sorted(folder.glob("predictions/*.csv"))
    if not files:
        print(f"skipped: there are no recorded runs in {folder}/predictions")
        return 0
    keys = list(read_submission(folder / "train_QA.csv").rows)
    table, units = ballots_of([read_submission(path) for path in files], keys)
    print(f"{len(files)} recorded runs, {len(table)} questions, {arguments.subsamples} subsamples of each size")
    tallies: Tallies = {}
    for size in SIZES:
        drawn = subsamples(len(files), size, arguments.subsamples, seed=size)
        for rule in RULES:
            tallies.update(run(table, units, drawn, rule))
    print_savings(tallies)
    return report(tallies)


def ballots_of(files: Sequence[Submission], keys: Sequence[str]) -> tuple[list[list[Ballot]], list[str]]:
    """The ballots that ``vote.py`` counts, with everything a row shows of them."""
    table, units = counted_ballots_of(files, keys)
    rows = [[file.rows.get(key) for file in files] for key in keys]
    return [
        [
            replace(
                member_ballots, answer=answer.answer, answer_unit=answer.answer_unit, explanation=answer.explanation
            )
            if answer
            else member_ballots
            for member_ballots, answer in zip(ballots, row, strict=True)
        ]
        for ballots, row in zip(table, rows, strict=True)
    ], units


def run(table: Sequence[Sequence[Ballot]], units: Sequence[str], drawn: np.ndarray, rule: VoteRule) -> Tallies:
    """Let every subsample answer every question in waves."""
    size = drawn.shape[1]
    tallies: Tallies = {(size, rule, stop): Tally() for stop in STOPS}
    for row, unit in zip(table, units, strict=True):
        for members in drawn:
            cast = [row[member] for member in members]
            full = vote(cast, rule, unit)
            for stop in STOPS:
                tally = tallies[size, rule, stop]
                n_calls = calls(cast, rule, stop, unit, tally.seconds)
                tally.n_calls += n_calls
                tally.n_members += size
                tally.n_outcomes += 1
                tally.n_changed += not same_outcome(stop, vote(cast[:n_calls], rule, unit), full)
    return tallies


def calls(cast: Sequence[Ballot], rule: VoteRule, stop: Stop, unit: str, seconds: list[float]) -> int:
    """Count the members called before the question is settled."""
    for n_calls in accumulate(default_waves(len(cast))):
        began = time.perf_counter()
        done = settled(cast[:n_calls], len(cast), rule, stop, unit)
        seconds.append(time.perf_counter() - began)
        if done:
            break
    return n_calls


def same_outcome(stop: Stop, so_far: Verdict, full: Verdict) -> bool:
    if stop == "row":
        return written(so_far) == written(full)
    if so_far.is_blank or full.is_blank:
        return so_far.is_blank == full.is_blank
    return any({so_far.winner, full.winner} <= set(group.members) for group in full.groups)


def written(verdict: Verdict) -> tuple[object, ...]:
    """Everything the row shows, and the winning members."""
    shown = (verdict.winner, verdict.answer, verdict.answer_unit, verdict.explanation)
    return (verdict.answer_value, verdict.is_blank, verdict.ref_ids, *shown)


def print_savings(tallies: Tallies) -> None:
    """Print the share of calls saved, one line per rule, and the bound."""
    print(f"\n{'calls saved':<28}" + "".join(f"{f'm = {size}':^20}" for size in SIZES).rstrip())
    print(f"{'':<18}{'blanks':<10}" + "".join(f"{stop:>10}" for _ in SIZES for stop in STOPS))
    for rule in RULES:
        cells = "".join(f"{tallies[size, rule, stop].saving:>10.1%}" for size in SIZES for stop in STOPS)
        print(f"{rule.strategy:<18}{'ignored' if rule.ignore_blank else 'vote':<10}{cells}")
    print(f"{'members who agree':<28}" + "".join(f"{bound(size):>10.1%}{'':>10}" for size in SIZES).rstrip())


def bound(size: int) -> float:
    """The share of calls saved if all members agree."""
    return (size - default_waves(size)[0]) / size


def report(tallies: Tallies) -> int:
    """Print the saving, the cost of a call and the changed outcomes against their targets; 1 if one is missed."""
    saving = tallies[WANTED_SIZE, WANTED_RULE, "value"].saving
    n_changed = sum(tally.n_changed for tally in tallies.values())
    n_outcomes = sum(tally.n_outcomes for tally in tallies.values())
    seconds = np.concatenate([tally.seconds for tally in tallies.values()])
    waves = ",".join(map(str, default_waves(WANTED_SIZE)))
    print(
        f"\nanswer_priority, blanks ignored, early_stop: value, m = {WANTED_SIZE}, waves {waves}: "
        f"{saving:.1%} of calls saved (target ≥ {WANTED_SAVING:.0%}, bound {bound(WANTED_SIZE):.1%})"
    )
    median_s, late_s = np.quantile(seconds, [0.5, 0.99])
    print(
        f"a call of settled: median {median_s * 1e6:.0f} µs, 99 % within {late_s * 1e6:.0f} µs "
        f"(target < {WANTED_S * 1e6:.0f} µs), {len(seconds)} calls"
    )
    print(f"{n_changed} of {n_outcomes} outcomes changed (target 0)")
    return 0 if not n_changed and saving >= WANTED_SAVING and late_s < WANTED_S else 1


if __name__ == "__main__":
    sys.exit(main())
