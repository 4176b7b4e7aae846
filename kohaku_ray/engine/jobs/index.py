"""The index job: files → document trees → vectors → index.

Two passes of Ray Data. The first parses (CPU tasks) and counts the new texts; the second encodes them (an actor pool,
on GPUs if there are any). So progress has a total, no vector is computed twice, and texts are sorted by length over all
documents: encoders get blocks of equal cost with little padding. Vectors are written to the index directory as they
are computed: an interrupted job repeats none of them. Meanwhile the reducer builds BM25, which needs no vectors; then
it does the rest.
"""

from __future__ import annotations

import functools
import logging
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from kohaku_ray.config import Config
from kohaku_ray.config.caption import caption_deployments
from kohaku_ray.engine.actors.image_encoding import EncodeImages, check_reads_images, images_to_encode, n_image_blocks
from kohaku_ray.engine.actors.index_shards import shard_reduced, shards_joined
from kohaku_ray.engine.actors.indexing import Encode, Work, as_table, parse, parsed_rows, reduced, sorted_texts
from kohaku_ray.engine.cluster import check_cluster, connected, idle_cpus, say
from kohaku_ray.engine.errors import ray_get, unwrapped
from kohaku_ray.engine.jobs.captions import CaptionSummary, with_model_captions
from kohaku_ray.engine.ledger.segments import SegmentStore
from kohaku_ray.engine.nodes import check_nodes
from kohaku_ray.errors import DataError
from kohaku_ray.index.pending import PendingVectors
from kohaku_ray.runs.collection import sources_of
from kohaku_ray.runs.demand import caption_demand, index_demand, n_encoders
from kohaku_ray.runs.deployments import check_deployment
from kohaku_ray.runs.indexes import index_settings
from kohaku_ray.runs.parsing import describe_left_out, sort_out
from kohaku_ray.runs.sources import check_images, check_outlives_job, find_sources, read_metadata, resolve_paths
from kohaku_ray.terminal import Progress


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """What an index job did.

    Attributes:
        path: Directory of the index.
        counts: See ``build_index``.
        n_files: Files found.
        n_rejects: Files, and parts of files, that could not be used, listed with their reasons in the index.
        n_rejected_files: Whole files among them.
        rejects: The first of them, as (file or part, reason).
        texts_by_encoder: Number of texts per encoder actor.
        parse_s: Wall time of parsing, start-up of the cluster excluded.
        encode_s: Wall time of encoding, the encoders' start-up included.
        reduce_s: Wall time of propagation and index building.
        wall_s: Whole job, start-up included.
        images_left_out: Number of images that carry no content, by reason.
        captions: What became of the descriptions by a model; None: none were asked for.
        n_images_encoded: Images that were new to their encoder.
    """

    path: str
    counts: Mapping[str, Any]
    n_files: int
    n_rejects: int
    n_rejected_files: int
    rejects: tuple[tuple[str, str], ...]
    texts_by_encoder: tuple[int, ...]
    parse_s: float
    encode_s: float
    reduce_s: float
    wall_s: float
    images_left_out: Mapping[str, int] = field(default_factory=dict)
    captions: CaptionSummary | None = None
    n_images_encoded: int = 0

    def text(self) -> str:
        """Format the summary for a terminal."""
        counts = self.counts
        lines = [
            f"{counts['n_documents']} documents of {self.n_files} files, {counts['n_sentences']} sentences, "
            f"{counts['n_vectors']} vectors searched: {counts['n_encoded']} texts encoded, {counts['n_reused']} known",
            f"parse {self.parse_s:.1f} s, encode {self.encode_s:.1f} s, reduce {self.reduce_s:.1f} s, "
            f"all {self.wall_s:.1f} s",
            f"index at {self.path}",
        ]
        if "n_images" in counts:
            lines.insert(1, ", ".join(filter(None, [self._n_images, self._left_out])))
        if self.captions is not None:
            lines.insert(2, self.captions.text())
        if self.n_rejects:
            shown = "".join(f"\n  {file}: {reason}" for file, reason in self.rejects)
            more = self.n_rejects - len(self.rejects)
            counted = {"files": self.n_rejected_files, "parts of files": self.n_rejects - self.n_rejected_files}
            what = " and ".join(f"{n} {kind}" for kind, n in counted.items() if n)
            lines.append(f"{what} rejected:{shown}" + (f"\n  … and {more} more" if more else ""))
        return "\n".join(lines)

    @property
    def n_caption_errors(self) -> int:
        """Descriptions of images that failed."""
        return 0 if self.captions is None else len(self.captions.errors)

    @property
    def _n_images(self) -> str:
        encoded = f" ({self.n_images_encoded} encoded)" if self.n_images_encoded else ""
        return f"{self.counts['n_images']} images{encoded}"

    @property
    def _left_out(self) -> str:
        return describe_left_out(self.images_left_out)


def run_index(config: Config) -> IndexSummary:
    """Index the configured documents; texts that an earlier index of the same encoder holds are not encoded again.

    Raises:
        ConfigError: The configuration or the cluster does not fit.
        DataError: No document can be used, or the index cannot be written.
    """
    began, config = time.perf_counter(), resolve_paths(config)
    check_outlives_job(config)
    files = find_sources(config)
    sources = sources_of(config, files)
    read_metadata(config.documents.metadata)
    if not files:
        raise DataError(f"{', '.join(config.documents.paths)} holds metadata and questions but no document: add some")
    settings = index_settings(config)  # a missing encoder is reported here, not in a worker
    check_images(config)
    for name, deployment in caption_deployments(config).items():
        check_deployment(name, deployment)
        SegmentStore(config.ledger.path).check_writable()
    PendingVectors(config.index.path).check_writable()
    with connected(config.cluster):
        resources = ray.cluster_resources()
        # With autoscaling, the configured device decides; otherwise the cluster's GPUs.
        device = config.index.encoder.device
        gpu = device == "cuda" or (device == "auto" and resources.get("GPU", 0) >= 1)
        encoders = n_encoders(config, resources, gpu)
        for demand in (index_demand(config, encoders, gpu), caption_demand(config)):
            if demand is not None:
                check_cluster(demand, config.cluster)
        check_nodes({"documents.paths": files[0]}, {"index.path": config.index.path})
        if settings.image_plan.identity is not None:
            ray_get(ray.remote(check_reads_images).options(**_encoder_resources(config, gpu)).remote(config))
        _configure_data()
        started = time.perf_counter()
        job = uuid.uuid4().hex
        with unwrapped():
            parsed = _parse(config, files, job)
        blocks, captions = parsed.to_arrow_refs(), None
        if config.index_roles:
            with unwrapped():
                blocks, captions = with_model_captions(config, blocks, job)
        gather = ray.remote(sorted_texts).options(num_cpus=idle_cpus(), num_returns="streaming")
        first, *refs = gather.remote(blocks, encoders)
        work = ray_get(first)
        rejects = work.rejects
        if work.n_files != len(files):
            raise DataError(f"{len(files)} files were given to parse, {work.n_files} came back: index again")
        say(f"parse   {len(files)}/{len(files)} files, {len(rejects)} rejected, {work.n_texts} texts to encode")
        if not work.n_documents:
            raise DataError(f"none of {len(files)} files can be used; the first: {rejects[0][0]}: {rejects[0][1]}")
        texts = ray.data.from_arrow_refs(refs)
        reducing = None if config.index.shards > 1 else _reducing(config, blocks, sources)
        parse_s = time.perf_counter() - started
        started = time.perf_counter()
        with unwrapped():
            n_images = _encode_images(config, blocks, encoders, gpu) if config.index.images else 0
            by_encoder = _encode(config, texts, work, encoders, gpu) if refs else ()
        encode_s = time.perf_counter() - started
        started = time.perf_counter()
        if reducing is None:
            counts = _reduced_by_shard(config, blocks, sources)
        else:
            ray_get(next(reducing))
            counts = ray_get(next(reducing))
        if (counts["n_documents"], counts["n_rejects"]) != (work.n_documents, len(rejects)):
            raise DataError(
                f"parsing gave {work.n_documents} documents and {len(rejects)} rejects but the index at "
                f"{config.index.path} has {counts['n_documents']} and {counts['n_rejects']}: index again"
            )
        reduce_s = time.perf_counter() - started
    return IndexSummary(
        path=config.index.path,
        counts=counts,
        n_files=len(files),
        n_rejects=len(rejects),
        n_rejected_files=len({where for where, _ in rejects} & set(files)),
        rejects=rejects[:10],
        texts_by_encoder=by_encoder,
        parse_s=parse_s,
        encode_s=encode_s,
        reduce_s=reduce_s,
        wall_s=time.perf_counter() - began,
        images_left_out=work.images_left_out,
        captions=captions,
        n_images_encoded=n_images,
    )


def _reducing(config: Config, blocks: Sequence[Any], sources: Any) -> Any:
    """Start the reducer: it builds BM25 now, the rest when its first value is taken."""
    # Holds no CPU: it must not wait for the encoders, which hold them all for longer.
    reducer = ray.remote(reduced).options(
        num_cpus=idle_cpus(),
        num_gpus=config.index.build_gpus,
        max_retries=1,
        num_returns="streaming",
        _generator_backpressure_num_objects=1,
    )
    return reducer.remote(config, blocks, sources)


def _reduced_by_shard(config: Config, blocks: Sequence[Any], sources: Any) -> dict[str, Any]:
    """Build every shard in a task of its own, as many at once as there are CPUs, and join them."""
    spread = {"scheduling_strategy": "SPREAD", "num_gpus": config.index.build_gpus}
    build = ray.remote(shard_reduced).options(num_cpus=1, **spread)
    parts = [build.remote(config, blocks, number) for number in range(config.index.shards)]
    join = ray.remote(shards_joined).options(num_cpus=1)
    counts: dict[str, Any] = ray_get(join.remote(config, blocks, sources, *parts))
    say(f"reduce  {counts['n_shards']} shards, {counts['n_shards_kept']} of them unchanged")
    return counts


def _configure_data() -> None:
    context = ray.data.DataContext.get_current()
    # A stage's own error comes back as itself: otherwise its cause is lost.
    context.raise_original_map_exception = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.verbose_progress = False
    # Ray Data's own lines would mix with our progress lines.
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def _parse(config: Config, files: Sequence[str], job: str) -> Any:
    """One row per file: its tree and its new texts, or why it cannot be used."""
    n_blocks = min(len(files), 4 * (config.index.parsers or int(ray.cluster_resources().get("CPU", 1))))
    dataset = ray.data.from_items([{"file": file} for file in files], override_num_blocks=n_blocks)
    stage = functools.partial(parse, config=config, job=job)
    concurrency = {} if config.index.parsers is None else {"concurrency": config.index.parsers}
    return dataset.map_batches(stage, batch_size=None, batch_format="pyarrow", **concurrency).materialize()


def _encode(config: Config, texts: Any, work: Work, encoders: int, gpu: bool) -> tuple[int, ...]:
    """Encode a dataset of texts, block by block; returns the number of texts per encoder."""
    encoded = texts.map_batches(
        Encode,
        fn_constructor_args=(config,),
        compute=ray.data.ActorPoolStrategy(size=min(encoders, texts.num_blocks())),
        batch_size=None,
        batch_format="pyarrow",
        **_encoder_resources(config, gpu),
    )
    by_encoder, n_tokens = Counter[str](), 0
    with Progress("encode", work.n_tokens, "tokens") as progress:
        for batch in encoded.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            for row in batch.to_pylist():
                by_encoder[row["encoder"]] += row["n_texts"]
                n_tokens += row["n_tokens"]
            progress.show(n_tokens, f"{by_encoder.total()} of {work.n_texts} texts")
    return tuple(sorted(by_encoder.values()))


def _encoder_resources(config: Config, gpu: bool) -> dict[str, Any]:
    share = {"num_gpus": config.index.encoder_gpus} if gpu else {"num_cpus": 1}
    return {"resources": config.index.resources or None, **share}


def _encode_images(config: Config, blocks: Sequence[Any], encoders: int, gpu: bool) -> int:
    """Encode the images that are new to their encoder; returns their number."""
    find = ray.remote(_new_images).options(num_cpus=idle_cpus())
    new: list[dict[str, Any]] = ray_get(find.remote(blocks, config))
    if not new:
        return 0
    n_blocks = n_image_blocks(len(new), encoders)
    encoded = ray.data.from_items(new, override_num_blocks=n_blocks).map_batches(
        EncodeImages,
        fn_constructor_args=(config,),
        compute=ray.data.ActorPoolStrategy(size=min(encoders, n_blocks)),
        batch_size=None,
        batch_format="pyarrow",
        **_encoder_resources(config, gpu),
    )
    n_done = 0
    with Progress("encode", len(new), "images") as progress:
        for batch in encoded.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            n_done += sum(batch["n_images"].to_pylist())
            progress.show(n_done)
    return n_done


def _new_images(blocks: Sequence[Any], config: Config) -> list[dict[str, Any]]:
    used, _ = sort_out(parsed_rows(blocks, "images"))
    return images_to_encode([as_table(row["images"]) for row in used], config)
