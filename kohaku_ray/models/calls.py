"""The model of a role, as its calls need it; the requests that are made of it, and what each call used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.target import Target
from kohaku_ray.records import WHOLE

if TYPE_CHECKING:
    from kohaku_ray.models.backend import PriceConfig
    from kohaku_ray.models.prompts import Prompt
    from kohaku_ray.records import Reply
    from kohaku_ray.store.segments import ReplySource


@dataclass(frozen=True, slots=True)
class Model:
    """The model of a role: where and how it is called.

    Attributes:
        target: Where its calls go.
        identity: Its identity in the ledger's keys.
        max_tokens: Longest reply; the model may reason for ``reasoning_tokens`` before it.
        window_tokens: Longest prompt plus reply, reasoning left out.
        reads_prose: Whether it reads the prompt's text; otherwise the request carries the prompt's variables too.
        deployment: What the configuration calls it: the key of its deployment, with an adapter ``KEY + ADAPTER``.
        adapter: The deployment's adapter that it is asked with; None: without.
        tokenizer: Tokenizer that counts its prompts, of ``revision`` on the hub; None: they are not counted.
    """

    target: Target
    identity: str
    temperature: float
    top_p: float
    max_tokens: int
    reasoning_tokens: int
    window_tokens: int
    reads_prose: bool
    deployment: str
    tokenizer: str | None
    revision: str | None
    price: PriceConfig
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One model call as usage.parquet records it; never part of the outputs that are compared.

    Attributes:
        key: Key of the reply in the ledger: equal keys are one call.
        attempt: Attempt of the answer, from 0.
        cached_tokens: Prompt tokens from the prefix cache.
        wait_s: Seconds this run waited for the reply.
        queue_s: Seconds the call waited for a replica when it was made.
        service_s: Seconds it spent in the replica, where it used ``gpu_s`` and ``joules``; None: not measured.
        dollars: Price of the call by the deployment's prices, whichever run made it.
        note: As in ``Reply``.
        finish_reason: As in ``Reply``.
        served_model: As in ``Reply``; ``server`` likewise.
        least_tokens: Tokens that the prompt has at least: if the server read fewer, it has cut it.
    """

    key: str
    role: str
    attempt: int
    source: ReplySource
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
    note: str = ""
    finish_reason: str = WHOLE
    least_tokens: int = 0
    served_model: str = ""
    server: str = ""

    @property
    def notes(self) -> list[str]:
        """What the note says, one thing each."""
        return self.note.split("; ") if self.note else []

    @property
    def is_shortened(self) -> bool:
        """Whether the server says that it read less than it was sent."""
        return 0 < self.prompt_tokens < self.least_tokens


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A model call that got no reply; ``error`` is the error's class."""

    deployment: str
    role: str
    error: str


def chat_request(
    model: Model,
    prompt: Prompt,
    seed: int,
    schema: Mapping[str, Any] | None,
    max_tokens: int | None = None,
    session_id: str = "",
    priority: int = 0,
) -> ChatRequest:
    """Build a request; arguments as in ``ChatRequest``."""
    return ChatRequest(
        model=model.identity,
        messages=(("system", prompt.system), ("user", prompt.user)),
        temperature=model.temperature,
        top_p=model.top_p,
        max_tokens=(max_tokens or model.max_tokens) + model.reasoning_tokens,
        seed=seed,
        schema=None if schema is None else dict(schema),
        session_id=session_id,
        images=prompt.images,
        variables=None if model.reads_prose else prompt.variables,
        adapter=model.adapter,
        priority=priority,
    )


def dollars(reply: Reply, price: PriceConfig) -> float:
    """Price one reply."""
    new_tokens = reply.prompt_tokens - reply.cached_tokens
    cached = price.prompt if price.cached is None else price.cached
    tokens = new_tokens * price.prompt + reply.cached_tokens * cached + reply.completion_tokens * price.completion
    return tokens / 1e6 + reply.gpu_s * price.gpu_hour / 3600
