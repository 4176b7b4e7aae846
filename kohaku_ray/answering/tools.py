"""The ``Tools`` that a system gets: searches of an index, here or in another process, and calls of models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kohaku_ray.errors import ConfigError, ContextOverflowError, ModelError, RefusedAccessError
from kohaku_ray.index.arrays import F32, F64, Hits
from kohaku_ray.index.identity import prompt_counter
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.terms import similarities
from kohaku_ray.index.views import IMAGE
from kohaku_ray.models.calls import Call, FailedCall, Model, chat_request, dollars
from kohaku_ray.models.prompts import Prompt, Prompts
from kohaku_ray.models.request import ChatRequest, PromptImage
from kohaku_ray.models.target import Target
from kohaku_ray.records import Reply
from kohaku_ray.runs.seeds import seed_of
from kohaku_ray.store.segments import LedgerReply
from kohaku_ray.store.storage import join_path
from kohaku_ray.systems.tools import Limits, Made

if TYPE_CHECKING:
    from kohaku_ray.answering.index_operations import IndexOperations, Tokenizer
    from kohaku_ray.config import Config

PROMPTS_KEPT = 10_000
"""Most prompts whose token counts a process caches: members share prompts."""

_PROMPT_TOKENS: dict[int, int] = {}

Shared = dict[Hashable, asyncio.Future[Any]]
"""What members with the same evidence share, by question and by what it is; made once."""


class LedgerClient(Protocol):
    """Answers requests: the ledger, one that refuses, or recorded replies alone."""

    async def ask(self, request: ChatRequest, target: Target, again: bool = False) -> LedgerReply:
        """Return the recorded reply to a request, or call the model.

        Args:
            request: What to ask; its key names the reply.
            target: Where the call goes, if it is made.
            again: Ignore a recorded reply, once per run and key: the call is made again and its reply replaces the
                recorded one for all runs. If the new call fails, the old reply stays.

        Raises:
            ModelError: The backend refused or failed for good.
            DataError: The ledger cannot be written.
        """
        ...


def observe_nothing(call: Call | FailedCall) -> None:
    """Ignore a call, where nobody collects metrics."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the steps of a run need to know about it; sent to each process once.

    Attributes:
        ledger: Calls the models.
        models: Per member, by role.
        targets: Where calls go, by deployment.
        again: The (question_id, member) whose recorded replies are asked again; member -1: the shared preparation.
        prompt_counter: Makes a function that counts a prompt's tokens, for a tokenizer's name and revision.
        observe: Is told of every call, for metrics.
        fatal: Errors of the executor, such as a lost process: they stop the run and are no question's own.
    """

    config: Config
    ledger: LedgerClient
    models: tuple[Mapping[str, Model], ...]
    prompts: Prompts
    targets: Mapping[str, Target] = field(default_factory=dict)
    again: frozenset[tuple[str, int]] = frozenset()
    prompt_counter: Callable[[str, str | None], Callable[[str, str], int]] = prompt_counter
    observe: Callable[[Call | FailedCall], None] = observe_nothing
    fatal: tuple[type[Exception], ...] = ()

    @property
    def tokenizers(self) -> tuple[Tokenizer, ...]:
        """Tokenizers of all models that answer: a text counts as the largest count over them."""
        models = self.config.answering_deployments.values()
        return tuple(
            dict.fromkeys((model.tokenizer, model.revision) for model in models if model.tokenizer is not None)
        )


@dataclass(slots=True)
class MemberTools:
    """``Tools`` of one question and one member: binds the seeds and records the calls."""

    index: IndexOperations
    context: RunContext
    question_id: str
    member: int
    again: bool = False  # whether to ask recorded calls again
    number: int = 0  # the question's
    calls: list[Call] = field(default_factory=list)  # those that were answered
    n_no_reply: int = 0  # model calls that got none; the next start makes them again
    refused: str = ""  # why a server refuses every call
    shared: Shared = field(default_factory=dict)  # what ``shared_by_members`` made

    @property
    def prompts(self) -> Prompts:
        """See ``Tools``."""
        return self.context.prompts

    async def shared_by_members(self, key: Hashable, make: Callable[[], Awaitable[Made]]) -> Made:
        """See ``Tools``."""
        models = self.context.models[self.member].items()
        counts = tuple(
            (role, model.identity, model.max_tokens, model.window_tokens, model.tokenizer, model.revision)
            for role, model in models
        )
        shared_key = self.question_id, counts, key
        if shared_key not in self.shared:
            self.shared[shared_key] = asyncio.ensure_future(make())
        made: Made = await self.shared[shared_key]
        return made

    def limits(self, role: str = "answer") -> Limits:
        """See ``Tools``."""
        model = self._model(role)
        return Limits(model.max_tokens, model.window_tokens)

    async def chat(
        self,
        prompt: Prompt,
        *,
        role: str = "answer",
        schema: Mapping[str, Any] | None = None,
        attempt: int = 0,
        max_tokens: int | None = None,
    ) -> Reply:
        """See ``Tools``."""
        model = self._model(role)
        seed = seed_of(self.context.config, self.question_id, self.member, attempt, role)
        # Older questions first: their contexts are in a replica's cache, which new ones would push out.
        request = chat_request(
            model, prompt, seed, schema, max_tokens, session_id=self.question_id, priority=self.number
        )
        began = time.perf_counter()
        try:
            asked = await self.context.ledger.ask(request, model.target, again=self.again)
        except ContextOverflowError:
            raise
        except ModelError as error:
            self.n_no_reply += 1
            if isinstance(error, RefusedAccessError):
                self.refused = self.refused or str(error)
            self.context.observe(FailedCall(model.deployment, role, type(error).__name__))
            raise
        reply = asked.entry.reply
        self.calls.append(
            Call(
                key=asked.key,
                role=role,
                attempt=attempt,
                source=asked.source,
                deployment=model.deployment,
                replica=reply.replica,
                prompt_tokens=reply.prompt_tokens,
                cached_tokens=reply.cached_tokens,
                completion_tokens=reply.completion_tokens,
                wait_s=time.perf_counter() - began,
                queue_s=max(asked.entry.call_s - reply.service_s, 0.0),
                service_s=reply.service_s,
                gpu_s=reply.gpu_s,
                joules=reply.joules,
                dollars=dollars(reply, model.price),
                note=reply.note,
                finish_reason=reply.finish_reason,
                least_tokens=request.least_tokens,
                served_model=reply.served_model,
                server=reply.server,
            )
        )
        self.context.observe(self.calls[-1])
        return reply

    async def prompt_tokens(self, prompt: Prompt, role: str = "answer") -> int | None:
        """See ``Tools``; counted in this process, where the prompt was rendered."""
        model = self._model(role)
        if model.tokenizer is None:
            return None
        key = hash((self.context.prompt_counter, model.tokenizer, model.revision, prompt.system, prompt.user))
        if key not in _PROMPT_TOKENS:
            if len(_PROMPT_TOKENS) >= PROMPTS_KEPT:
                _PROMPT_TOKENS.pop(next(iter(_PROMPT_TOKENS)))
            count = self.context.prompt_counter(model.tokenizer, model.revision)
            _PROMPT_TOKENS[key] = await asyncio.to_thread(count, prompt.system, prompt.user)
        return _PROMPT_TOKENS[key]

    def image(self, path: str, max_pixels: int) -> PromptImage:
        """See ``Tools``."""
        return PromptImage(join_path(self.context.config.index.path, path), max_pixels)

    async def embed(self, texts: Sequence[str], view: str | None = None) -> F32:
        """See ``Tools``."""
        has_own = self.context.config.index.image_encoder is not None
        of_images = has_own and view is not None and IMAGE in self._kinds(view)
        return _stacked(await self.index.embed(texts, of_images))

    async def search(self, view: str, vectors: F32, top_k: int, within: Sequence[str] | None = None) -> list[Hits]:
        """See ``Tools``."""
        return await self.index.search(list(vectors), self._kinds(view), top_k, _as_key(within))

    async def lexical(
        self, view: str, queries: Sequence[str], top_k: int, within: Sequence[str] | None = None
    ) -> list[Hits]:
        """See ``Tools``."""
        return await self.index.lexical(queries, self._kinds(view), top_k, _as_key(within))

    async def term_similarity(self, view: str, rows: Sequence[int]) -> F64:
        """See ``Tools``."""
        return similarities(await self.index.term_weights(list(map(int, rows)), self._kinds(view)))

    async def vectors(self, rows: Sequence[int]) -> F32:
        """See ``Tools``."""
        return _stacked(await self.index.vectors(list(map(int, rows))))

    async def rank_pairs(self, pairs: Sequence[tuple[str, str]]) -> F64:
        """See ``Tools``."""
        name = self.context.config.uses.cross_encoder
        if name is None:
            raise ConfigError(
                f"system {self.context.config.declaration.name} ranks pairs but its settings name no cross-encoder"
            )
        return np.array(await self.index.rank_pairs(pairs, self.context.targets[name]), np.float64)

    async def nodes(self, rows: Sequence[int], section_tokens: int = 0) -> NodeTable:
        """See ``Tools``."""
        [nodes] = await self.index.nodes([tuple(map(int, rows))], section_tokens, self.context.tokenizers)
        return nodes

    def _model(self, role: str) -> Model:
        models = self.context.models[self.member]
        if role not in models:
            raise ConfigError(
                f"system {self.context.config.declaration.name} asks role {role!r} but uses() says that it asks "
                f"{', '.join(models) or 'none'}: name the role there"
            )
        return models[role]

    def _kinds(self, view: str) -> tuple[str, ...]:
        views = self.context.config.declaration.views
        if view not in views:
            raise ConfigError(f"there is no view {view!r}: system declares {', '.join(views) or 'none'}")
        return views[view].kinds


def _stacked(vectors: Sequence[F32]) -> F32:
    return np.stack(vectors) if vectors else np.empty((0, 0), np.float32)


def _as_key(within: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if within is None else tuple(within)
