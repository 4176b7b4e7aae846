"""Settings of the export to an experiment tracker."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kohaku_ray.settings import Section


class TrackingConfig(Section):
    """Export of finished runs to an experiment tracker: settings, scores, costs, page and submission."""

    to: Literal["mlflow", "wandb"] | None = None
    """Tracker; None: none. It needs its package: `pip install 'kohaku-ray[mlflow]'` or `'kohaku-ray[wandb]'`."""
    project: Annotated[str, Field(min_length=1)] = "kohaku-ray"
    """MLflow's experiment, or the project of Weights & Biases."""
    uri: str | None = None
    """MLflow's tracking URI or directory, or the server of Weights & Biases; None: what the environment says."""
