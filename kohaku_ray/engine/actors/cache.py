"""An index that repeats no encoding and no search: for runs that ask the same of it, such as the cells of a sweep."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from kohaku_ray.arrays import F32
from kohaku_ray.engine.actors.tools import LocalIndex, Tokenizer
from kohaku_ray.index.hits import Hits
from kohaku_ray.tree.nodes import NodeTable

Item = TypeVar("Item")
Result = TypeVar("Result")

REMEMBERED = 20_000
"""Vectors and result lists that are kept: some 30 MB each."""

NEIGHBOURHOODS = 2_000
"""Texts around matches that are kept: some tens of kilobytes each."""


@dataclass(frozen=True, slots=True)
class Depths:
    """How deep the runs that share an index search it.

    Attributes:
        dense: Most matches that any of them asks for a query.
        lexical: The same of BM25.
    """

    dense: int
    lexical: int


class Memo(Generic[Item, Result]):
    """Computes each item once, also when it is asked for again while it is being computed."""

    def __init__(self, compute: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]], n_kept: int) -> None:
        """Remember results.

        Args:
            compute: Takes items, returns one result an item in their order.
            n_kept: Results kept; those longest unused go first.
        """
        self._compute, self._n_kept = compute, n_kept
        self._known: OrderedDict[Hashable, asyncio.Future[Result]] = OrderedDict()
        self.n_asked = self.n_computed = 0

    async def __call__(self, items: Sequence[Item], keys: Sequence[Hashable]) -> list[Result]:
        """Look items up by their keys; those that nobody asked for before are computed together."""
        self.n_asked += len(items)
        new: dict[Hashable, Item] = {}
        for item, key in zip(items, keys, strict=True):
            if key in self._known:
                self._known.move_to_end(key)
            else:
                new[key] = item
                self._known[key] = asyncio.get_running_loop().create_future()
        waiting = [self._known[key] for key in keys]
        if new:
            await self._fill(new)
        while len(self._known) > self._n_kept:
            self._known.popitem(last=False)
        return [await future for future in waiting]

    async def _fill(self, new: dict[Hashable, Item]) -> None:
        futures = [self._known[key] for key in new]
        try:
            results = await self._compute(list(new.values()))
        except BaseException as error:
            # Nobody remembers a failure: who asks next tries again.
            for key, future in zip(new, futures, strict=True):
                self._known.pop(key, None)
                future.set_exception(error)
                future.exception()  # seen, though nobody may wait for it
            raise
        self.n_computed += len(new)
        for future, result in zip(futures, results, strict=True):
            future.set_result(result)


class RememberingIndex:
    """``IndexSource`` before another one: a query is encoded once and searched once, at the depth of the deepest run.

    A search of an exact index is the beginning of every deeper one, so one serves all; of another index, only the same
    depth is shared.
    """

    def __init__(self, index: LocalIndex, depths: Depths) -> None:
        self._index, self._depths = index, depths
        self._embed: Memo[str, F32] = Memo(index.embed, REMEMBERED)  # type: ignore[arg-type]
        self._search: Memo[tuple[F32, int], Hits] = Memo(self._search_all, REMEMBERED)
        self._lexical: Memo[tuple[str, int], Hits] = Memo(self._lexical_all, REMEMBERED)
        self._nodes: Memo[Any, NodeTable] = Memo(self._nodes_each, NEIGHBOURHOODS)

    async def embed(self, texts: Sequence[str]) -> F32:
        """See ``Tools``."""
        return np.stack(await self._embed(texts, texts))

    async def search(self, vectors: F32, top_k: int) -> list[Hits]:
        """See ``Tools``."""
        depth = max(top_k, self._depths.dense) if self._index.is_exact else top_k
        found = await self._search([(vector, depth) for vector in vectors], [(row.tobytes(), depth) for row in vectors])
        return [hits.prefix(top_k) for hits in found]

    async def lexical(self, queries: Sequence[str], top_k: int) -> list[Hits]:
        """See ``Tools``."""
        asked = [(query, max(top_k, self._depths.lexical)) for query in queries]
        return [hits.prefix(top_k) for hits in await self._lexical(asked, asked)]

    async def nodes(
        self, rows: Sequence[int], section_tokens: int, tokenizers: tuple[Tokenizer, ...] = ()
    ) -> NodeTable:
        """See ``IndexSource``."""
        asked = (tuple(rows), section_tokens, tokenizers)
        return (await self._nodes([asked], [asked]))[0]

    async def prompt_tokens(self, tokenizer: str, revision: str | None, system: str, user: str) -> int:
        """See ``IndexSource``."""
        return await self._index.prompt_tokens(tokenizer, revision, system, user)

    def counts(self) -> dict[str, tuple[int, int]]:
        """How many were asked for and how many of them computed, by what they are."""
        memos: dict[str, Memo[Any, Any]] = {
            "queries encoded": self._embed,
            "queries searched": self._search,
            "queries by BM25": self._lexical,
        }
        return {name: (memo.n_asked, memo.n_computed) for name, memo in memos.items()}

    async def _search_all(self, asked: Sequence[tuple[F32, int]]) -> list[Hits]:
        return await self._index.search(np.stack([vector for vector, _ in asked]), asked[0][1])

    async def _lexical_all(self, asked: Sequence[tuple[str, int]]) -> list[Hits]:
        return await self._index.lexical([query for query, _ in asked], asked[0][1])

    async def _nodes_each(self, asked: Sequence[Any]) -> list[NodeTable]:
        return [await self._index.nodes(*arguments) for arguments in asked]
