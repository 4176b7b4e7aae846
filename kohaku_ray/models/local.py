"""Requests that wait together are generated together, each as if it were alone, and a common prompt is read once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from jinja2.exceptions import TemplateError

from kohaku_ray.errors import ContextOverflowError, ModelError
from kohaku_ray.models.batch import Batch
from kohaku_ray.models.decoding import Row, grammar_tokenizer, matcher
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.records import Reply
from kohaku_ray.values.read import clean_text

_LOG = logging.getLogger(__name__)

BATCH_WAIT_S = 0.01
"""Seconds to wait for further requests to share a batch."""


class LocalBackend:
    """A causal language model with its tokenizer.

    Guaranteed: a row has its own random numbers, grammar, end and padding mask, so nothing but rounding passes from one
    row of a batch to another. Equal prompts are read once, and of a prompt that begins as one of the last the rest.
    Not guaranteed: a batch of another shape, or a prompt read in two parts, runs other kernels, whose sums differ in
    the last places. Where two tokens are that close, which is rare in float32 and less so in 16 bits, the text differs
    from there on. The ledger records the reply that was given.
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
        """Take a causal language model of transformers over, on its device, with its fast tokenizer (``load_model``).

        ``name`` is for messages; the others are settings of a deployment of kind ``transformers``.
        """
        self._model, self._tokenizer, self._name = model.eval(), tokenizer, name
        self._window_tokens = window_tokens
        self._template_kwargs = dict(template_kwargs or {})
        self._reasoning_end = tuple(_encode(tokenizer, reasoning_end)) if reasoning_end else ()
        self._reasoning_tokens = reasoning_tokens
        self._end_ids = _end_ids(model, tokenizer)
        self._grammar_tokenizer = grammar_tokenizer(tokenizer, sorted(self._end_ids))
        if tokenizer.chat_template is None:
            _LOG.warning("%s has no chat template: messages are joined by line breaks", name)
        self._batch = Batch(model, window_tokens)
        self._most = self._room = batch_size
        self._waiting: list[Row] = []
        self._futures: dict[Row, asyncio.Future[Reply]] = {}
        self._runner: asyncio.Task[None] | None = None
        # One thread: torch's threads belong to the thread that calls them.
        threads = torch.get_num_threads()
        self._thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,))

    async def chat(self, request: ChatRequest) -> Reply:
        """Answer one request, in a batch with others that wait.

        Raises:
            ContextOverflowError: The prompt and the longest reply do not fit the window.
            ModelError: The schema does not compile, or the model broke on this request.
        """
        row = self._row(request)
        future = self._futures[row] = asyncio.get_running_loop().create_future()
        self._waiting.append(row)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        reply: Reply = await future
        return reply

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
            None if request.schema is None else matcher(self._grammar_tokenizer, request.schema),
            self._reasoning_end,
            self._reasoning_tokens,
        )

    def _prompt(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Render the chat template; a template that refuses a system message gets it before the user's."""
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
        """Advance all rows token by token; as rows end, others that wait take their places."""
        await asyncio.sleep(BATCH_WAIT_S)
        active: list[Row] = []
        while active or self._waiting:
            n_free = max(0, self._room - len(active))
            if n_free:  # equal prompts together, in order of arrival, and prompts that are kept first
                order = {tuple(one.ids.tolist()): at for at, one in enumerate(self._batch.kept)}
                self._waiting.sort(key=lambda row: order.setdefault(tuple(row.prompt), len(order)))
            new, self._waiting = self._waiting[:n_free], self._waiting[n_free:]
            active += new
            try:
                ended = await asyncio.get_running_loop().run_in_executor(self._thread, self._batch.advance, new)
            except Exception as error:
                self._retreat(active, error)
                active = []
                continue
            for row in ended:
                self._end(row, row.error or self._reply(row))
            active = list(self._batch.rows)

    def _retreat(self, rows: list[Row], error: Exception) -> None:
        """Begin again with half of the rows while others wait: a broken request fails alone, a large one fits alone."""
        n_kept = len(self._batch.kept)
        self._batch.clear()
        is_full = isinstance(error, torch.OutOfMemoryError)
        if len(rows) == 1 and not (is_full and n_kept > 1):
            if is_full:
                error = ModelError(
                    f"{self._name}: a prompt of {len(rows[0].prompt)} tokens does not fit the GPU's memory even alone: "
                    "lower window_tokens, or load the model in 4 bits"
                )
            elif not isinstance(error, ModelError):
                error = ModelError(f"{self._name}: {type(error).__name__}: {error}")
            self._end(rows[0], error)
            return
        for row in rows:
            row.reset()
        self._waiting = rows + self._waiting
        self._room = max(1, len(rows) // 2)

    def _end(self, row: Row, result: Reply | Exception) -> None:
        self._room = min(self._room + 1, self._most)
        future = self._futures.pop(row)
        if future.done():  # nobody waits any more
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _reply(self, row: Row) -> Reply:
        begin = row.reply_at if row.reply_at is not None else len(row.generated)
        return Reply(
            text=clean_text(self._tokenizer.decode(row.generated[begin:], skip_special_tokens=True)),
            prompt_tokens=len(row.prompt),
            cached_tokens=row.n_cached,
            completion_tokens=len(row.generated),
            finish_reason=row.finish_reason or "length",
        )


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a reply: the model's own list, such as an end of turn, and the tokenizer's."""
    own = model.generation_config.eos_token_id if model.generation_config is not None else None
    listed = own if isinstance(own, list) else [own]
    return frozenset(int(one) for one in (*listed, tokenizer.eos_token_id) if one is not None)
