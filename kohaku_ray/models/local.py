"""Requests that wait together are generated together, each as if it were alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kohaku_ray.errors import ContextOverflowError, ModelError
from kohaku_ray.models.decoding import Grammars, Row, RowSampler, RowsFinished
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.records import Reply
from kohaku_ray.values.read import clean_text

BATCH_WAIT_S = 0.01
"""Seconds to wait for further requests to share a batch."""

Waiting = tuple[Row, "asyncio.Future[Reply]"]


class LocalBackend:
    """A causal language model with its tokenizer.

    Guaranteed: a row has its own random numbers, grammar, end and padding mask, so nothing but rounding passes from one
    row of a batch to another. With ``batch_size`` 1 on one machine the same request gives the same text.
    Not guaranteed: a batch of another shape runs other kernels, whose sums differ in the last places. Where two tokens
    are that close, which is rare in float32 and less so in 16 bits, the text differs from there on. The ledger records
    the reply that was given.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        window_tokens: int,
        batch_size: int = 8,
        template_kwargs: Mapping[str, Any] | None = None,
        reasoning_end: str | None = None,
        reasoning_tokens: int = 0,
    ) -> None:
        """Take a model over; ``load_model`` makes one.

        Args:
            model: A causal language model of transformers, on its device.
            tokenizer: Its fast tokenizer.
            name: Its name in messages.
            window_tokens: Longest prompt plus reply, in tokens.
            batch_size: Most requests per batch.
            template_kwargs: Variables of the chat template.
            reasoning_end: Text that ends the model's reasoning: the reply begins, and its schema holds, after it.
            reasoning_tokens: Most tokens of reasoning; they are part of a request's ``max_tokens``.
        """
        from transformers import GenerationConfig

        self._model, self._tokenizer, self._name = model.eval(), tokenizer, name
        self._window_tokens, self._batch_size = window_tokens, batch_size
        self._template_kwargs = dict(template_kwargs or {})
        self._reasoning_end = tuple(_encode(tokenizer, reasoning_end)) if reasoning_end else ()
        self._reasoning_tokens = reasoning_tokens
        self._end_ids = _end_ids(model, tokenizer)
        self._pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self._end_ids, default=0)
        # The model's own sampling defaults would win over a request's, and penalties would count the padding.
        model.generation_config = GenerationConfig(
            eos_token_id=sorted(self._end_ids) or None, pad_token_id=self._pad_id
        )
        self._grammars = Grammars(tokenizer, max(tokenizer.get_vocab().values()) + 1, sorted(self._end_ids))
        self._waiting: list[Waiting] = []
        self._runner: asyncio.Task[None] | None = None

    async def chat(self, request: ChatRequest) -> Reply:
        """Answer one request, in a batch with others that wait.

        Raises:
            ContextOverflowError: The prompt and the longest reply do not fit the window.
            ModelError: The schema does not compile, or the model broke on this request.
        """
        row = self._row(request)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, future))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return await future

    async def close(self) -> None:
        """Wait until the requests in flight are answered."""
        if self._runner is not None:
            await self._runner

    def _row(self, request: ChatRequest) -> Row:
        prompt = self._prompt(request.messages)
        if len(prompt) + request.max_tokens > self._window_tokens:
            raise ContextOverflowError(
                f"{self._name}: the prompt has {len(prompt)} tokens and the reply may have {request.max_tokens}, but "
                f"window_tokens is {self._window_tokens}: lower the context budget or max_tokens"
            )
        return Row(
            prompt,
            request,
            self._end_ids,
            None if request.schema is None else self._grammars.compile(request.schema),
            self._reasoning_end,
            self._reasoning_tokens,
        )

    def _prompt(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Render the chat template; a template that refuses a system message gets it before the user's."""
        from jinja2.exceptions import TemplateError

        if self._tokenizer.chat_template is None:
            return list(self._tokenizer("\n".join(content for _, content in messages))["input_ids"])
        try:
            text = self._rendered(messages)
        except TemplateError:
            told = "\n\n".join(content for role, content in messages if role == "system")
            rest = [message for message in messages if message[0] != "system"]
            if not told or not rest:
                raise
            text = self._rendered([(rest[0][0], f"{told}\n\n{rest[0][1]}"), *rest[1:]])
        return _encode(self._tokenizer, text)

    def _rendered(self, messages: Sequence[tuple[str, str]]) -> str:
        turns = [{"role": role, "content": content} for role, content in messages]
        text: str = self._tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, **self._template_kwargs
        )
        return text

    async def _run(self) -> None:
        """Generate batch after batch until nobody waits."""
        await asyncio.sleep(BATCH_WAIT_S)
        while self._waiting:
            batch, self._waiting = self._waiting[: self._batch_size], self._waiting[self._batch_size :]
            await self._answer([one for one in batch if not one[1].done()])

    async def _answer(self, batch: Sequence[Waiting]) -> None:
        """Generate one batch; where it breaks, its halves, so that a broken request fails alone."""
        if not batch:
            return
        try:
            await asyncio.to_thread(self._generate, [row for row, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                _fail(batch[0][1], self._broken(error, batch[0][0]))
                return
        else:
            for row, future in batch:
                if not future.done():
                    future.set_result(self._reply(row))
            return
        for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
            await self._answer(half)

    def _generate(self, rows: Sequence[Row]) -> None:
        """Generate the rows' tokens, padded on the left."""
        for row in rows:
            row.reset()
        longest = max(len(row.prompt) for row in rows)
        ids = torch.full((len(rows), longest), self._pad_id, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, longest - len(row.prompt) :] = torch.tensor(row.prompt)
            mask[place, longest - len(row.prompt) :] = 1
        device = self._model.device
        try:
            with torch.inference_mode():
                self._model.generate(
                    input_ids=ids.to(device),
                    attention_mask=mask.to(device),
                    max_new_tokens=max(row.request.max_tokens for row in rows),
                    do_sample=False,
                    logits_processor=[RowSampler(rows)],
                    stopping_criteria=[RowsFinished(rows)],
                )
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            raise

    def _reply(self, row: Row) -> Reply:
        begin = row.reply_at if row.reply_at is not None else len(row.generated)
        return Reply(
            text=clean_text(self._tokenizer.decode(row.generated[begin:], skip_special_tokens=True)),
            prompt_tokens=len(row.prompt),
            completion_tokens=len(row.generated),
            finish_reason=row.finish_reason or "length",
        )

    def _broken(self, error: Exception, row: Row) -> ModelError:
        if isinstance(error, ModelError):
            return error
        if isinstance(error, torch.OutOfMemoryError):
            return ModelError(
                f"{self._name}: a prompt of {len(row.prompt)} tokens does not fit the GPU's memory even alone: lower "
                "window_tokens, or load the model in 4 bits"
            )
        return ModelError(f"{self._name}: {type(error).__name__}: {error}")


def _fail(future: asyncio.Future[Reply], error: ModelError) -> None:
    if not future.done():
        future.set_exception(error)


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a reply: the model's own list, such as an end of turn, and the tokenizer's."""
    own = model.generation_config.eos_token_id if model.generation_config is not None else None
    listed = own if isinstance(own, list) else [own]
    return frozenset(int(one) for one in (*listed, tokenizer.eos_token_id) if one is not None)
