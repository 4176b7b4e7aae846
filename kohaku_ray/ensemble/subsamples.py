"""Draw the members of a study's smaller ensembles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, product

import numpy as np

from kohaku_ray.errors import ConfigError
from kohaku_ray.index.arrays import I64

Bounds = tuple[int, int]

_ATTEMPTS = 100  # draws per wanted subsample before the search for more ends


def subsamples(n_members: int, size: int, n: int, seed: int, strata: Sequence[str] | None = None) -> I64:
    """Draw distinct subsamples of a pool's members; all of them where there are at most ``n``.

    Sampling is systematic over the members in random order, stratum by stratum: every member is equally likely, and
    each stratum gives its proportional share, rounded down or up. The same arguments always give the same draws.

    Args:
        n_members: Members in the pool, M.
        size: Members in a subsample, m.
        n: Subsamples wanted.
        seed: Seed of the draws.
        strata: Stratum of each member, such as its model; None: all subsamples are equally likely.

    Returns:
        Shape ``(S, m)`` with S ≤ n; member indices, each row ascending, no two rows alike.

    Raises:
        ConfigError: The size is not between 1 and M, ``n`` is not positive, or the strata are not one per member.
    """
    _check(n_members, size, n, strata)
    blocks = _blocks(strata if strata is not None else [""] * n_members)
    bounds = [(size * len(block) // n_members, -(-size * len(block) // n_members)) for block in blocks]
    if _count(blocks, bounds, size) <= n:
        return np.array(sorted(_every(blocks, bounds, size)), dtype=np.int64)
    rng = np.random.default_rng(seed)
    drawn: dict[tuple[int, ...], None] = {}
    for _ in range(_ATTEMPTS * n):
        drawn.setdefault(_draw(rng, blocks, n_members, size))
        if len(drawn) == n:
            break
    return np.array(list(drawn), dtype=np.int64)


def _check(n_members: int, size: int, n: int, strata: Sequence[str] | None) -> None:
    if not 1 <= size <= n_members:
        raise ConfigError(
            f"A subsample of {size} members cannot be drawn from {n_members}: choose a size from 1 to {n_members}."
        )
    if n < 1:
        raise ConfigError(f"{n} subsamples are asked for: ask for at least one.")
    if strata is not None and len(strata) != n_members:
        raise ConfigError(f"There are {len(strata)} strata but {n_members} members: name one per member.")


def _blocks(strata: Sequence[str]) -> list[list[int]]:
    blocks: dict[str, list[int]] = {}
    for member, stratum in enumerate(strata):
        blocks.setdefault(stratum, []).append(member)
    return list(blocks.values())


def _count(blocks: Sequence[Sequence[int]], bounds: Sequence[Bounds], size: int) -> int:
    """Count the subsamples in which every stratum has its proportional share."""
    ways = {0: 1}
    for block, (low, high) in zip(blocks, bounds, strict=True):
        longer: dict[int, int] = {}
        for taken, count in ways.items():
            for more in range(low, high + 1):
                longer[taken + more] = longer.get(taken + more, 0) + count * math.comb(len(block), more)
        ways = longer
    return ways[size]


def _every(blocks: Sequence[Sequence[int]], bounds: Sequence[Bounds], size: int) -> Iterator[tuple[int, ...]]:
    for shares in _shares(bounds, size):
        for parts in product(*(combinations(block, share) for block, share in zip(blocks, shares, strict=True))):
            yield tuple(sorted(member for part in parts for member in part))


def _shares(bounds: Sequence[Bounds], size: int) -> Iterator[tuple[int, ...]]:
    """List the ways to round the strata's shares so that they make up the size."""
    if not bounds:
        yield ()
        return
    (low, high), rest = bounds[0], bounds[1:]
    least, most = sum(below for below, _ in rest), sum(above for _, above in rest)
    for share in range(low, high + 1):
        if least <= size - share <= most:
            yield from ((share, *others) for others in _shares(rest, size - share))


def _draw(rng: np.random.Generator, blocks: Sequence[Sequence[int]], n_members: int, size: int) -> tuple[int, ...]:
    """Take every (M / m)-th member of the strata in random order, from a random start, in whole numbers."""
    order = np.concatenate([rng.permutation(blocks[index]) for index in rng.permutation(len(blocks))])
    positions = (rng.integers(n_members) + n_members * np.arange(size)) // size
    return tuple(sorted(order[positions].tolist()))
