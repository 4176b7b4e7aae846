"""The captions of an index job: it has a vision model describe new images, through the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray

from kohaku_ray.collection.captions import CaptionRequests, ImageCaption, with_captions
from kohaku_ray.collection.documents import split_used_and_rejected
from kohaku_ray.collection.indexing import TEXT_SCHEMA, new_texts, tables_of, texts_of
from kohaku_ray.config import Config
from kohaku_ray.documents.bounded import unpacked
from kohaku_ray.engine.actors.pool import n_ledger_shards
from kohaku_ray.engine.cluster import print_progress
from kohaku_ray.engine.ledger.client import Ledger
from kohaku_ray.engine.session import Session
from kohaku_ray.errors import ModelError
from kohaku_ray.event_loop import run_apart
from kohaku_ray.index.images import known_captions
from kohaku_ray.index.pending import SOURCE_COLUMNS, ParsedParts
from kohaku_ray.models.captions import description_of, joined_caption
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.target import Target
from kohaku_ray.pages.terminal import Progress
from kohaku_ray.records import pluralize

ERRORS_SHOWN = 3
"""Most reasons named in the summary."""


_Call = tuple[ChatRequest, str | None]
"""A call, and the printed caption of its image."""


@dataclass(frozen=True, slots=True)
class CaptionSummary:
    """What became of the images' descriptions."""

    n_known: int = 0  # calls whose description the index had
    n_asked: int = 0  # calls that were made or found in the ledger
    errors: Sequence[str] = ()  # per failed call, the reason

    def text(self) -> str:
        """Format it for a terminal."""
        line = f"{pluralize(self.n_asked - len(self.errors), 'caption')} asked, {self.n_known} known"
        if self.errors:
            shown = "".join(f"\n  {reason}" for reason in dict.fromkeys(self.errors[:ERRORS_SHOWN]))
            line += f", {len(self.errors)} failed (the printed caption stays):{shown}"
        return line


def model_captions(config: Config, job: str) -> tuple[dict[str, ImageCaption], CaptionSummary]:
    """Describe the images of a job's parsed documents.

    Returns:
        The descriptions by the call's key, and what became of the calls.

    Raises:
        ConfigError: The deployment cannot be started.
        DataError: The ledger cannot be used.
    """
    deployments = config.caption_deployments
    (name,) = deployments
    parsed, requests, calls = ParsedParts(config.index.path, job), CaptionRequests(config), dict[str, _Call]()
    used, _ = split_used_and_rejected(parsed.rows())
    for document, images in zip(parsed.tables(used, "documents"), parsed.tables(used, "images"), strict=True):
        for image, (key, request) in _of_row(requests, document, images):
            calls.setdefault(key, (request, image["printed"]))
    known = known_captions(config.index.path)
    captions = {key: ImageCaption(known[key]) for key in calls if key in known}
    wanted = {key: call for key, call in calls.items() if key not in captions}
    n_known = len(captions)
    if wanted:
        print_progress(f"caption {pluralize(len(wanted), 'image')}, {n_known} known: waiting for {name}")
        with Session(config.cluster, config.ledger) as session:
            ledger = session.open_ledger(config.ledger, n_ledger_shards(config, deployments), deployments.values())
            target = session.start_replicas(deployments)[name]
            captions |= run_apart(_ask_all(config, ledger, target, wanted))
    errors = [error for key in wanted if (error := captions[key].error)]
    return captions, CaptionSummary(n_known, len(wanted), errors)


def put_captions(batch: pa.Table, captions: Any, config: Config, job: str) -> pa.Table:
    """Put descriptions into the trees of parts (a Ray Data task).

    Takes column ``part`` and the ref of the descriptions by the call's key; returns new texts, as ``parse`` does.
    """
    captions_by_key: Mapping[str, ImageCaption] = ray.get(captions)
    parsed, requests = ParsedParts(config.index.path, job), CaptionRequests(config)
    texts: list[pa.Table] = []
    for part in batch["part"].to_pylist():
        rows = parsed.rows("left_out", "tree", *SOURCE_COLUMNS, parts=[part])
        tables = [parsed.tables(rows, kind) for kind in ("documents", "nodes", "images")]
        for row, document, nodes, images in zip(rows, *tables, strict=True):
            if row["reason"] is not None:
                continue
            calls = _of_row(requests, document, images)
            keys = [key for _, (key, _) in calls]
            if keys and all(key in captions_by_key for key in keys):  # else it is of a document that is not used
                tree, table = with_captions(unpacked(row["tree"]), [image for image, _ in calls], keys, captions_by_key)
                row |= {"images": table, **tables_of(tree, config, job)}
            else:
                tables_of_row = {"documents": document, "nodes": nodes, "images": images}
                row |= {**tables_of_row, "texts": texts_of(nodes, config, job)}
        texts.append(new_texts(rows, config))
        parsed.write(part, rows)
    return pa.concat_tables([TEXT_SCHEMA.empty_table(), *texts])


def _of_row(
    requests: CaptionRequests, document: pa.Table, images: pa.Table
) -> list[tuple[Mapping[str, Any], tuple[str, ChatRequest]]]:
    """A document's rows of images, each with its call."""
    title = document["title"][0].as_py()
    return [(image, requests.of(image, title)) for image in images.to_pylist()]


async def _ask_all(
    config: Config, ledger: Ledger, target: Target, wanted: Mapping[str, _Call]
) -> dict[str, ImageCaption]:
    """Ask all calls, as many at once as the deployment takes; not those after ``fail_after`` failures in a row."""
    (deployment,) = config.caption_deployments.values()
    slots = asyncio.Semaphore(deployment.most_in_flight)
    n_failed = n_done = 0

    async def describe(call: _Call) -> ImageCaption:
        nonlocal n_failed, n_done
        request, printed = call
        async with slots:
            if config.fail_after is not None and n_failed >= config.fail_after:
                return ImageCaption(error=f"not asked: {pluralize(n_failed, 'call')} in a row had failed")
            try:
                asked = await ledger.ask(request, target)
                caption = ImageCaption(joined_caption(printed, description_of(asked.entry.reply)))
            except ModelError as error:
                caption = ImageCaption(error=" ".join(str(error).split())[:500])
        n_failed = n_failed + 1 if caption.error else 0
        n_done += 1
        progress.show(n_done)
        return caption

    with Progress("caption", len(wanted), "images") as progress:
        return dict(zip(wanted, await asyncio.gather(*map(describe, wanted.values())), strict=True))
