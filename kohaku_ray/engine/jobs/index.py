"""The index job: it parses files, encodes their texts and builds an index on a Ray cluster.

Everything that can be known before is checked here; the stream itself is ``index_stream``.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace

import ray

from kohaku_ray.checks.demand import caption_demand, index_demand, plan_encoders
from kohaku_ray.checks.deployments import check_deployment
from kohaku_ray.checks.servers import check_servers
from kohaku_ray.collection.image_encoding import check_reads_images
from kohaku_ray.collection.indexes import check_endpoint, index_settings, preferred_note, source_bytes
from kohaku_ray.collection.sources import (
    check_images,
    check_places,
    describe_passed_over,
    find_sources,
    read_metadata,
)
from kohaku_ray.config import Config
from kohaku_ray.engine.cluster import idle_cpus, node_resources, print_progress
from kohaku_ray.engine.errors import ray_get
from kohaku_ray.engine.jobs.index_stream import IndexSummary, encoder_resources, index_all
from kohaku_ray.engine.session import Session
from kohaku_ray.errors import DataError
from kohaku_ray.index.build import forget_damaged
from kohaku_ray.index.identity import check_faiss
from kohaku_ray.index.pending import PendingVectors
from kohaku_ray.index.settings import EndpointConfig
from kohaku_ray.settings import resolve_paths
from kohaku_ray.store.lease import LeaseFile
from kohaku_ray.store.segments import SegmentStore
from kohaku_ray.store.storage import Directory


def index_lease(path: str) -> LeaseFile:
    """Return the lease of an index's directory: two jobs would remove each other's parts and files."""
    return LeaseFile(Directory(path), "index", "wait for the job that builds it, or set index.path to another")


def run_index(config: Config, *, is_leased: bool = False) -> IndexSummary:
    """Index the configured documents; texts that an earlier index of the same encoder holds are not encoded again.

    ``is_leased``: the caller holds the directory's lease (``index_lease``).

    Raises:
        ConfigError: The configuration or the cluster does not fit.
        DataError: No document can be used, the index cannot be written, or another job builds it.
    """
    began, config = time.perf_counter(), resolve_paths(config)
    check_places(config)
    check_faiss()
    files = find_sources(config)
    odd: list[str] = []
    read_metadata(config.documents.metadata, odd)
    for what in odd:
        print_progress(f"index   warning: {what}")
    if not files:
        raise DataError(f"{', '.join(config.documents.paths)} holds metadata and questions but no document: add some")
    if passed_over := describe_passed_over(config):
        print_progress(f"index   {passed_over}")
    if note := preferred_note(config):
        print_progress(f"index   {note}")
    settings = index_settings(config)  # a missing encoder is reported here, not in a worker
    check_images(config)
    for name, deployment in config.caption_deployments.items():
        check_deployment(name, deployment)
        SegmentStore(config.ledger.path).check_writable()
    for fault in check_servers(config, config.caption_deployments):
        print_progress(f"index   warning: {fault}")
    PendingVectors(config.index.path).check_writable()
    lease = nullcontext() if is_leased else index_lease(config.index.path).hold()
    with lease, Session(config.cluster) as session:
        of_texts, of_images = plan_encoders(config, node_resources(), source_bytes(files))
        session.check(
            index_demand(config, of_texts),
            index_demand(config, of_images),
            caption_demand(config),
            read={"documents.paths": files[0]},
            written={"index.path": config.index.path},
        )
        if isinstance(config.index.encoder, EndpointConfig):
            ray_get(ray.remote(check_endpoint).options(num_cpus=idle_cpus()).remote(config))
        if settings.image_plan.identity is not None:
            ray_get(ray.remote(check_reads_images).options(**encoder_resources(config, of_images.gpu)).remote(config))
        try:
            summary = index_all(config, files, of_texts, of_images)
        except DataError:  # perhaps of the index there, whose files are compared where they are read
            find = ray.remote(forget_damaged).options(num_cpus=idle_cpus())
            if not (damaged := ray_get(find.remote(config.index.path))):
                raise
            for name in damaged:
                print_progress(f"index   {name} is damaged: its index is built again from the documents")
            summary = index_all(config, files, of_texts, of_images, keep=False)
    return replace(summary, wall_s=time.perf_counter() - began)
