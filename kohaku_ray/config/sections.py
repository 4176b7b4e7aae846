"""Settings of runs and of the cluster, declared here as the rooms that use them import the whole configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from kohaku_ray.settings import FilePath, PositiveInt, Settings


class LedgerConfig(Settings):
    """The ledger of model replies."""

    path: FilePath = "runs/ledger"
    """Directory of the ledger, or a URI as for `index.path`; runs that share it share replies."""
    flush_s: Annotated[float, Field(gt=0)] = 2.0
    """Longest time until a reply is written to disk; half a second more while another of its question is waited for."""
    shards: PositiveInt | None = None
    """Actors that own the keys; None: as many as the replicas keep busy."""


class RetrieverConfig(Settings):
    """The actors that hold the index, encode and search queries, and prepare evidence."""

    replicas: PositiveInt | None = None
    """Retrievers of each shard of the index; None: as many as the models' replicas keep busy, at most what these leave
    of the cluster's CPUs and GPUs."""
    cpus: Annotated[float, Field(ge=0)] = 1.0
    """CPUs per retriever."""
    gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs per retriever, for its query encoder and FAISS, beside those of the models' replicas; with 0.25, four
    retrievers share one."""

    @field_validator("gpus", mode="before")
    @classmethod
    def _no_auto(cls, gpus: object) -> object:
        if gpus == "auto":
            raise ValueError(
                "cluster.retriever.gpus is auto, which left in 0.2: write the share of a GPU that each retriever asks "
                "for beside the models' replicas, such as 0.25, or leave it out to have them on CPUs"
            )
        return gpus


class ClusterConfig(Settings):
    """The Ray cluster."""

    address: str | None = None
    """`auto` for the running cluster, or its host and port; None: RAY_ADDRESS or a local cluster."""
    num_cpus: PositiveInt | None = None
    """CPUs of a local cluster; None: all."""
    object_store_gib: Annotated[float, Field(ge=0.1)] = 1.0
    """Object store of a local cluster."""
    autoscaling: bool = False
    """The cluster grows on demand: its current resources are not compared with the job's demand."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom Ray resources of members' processes, voters and shards of the ledger, to keep them off nodes with
    GPUs."""
    retriever: RetrieverConfig = RetrieverConfig()
    blocks_in_flight: PositiveInt | None = None
    """Question blocks in flight; None: as many as keep every replica busy (see `max_ongoing`), and with
    `ensemble.early_stop` no more than vLLM's KV caches hold."""
    block_size: PositiveInt | None = None
    """Questions per block; None: clamp(questions / (4 · replicas), 1, 32), and 1 with `ensemble.early_stop` or a
    budget."""


class BudgetConfig(Settings):
    """What the model calls of a run, a sweep or a batch may cost: at that much no more are made."""

    dollars: Annotated[float, Field(gt=0)] | None = None
    """Most dollars, by the deployments' `price`; None: no bound."""
    tokens: PositiveInt | None = None
    """Most tokens of prompts and replies together; None: no bound."""

    @property
    def is_set(self) -> bool:
        """Whether there is a bound."""
        return self.dollars is not None or self.tokens is not None

    def over(self, paid: Mapping[str, float]) -> str:
        """Say with both numbers that what was paid, by ``dollars`` and ``tokens``, is the budget; empty: it is not."""
        for name, amount in (("dollars", self.dollars), ("tokens", self.tokens)):
            if amount is not None and round(paid.get(name, 0), 9) >= amount:  # ten times 0.1 are 1
                spent = round(paid[name], 6)
                return f"budget.{name} is {amount:,} and {spent:,} were spent: set a larger one and repeat the command"
        return ""

    def describe_paid(self, paid: Mapping[str, float]) -> str:
        """Say what was paid of what there is; empty without a budget."""
        bounds = ((name, amount) for name, amount in (("dollars", self.dollars), ("tokens", self.tokens)) if amount)
        return ", ".join(f"{round(paid.get(name, 0), 4):,} of {amount:,} {name}" for name, amount in bounds)


class TrackingConfig(Settings):
    """Export of finished runs to an experiment tracker: settings, scores, costs, page and submission."""

    to: Literal["mlflow", "wandb"] | None = None
    """Tracker; None: none. It needs its package: `pip install 'kohaku-ray[mlflow]'` or `'kohaku-ray[wandb]'`."""
    project: Annotated[str, Field(min_length=1)] = "kohaku-ray"
    """MLflow's experiment, or the project of Weights & Biases."""
    uri: str | None = None
    """MLflow's tracking URI, or the server of Weights & Biases; None: what the environment says, or MLflow's
    default (`sqlite:///mlflow.db`).
    """
    store: FilePath | None = None
    """Directory of a tracker's local files (`mlflow.db`, `mlruns`, `wandb`) and of a relative `uri`; None: `shared`, or
    else the working directory."""

    @model_validator(mode="before")
    @classmethod
    def _name_store(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or not values.get("to") or values.get("store"):
            return values
        # Now: at the end of a job its working directory may be gone.
        chosen = os.environ.get("WANDB_DIR") if values["to"] == "wandb" else None
        return {**values, "store": os.path.abspath(chosen or "")}
