"""The seed of each call of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohaku_ray.models.request import seed_for

if TYPE_CHECKING:  # actors that call models import no configuration
    from kohaku_ray.config import Config


def seed_of(config: Config, question_id: str, member: int, attempt: int, role: str) -> int:
    """Seed one call: the role's own seed where there is one member, else see ``seed_for``."""
    role_seed = config.declaration.roles[role].seed
    if role_seed is not None and config.ensemble.members == 1:
        return role_seed
    return seed_for(config.seed, question_id, member, attempt, role)
