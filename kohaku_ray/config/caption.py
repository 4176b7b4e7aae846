"""The role of the index job's own model calls."""

from __future__ import annotations

from kohaku_ray.generation.captions import EXAMPLES, TEMPLATE
from kohaku_ray.systems.base import Role

CAPTION = "caption"
"""Name of the role that describes images (`index.captions: model`)."""

INDEX_ROLES = {CAPTION: Role(template=TEMPLATE, max_tokens=400, temperature=0.0, stage="prepare", examples=EXAMPLES)}
"""Roles of the index job, whatever the system."""
