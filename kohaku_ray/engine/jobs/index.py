"""The index job: files → document trees → vectors → index.

Everything that can be known before is checked here; the stream itself is ``index_stream``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from kohaku_ray.config import Config
from kohaku_ray.engine.actors.image_encoding import check_reads_images
from kohaku_ray.engine.cluster import check_cluster, check_nodes, connected, say
from kohaku_ray.engine.errors import ray_get
from kohaku_ray.engine.jobs.captions import CaptionSummary
from kohaku_ray.engine.jobs.index_stream import encoder_resources, index_all
from kohaku_ray.engine.ledger.segments import SegmentStore
from kohaku_ray.errors import DataError
from kohaku_ray.index.build import forget_damaged
from kohaku_ray.index.gpu import check_trains
from kohaku_ray.index.pending import PendingVectors
from kohaku_ray.run.demand import caption_demand, index_demand, plan_encoders
from kohaku_ray.run.deployments import check_deployment
from kohaku_ray.run.indexes import index_settings, sources_of
from kohaku_ray.run.parsing import describe_left_out
from kohaku_ray.run.sources import (
    check_images,
    check_outlives_job,
    describe_passed_over,
    find_sources,
    read_metadata,
    resolve_paths,
)


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """What an index job did.

    Attributes:
        path: Directory of the index.
        counts: See ``publish_shards``.
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
    if passed_over := describe_passed_over(config):
        say(f"index   {passed_over}")
    settings = index_settings(config)  # a missing encoder is reported here, not in a worker
    check_images(config)
    for name, deployment in config.caption_deployments.items():
        check_deployment(name, deployment)
        SegmentStore(config.ledger.path).check_writable()
    PendingVectors(config.index.path).check_writable()
    for name in forget_damaged(config.index.path):
        say(f"index   {name} is damaged and deleted: its index is built again from the documents")
    with connected(config.cluster):
        of_texts, of_images = plan_encoders(config, ray.cluster_resources())
        for demand in (index_demand(config, of_texts), index_demand(config, of_images), caption_demand(config)):
            if demand is not None:
                check_cluster(demand, config.cluster)
        check_nodes({"documents.paths": files[0]}, {"index.path": config.index.path})
        if config.index.build_gpus:
            ray_get(ray.remote(check_trains).options(num_gpus=config.index.build_gpus, num_cpus=0).remote())
        if settings.image_plan.identity is not None:
            ray_get(ray.remote(check_reads_images).options(**encoder_resources(config, of_images.gpu)).remote(config))
        done = index_all(config, files, sources, of_texts, of_images)
    rejects = done.work.rejects
    return IndexSummary(
        path=config.index.path,
        counts=done.counts,
        n_files=len(files),
        n_rejects=len(rejects),
        n_rejected_files=len({where for where, _ in rejects} & set(files)),
        rejects=rejects[:10],
        texts_by_encoder=done.texts_by_encoder,
        parse_s=done.parse_s,
        encode_s=done.encode_s,
        reduce_s=done.reduce_s,
        wall_s=time.perf_counter() - began,
        images_left_out=done.work.images_left_out,
        captions=done.captions,
        n_images_encoded=done.n_images_encoded,
    )
