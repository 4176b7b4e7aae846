"""Servers behind an HTTP endpoint, for any thread: requests, retries and limits are those of ``models.openai``."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from kohaku_ray.errors import ConfigError, ContextOverflowError, ModelError
from kohaku_ray.index.arrays import F64
from kohaku_ray.index.chunks import cut_near
from kohaku_ray.index.settings import EndpointConfig
from kohaku_ray.models.openai import Limiter, OpenAIBackend, OpenAIConfig, TokenBucket
from kohaku_ray.settings import ServerSettings

T = TypeVar("T")


_STARTING = threading.Lock()


class Endpoint:
    """A server that any thread may ask: requests run in an event loop of their own, ``max_ongoing`` at once."""

    def __init__(
        self,
        settings: ServerSettings,
        base_url: str,
        model: str,
        max_ongoing: int,
        limiter: Limiter | None = None,
        key: str = "",
    ) -> None:
        """Check the address and the key.

        Args:
            settings: How the server is asked.
            base_url: Its address.
            model: Its model.
            max_ongoing: Requests in flight.
            limiter: Rate limit that other processes share. Default: the settings' own.
            key: Place of the settings in a configuration, for messages. Default: among the deployments.
        """
        self._key = key
        shared = {name: getattr(settings, name) for name in ServerSettings.model_fields}
        rates = (settings.requests_per_s, settings.tokens_per_minute)
        config = OpenAIConfig(base_url=base_url, model=model, **shared)
        self._server: OpenAIBackend = config.make_backend(limiter or TokenBucket(*rates))
        self.where = f"{model} at {self._server.shown_url}"
        self._places = asyncio.Semaphore(max_ongoing)

    @classmethod
    def of_encoder(cls, settings: EndpointConfig, limiter: Limiter | None = None) -> Endpoint:
        """Name the server of ``index.encoder``; a ``ConfigError`` if its address, a header or key cannot be used."""
        server = (settings.base_url, settings.model, settings.max_ongoing)
        try:
            return cls(settings, *server, limiter, "index.encoder")
        except ConfigError as error:
            raise ConfigError(f"index.encoder: {error}") from None

    @functools.cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="endpoint", daemon=True).start()
        return loop

    def _one_loop(self) -> asyncio.AbstractEventLoop:
        with _STARTING:  # since Python 3.12 a cached property has no lock: two threads would start two loops
            return self._loop

    async def post(self, path: str, fields: Mapping[str, Any], n_chars: int, read: Callable[[Any], T]) -> T:
        """See ``OpenAIBackend.post``."""
        async with self._places:
            try:
                return await self._server.post(path, fields, n_chars, read)
            except ModelError as error:
                text = str(error).replace("deployments.*", self._key or "deployments.*")
                raise type(error)(text if self._key in text else f"{self._key}: {text}") from None

    def gather(self, coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """Run coroutines together, from outside the loop; the first error ends the others."""

        async def run() -> list[T]:
            tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()

        return asyncio.run_coroutine_threadsafe(run(), self._one_loop()).result()


class EndpointRanker:
    """Scores pairs by ``/rerank``, in the shapes of TEI, vLLM, Jina and Cohere, as a ``CrossEncoder`` would."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        """Name the server and its model."""
        self._endpoint, self._model = endpoint, model
        self._texts = "documents"  # TEI's name is learnt from its refusal

    def predict(self, pairs: Sequence[tuple[str, str]], batch_size: int, **_: Any) -> F64:
        """Score (query, text) pairs: those of a query together, at most ``batch_size`` per request.

        Raises:
            ModelError: The server failed, or returned other than one score per text.
        """
        rows_of_query: dict[str, list[int]] = {}
        for position, (query, _text) in enumerate(pairs):
            rows_of_query.setdefault(query, []).append(position)
        blocks = [
            rows[start : start + batch_size]
            for rows in rows_of_query.values()
            for start in range(0, len(rows), batch_size)
        ]
        asked = (self._scores(pairs[rows[0]][0], [pairs[row][1] for row in rows]) for rows in blocks)
        scores = np.empty(len(pairs))
        for rows, block_scores in zip(blocks, self._endpoint.gather(asked), strict=True):
            scores[rows] = block_scores
        return scores

    async def _scores(self, query: str, texts: list[str]) -> list[float]:
        n_chars, named = sum(map(len, texts)) + len(query) * len(texts), self._texts
        fields = {"model": self._model, "query": query, named: texts}
        try:
            return await self._endpoint.post("rerank", fields, n_chars, functools.partial(self._read, len(texts)))
        except ContextOverflowError:
            if len(texts) == 1 and len(texts[0]) < 2:
                raise
        except ModelError as error:
            if named == "texts" or "`texts`" not in str(error):
                raise
            self._texts = "texts"
            return await self._scores(query, texts)
        if len(texts) == 1:  # cut, as a cross-encoder's own tokenizer cuts it
            return await self._scores(query, [cut_near(texts[0], len(texts[0]) // 2)[0]])
        half = len(texts) // 2
        return [*await self._scores(query, texts[:half]), *await self._scores(query, texts[half:])]

    def _read(self, n_texts: int, body: Any) -> list[float]:
        """Read the scores of a reply, which stand in any order, by their ``index``."""
        where = self._endpoint.where
        try:
            entries = body if isinstance(body, list) else (body.get("results") or body.get("data"))
            pairs = [
                (int(entry["index"]), float(entry.get("relevance_score", entry.get("score")))) for entry in entries
            ]
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
            raise ModelError(f"{where} returned no scores ({error}): is this a rerank endpoint (base_url)?") from None
        scores = dict(pairs)
        n_scored = len(scores.keys() & set(range(n_texts)))
        if len(pairs) != n_texts or n_scored != n_texts:
            raise ModelError(
                f"{where} returned scores of {n_scored} of {n_texts} texts: it must score all (top_n in extra_body)"
            )
        if not np.isfinite(list(scores.values())).all():
            raise ModelError(f"{where} returned a score that is no number: the model's number format may be too narrow")
        return [scores[position] for position in range(n_texts)]
