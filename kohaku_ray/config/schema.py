"""Every setting there is: its type, its bounds, its default and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, PrivateAttr, SerializeAsAny, model_validator

from kohaku_ray.config.deployments import ChatDeployment, Deployment
from kohaku_ray.config.paths import move_to_shared, with_index_path
from kohaku_ray.config.plain import Environment, shown
from kohaku_ray.config.sections import (
    BudgetConfig,
    ClusterConfig,
    LedgerConfig,
    TrackingConfig,
)
from kohaku_ray.documents.settings import DocumentsConfig
from kohaku_ray.ensemble.settings import EnsembleConfig
from kohaku_ray.errors import did_you_mean
from kohaku_ray.index.settings import IndexConfig
from kohaku_ray.models.captions import EXAMPLES, TEMPLATE
from kohaku_ray.models.vllm import VllmConfig, join_adapter
from kohaku_ray.settings import FilePath, PositiveInt, Settings
from kohaku_ray.systems.base import Role, RoleConfig, System, Uses
from kohaku_ray.systems.offline import with_default_system
from kohaku_ray.systems.questions import QuestionsConfig
from kohaku_ray.systems.registry import DEFAULT_SYSTEM, find_system

CAPTION = "caption"
"""Name of the role that describes images (`index.captions: model`)."""

INDEX_ROLES = {CAPTION: Role(template=TEMPLATE, max_tokens=400, temperature=0.0, stage="prepare", examples=EXAMPLES)}
"""Roles of the index job, whatever the system."""


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """Model (a deployment) and sampling of one role, with all defaults resolved."""

    model: str
    temperature: float
    top_p: float
    max_tokens: int


class Config(Settings):
    """The configuration of one run."""

    system: str = DEFAULT_SYSTEM
    """System that answers: a name of the registry, or `module:SYSTEM` for your own."""
    seed: int = 0
    """Base of every seed."""
    run: FilePath = "runs/demo"
    """Directory of this run's outputs, or a URI as for `index.path`."""
    shared: FilePath | None = None
    """Directory or URI of all nodes; relative `run`, `index.path` and `ledger.path` lie in it, not beside the file."""
    documents: DocumentsConfig = DocumentsConfig()
    index: IndexConfig = IndexConfig()
    questions: QuestionsConfig = QuestionsConfig()
    settings: SerializeAsAny[Settings] = Settings()
    """The system's own settings; in a file, the section named after the system."""
    model: str | None = None
    """Deployment (a key of `deployments`, or `NAME + ADAPTER`) for the roles that name none; None: extractive."""
    roles: dict[str, RoleConfig] = Field(default_factory=dict)
    """Model and sampling per role of the system."""
    fail_after: PositiveInt | None = 20
    """Stop asking after this many answers in a row got no reply from their model; None: never."""
    budget: BudgetConfig = BudgetConfig()
    prompts: FilePath | None = None
    """Directory of your own templates, with the system's file names; None: the system's templates."""
    ensemble: EnsembleConfig = EnsembleConfig()
    deployments: dict[str, Deployment] = Field(default_factory=dict)
    """Model backends by name; `extractive` is always among them."""
    ledger: LedgerConfig = LedgerConfig()
    cluster: ClusterConfig = ClusterConfig()
    tracking: TrackingConfig = TrackingConfig()

    _environment: Environment = PrivateAttr(default_factory=Environment)

    @model_validator(mode="before")
    @classmethod
    def _of_its_system(cls, values: Any) -> Any:
        """Validate the settings by their system's type; set the index's path and extractive deployments' system."""
        if not isinstance(values, dict):
            return values
        values = with_index_path(values, cls.model_fields["run"].default)
        values = move_to_shared(values, cls.model_fields["run"].default, LedgerConfig().path)
        name, settings = values.get("system", DEFAULT_SYSTEM), values.get("settings", {})
        if not isinstance(name, str):
            return values
        if not isinstance(settings, Settings):
            settings = find_system(name).settings.model_validate(settings)
        values = {**values, "settings": settings}
        deployments = values.get("deployments", {})
        if isinstance(deployments, Mapping):
            system = find_system(name)
            ranks = system.uses(settings).cross_encoder
            declared = {key: entry for key, entry in system.deployments.items() if key == ranks}
            entries = {"extractive": {}, **declared, **deployments}
            values["deployments"] = {key: with_default_system(key, entry, name) for key, entry in entries.items()}
        return values

    @model_validator(mode="after")
    def _models_are_deployed(self) -> Config:
        declared, ranks = self.declaration.roles, self.uses.cross_encoder
        for name in self.roles:
            if name not in declared and name not in INDEX_ROLES:
                raise ValueError(
                    f"roles has {name!r} but system {self.declaration.name} has the roles {', '.join(declared)}"
                    f"{did_you_mean(name, declared)}"
                )
        chat = [(f"roles.{name}.model", role.model) for name, role in self.roles.items() if role.model is not None]
        chat += [] if self.model is None else [("model", self.model)]
        chat += [("ensemble.models", name) for name in self.ensemble.models]
        chat += [(f"roles.{name}.model", self.role(name).model) for name in (*self.uses.roles, *self.index_roles)]
        for key, name in chat:
            self._check_deployed(key, name, ranks=False)
        if ranks is not None:
            self._check_deployed(f"{self.declaration.name}.cross_encoder", ranks, ranks=True)
        if self.declaration.weighs and self.ensemble.early_stop != "never":
            raise ValueError(
                f"ensemble.early_stop is {self.ensemble.early_stop} but ballots of system {self.declaration.name} have "
                "weights, so that the remaining votes may change any result: set ensemble.early_stop to never"
            )
        for name, deployment in self.caption_deployments.items():
            if not getattr(deployment, "vision", False):
                raise ValueError(
                    f"index.captions is model but roles.{CAPTION}.model is {name!r}, which sees no images: name a "
                    f"vision model, and set deployments.{name}.vision to true"
                )
        if self.index.search_device == "cuda" and not self.cluster.retriever.gpus:
            raise ValueError(
                "index.search_device is cuda but cluster.retriever.gpus is 0, so that no retriever gets a GPU: set it, "
                "such as 1 or 0.25, or set index.search_device to auto"
            )
        if self.declaration.check is not None:
            self.declaration.check(self)
        return self

    def _check_deployed(self, key: str, name: str, ranks: bool) -> None:
        if name not in self.models:
            names, guess = ", ".join(map(repr, self.models)), did_you_mean(name, self.models)
            raise ValueError(
                f"{key} is {shown(name)} but deployments has {names}{guess}: name one of them, or add yours"
            )
        kind = self.models[name].kind
        if (kind == "cross_encoder") != ranks:
            wanted = "ranks pairs (kind: cross_encoder)" if ranks else "chats"
            raise ValueError(f"{key} is {shown(name)}, a deployment of kind {kind}: name one that {wanted}")

    @property
    def declaration(self) -> System:
        """The system."""
        return find_system(self.system)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that score the answers, the headline first."""
        return self.questions.metrics or self.declaration.metrics

    def hide(self, text: str) -> str:
        """Replace the values of environment variables by references, in a text that is printed or written."""
        return self._environment.hide(text)

    @property
    def uses(self) -> Uses:
        """What a run with these settings uses."""
        return self.declaration.uses(self.settings)

    def role(self, name: str, member: int = 0) -> RoleSettings:
        """Return a member's model and sampling for a role; members differ only by `ensemble.models`."""
        system, given = self.declaration, self.roles.get(name, RoleConfig())
        lead, leads = self.roles.get(system.lead, RoleConfig()), system.roles[system.lead]
        declared = {**INDEX_ROLES, **system.roles}[name]
        models = self.ensemble.models if declared.stage == "answer" else ()
        model = (given.model if name != system.lead else None) or (models[member % len(models)] if models else None)
        return RoleSettings(
            model=model or lead.model or self.model or "extractive",
            temperature=_first(given.temperature, declared.temperature, lead.temperature, leads.temperature, 0.7),
            top_p=_first(given.top_p, declared.top_p, lead.top_p, leads.top_p, 1.0),
            max_tokens=given.max_tokens or declared.max_tokens,
        )

    @property
    def models(self) -> dict[str, Deployment]:
        """What a role's `model` may name: each deployment, and each of kind vllm with each of its adapters."""
        models: dict[str, Deployment] = dict(self.deployments)
        for key, deployment in self.deployments.items():
            if isinstance(deployment, VllmConfig):
                for adapter in deployment.adapters:
                    models.setdefault(join_adapter(key, adapter), deployment.with_adapter(adapter))
        return models

    def deployment_of(self, model: str) -> str:
        """Return the key of the deployment that answers for a name of ``models``."""
        return model if model in self.deployments else model.rpartition(join_adapter("", ""))[0]

    @property
    def index_roles(self) -> tuple[str, ...]:
        """Roles that the index job asks."""
        return (CAPTION,) if self.index.images and self.index.captions == "model" else ()

    @property
    def answering_deployments(self) -> dict[str, ChatDeployment]:
        """Deployments of any member's `answer` roles, by name."""
        return self._deployments_of(self._answer_roles)

    @property
    def answering_models(self) -> dict[str, ChatDeployment]:
        """Models of any member's `answer` roles, by name: a deployment and one of its adapters are two."""
        return {name: self.models[name] for name in self._models_of(self._answer_roles)}  # type: ignore[misc]

    @property
    def chat_deployments(self) -> dict[str, ChatDeployment]:
        """Deployments of all roles of this run, by name."""
        return self._deployments_of(self.uses.roles)

    @property
    def used_deployments(self) -> dict[str, Deployment]:
        """All deployments that this run calls, by name."""
        ranks = self.uses.cross_encoder
        ranking = {} if ranks is None else {ranks: self.deployments[ranks]}
        return dict(sorted({**self.chat_deployments, **ranking}.items()))

    @property
    def caption_deployments(self) -> dict[str, Deployment]:
        """Deployments that the index job calls, by name."""
        names = [self.deployment_of(self.role(role).model) for role in self.index_roles]
        return {name: self.deployments[name] for name in names}

    @property
    def _answer_roles(self) -> list[str]:
        return [name for name in self.uses.roles if self.declaration.roles[name].stage == "answer"]

    def _models_of(self, roles: Any) -> list[str]:
        return sorted({self.role(role, member).model for role in roles for member in range(self.ensemble.members)})

    def _deployments_of(self, roles: Any) -> dict[str, ChatDeployment]:
        names = {self.deployment_of(model) for model in self._models_of(roles)}
        return {name: self.deployments[name] for name in sorted(names)}  # type: ignore[misc]


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
