"""A replica: answers the requests of a question in one call, each in its place, and measures what each uses."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

from kohaku_ray.errors import (
    ContextOverflowError,
    DataError,
    KohakuRayError,
    ModelError,
    RefusedAccessError,
    TransientModelError,
    message_of,
)
from kohaku_ray.models.meter import Meter
from kohaku_ray.models.places import Places
from kohaku_ray.models.request import ChatRequest, ask_until_finished, request_key
from kohaku_ray.records import Reply
from kohaku_ray.values.read import clean_text

TELL_EVERY_S = 0.5
"""Longest time that a reply waits for its siblings' before a ledger's shard is told of it."""

_ERRORS = {
    error.__name__: error for error in (ContextOverflowError, RefusedAccessError, TransientModelError, ModelError)
}


class ReplicaLostError(KohakuRayError):
    """A replica died during a call; another replica may answer it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An error as a value: it crosses process boundaries without a stack trace in its text."""

    kind: str  # name of the error's class
    message: str

    def raise_(self) -> NoReturn:
        """Raise the error with its own class."""
        raise {**_ERRORS, "DataError": DataError}.get(self.kind, ModelError)(self.message)

    @classmethod
    def of(cls, error: ModelError) -> Refused:
        """Build it from a backend's error."""
        kind = next(kind for kind, known in _ERRORS.items() if isinstance(error, known))
        return cls(kind, clean_text(message_of(error)))


CallOutcome = tuple[Reply | Refused, float]
"""A reply, or the error in its place, and the seconds until it was there."""

TellShard = Callable[[str, Mapping[str, CallOutcome]], Awaitable[object]]
"""Tells a ledger's shard, by its name, of outcomes by their calls' keys."""


class Replica:
    """Answers the requests of a question, which have one prompt, in one call.

    Attributes:
        meter: Measures what each call uses.
    """

    def __init__(
        self,
        chat: Callable[[ChatRequest], Awaitable[Reply]],
        max_ongoing: int,
        gpus: float = 0,
        tell: TellShard | None = None,
        tell_every_s: float | None = None,
    ) -> None:
        """Answer ``max_ongoing`` requests at once by ``chat``, on ``gpus``; the others wait by their priority.

        ``tell`` sends a ledger's shard the outcomes that are there, every ``tell_every_s``.
        """
        self.meter = Meter(gpus)
        self._chat, self._places, self._tell_shard = chat, Places(max_ongoing), tell
        self._tell_every_s = TELL_EVERY_S if tell_every_s is None else tell_every_s

    async def ask(self, requests: Sequence[ChatRequest], shard: str | None = None) -> list[CallOutcome]:
        """Answer requests at once; the ledger's ``shard`` is told early of replies that others outlast.

        Raises:
            ReplicaLostError: The replica is lost; another may answer them.
        """
        calls, telling = [asyncio.ensure_future(self._answer(request)) for request in requests], None
        if shard is not None and self._tell_shard is not None and len(calls) > 1:
            telling = asyncio.ensure_future(self._tell(functools.partial(self._tell_shard, shard), requests, calls))
        try:
            return await asyncio.gather(*calls)
        finally:
            if telling is not None:
                telling.cancel()

    async def _answer(self, request: ChatRequest) -> CallOutcome:
        began = time.perf_counter()
        outcome: Reply | Refused
        try:
            outcome = await ask_until_finished(self._measure, request)
        except ModelError as error:
            outcome = Refused.of(error)
        except ReplicaLostError:
            raise
        except Exception as error:
            outcome = Refused.of(ModelError(f"{request.model}: the backend broke: {message_of(error)}"))
        return outcome, time.perf_counter() - began

    async def _measure(self, request: ChatRequest) -> Reply:
        async with self._places.hold_place(request.priority):
            with self.meter.measure_call() as use:
                reply = await self._chat(request)
        return replace(reply, service_s=use.service_s, gpu_s=use.gpu_s, joules=use.joules)

    async def _tell(
        self,
        tell: Callable[[Mapping[str, CallOutcome]], Awaitable[object]],
        requests: Sequence[ChatRequest],
        calls: Sequence[asyncio.Future[CallOutcome]],
    ) -> None:
        """Send the outcomes that are there to a shard: a call outlasts its siblings by minutes, in batches by hours."""
        left = dict(zip(map(request_key, requests), calls, strict=True))
        while left:
            await asyncio.wait(left.values(), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(self._tell_every_s)
            ended = [key for key, call in left.items() if call.done() and not call.exception()]
            outcomes = {key: left.pop(key).result() for key in ended}
            if outcomes:
                with suppress(Exception):  # it gets them again with the others'
                    await tell(outcomes)
