"""The replicas' engine in benchmarks: free text has ``max_tokens`` (``RAYLLM_VLLM_ENGINE_CLS``)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine


class IgnoreEosEngine(VLLMEngine):
    """Engine that ignores EOS where there is no schema: such a reply has ``max_tokens``, another ends by its grammar.

    Otherwise it is the engine that answers questions.
    """

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        """Answer; without a schema, the end-of-sequence token is ignored."""
        request.ignore_eos = request.response_format is None
        async for response in super().chat(request, raw_request_info):
            yield response
