"""Images of the index: the role of the index job's own model calls, and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohaku_ray.models.captions import EXAMPLES, TEMPLATE
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


def check_image_vectors(config: Config) -> None:
    """Check that the vectors of images can be computed.

    Raises:
        ValueError: Images are not extracted, or an encoder of images computes none.
    """
    index = config.index
    if index.image_vectors != "caption" and not index.images:
        raise ValueError(
            f"index.image_vectors is {index.image_vectors} but index.images is false, so that there are no images: set "
            "index.images to true, or index.image_vectors to caption"
        )
    if index.image_encoder is not None and index.image_vectors not in ("image", "both"):
        raise ValueError(
            f"index.image_encoder is set but index.image_vectors is {index.image_vectors}, so that no image is "
            "encoded: set index.image_vectors to image or both, or leave index.image_encoder out"
        )


def caption_deployments(config: Config) -> dict[str, Deployment]:
    """Deployments that the index job calls, by name."""
    names = [config.role(role).model for role in config.index_roles]
    return {name: config.deployments[name] for name in names}
