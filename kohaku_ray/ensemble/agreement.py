"""Member weights without labels: a member that agrees with the consensus weighs more."""

from __future__ import annotations

import numpy as np

from kohaku_ray.index.arrays import F64, I64, Mask


def agreement_weights(groups: I64) -> F64:
    """Weigh members by how well each agrees with the weighted consensus (Dawid–Skene in its simplest form).

    Weights start equal. A question's consensus is its heaviest group, ties to the lowest group index (the group of the
    earliest member, as ``group_values`` numbers them). A member's weight is its smoothed rate of agreement,
    (agreed + 1) / (voted + 2). The two steps are repeated until the consensus no longer changes. If it returns to
    an earlier state instead, the weights of that state are final, so the result is always defined and deterministic.

    Args:
        groups: Shape ``(questions, members)``; group index of each member's answer, -1 where it did not vote.

    Returns:
        Shape ``(members,)``; positive, of mean 1.
    """
    n_questions, n_members = groups.shape
    weights: F64 = np.ones(n_members)
    voted = groups >= 0
    seen: set[bytes] = set()
    while True:
        consensus = _consensus(groups, voted, weights)
        agreed = (voted & (groups == consensus[:, None])).sum(axis=0)
        weights = (agreed + 1) / (voted.sum(axis=0) + 2)
        weights = weights / weights.mean() if n_members else weights
        if consensus.tobytes() in seen or not n_questions:
            return weights
        seen.add(consensus.tobytes())


def _consensus(groups: I64, voted: Mask, weights: F64) -> I64:
    """Find each question's heaviest group: shape ``(questions,)``."""
    n_questions, n_groups = len(groups), int(groups.max(initial=-1)) + 1
    if n_groups == 0:
        return np.full(n_questions, -1, dtype=np.int64)
    cells = (np.arange(n_questions)[:, None] * n_groups + groups)[voted]
    share = np.broadcast_to(weights, groups.shape)[voted]
    votes = np.bincount(cells, share, n_questions * n_groups).reshape(n_questions, n_groups)
    # sums in another order may differ in the last bits: rounding keeps ties
    consensus: I64 = np.argmax(votes.round(9), axis=1).astype(np.int64)
    return consensus
