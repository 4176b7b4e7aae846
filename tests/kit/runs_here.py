"""Index and run in this process, without Ray: what the jobs leave on disk, in a second or two."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa

from kohaku_ray.answering.replay import RecordedEncoders, make_again, models_by_member, open_recorded
from kohaku_ray.config import Config
from kohaku_ray.index.pending import ParsedParts
from kohaku_ray.models.request import ChatRequest, request_key
from kohaku_ray.records import Reply
from kohaku_ray.run.collection.documents import default_ids, split_used_and_rejected
from kohaku_ray.run.collection.image_encoding import EncodeImages, images_to_encode
from kohaku_ray.run.collection.indexes import open_index
from kohaku_ray.run.collection.indexing import Encode, build_shard_task, join_shards, parse, sorted_window, survey
from kohaku_ray.run.collection.sources import find_sources
from kohaku_ray.run.record.directory import RunDirectory
from kohaku_ray.run.record.identity import identity_of
from kohaku_ray.run.segments import Entry, LedgerReply, ReplySource, SegmentStore
from kohaku_ray.settings import resolve_paths

Chat = Callable[[ChatRequest], Awaitable[Reply]]


def index_here(config: Config, between: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Do what the index job does, stage after stage; ``between`` parsing and encoding something may happen.

    Images are described by no model.

    Returns:
        The new texts, their number, that of new images, the job's work and the index's counts, and the CPU seconds of
        parsing.
    """
    config, job = resolve_paths(config), uuid.uuid4().hex
    files, began = find_sources(config), time.process_time()
    batch = pa.table({"at": range(len(files)), "file": files})
    texts = parse(batch, config, job, default_ids(files))
    parse_cpu_s = time.process_time() - began
    between()
    work, *rows = survey(config, job, 2.0**40)
    config = config.model_copy(update={"index": config.index.model_copy(update={"shards": work.n_shards})})
    blocks, parts = sorted_window(texts, 1), ParsedParts(config.index.path, job)
    if len(blocks):
        encode = Encode(config, gpu=False)
        for number in range(len(blocks)):
            encode(blocks.slice(number, 1))
    images = config.index.images and images_to_encode(
        [parts.table(split_used_and_rejected(parts.rows())[0], "images")], config
    )
    if images:
        block = {name: [[image[name] for image in images]] for name in ("digest", "key")}
        list(EncodeImages(config, gpu=False)(pa.table(block)))
    counts = join_shards(config, job, *(build_shard_task(config, job, n, rows[n]) for n in range(work.n_shards)))
    parts.clear()
    found = {"texts": texts["text"].to_pylist(), "n_encoded": len(texts), "n_images_encoded": len(images or ())}
    return {**found, "work": work, "counts": counts, "parse_cpu_s": parse_cpu_s}


class _Calling:
    """A ledger that calls a model for what it lacks, up to ``at_once`` calls at a time, and keeps each reply."""

    def __init__(self, path: str, chats: dict[str, Chat], at_once: int) -> None:
        self.path, self.chats, self.places = path, chats, asyncio.Semaphore(at_once)
        self.entries = dict(SegmentStore(path).load(lambda _: True).entries)

    async def ask(self, request: ChatRequest, application: str, again: bool = False) -> LedgerReply:
        key = request_key(request)
        source: ReplySource = "ledger" if key in self.entries else "made"
        if source == "made":
            async with self.places:
                began = time.perf_counter()
                reply = await self.chats[application](request)
            self.entries[key] = Entry(reply, request.model, time.perf_counter() - began)
            SegmentStore(self.path).write([(key, self.entries[key])])
        return LedgerReply(self.entries[key], source, key)


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
