"""Where a deployment's calls go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Route = Literal["serve", "shard", "batch"]
"""Replicas of a Serve application; a baseline in the ledger's shard that makes the call; the ledger's actor that
gathers calls to files for a provider's batch API."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a deployment's calls go.

    Attributes:
        name: Of the Serve application, the baseline or the batches; equal settings have equal names.
        route: What answers.
        settings: JSON of a baseline's settings, from which a shard builds it; empty on other routes.
    """

    name: str
    route: Route = "serve"
    settings: str = ""
