"""The probe of `validate --probe`: it asks every deployment once, servers from here, others behind Ray Serve."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kohaku_ray.checks.demand import cluster_address, replicas_demand
from kohaku_ray.checks.validate import Probed, probe_chat, probe_here
from kohaku_ray.config import Config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.engine.cluster import print_progress
from kohaku_ray.engine.serving.handles import Handles, rank_pairs
from kohaku_ray.engine.session import Session
from kohaku_ray.errors import ConfigError, ModelError
from kohaku_ray.models.cross_encoder import CrossEncoderConfig
from kohaku_ray.models.openai import OpenAIConfig
from kohaku_ray.models.replica import Refused
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.target import Target
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.records import Reply
from kohaku_ray.settings import resolve_paths

PAIR = ("capital of France", "Paris is the capital of France.")
"""The pair that a cross-encoder scores."""


def run_probe(config: Config) -> list[Probed]:
    """Probe each deployment that a run would call; an unusable one does not keep the others from being probed."""
    config = resolve_paths(config)
    probed = []
    for name, deployment in config.used_deployments.items():
        try:
            probed.append(_probe(name, deployment, config))
        except (ConfigError, ModelError) as error:
            text = str(error)
            probed.append(Probed(text if name in text else f"deployments.{name}: {text}", is_usable=False))
    return probed


def _probe(name: str, deployment: Deployment, config: Config) -> Probed:
    # A server of one's own and a model without devices are asked from here.
    is_light = isinstance(deployment, OpenAIConfig) or deployment.kind == "extractive"
    is_served = deployment.application is not None or isinstance(deployment, (VllmConfig, CrossEncoderConfig))
    if not is_served and (is_light or cluster_address(config.cluster) is None):
        if deployment.kind == "transformers":
            print_progress(f"probe   {name}: loads {deployment.model} in this process")
        return asyncio.run(probe_here(name, deployment))  # type: ignore[arg-type]
    is_vllm = isinstance(deployment, VllmConfig)
    single = deployment.model_copy(update={"replicas": 1} | ({"max_replicas": None} if is_vllm else {}))
    with Session(config.cluster) as session:
        if single.application is None:
            print_progress(f"probe   {name}: starts one replica by Ray Serve")
            session.check(replicas_demand({name: single}))
        return asyncio.run(_probe_served(name, single, session.start_replicas({name: single})))


async def _probe_served(name: str, deployment: Deployment, targets: Mapping[str, Target]) -> Probed:
    if isinstance(deployment, CrossEncoderConfig):
        [score] = await rank_pairs(targets[name], [PAIR])
        of = f"pairs of {deployment.max_tokens} tokens" if deployment.base_url is None else f"at {deployment.base_url}"
        return Probed(f"deployments.{name}: cross_encoder, {of}, scores {score:.3f}")
    handles = Handles()

    async def ask(request: ChatRequest) -> Reply:
        [(outcome, _)] = await handles.call(targets[name], "ask", [request], who=f"deployments.{name}")
        if isinstance(outcome, Refused):
            outcome.raise_()
        reply: Reply = outcome
        return reply

    return await probe_chat(name, deployment, ask)
