"""The actor that holds an index: it prepares evidence for runs, and searches for members."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import ray

from kohaku_ray.answering.block import PreparedQuestion, prepare_block
from kohaku_ray.answering.local_index import Depths, LocalIndex
from kohaku_ray.answering.tools import RunContext
from kohaku_ray.collection.indexes import searched_views
from kohaku_ray.config import Config
from kohaku_ray.engine.actors.members import RemoteIndex
from kohaku_ray.engine.serving.handles import rank_pairs
from kohaku_ray.engine.serving.limiter import limiter_of_encoder
from kohaku_ray.index.gpu import missing
from kohaku_ray.records import Question


class Retriever:
    """Holds an index or one of its shards, prepares blocks of questions of any run on it, and searches it for members.

    Retrievers of an index's shards ask each other: each takes blocks, and searches the shards of all.
    """

    def __init__(self, config: Config, depths: Depths | None = None, shard: int = 0, peers: Sequence[str] = ()) -> None:
        """Name an index, which is opened on first use; ``peers`` names a retriever per shard, among them this one."""
        self._config, self._depths, self._shard = config, depths, shard
        self._peer = functools.cache(lambda other: RemoteIndex(ray.get_actor(peers[other])))

    def ready(self) -> str:
        """Open the index now, on the GPU if it is searched there; raises what ``open_index`` does.

        Returns:
            Why `index.search_device: auto` has FAISS search on the CPU of a retriever that has a GPU, else empty.
        """
        why_on_cpu = self._index.open_views([view.kinds for view in searched_views(self._config)])
        if self._config.cluster.retriever.gpus and self._config.index.search_device == "auto" and (why := missing()):
            return f"index.search_device auto: FAISS searches on the CPU, since {why}"
        return why_on_cpu

    async def run(self, method: str, items: list[Any], params: tuple[Any, ...], alone: bool = False) -> list[Any]:
        """Run a method of ``LocalIndex``, on this retriever's shard ``alone`` or on all."""
        if alone:
            return await self._index.run_alone(method, items, params)
        results: list[Any] = await getattr(self._index, method)(items, *params)
        return results

    async def prepare(
        self, context: RunContext, questions: Sequence[Question], member: int, settled: Sequence[bool] | None = None
    ) -> list[PreparedQuestion | None]:
        """See ``prepare_block``."""
        return await prepare_block(context, self._index, questions, member, settled)

    def counts(self) -> Counter[tuple[str, str]]:
        """Count the items that the runs asked for and those that were computed: see ``BatchingObject.counted``."""
        return self._index.counted

    @functools.cached_property
    def _index(self) -> LocalIndex:
        config = self._config
        return LocalIndex.open(config, self._depths, self._shard, self._peer, rank_pairs, limiter_of_encoder(config))
