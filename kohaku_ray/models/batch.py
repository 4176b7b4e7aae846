"""Batched decoding for kind ``transformers``: a common prefix is computed once, rows join and leave between steps."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad
from transformers.cache_utils import Cache, DynamicLayer

from kohaku_ray.errors import ConfigError
from kohaku_ray.index.arrays import I64
from kohaku_ray.models.decoding import Row, choose

ROOM_TOKENS = 128
"""Tokens by which the buffers of keys and values grow."""

ATTENTION = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
"""Types of layers whose whole state is keys and values, token by token: others, as Mamba's, cannot be shared."""

KeyValues = list[tuple[torch.Tensor, ...]]
"""Keys and values by layer, each of shape ``(n_rows, n_heads, n_tokens, n_dimensions)``."""


class Growing(DynamicLayer):  # type: ignore[misc]  # the library has no types
    """Keys and values in buffers with room at the end: a step writes one token, where the library copies them all."""

    def __init__(self, keys: torch.Tensor | None = None, values: torch.Tensor | None = None) -> None:
        super().__init__()
        self._buffers: list[Any] = [keys, values]  # as long as what they hold: others' are never written to
        if keys is not None:
            self.lazy_initialization(keys, values)
            self.keys, self.values = keys, values

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Append the keys and values of new tokens; returns all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        n = self.get_seq_length()
        self._buffers = [
            _appended(buffer, n, new) for buffer, new in zip(self._buffers, (key_states, value_states), strict=True)
        ]
        self.keys, self.values = (buffer[..., : n + key_states.shape[-2], :] for buffer in self._buffers)
        return self.keys, self.values


def _appended(buffer: torch.Tensor | None, n: int, new: torch.Tensor) -> torch.Tensor:
    total = n + new.shape[-2]
    if buffer is None or total > buffer.shape[-2]:
        larger = new.new_empty(*new.shape[:2], total + (ROOM_TOKENS if n else 0), new.shape[-1])
        if buffer is not None:
            larger[..., :n, :] = buffer[..., :n, :]
        buffer = larger
    buffer[..., n:total, :] = new
    return buffer


@dataclass(frozen=True, slots=True)
class Computed:
    """A prompt that the model has read.

    Attributes:
        ids: Its tokens.
        state: Its keys and values.
        logits: Of the token after it, shape ``(1, n_vocabulary)``.
    """

    ids: I64
    state: KeyValues
    logits: torch.Tensor


class Batch:
    """The rows that a model decodes now, and the prompts that it read last.

    Attributes:
        rows: Rows that have not ended.
        kept: The prompts, the last one read or met again at the end.
    """

    def __init__(self, model: Any, kept_tokens: int) -> None:
        """Start without rows.

        Args:
            model: A causal language model of transformers.
            kept_tokens: Most tokens of the prompts that are kept for later rows; at least the last prompt is.

        Raises:
            ConfigError: The model has other state than keys and values.
        """
        self._model, self._kept_tokens = model, kept_tokens
        self._takes = inspect.signature(model.forward).parameters.keys()
        types = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
        if not ATTENTION.issuperset(types) or getattr(model, "_is_stateful", False):
            raise ConfigError(f"{type(model).__name__} is no model of attention alone: serve it by vLLM or llama.cpp")
        self.clear()

    def clear(self) -> None:
        """Forget rows and prompts, and free their memory."""
        self.rows: list[Row] = []
        self.kept: list[Computed] = []
        self._cache: Any = None
        self._logits: Any = None
        self._padding: list[int] = []  # tokens before each row's prompt
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def advance(self, new: Sequence[Row]) -> list[Row]:
        """Take new rows in and choose one token of every row; returns the rows that ended, which leave."""
        with torch.inference_mode():
            if self.rows:
                self._step()
            if new:
                self._join(new, [self._computed(row) for row in new])
            choose(self.rows, self._logits)
            ended = [row for row in self.rows if row.has_ended]
            if ended:
                self._keep([place for place, row in enumerate(self.rows) if not row.has_ended])
        return ended

    def _step(self) -> None:
        n_tokens = self._cache.get_seq_length()
        padding = torch.tensor(self._padding)[:, None]
        # Without padding no mask, which would cost the faster kernels.
        mask = (torch.arange(n_tokens + 1) >= padding).long() if any(self._padding) else None
        last = torch.tensor([[row.last] for row in self.rows])
        self._logits = self._forward(last, self._cache, attention_mask=mask, position_ids=n_tokens - padding)

    def _computed(self, row: Row) -> Computed:
        """Return a row's prompt as the model reads it: one of those kept, or the rest of what begins as one of them."""
        ids = np.array(row.prompt, np.int64)
        equal = [_n_equal(one.ids, ids) for one in self.kept]
        n_known, place = max(zip(equal, range(len(equal)), strict=True), default=(0, 0))
        if n_known and n_known == len(ids) == len(self.kept[place].ids):
            self.kept.append(self.kept.pop(place))
            row.n_cached = n_known
            return self.kept[-1]
        n_known = row.n_cached = min(n_known, len(ids) - 1)  # the last token's logits are needed
        known = [tuple(each[..., :n_known, :] for each in both) for both in self.kept[place].state] if n_known else []
        cache = self._new_cache(known)
        logits = self._forward(torch.from_numpy(ids[n_known:])[None], cache)
        computed = Computed(ids, [(layer.keys, layer.values) for layer in cache.layers], logits)
        self.kept.append(computed)
        while len(self.kept) > 1 and sum(len(one.ids) for one in self.kept) > self._kept_tokens:
            del self.kept[0]
        return computed

    def _new_cache(self, state: KeyValues) -> Any:
        return Cache(layers=[Growing(*one) for one in state]) if state else Cache(layer_class_to_replicate=Growing)

    def _forward(self, ids: torch.Tensor, cache: Any, **inputs: Any) -> torch.Tensor:
        """Return the logits after the last token, shape ``(n_rows, n_vocabulary)``; the cache grows by the tokens."""
        inputs = {**inputs, "logits_to_keep": 1}
        device = self._model.device
        known = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in inputs.items()
            if name in self._takes
        }
        logits = self._model(input_ids=ids.to(device), past_key_values=cache, use_cache=True, **known).logits
        last: torch.Tensor = logits[:, -1]
        return last

    def _join(self, new: Sequence[Row], computed: Sequence[Computed]) -> None:
        """Put new rows below the others, padded on the left to one length."""
        logits = [one.logits for one in computed]
        states: list[KeyValues] = [one.state for one in computed]
        lengths = [len(one.ids) for one in computed]
        if self.rows:
            states.insert(0, [(layer.keys, layer.values) for layer in self._cache.layers])
            lengths.insert(0, self._cache.get_seq_length())
            logits.insert(0, self._logits)
        longest = max(lengths)
        lacking = [longest - n for n in lengths]

        def below(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
            return torch.cat([pad(one, (0, 0, n, 0)) if n else one for one, n in zip(tensors, lacking, strict=True)])

        n_before = len(states) - len(new)
        self._padding = [n + lacking[0] for n in self._padding] + lacking[n_before:]
        self.rows = [*self.rows, *new]
        by_layer = zip(*states, strict=True)
        self._cache = self._new_cache([(below([k for k, _ in one]), below([v for _, v in one])) for one in by_layer])
        self._logits = torch.cat(logits)

    def _keep(self, places: Sequence[int]) -> None:
        """Keep the rows at these places, without the padding that all of them have."""
        self.rows = [self.rows[place] for place in places]
        least = min((self._padding[place] for place in places), default=0)
        self._padding = [self._padding[place] - least for place in places]
        if not places:
            self._cache = self._logits = None
            return
        at = torch.tensor(places)
        kept = [(layer.keys, layer.values) for layer in self._cache.layers]
        self._cache = self._new_cache([tuple(one[at.to(one.device), :, least:] for one in both) for both in kept])
        self._logits = self._logits[at.to(self._logits.device)]


def _n_equal(one: I64, other: I64) -> int:
    """Count the tokens that two prompts have in common from their start."""
    n = min(len(one), len(other))
    differ = np.flatnonzero(one[:n] != other[:n])
    return int(differ[0]) if len(differ) else n
