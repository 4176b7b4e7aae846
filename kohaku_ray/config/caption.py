"""The role of the index job's own model calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohaku_ray.generation.captions import EXAMPLES, TEMPLATE
from kohaku_ray.systems.base import Role

if TYPE_CHECKING:
    from kohaku_ray.config.schema import Config, Deployment

CAPTION = "caption"
"""Name of the role that describes images (`index.captions: model`)."""

INDEX_ROLES = {CAPTION: Role(template=TEMPLATE, max_tokens=400, temperature=0.0, stage="prepare", examples=EXAMPLES)}
"""Roles of the index job, whatever the system."""


def check_captions(config: Config) -> None:
    """Check that descriptions by a model can be asked for.

    Raises:
        ValueError: Images are not extracted, or the role's deployment sees none.
    """
    if config.index.captions == "model" and not config.index.images:
        raise ValueError(
            "index.captions is model but index.images is false, so that there is nothing to describe: set "
            "index.images to true, or index.captions to printed"
        )
    for role in config.index_roles:
        name = config.role(role).model
        if not getattr(config.deployments[name], "vision", False):
            raise ValueError(
                f"index.captions is model but roles.{role}.model is {name!r}, which sees no images: name a vision "
                f"model, and set deployments.{name}.vision to true"
            )


def caption_deployments(config: Config) -> dict[str, Deployment]:
    """Deployments that the index job calls, by name."""
    names = [config.role(role).model for role in config.index_roles]
    return {name: config.deployments[name] for name in names}
