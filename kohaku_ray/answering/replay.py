"""Make a run again in this process from recorded replies: a call without one is never made."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kohaku_ray.answering.executor import InProcessExecutor, start_block
from kohaku_ray.answering.index_operations import IndexOperations
from kohaku_ray.answering.local_index import LocalIndex
from kohaku_ray.answering.outputs import write_run
from kohaku_ray.answering.tools import LedgerClient, RunContext
from kohaku_ray.collection.indexes import QueryEncoder, make_image_query_encoder, open_index
from kohaku_ray.collection.sources import questions_of
from kohaku_ray.config import Config, build_config
from kohaku_ray.config.roles import models_of
from kohaku_ray.config.yaml_text import read_yaml
from kohaku_ray.errors import ConfigError, ContextOverflowError, DataError, ModelError
from kohaku_ray.event_loop import run_apart
from kohaku_ray.index.arrays import F32, I64
from kohaku_ray.index.chunks import TokenCounter
from kohaku_ray.index.identity import prompt_counter, token_counter
from kohaku_ray.index.store import Index
from kohaku_ray.models.calls import Model
from kohaku_ray.models.request import ChatRequest, request_key
from kohaku_ray.models.summary import AnswerSummary
from kohaku_ray.models.target import Target
from kohaku_ray.records import Question, digest
from kohaku_ray.runs.files import SentPrompt, question_rows
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.store.parts import JoinedParts, RunParts
from kohaku_ray.store.segments import Entry, LedgerReply, SegmentStore
from kohaku_ray.store.storage import join_path, read_file

BLOCK = 32
"""Questions that are made again at once: enough to batch their searches."""

Models = tuple[dict[str, Model], ...]
"""The models of a run by role, per member."""


@dataclass(slots=True)
class RecordedReplies:
    """A ledger that makes no call."""

    entries: Mapping[str, Entry]  # recorded replies
    requests: dict[str, ChatRequest] | None = None  # where requests are kept, by key

    async def ask(self, request: ChatRequest, target: Target, again: bool = False) -> LedgerReply:
        """Return the recorded reply.

        Raises:
            ContextOverflowError: There is none. Of a finished run, the model had refused the call for its length, which
                no ledger records; a system may ask with less.
        """
        key = request_key(request)
        if self.requests is not None:
            self.requests[key] = request
        if key in self.entries:
            return LedgerReply(self.entries[key], "ledger", key)
        raise ContextOverflowError("the prompt was longer than the model takes")


@dataclass(slots=True)
class RecordedEncoders:
    """What encoders and tokenizers returned, by the digest of what they were asked."""

    known: dict[str, F32] = field(default_factory=dict)  # vectors, and counts as vectors of one number
    is_closed: bool = False  # whether nothing else is asked; otherwise what is new is asked and kept

    @classmethod
    def read(cls, file: str) -> RecordedEncoders:
        """Read what ``as_parquet`` wrote; nothing else is asked."""
        rows = pq.read_table(file).to_pylist()
        return cls({row["key"]: np.array(row["values"], np.float32) for row in rows}, is_closed=True)

    def as_parquet(self) -> pa.Buffer:
        """Write it as a Parquet file."""
        schema, sink = pa.schema([("key", pa.string()), ("values", pa.list_(pa.float32()))]), pa.BufferOutputStream()
        columns = {"key": sorted(self.known), "values": [self.known[key] for key in sorted(self.known)]}
        pq.write_table(pa.table(columns, schema), sink, compression="zstd", use_dictionary=False)
        return sink.getvalue()

    def ask(self, of: str, texts: Sequence[str], compute: Callable[[list[str]], Any]) -> list[F32]:
        """Return what is recorded of texts, or compute it.

        Args:
            of: Name of the encoder or tokenizer, and of what it returns.
            texts: One result is returned for each.
            compute: Makes the results of texts that are not recorded.

        Raises:
            ModelError: A text is not recorded, and nothing else is asked.
        """
        keys = [digest([of, text]) for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self.known}
        if new and self.is_closed:
            raise ModelError(f"nothing recorded: {of} {next(iter(new.values()))[:80]!r}")
        if new:
            for key, result in zip(new, compute(list(new.values())), strict=True):
                self.known[key] = np.atleast_1d(np.asarray(result, np.float32))
        return [self.known[key] for key in keys]

    def token_counter(self, model: str, revision: str | None) -> TokenCounter:
        """See ``index.identity.token_counter``."""

        def count(texts: Sequence[str]) -> I64:
            counts = self.ask(f"tokens by {model} of", texts, lambda new: token_counter(model, revision)(new))
            return np.array([int(n_tokens[0]) for n_tokens in counts], np.int64)

        return count

    def prompt_counter(self, model: str, revision: str | None) -> Callable[[str, str], int]:
        """See ``index.identity.prompt_counter``."""

        def count(system: str, user: str) -> int:
            ask = functools.partial(self.ask, f"tokens by {model} of prompt", [f"{system}\0{user}"])
            return int(ask(lambda _: [prompt_counter(model, revision)(system, user)])[0][0])

        return count


class RecordedEncoder:
    """An encoder whose vectors are recorded; it is loaded when it is needed."""

    def __init__(self, recorded: RecordedEncoders, of: str, load: Callable[[], Any]) -> None:
        self._recorded, self._of, self._load = recorded, of, functools.cache(load)

    def encode_queries(self, texts: Sequence[str]) -> list[F32]:
        """Return what is recorded, or encode and record it."""
        return self._recorded.ask(self._of, texts, lambda new: self._load().encode_queries(new))


def config_of(run: str) -> Config:
    """Read the configuration of a run that can be made again.

    Raises:
        ConfigError: It cannot be used, or ranks with a cross-encoder.
    """
    path = join_path(run, "config.yaml")
    try:
        values = read_yaml(read_file(path))
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    config = build_config(values, path)
    if config.uses.cross_encoder is not None:
        raise ConfigError(f"{run} ranks with a cross-encoder, whose scores no ledger records: it cannot be made again")
    return config


def open_recorded(config: Config, index: Index, recorded: RecordedEncoders) -> LocalIndex:
    """Open an index in this process, whose encoders are loaded when something is asked that is not recorded."""

    @functools.cache
    def shard(number: int) -> LocalIndex:
        texts = RecordedEncoder(recorded, "vector of query", lambda: QueryEncoder(config))
        images = RecordedEncoder(recorded, "vector of image query", lambda: make_image_query_encoder(config))
        return LocalIndex(
            index.shards[number],
            texts,  # type: ignore[arg-type]  # all that is asked of it
            image_encoder=images,  # type: ignore[arg-type]
            peer=shard,
            count=recorded.token_counter,
        )

    return shard(0)


def make_again(
    config: Config, models: Models, replies: LedgerClient, recorded: RecordedEncoders, index: IndexOperations
) -> AnswerSummary:
    """Make a run in this process, and write its directory but for ``config.yaml`` and ``run.json``; returns its counts.

    Raises:
        ConfigError: The configuration cannot be used.
        DataError: Its questions or its index cannot be used.
    """
    prompts = config.declaration.prompts(config.prompts)
    context = RunContext(config, replies, models, prompts, prompt_counter=recorded.prompt_counter)
    questions = questions_of(config)
    blocks = [questions[start : start + BLOCK] for start in range(0, len(questions), BLOCK)]

    os.makedirs(config.run, exist_ok=True)
    summary = AnswerSummary(config.run)
    with tempfile.TemporaryDirectory() as folder:
        parts, names = RunParts(folder, ""), list[str]()

        async def answer_blocks() -> None:
            for block in blocks:
                counts, tables = await start_block(config, InProcessExecutor(context, index, block))
                summary.add(counts)
                names.append(parts.write([question.question_id for question in block], tables, asdict(counts)))

        run_apart(answer_blocks())
        write_run(config, RunDirectory(config.run), JoinedParts(parts, names))
    return summary


def models_by_member(config: Config) -> Models:
    """Return each member's models by role; none of them is served."""
    targets = {name: Target(name) for name in config.deployments}
    return tuple(models_of(config, targets, member) for member in range(config.ensemble.members))


def requests_of(config: Config, questions: Sequence[Question], keys: Set[str]) -> dict[str, ChatRequest]:
    """Make the calls of a run's questions again from the recorded replies of these keys; returns them by key."""
    requests: dict[str, ChatRequest] = {}
    replies = RecordedReplies(SegmentStore(config.ledger.path).load(keys.__contains__).entries, requests)
    context = RunContext(config, replies, models_by_member(config), config.declaration.prompts(config.prompts))
    index = open_recorded(config, open_index(config), RecordedEncoders())

    async def answer() -> None:
        await start_block(config, InProcessExecutor(context, index, questions))

    run_apart(answer())
    return requests


def sent_prompts(run: str, question_id: str) -> list[SentPrompt]:
    """Make the calls of a question again from the recorded replies, and return their prompts.

    The key of a reply in the ledger is the hash of its prompt: a prompt that is found is the one that was sent.

    Raises:
        ConfigError: The run's configuration cannot be used, or it ranks with a cross-encoder.
        DataError: The run, its questions, its index or its ledger cannot be used.
    """
    usage = question_rows(run, question_id)["usage"]
    config = config_of(run)
    questions = [question for question in questions_of(config) if question.question_id == question_id]
    if not questions:
        raise DataError(f"{config.questions.path} has no question {question_id} any more: its prompt is not known")
    requests = requests_of(config, questions, {row["key"] for row in usage})
    prompts: dict[tuple[str, int, object], SentPrompt] = {}
    for row in usage:
        request = requests.get(row["key"])
        messages = None if request is None else tuple((role, text) for role, text in request.messages if text)
        key = (row["role"], row["attempt"], messages)
        members = (*(prompts[key].members if key in prompts else ()), row["member"])
        n_images = 0 if request is None else len(request.images)
        prompts[key] = SentPrompt(row["role"], row["attempt"], members, messages, n_images)
    return list(prompts.values())
