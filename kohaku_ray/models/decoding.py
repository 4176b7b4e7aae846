"""One row of a batch: its own random numbers, grammar, length and end, whatever the other rows are."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kohaku_ray.errors import ModelError
from kohaku_ray.models.request import ChatRequest


@dataclass(slots=True)
class Row:
    """One request while its reply is generated.

    Attributes:
        prompt: Token ids of the prompt.
        request: What is asked: temperature, top_p, max_tokens, seed.
        end_ids: Tokens that end the reply.
        grammar: Grammar of the reply (an ``LLMatcher``); None: free text.
        reasoning_end: Tokens that end the model's reasoning, after which the grammar holds; empty: no reasoning.
        reasoning_tokens: Most tokens of reasoning, after which ``reasoning_end`` is forced.
        generated: Token ids of the reply so far, the token that ended it left out.
        reply_at: Where the reply begins in ``generated``; None while the model reasons.
        finish_reason: ``stop`` or ``length``; None while it is generated.
    """

    prompt: list[int]
    request: ChatRequest
    end_ids: frozenset[int]
    grammar: Any = None
    reasoning_end: tuple[int, ...] = ()
    reasoning_tokens: int = 0
    generated: list[int] = field(default_factory=list)
    reply_at: int | None = None
    finish_reason: str | None = None
    _draw: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again: the same row gives the same tokens."""
        self._draw = random.Random(self.request.seed)  # noqa: S311  # a draw, not a secret
        self.generated, self.finish_reason = [], None
        self.reply_at = None if self.reasoning_end else 0
        if self.grammar is not None:
            self.grammar.reset()

    def next_token(self, logits: torch.Tensor) -> int:
        """Choose the next token and record it.

        Args:
            logits: Shape ``(n_vocabulary,)``.

        Raises:
            ModelError: The grammar allows no token, or the model's logits are no numbers.
        """
        token = self._forced()
        if token is None:
            token = self._choose(logits)
        self._record(token)
        return token

    def _forced(self) -> int | None:
        """Return the next token of the reasoning's end when the reasoning is as long as it may be."""
        n_over = len(self.generated) - self.reasoning_tokens
        return self.reasoning_end[n_over] if self.reply_at is None and 0 <= n_over < len(self.reasoning_end) else None

    def _choose(self, logits: torch.Tensor) -> int:
        constrained = self.grammar is not None and self.reply_at is not None
        if constrained:
            logits = logits.masked_fill(~self._allowed(len(logits)).to(logits.device), -torch.inf)
        token = sample(logits, self.request.temperature, self.request.top_p, self._draw.random())
        if constrained and not self.grammar.consume_token(token):
            raise ModelError(f"the grammar of the reply broke: {self.grammar.get_error()}")
        return token

    def _allowed(self, n_vocabulary: int) -> torch.Tensor:
        bits = np.unpackbits(np.frombuffer(self.grammar.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.zeros(n_vocabulary, np.bool_)  # a model's matrix may be padded beyond its tokenizer
        allowed[: len(bits)] = bits[:n_vocabulary]
        if not allowed.any():
            raise ModelError(f"the grammar of the reply allows no token: {self.grammar.get_error() or 'it has ended'}")
        return torch.from_numpy(allowed)

    def _record(self, token: int) -> None:
        if token in self.end_ids:
            self.finish_reason = "stop"
            return
        self.generated.append(token)
        if self.reply_at is None:
            if tuple(self.generated[-len(self.reasoning_end) :]) == self.reasoning_end:
                self.reply_at = len(self.generated)
        elif self.grammar is not None and self.grammar.is_stopped():
            self.finish_reason = "stop"
        if self.finish_reason is None and len(self.generated) >= self.request.max_tokens:
            self.finish_reason = "length"


def sample(logits: torch.Tensor, temperature: float, top_p: float, uniform: float) -> int:
    """Choose a token by inverting the cumulative distribution at a uniform random number.

    The sum runs in 64 bits over this row alone. Logits that differ in the last place, as those of another batch do,
    give the same token unless the number falls within that difference of a boundary.

    Args:
        logits: Shape ``(n_vocabulary,)``; ``-inf`` is never chosen.
        temperature: 0 takes the largest logit, and of several the first.
        top_p: The smallest set of likeliest tokens with this probability is kept.
        uniform: In ``[0, 1)``.

    Raises:
        ModelError: A logit is NaN or infinite, for example because weights overflow their number format.
    """
    if bool(torch.isnan(logits).any()) or not bool(torch.isfinite(logits.max())):
        raise ModelError("the model's logits are no numbers: set dtype to bfloat16 or float32")
    if temperature <= 0:
        return int(logits.argmax())
    shares = torch.softmax(logits.double() / temperature, dim=-1)
    order = None
    if top_p < 1:
        shares, order = shares.sort(descending=True, stable=True)
        shares = shares.masked_fill(shares.cumsum(0) - shares >= top_p, 0.0)
    sums = shares.cumsum(0)
    at = int(torch.searchsorted(sums, sums[-1] * uniform, right=True))
    at = min(at, int(shares.nonzero()[-1]))
    return at if order is None else int(order[at])


class RowSampler:
    """A logits processor that chooses every row's token itself and leaves no other to the library's greedy search."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return logits that are finite for the chosen tokens alone; finished rows are padded by the library."""
        chosen = torch.zeros(len(self._rows), dtype=torch.long)
        for place, row in enumerate(self._rows):
            if row.finish_reason is None:
                chosen[place] = row.next_token(scores[place])
        only = torch.full_like(scores, -torch.inf)
        return only.scatter_(1, chosen.to(scores.device).unsqueeze(1), 0.0)


class RowsFinished:
    """A stopping criterion: rows that are whole."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Return which rows are finished."""
        return torch.tensor([row.finish_reason is not None for row in self._rows], device=input_ids.device)


class Grammars:
    """Compiles JSON schemas for one tokenizer, by llguidance."""

    def __init__(self, tokenizer: Any, n_vocabulary: int, end_ids: Sequence[int]) -> None:
        from llguidance.hf import from_tokenizer

        self._tokenizer = from_tokenizer(tokenizer, n_vocab=n_vocabulary, eos_token=list(end_ids))

    def compile(self, schema: Mapping[str, Any]) -> Any:
        """Compile a schema to a matcher of compact JSON: a weak model may repeat optional white space without end.

        Raises:
            ModelError: The schema is not one that the library supports.
        """
        from llguidance import LLMatcher

        try:
            grammar = LLMatcher.grammar_from_json_schema(
                json.dumps(schema),
                overrides={"whitespace_flexible": False},
            )
            matcher = LLMatcher(self._tokenizer, grammar)
        except ValueError as error:
            raise ModelError(f"the schema of the reply does not compile: {error}") from error
        if matcher.is_error():
            raise ModelError(f"the schema of the reply does not compile: {matcher.get_error()}")
        return matcher
