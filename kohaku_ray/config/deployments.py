"""The kinds of deployments that a configuration may have; each is declared in its own file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kohaku_ray.models.cross_encoder import CrossEncoderConfig
from kohaku_ray.models.openai import OpenAIConfig
from kohaku_ray.models.transformers import TransformersConfig
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.systems.offline import ExtractiveConfig

ChatDeployment = ExtractiveConfig | OpenAIConfig | VllmConfig | TransformersConfig
Deployment = Annotated[ChatDeployment | CrossEncoderConfig, Field(discriminator="kind")]
