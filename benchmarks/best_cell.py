"""False positives among cells that are equal in truth: each is compared with the best, which was chosen by its score.

    python benchmarks/best_cell.py [--sweeps 100] [--cells 12] [--questions 41 282]

Cells of three seeds answer questions of unlike difficulty, every cell each question with the same probability. Shares
of the simulated sweeps in which some cell is told from the best are divided by the nominal 5 %: by the p corrected for
the choice of the best (the one that decides stars, and which cells are shown as told from the best), and by what stood
there until 0.1: Holm's correction with the best taken for fixed, and stars of Welch's uncorrected p over seeds. Then
the same of questions about 24 shared documents, with these as clusters and without, and how often the interval of one
difference holds the true one. Limit: a share of 5 % and twice its error for the corrected p.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from kohaku_ray.evaluation.paired import paired_bootstrap, paired_permutation, permute_against_best
from kohaku_ray.evaluation.statistics import welch
from kohaku_ray.index.arrays import F64

NOMINAL, N_SEEDS, N_RESAMPLES, N_DOCUMENTS = 0.05, 3, 499, 24


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=100)
    parser.add_argument("--cells", type=int, default=12)
    parser.add_argument("--questions", type=int, nargs="+", default=[41, 282])
    arguments = parser.parse_args()
    limit = (1.0 + 2.0 * math.sqrt((1.0 - NOMINAL) / (NOMINAL * arguments.sweeps))) * NOMINAL
    print(f"{arguments.sweeps} sweeps of {arguments.cells} equal cells; limit {limit / NOMINAL:.2f} × 5 %")
    print("| questions | any cell told from the best by | share of sweeps | × 5 % |")
    print("|---|---|---|---|")
    is_over = False
    for n in arguments.questions:
        for kind, simulate in (("", independent), ("; shared documents", clustered)):
            shares = simulate(np.random.default_rng(n), n, arguments.cells, arguments.sweeps)
            for name, share in shares.items():
                print(f"| {n}{kind} | {name} | {share:.3f} | {share / NOMINAL:.2f} |")
            is_over |= next(iter(shares.values())) > limit
    return int(is_over)


def independent(rng: np.random.Generator, n: int, n_cells: int, n_sweeps: int) -> Mapping[str, float]:
    """Simulate sweeps over questions that have nothing in common."""
    told: dict[str, list[bool]] = {}
    for _ in range(n_sweeps):
        scores = (rng.random((n_cells, N_SEEDS, n)) < rng.beta(0.8, 0.5, n)) * 1.0
        means = scores.mean(axis=1)
        best = int(means.mean(axis=1).argmax())
        others = [row for row in range(n_cells) if row != best]
        alone = [paired_permutation(means[row] - means[best], N_RESAMPLES).p or 0.0 for row in others]
        over_seeds = [welch(scores[row].mean(axis=1), scores[best].mean(axis=1)).p for row in others]
        for name, is_told in (
            ("p corrected for the choice", is_any_below(permute_against_best(means, best, None, N_RESAMPLES))),
            ("Holm, the best taken for fixed", min(alone) * len(alone) < NOMINAL),  # its first step
            ("Welch over seeds, uncorrected", is_any_below(over_seeds)),
        ):
            told.setdefault(name, []).append(is_told)
    return {name: float(np.mean(each)) for name, each in told.items()}


def clustered(rng: np.random.Generator, n: int, n_cells: int, n_sweeps: int) -> Mapping[str, float]:
    """Simulate sweeps over documents that several questions are about: a cell does well on one, or badly."""
    documents = np.sort(rng.integers(0, N_DOCUMENTS, n))
    names = [str(document) for document in documents]
    told: dict[str, list[bool]] = {}
    for _ in range(n_sweeps):
        skill = rng.normal(0.0, 1.5, (n_cells, documents.max() + 1))[:, documents]
        means = answers(rng, skill + rng.normal(0.5, 1.0, n))
        best = int(means.mean(axis=1).argmax())
        difference = means[0] - means[1]
        for name, clusters in (("documents as clusters", names), ("questions as independent", None)):
            p = permute_against_best(means, best, clusters, N_RESAMPLES)
            told.setdefault(f"p corrected for the choice, {name}", []).append(is_any_below(p))
            interval = paired_bootstrap(difference, 2 * N_RESAMPLES + 1, clusters)
            is_missed = interval.low is not None and not interval.low <= 0.0 <= (interval.high or 0.0)
            told.setdefault(f"interval of one difference, {name}", []).append(is_missed)
    return {name: float(np.mean(each)) for name, each in told.items()}


def answers(rng: np.random.Generator, ability: F64) -> F64:
    """Draw mean scores over seeds; shape ``(n_cells, n_questions)``."""
    right = rng.random((N_SEEDS, *ability.shape)) < 1.0 / (1.0 + np.exp(-ability))
    return np.asarray(right.mean(axis=0))


def is_any_below(p_values: Sequence[float | None]) -> bool:
    """Whether a p is below the nominal level."""
    return any(p is not None and p < NOMINAL for p in p_values)


if __name__ == "__main__":
    sys.exit(main())
