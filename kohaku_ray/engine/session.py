"""Connect a job to a Ray cluster, check it, and start ledger, models and actors: in one order for every job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType

import ray

from kohaku_ray.checks.demand import Demand, cluster_address, replicas_demand
from kohaku_ray.checks.deployments import is_served, target_of
from kohaku_ray.config import Config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.config.sections import ClusterConfig, LedgerConfig
from kohaku_ray.engine.actors.pool import ActorPool, member_processes
from kohaku_ray.engine.cluster import check_cluster, check_nodes, connect, print_progress
from kohaku_ray.engine.ledger.client import Ledger, open_ledger
from kohaku_ray.engine.serving.batches import gathering
from kohaku_ray.models.openai import OpenAIConfig
from kohaku_ray.models.target import Target
from kohaku_ray.store.segments import LEASE_WAIT_S, SegmentStore


class Session:
    """A context on the configured cluster, or on a local one that starts and ends with it.

    What is opened in it stays until its end, and is closed in the reverse order. Within another session it joins the
    same cluster, and closes only what it opened itself: replicas for a part of a job have a session of their own.

    Raises:
        ConfigError: On entering: the cluster's address cannot be reached.
        DataError: On entering: a job of another cluster uses the ``ledger``, which a local Ray cannot ask.
    """

    def __init__(self, cluster: ClusterConfig, ledger: LedgerConfig | None = None) -> None:
        self._cluster, self._ledger = cluster, ledger
        self._until_end = ExitStack()
        self._ends_cluster = False

    def __enter__(self) -> Session:
        if self._ledger is not None and not ray.is_initialized() and cluster_address(self._cluster) is None:
            # A local Ray takes seconds to start, and the actors of one whose driver was killed seconds to end.
            SegmentStore(self._ledger.path).lease.check_free(LEASE_WAIT_S, print_progress)
        self._ends_cluster = self._until_end.enter_context(connect(self._cluster))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._until_end.__exit__(kind, error, trace)

    def check(
        self,
        *demands: Demand | None,
        read: Mapping[str, str] | None = None,
        written: Mapping[str, str] | None = None,
    ) -> None:
        """Check, before anything starts, that the cluster has what is needed and that its nodes see a job's files.

        Args:
            demands: What is needed, each at another time.
            read: Files that workers read, by configuration key.
            written: Directories that workers write to, by configuration key.

        Raises:
            ConfigError: The cluster is too small, or a node does not see a file.
            DataError: A file cannot be read here, or a directory cannot be written.
        """
        for demand in demands:
            if demand is not None:
                check_cluster(demand, self._cluster)
        if read or written:
            check_nodes(read or {}, written or {})

    def open_ledger(self, config: LedgerConfig, n_shards: int, deployments: Iterable[Deployment]) -> Ledger:
        """Open the ledger, which is held until the end, to ask these deployments; see ``ledger.client.open_ledger``."""
        ledger, deployments = open_ledger(config, n_shards, self._cluster.resources), list(deployments)
        self._until_end.enter_context(ledger.keep_open())
        batched = [each for each in deployments if isinstance(each, OpenAIConfig) and each.batch is not None]
        if batched:
            ledger.gatherers = self._until_end.enter_context(gathering(ledger.path, batched))
        if any(map(is_served, deployments)):
            ledger.prepare_calls()
        return ledger

    def start_replicas(self, deployments: Mapping[str, Deployment], *, shared: bool = False) -> dict[str, Target]:
        """Start model replicas and return where calls go, by deployment.

        Jobs share them, and the last one ends them. On a cluster that ends with this session nobody does, unless
        they are to be ``shared`` with sessions inside this one.
        """
        if not any(map(is_served, deployments.values())):
            return {name: target_of(name, deployment) for name, deployment in deployments.items()}
        # Imported here: Serve takes a second to import, in which actors start.
        from kohaku_ray.engine.serving.applications import serving

        release = shared or not self._ends_cluster
        return self._until_end.enter_context(serving(deployments, release=release))

    def start_pool_and_replicas(
        self, config: Config, pool: ActorPool | None = None, *, shared: bool = False
    ) -> tuple[ActorPool, dict[str, Target]]:
        """Start a run's replicas (see ``start_replicas``) and, unless a pool is given, its actors; wait for both."""
        pool = pool or self.start_early_pool(config)
        targets = self.start_replicas(config.used_deployments, shared=shared)
        pool = pool or self._start_pool(config)
        pool.wait_until_ready()
        return pool, targets

    def start_early_pool(self, config: Config) -> ActorPool | None:
        """Start a run's actors, which open the index meanwhile; None: they take GPUs that replicas leave, so later.

        An engine of several GPUs needs them on one node, and one on a share measures its GPU's free memory as it
        starts.
        """
        waits = config.cluster.retriever.gpus and replicas_demand(config.used_deployments).gpus
        return None if waits else self._start_pool(config)

    def _start_pool(self, config: Config) -> ActorPool:
        pool = ActorPool(config, member_processes(config, ray.cluster_resources().get("CPU", 1)))
        self._until_end.callback(pool.close)
        return pool
