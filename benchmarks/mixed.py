"""The effect of blank_quorum, refs: share and weights: agreement on mixed ensembles, paired by question.

    python benchmarks/mixed.py [--data ../shared/data/wattbot] [--subsamples 32]

Members are the 37 recorded runs of other models. Every setting votes over the same subsamples; a question's score is
its mean over them. Votes need no labels, the choice does: the last lines choose on all questions but one, and
score that one, for each question.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np

from kohaku_ray.ensemble.pool import pool_ballots
from kohaku_ray.ensemble.study import subsamples
from kohaku_ray.ensemble.vote import VoteRule, vote_pool
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.paired import paired_bootstrap, paired_differences, paired_permutation
from kohaku_ray.evaluation.statistics import holm
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.sweep.study import ballots_of, marks_of
from kohaku_ray.values.read import is_blank

SIZES = (5, 9, 15, 25)
QUORUMS = (None, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "wattbot"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--subsamples", type=int, default=32)
    arguments = parser.parse_args()
    files = sorted(arguments.data.glob("predictions/*.csv"))
    if not files:
        print(f"skipped: there are no recorded runs in {arguments.data}/predictions")
        return 0
    truth = read_submission(arguments.data / "train_QA.csv")
    table, units = ballots_of([read_submission(path) for path in files], list(truth.rows))
    pool = pool_ballots(table, units)
    marks = marks_of(pool, truth, find_metric("wattbot"))
    rules = [
        VoteRule(blank_quorum=quorum, refs=refs, weights=weights)
        for quorum, refs, weights in itertools.product(QUORUMS, ("set", "share"), ("uniform", "agreement"))
    ]
    providers = [path.stem.split("-")[0] for path in files]
    by_size = []
    for size in SIZES:
        drawn = subsamples(len(files), size, arguments.subsamples, seed=size, strata=providers)
        parts = marks.score(vote_pool(pool, drawn, rules))
        by_size.append(find_metric("wattbot").weigh(parts).mean(axis=2))
    scores = np.mean(by_size, axis=0)  # (rules, questions), equal weight per size
    n_blank = sum(is_blank(row.answer_value) for row in truth.rows.values())
    print(
        f"{len(files)} recorded runs, {pool.n_questions} questions ({n_blank} of them unanswerable), "
        f"ensembles of {', '.join(map(str, SIZES))}, {arguments.subsamples} subsamples each\n"
    )
    print_rules(rules, scores, by_size)
    print_held_out(rules, scores)
    return 0


def name_of(rule: VoteRule) -> str:
    parts = [f"quorum {rule.blank_quorum}" if rule.blank_quorum else "", rule.refs, rule.weights]
    named = [part for part in parts if part not in ("", "set", "uniform")]
    return " + ".join(named) or "default"


def print_rules(rules: list[VoteRule], scores: np.ndarray, by_size: list[np.ndarray]) -> None:
    order = np.argsort(-scores.mean(axis=1), kind="stable")
    differences = [paired_differences(row, scores[0]) for row in scores]
    ps = [paired_permutation(difference).p for difference in differences[1:]]
    corrected = [None, *holm(ps)]
    print(f"{'setting':<32}{'score':>7}{'- default':>11}{'95 % interval':>18}{'p':>8}{'Holm':>7}", end="")
    print("".join(f"{f'm = {size}':>9}" for size in SIZES))
    for number in order:
        interval = paired_bootstrap(differences[number])
        span = f"[{interval.low:+.3f}, {interval.high:+.3f}]" if interval.low is not None else ""
        p = f"{ps[number - 1]:.3f}" if number else ""
        held = f"{corrected[number]:.2f}" if number else ""
        print(f"{name_of(rules[number]):<32}{scores[number].mean():>7.4f}{differences[number].mean():>+11.4f}", end="")
        print(f"{span:>18}{p:>8}{held:>7}" + "".join(f"{part[number].mean():>9.3f}" for part in by_size))


def print_held_out(rules: list[VoteRule], scores: np.ndarray) -> None:
    """Choose on all questions but one, and score that one."""
    n = scores.shape[1]
    chosen = [int(np.argmax(np.delete(scores, question, axis=1).mean(axis=1))) for question in range(n)]
    held_out = scores[chosen, np.arange(n)]
    difference = paired_differences(held_out, scores[0])
    names = {name_of(rules[number]): chosen.count(number) for number in dict.fromkeys(chosen)}
    print(f"\nchosen without the question it is scored on: {names}")
    print(
        f"held out {held_out.mean():.4f}, default {scores[0].mean():.4f}: {difference.mean():+.4f}, "
        f"ratio {held_out.mean() / scores[0].mean():.3f}, permutation p {paired_permutation(difference).p:.3f}"
    )


if __name__ == "__main__":
    sys.exit(main())
