"""A model that the sentence-transformers library loads and computes."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from kohaku_ray.documents.lean_imports import without_sklearn
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.arrays import F32
from kohaku_ray.index.identity import locate_model

Precision = Literal["float32", "float16", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]

MOST_BATCH_TOKENS = 1 << 18
"""Most padded tokens of a forward pass on a GPU: more are no faster."""

MEMORY_SHARE = 0.25
"""Share of a GPU's free memory that a forward pass is meant to take: several encoders may share it."""


class GpuMemory:
    """The memory of the GPU that holds a model."""

    def __init__(self, loaded: Any, dim: int) -> None:
        """Read what decides a forward pass's memory.

        Args:
            loaded: The ``SentenceTransformer``.
            dim: Length of its vectors, for a transformer that does not say how wide it is.
        """
        config = getattr(getattr(loaded[0], "auto_model", None), "config", None)
        self._device = loaded.device
        self._entry_bytes = next(loaded.parameters()).element_size()
        self._hidden = getattr(config, "hidden_size", dim)
        self._heads = getattr(config, "num_attention_heads", 16)

    def tokens_that_fit(self, longest: int) -> int:
        """Estimate the padded tokens of a forward pass that fit, with texts of up to ``longest`` tokens.

        A token takes, in the layer that is computed, about 16 hidden states (the feed-forward layer's, attention's
        inputs, residuals) and a row of attention scores per head.
        """
        import torch

        free, _ = torch.cuda.mem_get_info(self._device)
        free += torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        n_bytes = self._entry_bytes * (16 * self._hidden + self._heads * longest)
        return int(min(max(free * MEMORY_SHARE // n_bytes, longest), MOST_BATCH_TOKENS))

    def is_full(self, error: Exception) -> bool:
        """Return whether a forward pass failed for lack of memory."""
        import torch

        return isinstance(error, torch.cuda.OutOfMemoryError)

    def release(self) -> None:
        """Give back what a failed pass left reserved."""
        import torch

        torch.cuda.empty_cache()


class TorchModel:
    """A ``SentenceTransformer``, as an encoder uses it.

    Attributes:
        loaded: The ``SentenceTransformer``.
        dim: Length of its own vectors.
        window: Longest text, in tokens, special ones included; a huge number where the model sets none.
        prompts: Its own prompts, by name.
        default_prompt_name: The prompt it uses by default.
        takes_task: Whether it has adapters for tasks.
        on_cpu: Whether it computes on the CPU.
        memory: The memory of its GPU; None on the CPU.
    """

    def __init__(self, loaded: Any, task: str | None = None) -> None:
        """Read the properties that an encoder needs.

        Args:
            loaded: The ``SentenceTransformer``.
            task: A task that it takes: some models encode nothing without one.
        """
        self.loaded = loaded
        # A module with code of its own may keep its tokenizer in a processor, as Jina v4's does.
        self._tokenizer = getattr(loaded[0], "tokenizer", None) or loaded.processor.tokenizer
        windows = (loaded.max_seq_length, getattr(self._tokenizer, "model_max_length", None))
        self.window = int(next((window for window in windows if window), 1 << 30))
        self.prompts: Mapping[str, str] = loaded.prompts or {}
        self.default_prompt_name: str | None = loaded.default_prompt_name
        self.takes_task = "task" in loaded.get_model_kwargs()
        self.on_cpu = loaded.device.type == "cpu"
        # The method was renamed in sentence-transformers 6.
        renamed = getattr(loaded, "get_embedding_dimension", None)
        self.dim = int((renamed or loaded.get_sentence_embedding_dimension)() or self._measured_dim(task))
        self.memory = None if self.on_cpu else GpuMemory(loaded, self.dim)

    def _measured_dim(self, task: str | None) -> int:
        """Length of a vector of a model that does not say it."""
        given = {} if task is None or not self.takes_task else {"task": task}
        return int(self.embed(self.features(["length"], None, 0, **given), **given).shape[1])

    def pool(self) -> ThreadPoolExecutor | None:
        """Make threads that run ``embed`` in parallel; None where one thread is enough."""
        return _one_thread_each() if self.on_cpu else None

    def lengths(self, texts: Sequence[str], *, special: bool) -> list[int]:
        """Count each text's tokens, with or without special ones, however long it is."""
        ids = self._tokenizer(list(texts), add_special_tokens=special, truncation=False, padding=False, verbose=False)[
            "input_ids"
        ]
        return list(map(len, ids))

    def features(self, texts: Sequence[str], prompt: str | None, pad_to: int, **task: Any) -> dict[str, Any]:
        """Tokenise texts, cut at the window, for one forward pass.

        Args:
            texts: At least one.
            prompt: Put before each.
            pad_to: Tokens of each row; 0: the longest text's.
            task: At most ``task``, for a model that takes one.
        """
        inputs = list(map(_as_text, texts)) if self._guesses else texts
        features: dict[str, Any] = self.loaded.preprocess(inputs, prompt=prompt, **task)
        return _padded(features, pad_to, self._tokenizer) if pad_to else features

    @property
    def _guesses(self) -> bool:
        """Whether its module has code of its own that does not say what it takes, but has a processor: Jina v4's."""
        return not hasattr(self.loaded[0], "modalities") and hasattr(self.loaded[0], "processor")

    @property
    def reads_images(self) -> bool:
        """Whether it turns images into vectors."""
        return self._guesses or bool(self.loaded.supports("image"))

    def image_features(self, images: Sequence[Any], **task: Any) -> dict[str, Any]:
        """Resize Pillow's RGB images, and turn them into what one forward pass takes."""
        inputs = list(images)
        # SentenceTransformer.preprocess refuses images where the module does not say that it takes them.
        ready = self.loaded if self.loaded.supports("image") else self.loaded[0]
        prepare = getattr(ready, "preprocess", None) or ready.tokenize
        features: dict[str, Any] = prepare(inputs, **(task if ready is self.loaded else {}))
        return features

    def embed(self, features: Mapping[str, Any], **task: Any) -> F32:
        """Run a forward pass: shape ``(rows, dim)``."""
        import torch

        device = self.loaded.device
        moved = {key: value.to(device) if torch.is_tensor(value) else value for key, value in features.items()}
        with torch.inference_mode():
            vectors: F32 = self.loaded(moved, **task)["sentence_embedding"].float().cpu().numpy()
        return vectors


def load_model(
    model: str, revision: str | None, precision: Precision, device: Device, trust_remote_code: bool, task: str | None
) -> TorchModel:
    """Load a sentence-transformers model for inference.

    Raises:
        ConfigError: There is no GPU, or the model cannot be loaded.
    """
    import torch

    with without_sklearn():
        from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # one bar per worker, for a tenth of a second
    located = locate_model(model)
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise ConfigError("encoder.device is 'cuda' but this process sees no GPU: set it to auto or cpu")
    try:
        loaded = SentenceTransformer(
            located,
            revision=revision,
            device="cuda" if has_gpu and device != "cpu" else "cpu",
            trust_remote_code=trust_remote_code,
            model_kwargs={"dtype": getattr(torch, precision)},
        ).eval()
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"encoder.model {model!r} cannot be loaded: {error}") from error
    return TorchModel(loaded, task)


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


def _one_thread_each() -> ThreadPoolExecutor | None:
    """Make as many threads as torch would use, each with one torch thread; None where that is one.

    Parallel passes use the cores better than threads within a pass, and a vector is the same to the bit for any
    number of threads.
    """
    import torch

    n_threads = torch.get_num_threads()
    return ThreadPoolExecutor(n_threads, "encode", _compute_alone, (n_threads,)) if n_threads > 1 else None


def _compute_alone(n_threads: int) -> None:
    import torch

    torch.set_num_threads(1)
    # That also set the default of later threads: another thread, which ends at once, restores it.
    other = threading.Thread(target=torch.set_num_threads, args=(n_threads,))
    other.start()
    other.join()
