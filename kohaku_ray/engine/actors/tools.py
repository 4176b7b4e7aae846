"""``Tools`` as the engine backs it: the index in this process or an actor's, models through the ledger."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from kohaku_ray.arrays import F32, I64
from kohaku_ray.config import Config
from kohaku_ray.config.schema import PriceConfig
from kohaku_ray.engine.actors.batching import Batcher
from kohaku_ray.engine.ledger.client import Ledger
from kohaku_ray.engine.ledger.protocol import Source
from kohaku_ray.generation.prompts import Prompt, Prompts
from kohaku_ray.generation.request import ChatRequest
from kohaku_ray.generation.seeds import seed_for
from kohaku_ray.index.build import IndexSettings
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.hits import Hits
from kohaku_ray.index.identity import encoder_identity
from kohaku_ray.index.store import Index
from kohaku_ray.index.tokens import prompt_counter, token_counter
from kohaku_ray.records import Reply
from kohaku_ray.tree.nodes import KINDS, NodeTable

Role = Literal["plan", "answer"]

PROMPTS_REMEMBERED = 10_000
"""Prompts whose token counts are kept."""

QUERIES_AT_ONCE = 1024
"""Queries encoded together: the more there are, the fuller the fixed shapes they are encoded in."""


@dataclass(frozen=True, slots=True)
class Model:
    """What plays a role: where it is asked, and how.

    Attributes:
        application: Serve application.
        identity: Its name in the ledger's keys.
        temperature: Sampling temperature.
        top_p: Nucleus sampling.
        max_tokens: Longest reply, in tokens.
        window_tokens: Longest prompt plus reply, in tokens.
        reads_prose: Whether the prompt's text is enough; else its variables travel too.
        deployment: Key of its deployment.
        tokenizer: What counts its prompts; None: nothing here does.
        revision: Revision of the tokenizer on the hub.
        price: What it costs.
    """

    application: str
    identity: str
    temperature: float
    top_p: float
    max_tokens: int
    window_tokens: int
    reads_prose: bool
    deployment: str
    tokenizer: str | None
    revision: str | None
    price: PriceConfig


@dataclass(frozen=True, slots=True)
class Call:
    """One model call as usage.parquet records it; never part of the outputs that are compared.

    Attributes:
        key: What its reply is recorded under in the ledger: equal keys are one call.
        role: What the model was asked for.
        attempt: Which attempt of the answer, from 0.
        source: Whether this run made the call.
        deployment: Who was asked.
        replica: Which of its replicas answered.
        prompt_tokens: Tokens of the prompt.
        cached_tokens: How many of them came from the prefix cache.
        completion_tokens: Generated tokens.
        wait_s: Seconds this run waited for the reply.
        queue_s: Seconds the call, when it was made, waited for a replica to take it.
        service_s: Seconds it was in the replica.
        gpu_s: GPU seconds it used there.
        joules: Energy of these; None where nobody measures it.
        dollars: Price of the call by the deployment's price table, whoever made it.
    """

    key: str
    role: Role
    attempt: int
    source: Source
    deployment: str
    replica: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    wait_s: float
    queue_s: float
    service_s: float
    gpu_s: float
    joules: float | None
    dollars: float


Tokenizer = tuple[str, str | None]
"""Name and revision of what counts tokens."""


@dataclass(frozen=True, slots=True)
class Setup:
    """All that the actors need to know of one run: sent once, by reference.

    Attributes:
        config: The run's configuration.
        ledger: Asks the models.
        models: By member, what plays each role.
        prompts: Templates of the run.
    """

    config: Config
    ledger: Ledger
    models: tuple[Mapping[Role, Model], ...]
    prompts: Prompts

    @property
    def tokenizers(self) -> tuple[Tokenizer, ...]:
        """Tokenizers of all models that answer: a text counts what most of them makes of it."""
        there = self.config.answering_deployments.values()
        return tuple(dict.fromkeys((each.tokenizer, each.revision) for each in there if each.tokenizer is not None))


class IndexSource(Protocol):
    """The part of ``Tools`` that reads the index."""

    async def embed(self, texts: Sequence[str]) -> F32:
        """See ``Tools``."""
        ...

    async def search(self, vectors: F32, top_k: int) -> list[Hits]:
        """See ``Tools``."""
        ...

    async def lexical(self, queries: Sequence[str], top_k: int) -> list[Hits]:
        """See ``Tools``."""
        ...

    async def nodes(
        self, rows: Sequence[int], section_tokens: int, tokenizers: tuple[Tokenizer, ...] = ()
    ) -> NodeTable:
        """See ``Tools``.

        Args:
            rows: Rows of the index.
            section_tokens: See ``NodeTable.neighbourhood``.
            tokenizers: Sentences count what most of them makes of them; none: what the index counted.
        """
        ...

    async def prompt_tokens(self, tokenizer: str, revision: str | None, system: str, user: str) -> int:
        """Count a prompt by a model's tokenizer and chat template."""
        ...


class LocalIndex:
    """The index in this process; calls of concurrent questions run in batches."""

    def __init__(self, config: Config) -> None:
        """Open the configured index and its encoder.

        Raises:
            IndexMismatchError: The index was built with other settings.
            DataError: There is no index at that path.
        """
        # The index first: a mismatch shows before seconds of loading.
        self._index = Index.open(config.index.path, index_settings(config).as_mapping())
        # Queries are few and short: a GPU that nobody reserved is not taken for them.
        self._encoder = make_encoder(config, device="cpu")
        self._tokens: dict[tuple[Tokenizer, ...], I64] = {}
        self._prompt_tokens: dict[int, int] = {}
        self._embed: Batcher[str, F32] = Batcher(
            lambda texts: list(self._encoder.encode_queries(texts)), max_items=QUERIES_AT_ONCE
        )
        self._searches: dict[int, Batcher[F32, Hits]] = {}
        self._lexicals: dict[int, Batcher[str, Hits]] = {}

    async def embed(self, texts: Sequence[str]) -> F32:
        """See ``Tools``."""
        return np.stack(await self._embed(texts))

    async def search(self, vectors: F32, top_k: int) -> list[Hits]:
        """See ``Tools``."""
        if top_k not in self._searches:
            self._searches[top_k] = Batcher(lambda rows: self._index.vectors.search(np.stack(rows), top_k))
        return await self._searches[top_k](list(vectors))

    async def lexical(self, queries: Sequence[str], top_k: int) -> list[Hits]:
        """See ``Tools``."""
        if top_k not in self._lexicals:
            self._lexicals[top_k] = Batcher(lambda texts: self._index.terms.search(texts, top_k))
        return await self._lexicals[top_k](queries)

    async def nodes(
        self, rows: Sequence[int], section_tokens: int, tokenizers: tuple[Tokenizer, ...] = ()
    ) -> NodeTable:
        """See ``IndexSource``; counts are kept, so that a node's text is counted once."""
        around = self._index.nodes.neighbourhood(rows, section_tokens)
        return around.with_tokens(self._count_nodes(around, tokenizers)) if tokenizers else around

    async def prompt_tokens(self, tokenizer: str, revision: str | None, system: str, user: str) -> int:
        """Count a prompt; members share prompts, so counts are kept."""
        key = hash((tokenizer, revision, system, user))
        if key not in self._prompt_tokens:
            if len(self._prompt_tokens) >= PROMPTS_REMEMBERED:
                self._prompt_tokens.pop(next(iter(self._prompt_tokens)))
            self._prompt_tokens[key] = prompt_counter(tokenizer, revision)(system, user)
        return self._prompt_tokens[key]

    @property
    def is_exact(self) -> bool:
        """Whether a shorter search finds the beginning of what a longer one finds."""
        return self._index.vectors.exact

    def _count_nodes(self, nodes: NodeTable, tokenizers: tuple[Tokenizer, ...]) -> I64:
        known = self._tokens.setdefault(tokenizers, np.full(len(self._index.nodes), -1, np.int64))
        sentence = nodes.kind == KINDS.index("sentence")
        missing = np.flatnonzero(sentence & (known[nodes.source_row] < 0))
        if len(missing):
            texts = [nodes.text_of(int(row)) for row in missing]
            counts = [token_counter(name, revision)(texts) for name, revision in tokenizers]
            known[nodes.source_row[missing]] = np.max(counts, axis=0)
        return np.where(sentence, known[nodes.source_row], nodes.tokens)


class RemoteIndex:
    """The same index, held by a retriever actor."""

    def __init__(self, retriever: Any) -> None:
        self._retriever = retriever

    async def embed(self, texts: Sequence[str]) -> F32:
        """See ``Tools``."""
        vectors: F32 = await self._retriever.embed.remote(list(texts))
        return vectors

    async def search(self, vectors: F32, top_k: int) -> list[Hits]:
        """See ``Tools``."""
        hits: list[Hits] = await self._retriever.search.remote(vectors, top_k)
        return hits

    async def lexical(self, queries: Sequence[str], top_k: int) -> list[Hits]:
        """See ``Tools``."""
        hits: list[Hits] = await self._retriever.lexical.remote(list(queries), top_k)
        return hits

    async def nodes(
        self, rows: Sequence[int], section_tokens: int, tokenizers: tuple[Tokenizer, ...] = ()
    ) -> NodeTable:
        """See ``IndexSource``."""
        nodes: NodeTable = await self._retriever.nodes.remote(list(rows), section_tokens, tokenizers)
        return nodes

    async def prompt_tokens(self, tokenizer: str, revision: str | None, system: str, user: str) -> int:
        """See ``IndexSource``."""
        n_tokens: int = await self._retriever.prompt_tokens.remote(tokenizer, revision, system, user)
        return n_tokens


@dataclass(slots=True)
class EngineTools:
    """``Tools`` of one question and one member: seeds are bound, calls are noted.

    Attributes:
        source: Reads the index.
        setup: The run.
        question_id: The question.
        member: The ensemble member.
        calls: Every model call made so far.
    """

    source: IndexSource
    setup: Setup
    question_id: str
    member: int
    calls: list[Call] = field(default_factory=list)

    @property
    def prompts(self) -> Prompts:
        """See ``Tools``."""
        return self.setup.prompts

    @property
    def models(self) -> Mapping[Role, Model]:
        """What plays each role for this member."""
        return self.setup.models[self.member]

    @property
    def window_tokens(self) -> int | None:
        """Longest prompt plus answer of the answering model, in tokens."""
        return self.models["answer"].window_tokens

    async def chat(
        self,
        prompt: Prompt,
        *,
        schema: dict[str, Any] | None = None,
        attempt: int = 0,
        role: Role = "answer",
        max_tokens: int | None = None,
    ) -> Reply:
        """See ``Tools``."""
        model = self.models[role]
        seed = seed_for(self.setup.config.seed, self.question_id, self.member, attempt, role)
        request = chat_request(model, prompt, seed, schema, max_tokens, session_id=self.question_id)
        began = time.perf_counter()
        asked = await self.setup.ledger.ask(request, model.application)
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
            )
        )
        return reply

    async def prompt_tokens(self, prompt: Prompt) -> int | None:
        """See ``Tools``."""
        model = self.models["answer"]
        if model.tokenizer is None:
            return None
        return await self.source.prompt_tokens(model.tokenizer, model.revision, prompt.system, prompt.user)

    async def embed(self, texts: Sequence[str]) -> F32:
        """See ``Tools``."""
        return await self.source.embed(texts)

    async def search(self, vectors: F32, top_k: int) -> list[Hits]:
        """See ``Tools``."""
        return await self.source.search(vectors, top_k)

    async def lexical(self, queries: Sequence[str], top_k: int) -> list[Hits]:
        """See ``Tools``."""
        return await self.source.lexical(queries, top_k)

    async def nodes(self, rows: Sequence[int]) -> NodeTable:
        """See ``Tools``."""
        return await self.source.nodes(rows, self.setup.config.retrieval.section_tokens, self.setup.tokenizers)


def chat_request(
    model: Model,
    prompt: Prompt,
    seed: int,
    schema: dict[str, Any] | None,
    max_tokens: int | None = None,
    session_id: str = "",
) -> ChatRequest:
    """Put together what a model is asked; arguments as of ``ChatRequest``."""
    return ChatRequest(
        model=model.identity,
        messages=(("system", prompt.system), ("user", prompt.user)),
        temperature=model.temperature,
        top_p=model.top_p,
        max_tokens=max_tokens or model.max_tokens,
        seed=seed,
        schema=schema,
        session_id=session_id,
        variables=None if model.reads_prose else prompt.variables,
    )


def dollars(reply: Reply, price: PriceConfig) -> float:
    """Price one reply."""
    new_tokens = reply.prompt_tokens - reply.cached_tokens
    tokens = new_tokens * price.prompt + reply.cached_tokens * price.cached + reply.completion_tokens * price.completion
    return tokens / 1e6 + reply.gpu_s * price.gpu_hour / 3600


def make_encoder(config: Config, **overrides: Any) -> SentenceEncoder:
    """Load the configured encoder."""
    kept = {"cache_dir": str(exports_directory(config))}
    return SentenceEncoder(**(config.index.encoder.model_dump() | kept | overrides))


def exports_directory(config: Config) -> Path:
    """Where models exported for ``onnx`` and ``openvino`` are kept: beside the index."""
    return Path(config.index.path).parent / "encoders"


def encoder_settings(config: Config) -> dict[str, Any]:
    """Name the configured encoder without loading it."""
    encoder = config.index.encoder
    return encoder_identity(**encoder.model_dump(exclude={"device", "batch_tokens", "trust_remote_code"}))


def index_settings(config: Config) -> IndexSettings:
    """Collect what an index's fingerprint is made of."""
    index = config.index
    return IndexSettings(
        encoder=encoder_settings(config),
        weights=index.weights,
        paragraph_vectors=index.paragraph_vectors,
        factory=index.factory,
        k1=index.bm25.k1,
        b=index.bm25.b,
    )
