"""The replicas' engine as benchmarks run it: every reply is as long as was asked (``RAYLLM_VLLM_ENGINE_CLS``)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine


class IgnoreEosEngine(VLLMEngine):
    """Generates ``max_tokens`` whatever the model says; all else is the engine that answers questions."""

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        """Answer without heeding the end-of-sequence token."""
        request.ignore_eos = True
        async for response in super().chat(request, raw_request_info):
            yield response
