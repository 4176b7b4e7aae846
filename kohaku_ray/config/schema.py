"""Every setting there is: its type, its bounds, its default and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, SerializeAsAny, model_validator

from kohaku_ray.config.anchor import with_index
from kohaku_ray.config.caption import CAPTION, INDEX_ROLES, check_captions, check_image_vectors
from kohaku_ray.config.chunks import ChunksConfig
from kohaku_ray.config.deployments import (
    BackendConfig,
    ChatDeployment,
    CrossEncoderConfig,
    Deployment,
    ExtractiveConfig,
    OpenAIConfig,
    PriceConfig,
    TransformersConfig,
    VllmConfig,
    stand_in,
)
from kohaku_ray.config.encoder import EncoderConfig
from kohaku_ray.config.ensemble import EnsembleConfig, VoteConfig
from kohaku_ray.config.environment import Environment
from kohaku_ray.config.paths import FilePath
from kohaku_ray.config.plain import shown
from kohaku_ray.config.tracking import TrackingConfig
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
    "RetrieverConfig",
    "RoleConfig",
    "RoleSettings",
    "TrackingConfig",
    "TransformersConfig",
    "VllmConfig",
    "VoteConfig",
]


class DocumentsConfig(Section):
    """The documents."""

    paths: tuple[FilePath, ...] = ("sample:documents",)
    """Files and directories (searched recursively), local, `s3://` or `gs://`; `sample:` names the package's sample
    collection. A document per row: .jsonl, .parquet or `hf://datasets/OWNER/NAME?split=train`, each given by name."""
    metadata: FilePath | None = None
    """CSV, JSON lines or Parquet with id, title, url, year, type and citation per document."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Longest time to parse one file; a file that takes longer becomes a reject."""
    format: DocumentFormat | None = None
    """By suffix (auto); all but PDF as plain text; .txt as novels in chapters; .csv as news, with one paragraph per row
    and many documents in a file; None: as the system reads them."""
    images: FilePath | None = None
    """Directory of the image files that placeholders of KohakuRAG JSON name; used where `index.images` is true."""
    sentence_split: Literal["punkt", "period", "sliding"] = "punkt"
    """Sentence splitting of news: Punkt with French abbreviations; at every full stop; or windows of three Punkt
    sentences, each of which begins one sentence after the last."""


class Bm25Config(Section):
    """Okapi BM25."""

    k1: Annotated[float, Field(ge=0)] = 1.5
    """Term-frequency saturation."""
    b: Share = 0.75
    """Length normalisation."""
    language: Literal["en", "fr"] = "en"
    """Tokenisation: English stop words; or French stop words, split elisions, and stems."""


class IndexConfig(Section):
    """How the index is built, and its directory."""

    path: FilePath = ""
    """Directory of the index, or a URI such as `s3://bucket/index`, with key and end point in the environment
    (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL`, `AWS_REGION`) on every node; its end point also
    as `?endpoint_override=HOST:PORT&scheme=http`. Empty: `index` in the run's directory."""
    encoder: EncoderConfig = EncoderConfig()
    weights: Literal["chars", "tokens", "uniform"] = "chars"
    """Weight of a child in its parent's vector: its characters, its tokens, or 1."""
    paragraph_vectors: Literal["averaged", "full", "both"] = "averaged"
    """A paragraph's vector: mean of its sentences, its own text encoded, or a row of each."""
    factory: str = "Flat"
    """FAISS factory string; Flat is exact."""
    shards: PositiveInt = 1
    """Parts of the index, by documents; each is built by its own reducer and held by its own retrievers."""
    search_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where FAISS searches; auto: the retriever's GPU if it has one (`cluster.retriever.gpus`)."""
    search_float16: bool = False
    """Hold vectors as float16 on the GPU, in half the memory; hits are scored again, so they stay the same."""
    bm25: Bm25Config = Bm25Config()
    chunks: ChunksConfig | None = None
    """How documents are cut into chunks; None: the system's default, which may be none."""
    images: bool = False
    """Extract images: those of PDFs, HTML and Markdown, and of KohakuRAG JSON by `documents.images`."""
    captions: Literal["printed", "model", "none"] = "printed"
    """Text of an image paragraph: its printed caption; that, then a description by the model of role `caption`; or
    none."""
    image_vectors: Literal["none", "caption", "image", "both"] = "caption"
    """Vector of an image paragraph: none, its caption's, its image's, or the mean of both."""
    image_encoder: EncoderConfig | None = None
    """Encoder of images and of the queries that search them, in a space of its own, where captions keep the text's
    vectors beyond the view of images; None: the text encoder, which must read images for image and both."""
    encoders: PositiveInt | None = None
    """Actors that encode texts, and the most that encode images; None: as many as fit the GPUs, or one per CPU without
    GPUs."""
    encoder_gpus: Annotated[float, Field(gt=0)] = 1.0
    """GPUs per encoder, where there are any; 0.5: two encoders share one."""
    build_gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs of the task that builds the FAISS index: it trains inverted lists there; 0: on the CPU."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom Ray resources per encoder, to keep encoders on nodes of one worker group."""
    parsers: PositiveInt | None = None
    """Concurrent parse tasks; None: one per CPU."""


class QuestionsConfig(Section):
    """The questions."""

    path: FilePath = "sample:questions.csv"
    """CSV, JSON lines or Parquet, also from `s3://` or as `hf://datasets/OWNER/NAME?split=test`, with columns id and
    question; optional answer_unit, answer_type and gold answers."""
    limit: PositiveInt | None = None
    """Answer only the first questions, this many; None: all."""


class RoleConfig(Section):
    """Model and sampling of one of the system's roles; defaults: the system's, then the lead role's."""

    model: str | None = None
    """Deployment (a key of `deployments`) that is called."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Nucleus sampling."""
    max_tokens: PositiveInt | None = None
    """Longest reply, in tokens."""


class LedgerConfig(Section):
    """The ledger of model replies."""

    path: FilePath = "runs/ledger"
    """Directory of the ledger, or a URI as for `index.path`; runs that share it share replies."""
    flush_s: Annotated[float, Field(gt=0)] = 2.0
    """Longest time until a reply is written to disk."""
    shards: PositiveInt = 1
    """Actors that own the keys."""


class RetrieverConfig(Section):
    """The actors that hold the index, encode and search queries, and prepare evidence."""

    replicas: PositiveInt = 1
    """Retrievers of each shard of the index."""
    cpus: Annotated[float, Field(ge=0)] = 1.0
    """CPUs per retriever."""
    gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs per retriever, for its query encoder and FAISS; fractions share one."""


class ClusterConfig(Section):
    """The Ray cluster."""

    address: str | None = None
    """`auto` for the running cluster, or its host and port; None: RAY_ADDRESS or a local cluster."""
    num_cpus: PositiveInt | None = None
    """CPUs of a local cluster; None: all."""
    object_store_gib: Annotated[float, Field(ge=0.1)] = 1.0
    """Object store of a local cluster."""
    autoscaling: bool = False
    """The cluster grows on demand: its current resources are not compared with the job's demand."""
    retriever: RetrieverConfig = RetrieverConfig()
    workers_per_member: PositiveInt | None = None
    """Processes per ensemble member; None: one per four replicas."""
    blocks_in_flight: PositiveInt | None = None
    """Question blocks in flight; None: as many as keep every replica busy (see `max_ongoing`)."""
    block_size: PositiveInt | None = None
    """Questions per block; None: clamp(questions / (4 · replicas), 1, 32)."""


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """Model and sampling of one role, with all defaults resolved.

    Attributes:
        model: Deployment that is called.
        temperature: Sampling temperature.
        top_p: Nucleus sampling.
        max_tokens: Longest reply, in tokens.
    """

    model: str
    temperature: float
    top_p: float
    max_tokens: int


class Config(Section):
    """The configuration of one run."""

    system: str = DEFAULT_SYSTEM
    """System that answers: a name of the registry, or `module:SYSTEM` for your own."""
    seed: int = 0
    """Base of every seed."""
    run: FilePath = "runs/demo"
    """Directory of this run's outputs, or a URI as for `index.path`."""
    documents: DocumentsConfig = DocumentsConfig()
    index: IndexConfig = IndexConfig()
    questions: QuestionsConfig = QuestionsConfig()
    settings: SerializeAsAny[Section] = Section()
    """The system's own settings; in a file, the section named after the system."""
    model: str | None = None
    """Deployment (a key of `deployments`) for the roles that name none; None: extractive."""
    roles: dict[str, RoleConfig] = Field(default_factory=dict)
    """Model and sampling per role of the system."""
    fail_after: PositiveInt | None = 20
    """Stop asking after this many answers in a row got no reply from their model; None: never."""
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
        values = with_index(values, cls.model_fields["run"].default)
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
        check_captions(self)
        check_image_vectors(self)
        if self.index.search_device == "cuda" and not self.cluster.retriever.gpus:
            raise ValueError(
                "index.search_device is cuda but cluster.retriever.gpus is 0, so that no retriever gets a GPU: set it, "
                "such as 1 or 0.25, or set index.search_device to auto"
            )
        if self.declaration.check is not None:
            self.declaration.check(self)
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
        """Replace the values of environment variables by references, in a text that is printed or written."""
        return self._environment.hide(text)

    @property
    def uses(self) -> Uses:
        """What a run with these settings uses."""
        return self.declaration.uses(self.settings)

    def role(self, name: str, member: int = 0) -> RoleSettings:
        """Return a member's model and sampling for a role.

        Args:
            name: One of the system's roles, or of the index job's.
            member: Ensemble member; members differ only by `ensemble.models`.
        """
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
    def index_roles(self) -> tuple[str, ...]:
        """Roles that the index job asks."""
        return (CAPTION,) if self.index.images and self.index.captions == "model" else ()

    @property
    def answering_deployments(self) -> dict[str, ChatDeployment]:
        """Deployments of any member's `answer` roles, by name."""
        roles = [name for name in self.uses.roles if self.declaration.roles[name].stage == "answer"]
        return self._deployments_of(roles)

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

    def _deployments_of(self, roles: Any) -> dict[str, ChatDeployment]:
        names = {self.role(role, member).model for role in roles for member in range(self.ensemble.members)}
        return {name: self.deployments[name] for name in sorted(names)}  # type: ignore[misc]


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
