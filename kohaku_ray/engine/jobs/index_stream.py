"""The stream of the index job: files → document trees and texts → vectors → index.

One pipeline of Ray Data. Files are parsed by CPU tasks: their trees go to parts beside the index, their new texts go
on. Windows of texts are sorted by length, so that encoders get blocks of equal cost with little padding. A pool of
actors encodes the blocks, on GPUs if there are any, while later files are parsed; only where encoders hold every CPU do
they wait until parsing ends. Vectors are written to the index directory as they are computed: an interrupted job
repeats none of them. Once all is parsed, the reducer builds BM25, which needs no vectors; then it does the rest.
"""

from __future__ import annotations

import functools
import logging
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray

from kohaku_ray.config import Config
from kohaku_ray.engine.actors.image_encoding import EncodeImages, images_to_encode, n_image_blocks
from kohaku_ray.engine.actors.indexing import (
    WINDOW_TEXTS,
    Encode,
    Work,
    parse,
    shard_built,
    shard_reduced,
    shards_joined,
    sorted_window,
    survey,
)
from kohaku_ray.engine.cluster import idle_cpus, say
from kohaku_ray.engine.errors import ray_get, unwrapped
from kohaku_ray.engine.jobs.captions import CaptionSummary, captioned, model_captions
from kohaku_ray.errors import DataError
from kohaku_ray.index.pending import ParsedParts, n_files_of
from kohaku_ray.pages.terminal import Progress
from kohaku_ray.run.demand import Encoders
from kohaku_ray.run.parsing import sort_out

FILES_PER_BLOCK = 256
"""Most files that one task parses."""
LOOK_EVERY_S = 0.5
"""Time between two looks at what is parsed."""


@dataclass(frozen=True, slots=True)
class Indexed:
    """What the stream did.

    Attributes:
        work: What the parsed files left to do.
        counts: See ``publish_shards``.
        texts_by_encoder: Number of texts per encoder actor.
        n_images_encoded: Images that were new to their encoder.
        captions: What became of the descriptions by a model; None: none were asked for.
        parse_s: Wall time until all was parsed and described.
        encode_s: Wall time from then until all was encoded.
        reduce_s: Wall time from then on.
    """

    work: Work
    counts: Mapping[str, Any]
    texts_by_encoder: tuple[int, ...]
    n_images_encoded: int
    captions: CaptionSummary | None
    parse_s: float
    encode_s: float
    reduce_s: float


def index_all(
    config: Config, files: Sequence[str], sources: pa.Table, of_texts: Encoders, of_images: Encoders
) -> Indexed:
    """Parse, encode and reduce files to an index, on the connected cluster.

    Args:
        config: The job's configuration.
        files: Files to parse.
        sources: What the index records of them (``SOURCES_SCHEMA``).
        of_texts: Actors that encode texts.
        of_images: Actors that encode images, where images have vectors of their own.

    Raises:
        ConfigError: An encoder or a model that describes images cannot be loaded.
        DataError: No document can be used, or something was lost on the way.
    """
    _configure_data()
    job = uuid.uuid4().hex
    parts = ParsedParts(config.index.path, job)
    try:
        return _streamed(config, _Parsed(config, files, sources, job), of_texts, of_images)
    finally:
        parts.clear()


def _streamed(config: Config, parsed: _Parsed, of_texts: Encoders, of_images: Encoders) -> Indexed:
    began, encoders, gpu = time.perf_counter(), of_texts.n, of_texts.gpu
    with unwrapped():
        texts, captions = _parse(config, parsed.files, parsed.job), None
        if config.index_roles:
            texts.materialize()
            texts, captions = _captioned(config, parsed.job)
        blocks, n_busy = _windows(texts, encoders), encoders
        leave_cpus = gpu or encoders < ray.available_resources().get("CPU", 0)
        if captions is not None or not leave_cpus:
            blocks = blocks.materialize()
            parsed.finish()
            n_busy = min(encoders, blocks.count())
        by_encoder = _encode(config, blocks, parsed, n_busy, gpu) if n_busy else ()
    work = parsed.finish()
    with unwrapped():
        n_images = _encode_images(config, parsed.job, of_images) if config.index.images else 0
    encoded = time.perf_counter()
    counts = parsed.reduce()
    if (counts["n_documents"], counts["n_rejects"]) != (work.n_documents, len(work.rejects)):
        raise DataError(
            f"parsing gave {work.n_documents} documents and {len(work.rejects)} rejects but the index at "
            f"{config.index.path} has {counts['n_documents']} and {counts['n_rejects']}: index again"
        )
    ended = time.perf_counter()
    times = parsed.ended - began, encoded - parsed.ended, ended - encoded
    return Indexed(work, counts, by_encoder, n_images, captions, *times)


class _Parsed:
    """The files of a job: how far parsing is, and what can begin when it has ended."""

    def __init__(self, config: Config, files: Sequence[str], sources: pa.Table, job: str) -> None:
        self.config, self.files, self.job = config, files, job
        self.work: Work | None = None
        self.n_files, self.ended = 0, 0.0
        self._sources = sources
        self._reducing: Any = None
        self._parts = ParsedParts(config.index.path, job)
        self._looked = -LOOK_EVERY_S

    def look(self) -> None:
        """See how far parsing is; at its end, count the work and start the reducer."""
        if self.work is None and time.perf_counter() - self._looked >= LOOK_EVERY_S:
            self.n_files, self._looked = n_files_of(self._parts.names()), time.perf_counter()
            if self.n_files >= len(self.files):
                self.finish()

    def finish(self) -> Work:
        """Count the work and start the reducer: all is parsed.

        Raises:
            DataError: A file was lost on the way, or no document can be used.
        """
        if self.work is not None:
            return self.work
        work: Work = ray_get(ray.remote(survey).options(num_cpus=idle_cpus()).remote(self.config, self.job))
        n_files, rejects = len(self.files), work.rejects
        if work.n_files != n_files:
            raise DataError(f"{n_files} files were given to parse, {work.n_files} came back: index again")
        say(f"parse   {n_files}/{n_files} files, {len(rejects)} rejected, {work.n_texts} texts to encode")
        if not work.n_documents:
            raise DataError(f"none of {n_files} files can be used; the first: {rejects[0][0]}: {rejects[0][1]}")
        if self.config.index.shards == 1:
            self._reducing = _reducing(self.config, self.job)
        self.work, self.ended = work, time.perf_counter()
        return work

    def reduce(self) -> Mapping[str, Any]:
        """Build the index: all is encoded."""
        if self._reducing is None:
            parts = _reduced_by_shard(self.config, self.job)
        else:
            ray_get(next(self._reducing))
            parts = [next(self._reducing)]
        join = ray.remote(shards_joined).options(num_cpus=1)
        counts: Mapping[str, Any] = ray_get(join.remote(self.config, self.job, self._sources, *parts))
        if "n_shards" in counts:
            say(f"reduce  {counts['n_shards']} shards, {counts['n_shards_kept']} of them unchanged")
        return counts


def _reducing(config: Config, job: str) -> Any:
    """Start the reducer of the only shard: it builds BM25 now, the rest when its first value is taken."""
    # Holds no CPU: it must not wait for the encoders, which hold them all for longer.
    reducer = ray.remote(shard_reduced).options(
        num_cpus=idle_cpus(),
        num_gpus=config.index.build_gpus,
        max_retries=1,
        num_returns="streaming",
        _generator_backpressure_num_objects=1,
    )
    return reducer.remote(config, job, 0)


def _reduced_by_shard(config: Config, job: str) -> list[Any]:
    """Build every shard in a task of its own, as many at once as there are CPUs."""
    build = ray.remote(shard_built).options(num_cpus=1, num_gpus=config.index.build_gpus, scheduling_strategy="SPREAD")
    return [build.remote(config, job, number) for number in range(config.index.shards)]


def _configure_data() -> None:
    context = ray.data.DataContext.get_current()
    # A stage's own error comes back as itself: otherwise its cause is lost.
    context.raise_original_map_exception = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.verbose_progress = False
    # Windows hold the same texts in every job: batches, and so vectors, are identical to the bit.
    context.execution_options.preserve_order = True
    # Ray Data's own lines would mix with our progress lines.
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def _parse(config: Config, files: Sequence[str], job: str) -> Any:
    """A dataset of the files' new texts; what ``parse`` makes of them besides lies beside the index."""
    parsers = config.index.parsers or int(ray.cluster_resources().get("CPU", 1))
    n_blocks = min(len(files), max(4 * parsers, -(-len(files) // FILES_PER_BLOCK)))
    rows = [{"at": at, "file": file} for at, file in enumerate(files)]
    stage = functools.partial(parse, config=config, job=job)
    concurrency = {} if config.index.parsers is None else {"concurrency": config.index.parsers}
    dataset = ray.data.from_items(rows, override_num_blocks=n_blocks)
    return dataset.map_batches(stage, batch_size=None, batch_format="pyarrow", **concurrency)


def _captioned(config: Config, job: str) -> tuple[Any, CaptionSummary]:
    """A dataset of the new texts once a model has described the images, and what became of that."""
    captions, summary = model_captions(config, job)
    stage = functools.partial(captioned, captions=ray.put(captions), config=config, job=job)
    parts = [{"part": part} for part in ParsedParts(config.index.path, job).names()]
    dataset = ray.data.from_items(parts, override_num_blocks=len(parts))
    return dataset.map_batches(stage, batch_size=None, batch_format="pyarrow"), summary


def _windows(texts: Any, encoders: int) -> Any:
    """A dataset of blocks to encode, one row each, a Ray Data block of its own."""
    stage = functools.partial(sorted_window, n_encoders=encoders)
    # Other resources than the parsers': Ray Data would make one task of both, and a window of one task's texts.
    own = {"batch_size": WINDOW_TEXTS, "batch_format": "pyarrow", "num_cpus": idle_cpus()}
    return texts.map_batches(stage, **own).repartition(target_num_rows_per_block=1)


def _encode(config: Config, blocks: Any, parsed: _Parsed, encoders: int, gpu: bool) -> tuple[int, ...]:
    """Encode a dataset of blocks; returns the number of texts per encoder."""
    encoded = blocks.map_batches(
        Encode,
        fn_constructor_args=(config,),
        compute=ray.data.ActorPoolStrategy(size=encoders),
        batch_size=1,
        batch_format="pyarrow",
        **encoder_resources(config, gpu),
    )
    by_encoder, n_tokens, began = Counter[str](), 0, time.perf_counter()
    with ExitStack() as shown:
        parsing, encoding = shown.enter_context(Progress("parse", len(parsed.files), "files")), None
        for batch in encoded.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            for row in batch.to_pylist():
                by_encoder[row["encoder"]] += row["n_texts"]
                n_tokens += row["n_tokens"]
            parsed.look()
            if parsed.work is None:
                parsing.show(parsed.n_files, f"{by_encoder.total()} texts encoded")
                continue
            if encoding is None:
                shown.close()
                encoding = shown.enter_context(Progress("encode", parsed.work.n_tokens, "tokens", began))
            # A text that stands in two windows is encoded twice.
            n_tokens, n_texts = min(n_tokens, parsed.work.n_tokens), min(by_encoder.total(), parsed.work.n_texts)
            encoding.show(n_tokens, f"{n_texts} of {parsed.work.n_texts} texts")
    return tuple(sorted(by_encoder.values()))


def encoder_resources(config: Config, gpu: bool) -> dict[str, Any]:
    """Return what an encoder asks of Ray, as keywords of ``map_batches`` and of a task's options."""
    # Ray Data would give an encoder on a GPU a CPU too, and none would be left for the parsers.
    share = {"num_gpus": config.index.encoder_gpus, "num_cpus": 0} if gpu else {"num_cpus": 1}
    return {"resources": config.index.resources or None, **share}


def _encode_images(config: Config, job: str, encoders: Encoders) -> int:
    """Encode the images that are new to their encoder; returns their number."""
    find = ray.remote(_new_images).options(num_cpus=idle_cpus())
    new: list[dict[str, Any]] = ray_get(find.remote(config, job))
    if not new:
        return 0
    size = -(-len(new) // n_image_blocks(len(new), encoders.n))
    blocks = [new[first : first + size] for first in range(0, len(new), size)]
    rows = [{name: [image[name] for image in block] for name in ("digest", "key")} for block in blocks]
    encoded = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        EncodeImages,
        fn_constructor_args=(config,),
        compute=ray.data.ActorPoolStrategy(size=min(encoders.n, len(rows))),
        batch_size=1,
        batch_format="pyarrow",
        **encoder_resources(config, encoders.gpu),
    )
    n_done = 0
    with Progress("encode", len(new), "images") as progress:
        for batch in encoded.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            n_done += sum(batch["n_images"].to_pylist())
            progress.show(n_done)
    return n_done


def _new_images(config: Config, job: str) -> list[dict[str, Any]]:
    parts = ParsedParts(config.index.path, job)
    used, _ = sort_out(parts.rows())
    return images_to_encode([parts.table(used, "images")], config)
