"""Index and run in this process, without Ray: what the jobs leave on disk, in a second or two."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
from index.small_index import index_documents

from kohaku_ray.answering.replay import RecordedEncoders, make_again, models_by_member, open_recorded
from kohaku_ray.config import Config
from kohaku_ray.index.pending import ParsedParts
from kohaku_ray.models.request import ChatRequest, request_key
from kohaku_ray.records import Reply
from kohaku_ray.run.collection.documents import default_ids, parse_collection
from kohaku_ray.run.collection.indexes import index_settings, make_query_encoder, open_index, views_of
from kohaku_ray.run.collection.indexing import Encode, build_shard_task, join_shards, parse, sorted_window, survey
from kohaku_ray.run.collection.sources import find_sources
from kohaku_ray.run.record.directory import RunDirectory
from kohaku_ray.run.record.identity import identity_of
from kohaku_ray.run.segments import Entry, LedgerReply, SegmentStore
from kohaku_ray.settings import resolve_paths

Chat = Callable[[ChatRequest], Awaitable[Reply]]


def index_here(config: Config) -> None:
    documents = [view.document for view in parse_collection(config).documents]
    encoder = make_query_encoder(config)
    encoder.identity = index_settings(config).encoder
    index_documents(config.index.path, documents, encoder, views=views_of(config))


def index_stages(config: Config, job: str, between: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Do what the index job does, stage after stage; ``between`` parsing and encoding something may happen.

    Returns:
        The new texts, their number, and the CPU seconds of parsing.
    """
    files, began = find_sources(config), time.process_time()
    batch = pa.table({"at": range(len(files)), "file": files})
    texts = parse(batch, config, job, default_ids(files))
    parse_cpu_s = time.process_time() - began
    between()
    work, *rows = survey(config, job, 2.0**40)
    config = config.model_copy(update={"index": config.index.model_copy(update={"shards": work.n_shards})})
    blocks = sorted_window(texts, 1)
    if len(blocks):
        encode = Encode(config, gpu=False)
        for number in range(len(blocks)):
            encode(blocks.slice(number, 1))
    join_shards(config, job, *(build_shard_task(config, job, n, rows[n]) for n in range(work.n_shards)))
    ParsedParts(config.index.path, job).clear()
    return {"texts": texts["text"].to_pylist(), "n_encoded": len(texts), "parse_cpu_s": parse_cpu_s}


class _Calling:
    """A ledger that calls a model for what it lacks, up to ``at_once`` calls at a time, and keeps each reply."""

    def __init__(self, path: str, chats: dict[str, Chat], at_once: int) -> None:
        self.path, self.chats, self.places = path, chats, asyncio.Semaphore(at_once)
        self.entries = dict(SegmentStore(path).load(lambda _: True).entries)

    async def ask(self, request: ChatRequest, application: str, again: bool = False) -> LedgerReply:
        key = request_key(request)
        if key not in self.entries:
            async with self.places:
                began = time.perf_counter()
                reply = await self.chats[application](request)
            self.entries[key] = Entry(reply, request.model, time.perf_counter() - began)
            SegmentStore(self.path).write([(key, self.entries[key])])
        return LedgerReply(self.entries[key], "made", key)


def run_here(config: Config, chat: Chat | None = None, at_once: int = 64) -> str:
    """Make a run; ``chat`` stands for all models. Returns its directory."""
    config = resolve_paths(config)
    index, directory = open_index(config), RunDirectory(config.run)
    os.makedirs(config.run, exist_ok=True)
    chats = {name: chat or deployment.make_backend().chat for name, deployment in config.used_deployments.items()}
    ledger = _Calling(config.ledger.path, chats, at_once)
    began, recorded = time.perf_counter(), RecordedEncoders()
    directory.begin(config)
    summary = make_again(config, models_by_member(config), ledger, recorded, open_recorded(config, index, recorded))
    summary.wall_s = time.perf_counter() - began
    directory.finish(config, summary, identity_of(config, index))
    return config.run
