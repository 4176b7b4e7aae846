"""Access to an index: in this process, where concurrent calls share batches, or in a retriever actor."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

from kohaku_ray.config import Config
from kohaku_ray.engine.actors.batching import Batcher
from kohaku_ray.engine.actors.cache import Cache
from kohaku_ray.engine.actors.operations import OPERATIONS, Depths, OpenIndex, Operation, Params
from kohaku_ray.engine.serving.handles import rank_pairs
from kohaku_ray.index.layout import ShardLayout
from kohaku_ray.systems.base import Depth

PARAMS_KEPT = 64
"""Most parameter sets (such as documents to search within) whose batchers and caches are kept."""


class IndexAccess(Protocol):
    """Runs operations of ``OPERATIONS`` on an index."""

    async def run(self, name: str, items: Sequence[Any], params: Params = ()) -> list[Any]:
        """Run an operation: one result per item, in their order.

        Args:
            name: Key of ``OPERATIONS``.
            items: Its inputs.
            params: Its other arguments; calls with equal ``params`` share a batch.
        """
        ...


class LocalIndex:
    """The index in this process: concurrent calls run in batches, and cached results are not computed again."""

    def __init__(
        self, config: Config, depths: Depths | None = None, here: OpenIndex | None = None, shard: int = 0
    ) -> None:
        """Open the configured index.

        Args:
            config: Names the index and its encoder.
            depths: Depths of all runs that share the index: every search is as deep as the deepest, results are cached.
            here: An open index. Default: open the configured one.
            shard: Which of its shards.

        Raises:
            DataError: There is no usable index.
        """
        self._here = OpenIndex.of(config, rank_pairs, shard) if here is None else here
        self._depths = depths
        self._batchers: OrderedDict[tuple[str, Params], Batcher[Any, Any]] = OrderedDict()
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._caches: OrderedDict[tuple[str, Params], Cache[Any, Any]] = OrderedDict()
        self._counted: Counter[tuple[str, str]] = Counter()

    @property
    def layout(self) -> ShardLayout:
        """Where documents are among the index's shards."""
        return self._here.layout

    async def run(self, name: str, items: Sequence[Any], params: Params = ()) -> list[Any]:
        """See ``IndexAccess``."""
        operation = OPERATIONS[name]
        if not operation.n_kept or (self._depths is None and not operation.is_kept_locally):
            return await self._compute(name, operation, items, params)
        deep = self._deepest(operation, params)
        key = (name, deep)
        if key not in self._caches:
            self._caches[key] = Cache(lambda some: self._compute(name, operation, some, deep), operation.n_kept)
            if len(self._caches) > PARAMS_KEPT:
                self._count(*self._caches.popitem(last=False), self._counted)
        self._caches.move_to_end(key)
        names = items if operation.key is None else [operation.key(item) for item in items]
        found = await self._caches[key](items, names)
        return [hits.prefix(params[1]) for hits in found] if operation.depth else found

    def counts(self) -> Counter[tuple[str, str]]:
        """Count the items asked for and computed, by ``(Operation.counted, "asked" | "computed")``."""
        total = Counter(self._counted)
        for key, cache in self._caches.items():
            self._count(key, cache, total)
        return total

    def _count(self, key: tuple[str, Params], cache: Cache[Any, Any], total: Counter[tuple[str, str]]) -> None:
        if counted := OPERATIONS[key[0]].counted:
            total.update({(counted, "asked"): cache.n_asked, (counted, "computed"): cache.n_computed})

    def _deepest(self, operation: Operation, params: Params) -> Params:
        """Raise ``top_k`` to the deepest run's, if a shorter search is a prefix of a longer one."""
        if not operation.depth or self._depths is None or not operation.is_prefix(self._here, params):
            return params
        kinds, top_k, within = params
        most = getattr(self._depths.get(kinds, Depth()), operation.depth)
        return (kinds, max(top_k, most), within)

    async def _compute(self, name: str, operation: Operation, items: Sequence[Any], params: Params) -> list[Any]:
        if not operation.batch:
            result = operation.run(self._here, list(items), params)
            return list(await result if hasattr(result, "__await__") else result)
        key = (name, params)
        if key not in self._batchers:
            thread = self._threads.setdefault(name, ThreadPoolExecutor(1))
            self._batchers[key] = Batcher(
                lambda batch: operation.run(self._here, batch, params), operation.batch, thread
            )
            if len(self._batchers) > PARAMS_KEPT:
                self._batchers.popitem(last=False)  # calls in flight keep their own reference
        self._batchers.move_to_end(key)
        return await self._batchers[key](items)


class SpreadIndex:
    """An index of several shards: calls are divided among them."""

    def __init__(self, layout: ShardLayout, here: IndexAccess, of_shard: Callable[[int], IndexAccess]) -> None:
        """Combine shards.

        Args:
            layout: Where documents are among the shards.
            here: Any of them.
            of_shard: Returns one of them.
        """
        self._layout, self._here, self._of_shard = layout, here, of_shard

    async def run(self, name: str, items: Sequence[Any], params: Params = ()) -> list[Any]:
        """See ``IndexAccess``."""
        spread = OPERATIONS[name].spread
        if spread is None:
            return await self._here.run(name, items, params)
        shares = spread.divide(self._layout, items)
        asked = (self._of_shard(shard).run(name, some, params) for shard, (some, _) in shares.items())
        found: list[list[Any]] = [[] for _ in items]
        for (_, places), results in zip(shares.values(), await asyncio.gather(*asked), strict=True):
            for at, result in zip(places, results, strict=True):
                found[at].append(result)
        return [spread.join(parts, params) for parts in found]


class RemoteIndex:
    """The index that a retriever actor holds."""

    def __init__(self, retriever: Any, *, alone: bool = False) -> None:
        """Name a retriever.

        Args:
            retriever: Handle of the actor.
            alone: Ask its own shard only.
        """
        self._run = retriever.run_here if alone else retriever.run

    async def run(self, name: str, items: Sequence[Any], params: Params = ()) -> list[Any]:
        """See ``IndexAccess``."""
        results: list[Any] = await self._run.remote(name, list(items), params)
        return results


def united_depths(many: Sequence[Config]) -> Depths:
    """Return the greatest search depth per view over these runs."""
    found: dict[tuple[str, ...], Depth] = {}
    for config in many:
        for name, depth in config.uses.views.items():
            kinds = config.declaration.views[name].kinds
            there = found.get(kinds, Depth())
            found[kinds] = replace(
                there, dense=max(there.dense, depth.dense), lexical=max(there.lexical, depth.lexical)
            )
    return found
