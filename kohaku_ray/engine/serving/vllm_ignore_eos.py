"""The replicas' engine in benchmarks: every reply has ``max_tokens`` (``RAYLLM_VLLM_ENGINE_CLS``)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine


class IgnoreEosEngine(VLLMEngine):
    """Engine that ignores EOS: every reply has ``max_tokens``; otherwise the engine that answers questions."""

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        """Answer, ignoring the end-of-sequence token."""
        request.ignore_eos = True
        async for response in super().chat(request, raw_request_info):
            yield response
