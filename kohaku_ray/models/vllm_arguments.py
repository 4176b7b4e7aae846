"""The arguments of a deployment's vLLM engine, the same for replicas and for the plain engine beside them."""

from __future__ import annotations

from typing import Any

from kohaku_ray.models.vllm import VllmConfig, least_max_loras, room_for_ranks

CPU_DEFAULTS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    # A seeded request in a chunked prefill kills vLLM's CPU engine (0.29).
    "enable_chunked_prefill": False,
    # Only whole blocks are cached: of the default of 128 tokens, a context's last block is often half empty.
    "block_size": 32,
}

BATCHED_TOKENS = 8192
"""Tokens of a step on GPUs, as `LLM.generate` has it on most. A server's default on an A100 or L4 is 2,048: a quarter
of the prefill beside the same decodes (vLLM's `get_batch_defaults`)."""

MOST_IMAGES = 16
"""Most images of a prompt that a vision model's engine takes."""

IGNORE_EOS = "KOHAKU_RAY_IGNORE_EOS"
"""Set in the environment of a benchmark's vLLM replicas: a reply without a schema has ``max_tokens``."""


def engine_kwargs(deployment: VllmConfig) -> dict[str, Any]:
    """Return the engine's arguments; the deployment's own ``engine_kwargs`` win."""
    kwargs: dict[str, Any] = {
        "max_model_len": deployment.window_tokens,
        "tensor_parallel_size": deployment.tensor_parallel,
        "pipeline_parallel_size": deployment.pipeline_parallel,
        "data_parallel_size": deployment.data_parallel,
        "trust_remote_code": deployment.trust_remote_code,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "enable_prompt_tokens_details": True,
        # Sampling is the configuration's: a model's own may penalise what the prompt holds, its numbers and ids too.
        "generation_config": "vllm",
        # JSON without optional white space, which a weak model may repeat without end.
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    }
    if deployment.vision:
        kwargs["limit_mm_per_prompt"] = {"image": MOST_IMAGES}
    if deployment.revision is not None:
        kwargs["revision"] = deployment.revision
    if deployment.cpus is not None:
        # Whole prompts in one pass, since they cannot be prefilled in chunks.
        kwargs |= CPU_DEFAULTS | {"max_num_batched_tokens": max(deployment.window_tokens, 2048)}
    else:
        in_chunks = deployment.engine_kwargs.get("enable_chunked_prefill", True)
        least = 0 if in_chunks else deployment.window_tokens
        kwargs |= {"max_num_batched_tokens": max(BATCHED_TOKENS, least), "max_num_seqs": deployment.max_ongoing}
    if deployment.gpus < 1:
        kwargs["gpu_memory_utilization"] = deployment.memory_share
    if deployment.adapters:
        # Places on the device for all of them: the members of a question may use each.
        room = {"max_loras": least_max_loras(deployment), "max_lora_rank": room_for_ranks(deployment)}
        kwargs |= {"enable_lora": True, **room}
    given = dict(deployment.engine_kwargs)
    if parser := given.pop("reasoning_parser", None):
        # As an argument of its own it fails beside a structured_outputs_config (vLLM 0.29).
        kwargs["structured_outputs_config"]["reasoning_parser"] = parser
    return kwargs | given
