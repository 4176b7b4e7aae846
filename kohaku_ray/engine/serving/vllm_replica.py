"""One vLLM engine in a Serve replica. Imported in replicas and where an application is bound: it needs ``ray[llm]``."""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.llm import LLMConfig
from ray.serve.llm.deployment import DPServer, LLMServer
from ray.serve.llm.openai_api_models import ChatCompletionRequest

from kohaku_ray.engine.errors import root_cause
from kohaku_ray.engine.serving.cards import alone_on, check_gpus_known, gpus_held, read_joules, wait_for_room
from kohaku_ray.engine.serving.replica import listen_on_loopback, tell_shard
from kohaku_ray.errors import ContextOverflowError, ModelError
from kohaku_ray.models.completion import completion_body, read_completion
from kohaku_ray.models.meter import watch_power
from kohaku_ray.models.refusal import refuses_length
from kohaku_ray.models.replica import CallOutcome, Replica, ReplicaLostError
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.vllm import VllmConfig, join_adapter
from kohaku_ray.models.vllm_arguments import IGNORE_EOS
from kohaku_ray.models.vllm_failure import explain_start
from kohaku_ray.records import Reply
from kohaku_ray.store.storage import is_uri

EXIT_DELAY_S = 0.2
"""Seconds in which a dying replica's errors reach their callers."""

PROMPTS = 256
"""Prompts whose token ids a replica keeps, 4 bytes each: of more questions than are in flight, whose members come one
after the other and in waves."""


WRITTEN_BYTES = 1 << 20
"""Most bytes that are read of what an engine wrote: its log until it runs is some 20 KB per worker."""


@contextmanager
def failed_start_explained(at: str) -> Iterator[None]:
    """Turn an error of the block into one with the engine's own reason; ``at`` is its deployment's key.

    Raises:
        ModelError: In place of any error.
    """
    # The engine's processes inherit this one's output, which Ray sends to files.
    files = {}
    for number in (1, 2):
        with suppress(OSError):
            path = Path(os.readlink(f"/proc/self/fd/{number}"))
            files[path] = path.stat().st_size
    try:
        yield
    except Exception as error:
        lines = [line for path, begin in files.items() for line in _lines_after(path, begin)]
        raise ModelError(explain_start(root_cause(error), lines, at)) from error


def _lines_after(path: Path, begin: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(begin, path.stat().st_size - WRITTEN_BYTES))
            return file.read(WRITTEN_BYTES).decode(errors="replace").splitlines()
    except OSError:  # a pipe or a terminal
        return []


class VllmReplica(LLMServer):
    """Answers our requests by the engine's chat completions, with its template, tokenizer, grammar and cache."""

    async def __init__(self, llm_config: LLMConfig, deployment: VllmConfig) -> None:  # type: ignore[misc]
        listen_on_loopback()
        self._deployment, self._gpus = deployment, list[str]()
        await super().__init__(llm_config)
        self._model_id = llm_config.model_id
        self._has_priorities = llm_config.engine_kwargs.get("scheduling_policy") == "priority"
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        n_gpus = deployment.gpus_per_engine
        self._replica = Replica(self._answer, deployment.max_ongoing, n_gpus, tell_shard)
        self._rendered: dict[tuple[Any, ...], asyncio.Task[array[int] | None]] = {}
        self._power = asyncio.create_task(watch_power(self._replica.meter, self._counters)) if n_gpus else None

    async def start(self) -> None:
        """Start the engine when its GPUs have room for it, and no other engine starts on its share of a GPU.

        Raises:
            ConfigError: Its GPUs are held by others, or not known.
            ModelError: vLLM does not start; the message has its cause and what to change.
        """
        deployment, at = self._deployment, f"deployments.{self._llm_config.model_id}"
        # Ray's task for the model's files imports vLLM on each node, 9 s, and fetches what lies in a bucket alone.
        self._llm_config.get_or_create_callback().ctx.run_init_node = is_uri(deployment.model)
        self._gpus = await gpus_held() if deployment.gpus_per_engine else []
        check_gpus_known(self._gpus, deployment.gpus, at)
        async with alone_on(self._gpus if deployment.gpus < 1 else []):
            await wait_for_room(self._gpus, deployment.memory_share, f"{at}.engine_kwargs.gpu_memory_utilization")
            with failed_start_explained(at):
                await super().start()

    async def ask(self, requests: Sequence[ChatRequest], shard: str | None = None) -> list[CallOutcome]:
        """See ``Replica.ask``."""
        return await self._replica.ask(requests, shard)

    async def _answer(self, request: ChatRequest) -> Reply:
        """Answer one request.

        Raises:
            ContextOverflowError: The prompt and the longest reply do not fit the engine's window.
            ReplicaLostError: The engine died; another replica may answer.
            UnfinishedReplyError: The engine says of the reply that it failed.
            ModelError: The engine refuses the request, for example because a grammar does not compile.
        """
        response = await self._complete(request)
        if hasattr(response, "error"):
            raise self._refusal(response)
        return replace(read_completion(response.model_dump(), request.n_chars), replica=self._replica_id)

    async def _complete(self, request: ChatRequest) -> Any:
        name = self._model_id if request.adapter is None else join_adapter(self._model_id, request.adapter)
        body = await completion_body(request, name, "json_schema", any_root=True)
        if self._deployment.chat_template_kwargs:
            body["chat_template_kwargs"] = self._deployment.chat_template_kwargs
        if self._deployment.reasoning_effort is not None:
            body["reasoning_effort"] = self._deployment.reasoning_effort
        if self._has_priorities:
            body["priority"] = request.priority
        if IGNORE_EOS in os.environ and request.schema is None:
            body["ignore_eos"] = True
        try:
            if ids := await self._prompt_ids(request, body):
                # Where vLLM reads ids in place of the messages; none of it reaches the engine.
                body["kv_transfer_params"] = {"prompt_token_ids": ids.tolist()}
            async for response in await self.chat(ChatCompletionRequest(**body)):
                return response
        except Exception as error:
            if type(error).__name__ == "EngineDeadError" or isinstance(error.__cause__, EOFError):
                raise self._lost() from error
            raise ModelError(f"{self._model_id}: {type(error).__name__}: {error}") from error
        raise ModelError(f"{self._model_id}: the engine sent nothing")

    async def cache_tokens(self) -> int | None:
        """Return the tokens that the engine's KV cache holds; None: it does not say."""
        cache = self.engine._engine_client.vllm_config.cache_config
        size: int | None = cache.kv_cache_size_tokens
        return size

    async def _prompt_ids(self, request: ChatRequest, body: dict[str, Any]) -> array[int] | None:
        """Render and tokenise a prompt once for all its calls; None: it has images, or is refused, as its call is."""
        if request.images:
            return None
        key = (request.messages, request.max_tokens)
        if key not in self._rendered:
            self._rendered[key] = asyncio.create_task(self._render(ChatCompletionRequest(**body)))
            if len(self._rendered) > PROMPTS:
                del self._rendered[next(iter(self._rendered))]
        return await asyncio.shield(self._rendered[key])

    async def _render(self, request: ChatCompletionRequest) -> array[int] | None:
        try:
            rendered = await self.engine._oai_serving_chat.online_renderer.render_chat(request)
            return array("i", rendered[1][0]["prompt_token_ids"])
        except Exception:  # the call itself is refused for the same reason, with the engine's words
            return None

    def _refusal(self, response: Any) -> Exception:
        error = response.error
        status, message = int(error.code or 500), " ".join(str(error.message).split())[:500]
        if refuses_length(status, message):
            return ContextOverflowError(f"{self._model_id} refuses the prompt's length: {message}")
        if "EngineDead" in message or "EngineCore" in message:
            return self._lost()
        return ModelError(f"{self._model_id} refuses the request ({status}): {message}")

    def _lost(self) -> ReplicaLostError:
        """End this replica too: Serve sees a dead actor at once, a dead engine at its next health check."""
        asyncio.get_running_loop().call_later(EXIT_DELAY_S, os._exit, 1)
        return ReplicaLostError(f"{self._model_id}: the engine of replica {self._replica_id} died")

    async def _counters(self) -> list[float | None]:
        # The counter is the whole GPU's: an engine with a share of it has used that share.
        joules = await asyncio.to_thread(read_joules, self._gpus)
        return [None if each is None else each * self._deployment.gpus for each in joules]


class GangReplica(VllmReplica, DPServer):
    """One engine of a data-parallel group; Serve starts and ends the group as one."""
