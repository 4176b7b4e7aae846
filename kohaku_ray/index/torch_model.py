"""A sentence-transformers model: load it, and run one forward pass over texts or images."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from typing import Any

import numpy as np

from kohaku_ray.documents.lean_imports import for_encoding_alone
from kohaku_ray.errors import ConfigError
from kohaku_ray.extensions import check_code_trusted
from kohaku_ray.index.arrays import F32, I32
from kohaku_ray.index.cuda import unusable_gpus
from kohaku_ray.index.identity import locate_model
from kohaku_ray.index.settings import EncoderConfig, Precision

_OWN_CODE = (
    ": its own code must fit transformers {}: install what it imports, name a revision of it that does "
    "(encoder.revision), or serve the model (docs/models.md: Jina v3 and v4)"
)

Tokens = Mapping[str, I32]
"""What a tokenizer gives for one text, special tokens included: ``input_ids``, for some models ``token_type_ids``."""

CPU_BATCH_TOKENS = 512
"""Padded tokens of a forward pass over passages on a CPU."""

MOST_BATCH_TOKENS = 1 << 15
"""Most padded tokens of a forward pass on a GPU: a block of the index job has several, and more are no faster."""

MEMORY_SHARE = 0.25
"""Share of a GPU's memory that a forward pass is meant to take: several encoders may share it."""

PROBES = ("", " Two  spaces, CAPITALS and 1,287 digits. ")
"""Texts by which ``beside_tokens`` compares what it would compute with what the model's own code does."""


class TorchModel:
    """A ``SentenceTransformer``, as an encoder uses it.

    Attributes:
        loaded: The ``SentenceTransformer``.
        dim: Length of its own vectors.
        window: Longest text, in tokens, special ones included; a huge number where the model sets none.
        prompts: Its own prompts, by name; ``default_prompt_name`` is the one it uses by default.
        takes_task: Whether it has adapters for tasks.
        on_cpu: Whether it computes on the CPU.
        reads_images: Whether it turns images into vectors.
    """

    def __init__(self, loaded: Any, task: str | None = None) -> None:
        """Read the properties that an encoder needs; ``task`` is one that it takes: some encode nothing without."""
        self.loaded = loaded
        # A module with code of its own may keep its tokenizer in a processor, as Jina v4's does.
        self._tokenizer = getattr(loaded[0], "tokenizer", None) or loaded.processor.tokenizer
        self._tokenising = threading.Lock()  # a tokenizer is not thread-safe
        # ... and not say what it takes.
        self._guesses = not hasattr(loaded[0], "modalities") and hasattr(loaded[0], "processor")
        self.reads_images = self._guesses or bool(loaded.supports("image"))
        windows = (loaded.max_seq_length, getattr(self._tokenizer, "model_max_length", None))
        self.window = int(next((window for window in windows if window), 1 << 30))
        self.prompts: Mapping[str, str] = loaded.prompts or {}
        self.default_prompt_name: str | None = loaded.default_prompt_name
        self.takes_task = "task" in loaded.get_model_kwargs()
        self.on_cpu = loaded.device.type == "cpu"
        # The method was renamed in sentence-transformers 6.
        renamed = getattr(loaded, "get_embedding_dimension", None)
        dim = (renamed or loaded.get_sentence_embedding_dimension)()
        if not dim or not self._is_library_code:  # measured; and code of its own may fail only here
            given = {} if task is None or not self.takes_task else {"task": task}
            dim = self.embed(self.features(["length"], None, 0, **given), **given)().shape[1]
        self.dim = int(dim)

    @property
    def _is_library_code(self) -> bool:
        return type(self.loaded[0]).__module__.partition(".")[0] == "sentence_transformers"

    def tokens_that_fit(self, longest: int) -> int:
        """Estimate the padded tokens of a forward pass that fit, with texts of up to ``longest`` tokens.

        On a GPU a token takes, in the layer that is computed, about 16 hidden states (the feed-forward layer's,
        attention's inputs, residuals) and a row of attention scores per head. Memory that others hold counts too:
        batches, and so vectors, must not depend on it.
        """
        if self.on_cpu:
            return CPU_BATCH_TOKENS
        import torch

        device, config = self.loaded.device, getattr(getattr(self.loaded[0], "auto_model", None), "config", None)
        hidden, heads = getattr(config, "hidden_size", self.dim), getattr(config, "num_attention_heads", 16)
        _, total = torch.cuda.mem_get_info(device)
        n_bytes = next(self.loaded.parameters()).element_size() * (16 * hidden + heads * longest)
        return int(min(max(total * MEMORY_SHARE // n_bytes, longest), MOST_BATCH_TOKENS))

    def tokens(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokenise each text with special tokens, however long it is."""
        settings = {"truncation": False, "padding": False, "return_attention_mask": False, "verbose": False}
        with self._tokenising:
            encodings = self._tokenizer(list(texts), **settings)
        return [
            {key: np.array(value, np.int32) for key, value in zip(encodings, row, strict=True)}
            for row in zip(*encodings.values(), strict=True)
        ]

    def tokens_of(self, ids: Sequence[I32]) -> list[Tokens]:
        """Make of ids what ``tokens`` gives, where it gives no types but zero."""
        if "token_type_ids" not in self._tokenizer.model_input_names:
            return [{"input_ids": row} for row in ids]
        types = np.zeros(max(map(len, ids), default=0), np.int32)
        return [{"input_ids": row, "token_type_ids": types[: len(row)]} for row in ids]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Count each text's tokens with special ones, however long it is."""
        return [len(tokens["input_ids"]) for tokens in self.tokens(texts)]

    def beside_tokens(self, prompt: str | None, **task: Any) -> Mapping[str, Any] | None:
        """Return what ``features`` gives with a prompt beside what ``padded`` gives of tokens, such as its length.

        None: only the model's own code knows how features are made.
        """
        import torch

        module = self.loaded[0]
        if not self._is_library_code:
            return None
        if getattr(module, "modalities", None) != ["text"]:  # otherwise a text may be an image's address
            return None
        features = self.features(PROBES, prompt, 0, **task)
        beside = {key: value for key, value in features.items() if not torch.is_tensor(value)}
        same = self.padded(self.tokens([(prompt or "") + text for text in PROBES]), beside, 0)
        if features.keys() != same.keys() or any(
            not torch.equal(features[key], same[key]) for key in features.keys() - beside.keys()
        ):
            return None
        return beside

    def padded(self, tokens: Sequence[Tokens], beside: Mapping[str, Any], pad_to: int) -> dict[str, Any]:
        """Make the features of texts that fit the window of their tokens, prompt included: ``features`` without code.

        ``beside`` is what ``beside_tokens`` gave. ``tokenizer.pad`` gives the same, by lists of numbers, and so slowly
        that it leaves a GPU idle.
        """
        import torch

        tokenizer = self._tokenizer
        n_tokens = np.array([len(row["input_ids"]) for row in tokens])
        is_token = np.arange(max(int(n_tokens.max()), pad_to)) < n_tokens[:, None]
        if tokenizer.padding_side == "left":
            is_token = is_token[:, ::-1]
        fill = {"input_ids": tokenizer.pad_token_id or 0, "token_type_ids": tokenizer.pad_token_type_id}
        features: dict[str, Any] = {}
        for key in tokens[0]:
            padded = np.full(is_token.shape, fill.get(key, 0), np.int64)
            padded[is_token] = np.concatenate([row[key] for row in tokens])
            features[key] = torch.from_numpy(padded)
        if "attention_mask" in tokenizer.model_input_names:
            features["attention_mask"] = torch.from_numpy(is_token.astype(np.int64))
        return self._ready({**features, **beside}, 0)

    def features(self, texts: Sequence[str], prompt: str | None, pad_to: int, **task: Any) -> dict[str, Any]:
        """Tokenise texts, at least one and cut at the window, for one forward pass; ``task`` as the model takes it.

        ``prompt`` is put before each; each row has ``pad_to`` tokens, or with 0 those of the longest.
        """
        inputs = list(map(_as_text, texts)) if self._guesses else texts
        with self._tokenising:
            features: dict[str, Any] = self.loaded.preprocess(inputs, prompt=prompt, **task)
        return self._ready(features, pad_to)

    def _ready(self, features: dict[str, Any], pad_to: int) -> dict[str, Any]:
        """Pad features to a length, and pin them for a GPU: it copies pinned memory while it computes."""
        import torch

        if pad_to:
            features = _padded(features, pad_to, self._tokenizer)
        if self.on_cpu:
            return features
        return {key: value.pin_memory() if torch.is_tensor(value) else value for key, value in features.items()}

    def image_features(self, images: Sequence[Any], **task: Any) -> dict[str, Any]:
        """Resize Pillow's RGB images, and turn them into what one forward pass takes."""
        # SentenceTransformer.preprocess refuses images where the module does not say that it takes them.
        ready, given = (self.loaded, task) if self.loaded.supports("image") else (self.loaded[0], {})
        prepare = getattr(ready, "preprocess", None) or ready.tokenize
        features: dict[str, Any] = prepare(list(images), **given)
        return features

    def embed(self, features: Mapping[str, Any], **task: Any) -> Callable[[], F32]:
        """Start a forward pass; the function that it returns waits for the vectors, shape ``(rows, dim)``.

        A GPU computes meanwhile; where it has not enough memory, that is known at once.
        """
        import torch

        device = self.loaded.device
        moved = {
            key: value.to(device, non_blocking=True) if torch.is_tensor(value) else value
            for key, value in features.items()
        }
        with torch.inference_mode():
            # The copy stands in the GPU's queue before the next pass, so that waiting for it is not waiting for that.
            vectors = self.loaded(moved, **task)["sentence_embedding"].float().to("cpu", non_blocking=True)
        copied = None if self.on_cpu else torch.cuda.current_stream(device).record_event()

        def wait() -> F32:
            if copied is not None:
                copied.synchronize()
            embedded: F32 = vectors.numpy()
            return embedded

        return wait


def load_model(settings: EncoderConfig) -> TorchModel:
    """Load a sentence-transformers model for inference.

    Raises:
        ConfigError: It, or a GPU asked for, is missing; or its own code fails as it is loaded or encodes a first text.
    """
    import torch

    with for_encoding_alone():
        from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # one bar per worker, for a tenth of a second
    located = locate_model(settings.model)
    has_gpu = torch.cuda.is_available()
    if settings.device == "cuda" and not has_gpu:
        reason = unusable_gpus() or f"torch {torch.__version__} sees none in this process"
        raise ConfigError(f"encoder.device is 'cuda', or Ray gave it a GPU, but {reason}; or set it to cpu")
    on_gpu = has_gpu and settings.device != "cpu"
    if settings.trust_remote_code:
        check_code_trusted(f"encoder {settings.model} with trust_remote_code")
    try:
        with nullcontext() if settings.trust_remote_code else for_encoding_alone():
            loaded = SentenceTransformer(
                located,
                revision=settings.revision,
                device="cuda" if on_gpu else "cpu",
                trust_remote_code=settings.trust_remote_code,
                model_kwargs={"dtype": _dtype(settings.precision, on_gpu)},
            ).eval()
        return TorchModel(loaded, settings.passage_task or settings.query_task)
    except Exception as error:  # a model's own code raises anything
        what = f"encoder.model {settings.model!r}"
        if isinstance(error, RuntimeError) and "out of memory" in str(error):
            held = str(error).splitlines()[0].partition(" Of the allocated memory")[0].removesuffix(".")
            raise ConfigError(
                f"{what} finds no room on its GPU ({held}): end what else holds memory there, "
                "give the job other GPUs, or a larger share (index.encoder_gpus, cluster.retriever.gpus)"
            ) from error
        if not (settings.trust_remote_code or isinstance(error, OSError | ValueError | ImportError)):
            raise
        raise ConfigError(
            f"{what} cannot be loaded ({type(error).__name__}: {' '.join(str(error).split())})"
            + (_OWN_CODE.format(version("transformers")) if settings.trust_remote_code else "")
        ) from error


def _dtype(precision: Precision, gpu: bool) -> Any:
    import torch

    if precision != "auto":
        return getattr(torch, precision)
    if not gpu:
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def input_ids(features: Mapping[str, Any]) -> Any:
    """Return the tensor of token ids, shape ``(rows, tokens)``; Jina v4 names its ``text_input_ids``."""
    return next(value for key, value in features.items() if key.endswith("input_ids"))


def _as_text(text: str) -> str:
    """Put a space before a text that Jina v4's own code would take for an image's address or file."""
    try:
        is_file = os.path.isfile(text)
    except ValueError:  # a zero byte
        is_file = False
    return f" {text}" if is_file or text.startswith("http") else text


def _padded(features: dict[str, Any], length: int, tokenizer: Any) -> dict[str, Any]:
    """Pad every (rows, tokens) tensor on the tokenizer's side; attention masks and types with zeros."""
    import torch
    from torch.nn.functional import pad

    width = input_ids(features).shape[1]
    side = (length - width, 0) if tokenizer.padding_side == "left" else (0, length - width)
    return {
        key: pad(value, side, value=(tokenizer.pad_token_id or 0) if key.endswith("input_ids") else 0)
        if torch.is_tensor(value) and value.ndim == 2 and value.shape[1] == width
        else value
        for key, value in features.items()
    }
