"""vLLM replicas behind ``ray.serve.llm``, called like every other backend."""

from __future__ import annotations

import logging
import os
from typing import Any

import ray

from kohaku_ray.errors import ConfigError
from kohaku_ray.models.vllm import VllmConfig, join_adapter
from kohaku_ray.models.vllm_arguments import engine_kwargs

CACHES = "VLLM_CACHE_ROOT"
"""Variable of the job that names the directory of what engines compile; on storage of all nodes it is compiled once."""

ROUTER = "kohaku_ray.engine.serving.routing.QuestionRouter"
"""What chooses a call's replica: one for all calls of a question."""


def bind_vllm(name: str, deployment: VllmConfig) -> Any:
    """Build the Serve application of a deployment; ``name`` is its key in the configuration.

    Raises:
        ConfigError: vLLM or ``ray.serve.llm`` knows no such argument or accelerator.
    """
    # vLLM says on import that it does without Triton: the driver runs no kernel.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from ray.serve.llm import LLMConfig, build_llm_deployment

    from kohaku_ray.engine.serving.vllm_replica import GangReplica, VllmReplica

    logging.getLogger("ray.serve.llm").setLevel(logging.ERROR)
    options: dict[str, Any] = {
        "name": name,
        "max_ongoing_requests": deployment.max_ongoing,
        "max_constructor_retry_count": deployment.start_tries,
        # A prefill of minutes must not look like a dead replica.
        "health_check_period_s": 10,
        "health_check_timeout_s": 300,
        "graceful_shutdown_timeout_s": 5,
        "request_router_config": {"request_router_class": ROUTER},
        **_scale(deployment),
    }
    try:
        config = LLMConfig(
            model_loading_config={"model_id": name, "model_source": deployment.model},
            accelerator_type=deployment.accelerator,
            placement_group_config=placement(deployment),
            deployment_config=options,
            engine_kwargs=engine_kwargs(deployment) | _adapters_to_load(name, deployment),
            runtime_env={"env_vars": environment(deployment)},
            log_engine_metrics=False,
        )
        return build_llm_deployment(
            config,
            name_prefix="",
            bind_kwargs={"deployment": deployment},
            deployment_cls=GangReplica if deployment.data_parallel > 1 else VllmReplica,
        )
    except ValueError as error:
        raise ConfigError(f"deployments.{name}: {error}") from error


def _adapters_to_load(name: str, deployment: VllmConfig) -> dict[str, Any]:
    """Return the adapters that the engine's server loads when it starts, by the names that requests call them."""
    if not deployment.adapters:
        return {}
    from vllm.entrypoints.openai.models.protocol import LoRAModulePath

    adapters = [LoRAModulePath(join_adapter(name, adapter), source) for adapter, source in deployment.adapters.items()]
    return {"lora_modules": adapters}


def placement(deployment: VllmConfig) -> dict[str, Any]:
    """Return what each worker of an engine holds, and whether all must lie on one node.

    Every worker asks for its part of the custom resources, so that none lies outside their worker group.
    """
    if deployment.cpus is not None:
        return {"bundles": [{"CPU": deployment.cpus, **deployment.resources}]}
    n = deployment.workers_per_engine
    part = {kind: max(round(amount / n, 4), 0.0001) for kind, amount in deployment.resources.items()}
    strategy = "PACK" if deployment.pipeline_parallel > 1 else "STRICT_PACK"
    return {"bundle_per_worker": {"GPU": deployment.gpus, **part}, "strategy": strategy}


def environment(deployment: VllmConfig) -> dict[str, str]:
    """Return the replicas' environment variables: the deployment's ``env`` wins over the job's, and that over ours."""
    variables: dict[str, str] = {}
    if deployment.cpus is not None:
        variables = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # Ray would set it to the CPUs of the replica's actor, not to the engine's.
            "OMP_NUM_THREADS": str(deployment.cpus),
        }
    else:
        # vLLM would compile FlashInfer's sampler by nvcc as it starts; seeded calls, as all of ours are, never use it.
        variables = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    if deployment.gpus < 1:
        # What the engine's worker asks of its bundle: Ray sets it only for the task that reads the engine's settings.
        variables["VLLM_RAY_PER_WORKER_GPUS"] = str(deployment.gpus)
    if os.environ.get("RAY_USAGE_STATS_ENABLED") == "0":  # who switched Ray's reports off wants none of vLLM's
        variables["VLLM_NO_USAGE_STATS"] = "1"
    # Of gpt-oss, Harmony's vocabulary is no part of the model: it is downloaded, or read from TIKTOKEN_ENCODINGS_BASE.
    names = ("HF_HUB_OFFLINE", "HF_HOME", "HF_ENDPOINT", "TIKTOKEN_ENCODINGS_BASE", "VLLM_CPU_KVCACHE_SPACE", CACHES)
    passed = {name: os.environ[name] for name in names if name in os.environ}
    # Replicas inherit the variables of the job that started Serve: without a value of this job's, they had its token.
    # Of its older name, too, which the hub's client reads where the first is empty.
    passed |= {name: os.environ.get(name, "") for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")}
    # Ray would give them the job's own, but for the ones that are named here (LLMConfig.runtime_env).
    of_job = ray.get_runtime_context().runtime_env.get("env_vars", {}) if ray.is_initialized() else {}
    variables |= {**passed, **of_job, **deployment.env}
    if root := variables.get(CACHES):
        # Of these two, the kernels that no torch.compile holds lie elsewhere: below the home directory, a pod's own.
        variables = {"TRITON_CACHE_DIR": f"{root}/triton", "FLASHINFER_WORKSPACE_BASE": root, **variables}
    return variables


def _scale(deployment: VllmConfig) -> dict[str, Any]:
    if deployment.max_replicas is None:
        return {"num_replicas": deployment.replicas}
    return {
        "autoscaling_config": {
            "min_replicas": deployment.replicas,
            "initial_replicas": deployment.replicas,
            "max_replicas": deployment.max_replicas,
            # Serve counts the calls of a question as one. A KV cache may hold two (an L4's), and no more are in flight.
            "target_ongoing_requests": 1,
        }
    }
