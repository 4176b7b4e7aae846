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
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from html import escape
from typing import Any

import pyarrow as pa
import ray

from kohaku_ray.checks.demand import Encoders
from kohaku_ray.collection.documents import default_ids, describe_left_out, describe_reject, split_used_and_rejected
from kohaku_ray.collection.image_encoding import EncodeImages, images_to_encode, n_image_blocks
from kohaku_ray.collection.indexes import encoder_length, source_names
from kohaku_ray.collection.indexing import (
    WINDOW_TEXTS,
    Encode,
    Work,
    build_bytes,
    build_shard_task,
    join_shards,
    parse,
    reduce_shard,
    sorted_window,
    survey,
)
from kohaku_ray.config import Config
from kohaku_ray.engine.cluster import idle_cpus, node_resources, print_progress
from kohaku_ray.engine.errors import ray_get, unwrapped
from kohaku_ray.engine.jobs.captions import CaptionSummary, model_captions, put_captions
from kohaku_ray.engine.serving.limiter import limiter_of_encoder
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.index.gpu import check_trains, without_gpu_support
from kohaku_ray.index.pending import ParsedParts, n_files_of
from kohaku_ray.index.settings import EndpointConfig
from kohaku_ray.pages.terminal import Progress
from kohaku_ray.records import pluralize
from kohaku_ray.store.lease import call_every

FILES_PER_BLOCK = 256
"""Most files that one task parses."""
LOOK_EVERY_S = 0.5
"""Time between two looks at what is parsed."""
SAY_EVERY_S = 15.0
"""Time between two lines of a job whose encoders have not begun: they may have no node yet."""
ENCODER_THREADS = 2
"""Blocks that an encoder has in hand: one is computed while the next is read or the last one written."""


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """What an index job did."""

    path: str  # directory of the index
    counts: Mapping[str, Any]  # see ``publish_shards``
    n_files: int  # found
    n_rejects: int  # files, and parts of files, that could not be used, listed with their reasons in the index
    n_rejected_files: int  # whole files among them
    rejects: tuple[tuple[str, str], ...]  # the first of them, as (file or part, reason)
    texts_by_encoder: tuple[int, ...]  # number of texts per encoder actor
    parse_s: float  # wall time until all was parsed and described, start-up of the cluster excluded
    encode_s: float  # wall time from then until all was encoded, the encoders' start-up included
    reduce_s: float  # wall time of propagation and index building
    wall_s: float  # whole job, start-up included
    images_left_out: Mapping[str, int] = field(default_factory=dict)  # those that carry no content, by reason
    captions: CaptionSummary | None = None  # None: no descriptions by a model were asked for
    n_images_encoded: int = 0  # images that were new to their encoder
    paths: tuple[str, ...] = ()  # ``documents.paths``: names of files are relative to them in ``text``

    def text(self) -> str:
        """Format the summary for a terminal."""
        counts = self.counts
        lines = [
            f"{pluralize(counts['n_documents'], 'document')} of {pluralize(self.n_files, 'file')}, "
            f"{pluralize(counts['n_sentences'], 'sentence')}, {pluralize(counts['n_vectors'], 'vector')} searched: "
            f"{pluralize(counts['n_encoded'], 'text')} encoded, {counts['n_reused']:,} known",
            f"parse {self.parse_s:.1f} s, encode {self.encode_s:.1f} s, reduce {self.reduce_s:.1f} s, "
            f"all {self.wall_s:.1f} s",
            f"index at {self.path}",
        ]
        if "n_images" in counts:
            encoded = f" ({self.n_images_encoded} encoded)" if self.n_images_encoded else ""
            images = [f"{pluralize(counts['n_images'], 'image')}{encoded}", describe_left_out(self.images_left_out)]
            lines.insert(1, ", ".join(filter(None, images)))
        if self.captions is not None:
            lines.insert(2, self.captions.text())
        if self.n_rejects:
            shown = "".join(f"\n  {describe_reject(file, reason, self.paths)}" for file, reason in self.rejects)
            more = self.n_rejects - len(self.rejects)
            files, parts = self.n_rejected_files, self.n_rejects - self.n_rejected_files
            counted = (
                pluralize(files, "file") if files else "",
                f"{pluralize(parts, 'part')} of files" if parts else "",
            )
            what = " and ".join(filter(None, counted))
            lines.append(f"{what} rejected:{shown}" + (f"\n  … and {more} more" if more else ""))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text())}</pre>"

    @property
    def n_caption_errors(self) -> int:
        """Descriptions of images that failed."""
        return 0 if self.captions is None else len(self.captions.errors)


def index_all(
    config: Config, files: Sequence[str], of_texts: Encoders, of_images: Encoders, *, keep: bool = True
) -> IndexSummary:
    """Parse, encode and reduce files to an index, on the connected cluster.

    ``of_images`` are encoders of images, where these have vectors of their own; with ``keep``, files that have not
    changed since the index there was made are not parsed again.

    Raises:
        ConfigError: An encoder or a model that describes images cannot be loaded.
        DataError: No document can be used, or something was lost on the way.
    """
    context = ray.data.DataContext.get_current()
    # A stage's own error comes back as itself: otherwise its cause is lost.
    context.raise_original_map_exception = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.verbose_progress = False
    # Windows hold the same texts in every job: batches, and so vectors, are identical to the bit.
    context.execution_options.preserve_order = True
    # Ray Data's own lines would mix with our progress lines; the errors that it logs at length are raised, too.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    parsed = _Parsed(config, files, uuid.uuid4().hex)
    try:
        return _streamed(config, parsed, of_texts, of_images, keep)
    finally:
        parsed.parts.clear()


def _streamed(config: Config, parsed: _Parsed, of_texts: Encoders, of_images: Encoders, keep: bool) -> IndexSummary:
    began, n_busy, captions = time.perf_counter(), of_texts.n, None
    with unwrapped():
        texts = _parse(config, parsed.files, parsed.job, keep)
        if config.index_roles:
            texts.materialize()
            texts, captions = _put_captions(config, parsed)
        is_served = isinstance(config.index.encoder, EndpointConfig)
        blocks = _windows(texts, of_texts, of_texts.gpu or is_served)
        leave_cpus = of_texts.gpu or of_texts.n < ray.available_resources().get("CPU", 0)
        if captions is not None or not leave_cpus:
            blocks = blocks.materialize()
            parsed.finish()
            n_busy = min(of_texts.n, blocks.count())
        by_encoder = _encode(config, blocks, parsed, n_busy, of_texts.gpu) if n_busy else ()
    work = parsed.finish()
    with unwrapped():
        n_images = _encode_images(config, parsed.job, of_images) if config.index.images else 0
    encoded = time.perf_counter()
    counts = parsed.reduce()
    if (counts["n_documents"], counts["n_rejects"]) != (work.n_documents, len(work.rejects)):
        raise DataError(
            f"parsing gave {pluralize(work.n_documents, 'document')} and rejected "
            f"{pluralize(len(work.rejects), 'file')} but the index at {config.index.path} has "
            f"{counts['n_documents']} and {counts['n_rejects']}: index again"
        )
    reduced = time.perf_counter()
    return IndexSummary(
        path=config.index.path,
        counts=counts,
        n_files=len(parsed.files),
        n_rejects=len(work.rejects),
        n_rejected_files=len({where for where, _ in work.rejects} & set(parsed.files)),
        rejects=work.rejects[:10],
        paths=config.documents.paths,
        texts_by_encoder=by_encoder,
        parse_s=parsed.ended - began,
        encode_s=encoded - parsed.ended,
        reduce_s=reduced - encoded,
        wall_s=reduced - began,
        images_left_out=work.images_left_out,
        captions=captions,
        n_images_encoded=n_images,
    )


class _Parsed:
    """The files of a job: how far parsing is, and what can begin when it has ended."""

    def __init__(self, config: Config, files: Sequence[str], job: str) -> None:
        self.config, self.files, self.job = config, files, job
        self.work: Work | None = None
        self.n_files, self.ended = 0, 0.0
        self.parts = ParsedParts(config.index.path, job)
        self._shard_row_refs: list[Any] = []  # refs of the rows of each shard's documents
        self._reducing: Any = None
        self._looks = True
        self._alone = threading.RLock()  # a thread looks while another waits for vectors

    def look(self) -> None:
        """See how far parsing is; at its end, count the work and start the reducer."""
        with self._alone:
            if not self._looks:
                return
            self.n_files = n_files_of(self.parts.names())
            if self.n_files >= len(self.files):
                self._looks = False
                with suppress(Exception):  # whatever is wrong is raised when the stream has ended
                    self.finish()

    def finish(self) -> Work:
        """Count the work and start the reducer: all is parsed."""
        with self._alone:
            if self.work is not None:
                return self.work
            surveying = ray.remote(survey).options(num_cpus=idle_cpus(), num_returns=1 + self.config.index.n_slots)
            memory = max((node.get("memory", 0.0) for node in node_resources()), default=0.0)
            counted, *refs = surveying.remote(self.config, self.job, memory or float("inf"))
            work: Work = ray_get(counted)
            self._shard_row_refs = refs[: work.n_shards]
            index = self.config.index.model_copy(update={"shards": work.n_shards})
            self.config = self.config.model_copy(update={"index": index})
            n_files, rejects = len(self.files), work.rejects
            if work.n_files != n_files:
                raise DataError(f"{pluralize(n_files, 'file')} given to parse, {work.n_files} came back: index again")
            print_progress(
                f"parse   {n_files}/{n_files} files, {len(rejects)} rejected, "
                f"{pluralize(work.n_texts, 'text')} to encode"
            )
            if not work.n_documents:
                first, reason = rejects[0]
                raise DataError(f"of {pluralize(n_files, 'file')} none can be used; the first: {first}: {reason}")
            if work.n_shards == 1 and not _may_build_on_gpus(self.config):
                self._reducing = _reducing(self.config, self.job, self._shard_row_refs[0])
            self._looks, self.ended, self.work, self.n_files = False, time.perf_counter(), work, n_files
            return work

    def reduce(self) -> Mapping[str, Any]:
        """Build the index: all is encoded."""
        config = self.config
        if self._reducing is None:  # every shard in a task of its own, as many at once as there are CPUs or GPUs
            n_gpus = _gpus_per_builder(config)
            assert self.work is not None
            memory = build_bytes(self.work.n_nodes / self.work.n_shards, encoder_length(config))
            resources = {"num_cpus": 1, "num_gpus": n_gpus, "memory": int(memory)}
            build = ray.remote(scheduling_strategy="SPREAD", **resources)(build_shard_task)
            shards = enumerate(self._shard_row_refs)
            parts = [build.remote(config, self.job, number, rows_ref, n_gpus > 0) for number, rows_ref in shards]
        else:
            ray_get(next(self._reducing))
            parts = [next(self._reducing)]
        join = ray.remote(join_shards).options(num_cpus=1)
        counts: dict[str, Any] = ray_get(join.remote(config, self.job, *parts))
        if note := counts.pop("note"):
            print_progress(f"index   {note}")
        if "n_shards" in counts:
            print_progress(f"reduce  {pluralize(counts['n_shards'], 'shard')}, {counts['n_shards_kept']} unchanged")
        return counts


def _may_build_on_gpus(config: Config) -> bool:
    """Whether builders may ask for GPUs, which encoders hold until all is encoded: where they have a use."""
    return "IVF" in config.index.factory and "GPU" in ray.cluster_resources() and not without_gpu_support()


def _gpus_per_builder(config: Config) -> int:
    """Return the GPUs that each builder asks for: one if FAISS finds it on a node with a GPU, else a line says why."""
    if not _may_build_on_gpus(config):
        return 0
    try:
        ray_get(ray.remote(check_trains).options(num_gpus=1, num_cpus=0).remote())
    except ConfigError as error:
        print_progress(f"reduce  on CPUs: {error}")
        return 0
    return 1


def _reducing(config: Config, job: str, rows_ref: Any) -> Any:
    """Start the reducer of the only shard: it builds BM25 now, the rest when its first value is taken."""
    # Holds no CPU: it must not wait for the encoders, which hold them all for longer.
    reducer = ray.remote(reduce_shard).options(
        num_cpus=idle_cpus(),
        max_retries=1,
        num_returns="streaming",
        _generator_backpressure_num_objects=1,
    )
    return reducer.remote(config, job, 0, rows_ref)


def _parse(config: Config, files: Sequence[str], job: str, keep: bool) -> Any:
    """A dataset of the files' new texts."""
    n_cpus = int(ray.cluster_resources().get("CPU", 1))  # a parser on each
    n_blocks = min(len(files), max(4 * n_cpus, -(-len(files) // FILES_PER_BLOCK)))
    names = enumerate(zip(files, source_names(config, files), strict=True))
    rows = [{"at": number, "file": file, "name": name} for number, (file, name) in names]
    stage = functools.partial(parse, config=config, job=job, ids=default_ids(files), keep=keep)
    dataset = ray.data.from_items(rows, override_num_blocks=n_blocks)
    return dataset.map_batches(stage, batch_size=None, batch_format="pyarrow")


def _put_captions(config: Config, parsed: _Parsed) -> tuple[Any, CaptionSummary]:
    """A dataset of the new texts once a model has described the images, and what became of that."""
    captions, summary = model_captions(config, parsed.job)
    stage = functools.partial(put_captions, captions=ray.put(captions), config=config, job=parsed.job)
    parts = [{"part": part} for part in parsed.parts.names()]
    dataset = ray.data.from_items(parts, override_num_blocks=len(parts))
    return dataset.map_batches(stage, batch_size=None, batch_format="pyarrow"), summary


def _windows(texts: Any, encoders: Encoders, large: bool) -> Any:
    """A dataset of blocks to encode, one row each, a Ray Data block of its own; ``large`` ones for GPUs and servers."""
    stage = functools.partial(sorted_window, n_encoders=encoders.n, gpu=large)
    # Other resources than the parsers': Ray Data would make one task of both, and a window of one task's texts.
    options = {"batch_size": window_texts(encoders), "batch_format": "pyarrow", "num_cpus": idle_cpus()}
    return texts.map_batches(stage, **options).repartition(target_num_rows_per_block=1)


def window_texts(encoders: Encoders) -> int:
    """Count the texts of a window: per encoder on a GPU as many as 4 × 262,144 tokens have, at 32 tokens per text."""
    return encoders.n * WINDOW_TEXTS // 2 if encoders.gpu else WINDOW_TEXTS


def _encode(config: Config, blocks: Any, parsed: _Parsed, encoders: int, gpu: bool) -> tuple[int, ...]:
    """Encode a dataset of blocks; returns the number of texts per encoder."""
    batches = _by_actors(Encode, blocks, config, encoders, gpu, ENCODER_THREADS, limiter_of_encoder(config))
    by_encoder, n_tokens = Counter[str](), 0

    def waiting() -> str:
        return "" if by_encoder else f"; {parsed.n_files} of {len(parsed.files)} files are parsed"

    with (
        ExitStack() as shown,
        call_every(parsed.look, LOOK_EVERY_S, "look"),
        _say_waits(config, encoders, gpu, waiting),
    ):
        parsing, encoding = shown.enter_context(Progress("parse", len(parsed.files), "files")), None
        for batch in batches:
            for row in batch.to_pylist():
                by_encoder[row["encoder"]] += row["n_texts"]
                n_tokens += row["n_tokens"]
            if parsed.work is None:
                parsing.show(parsed.n_files, f"{pluralize(by_encoder.total(), 'text')} encoded")
                continue
            if encoding is None:
                shown.close()
                n_before = min(n_tokens, parsed.work.n_tokens)
                encoding = shown.enter_context(Progress("encode", parsed.work.n_tokens, "tokens", done=n_before))
            # A text that stands in two windows is encoded twice.
            n_tokens, n_texts = min(n_tokens, parsed.work.n_tokens), min(by_encoder.total(), parsed.work.n_texts)
            encoding.show(n_tokens, f"{n_texts} of {parsed.work.n_texts} texts")
    return tuple(sorted(by_encoder.values()))


@contextmanager
def _say_waits(config: Config, n: int, gpu: bool, waiting: Callable[[], str]) -> Iterator[None]:
    """Say from time to time that encoders have not begun, as long as ``waiting`` gives what else there is to say."""
    asked = encoder_resources(config, gpu)
    needs = {"GPU": asked.get("num_gpus", 0), "CPU": asked["num_cpus"], **(asked["resources"] or {})}

    def say_waits() -> None:
        if more := waiting():
            free = ray.available_resources()
            each = " and ".join(pluralize(amount, kind) for kind, amount in needs.items() if amount)
            encoders = "1 encoder" if n == 1 else f"the first of {n} encoders"
            available = " and ".join(pluralize(free.get(kind, 0.0), kind) for kind, amount in needs.items() if amount)
            print_progress(
                f"index   waiting for {encoders} ({each} each), which loads its model or waits for room: "
                f"the cluster has {available} free{more}"
            )

    with call_every(say_waits, SAY_EVERY_S, "encoders"):
        yield


def _by_actors(
    stage: type, blocks: Any, config: Config, n: int, gpu: bool, threads: int = 1, *more: Any
) -> Iterable[pa.Table]:
    """Run a stage on a dataset of blocks, one row each, in a pool of actors of so many threads.

    ``more`` is given to the stage after the configuration.
    """
    pool = ray.data.ActorPoolStrategy(
        size=n,
        max_concurrent_calls_per_actor=threads,
        max_tasks_in_flight_per_actor=threads + 1,
        enable_true_multi_threading=threads > 1,
    )
    options = {"batch_size": 1, "batch_format": "pyarrow", **encoder_resources(config, gpu)}
    done = blocks.map_batches(stage, fn_constructor_args=(config, gpu, *more), compute=pool, **options)
    batches: Iterable[pa.Table] = done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
    return batches


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
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
    batches = _by_actors(EncodeImages, dataset, config, min(encoders.n, len(rows)), encoders.gpu)
    n_done = 0

    def waiting() -> str:
        return "" if n_done else f"; {pluralize(len(new), 'image')} to encode"

    with (
        Progress("encode", len(new), "images") as progress,
        _say_waits(config, encoders.n, encoders.gpu, waiting),
    ):
        for batch in batches:
            n_done += sum(batch["n_images"].to_pylist())
            progress.show(n_done)
    return n_done


def _new_images(config: Config, job: str) -> list[dict[str, Any]]:
    parts = ParsedParts(config.index.path, job)
    used, _ = split_used_and_rejected(parts.rows())
    return images_to_encode([parts.table(used, "images")], config)
