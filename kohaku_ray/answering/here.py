"""Answer the questions of a run in this process, without Ray: a single one needs no cluster."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from kohaku_ray.answering.executor import InProcessExecutor, start_block
from kohaku_ray.answering.local_index import LocalIndex
from kohaku_ray.answering.local_ledger import LocalLedger
from kohaku_ray.answering.outputs import write_run
from kohaku_ray.answering.spending import Spending
from kohaku_ray.answering.tools import RunContext
from kohaku_ray.checks.demand import cluster_address
from kohaku_ray.checks.run import check_models, check_run
from kohaku_ray.collection.indexes import QueryEncoder, make_image_query_encoder, open_index, parsing_of
from kohaku_ray.config import Config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.config.roles import models_of
from kohaku_ray.event_loop import run_apart
from kohaku_ray.index.settings import EndpointConfig
from kohaku_ray.index.store import Index
from kohaku_ray.models.openai import OpenAIConfig, TokenBucket
from kohaku_ray.models.replica import Replica
from kohaku_ray.models.request import Backend
from kohaku_ray.models.summary import AnswerSummary
from kohaku_ray.models.target import Target
from kohaku_ray.runs.facts import run_record
from kohaku_ray.settings import resolve_paths
from kohaku_ray.store.tables import Tables
from kohaku_ray.systems.offline import ExtractiveConfig


def why_on_cluster(config: Config) -> str:
    """Say why a question of a run is answered on a Ray cluster; empty: this process answers it.

    This process asks servers and baselines itself. A model that Ray serves needs Ray, and so does a GPU that is asked
    of it. A run on a cluster that is there shares its ledger, models and rate limits with the jobs of that cluster.
    """
    if (address := cluster_address(config.cluster)) is not None:
        return f"the Ray cluster {address} is configured"
    if config.cluster.retriever.gpus:
        return f"cluster.retriever.gpus is {config.cluster.retriever.gpus:g}"
    return next((f"Ray serves {name}" for name, each in config.used_deployments.items() if not _is_asked(each)), "")


def _is_asked(deployment: Deployment) -> bool:
    """Whether a process asks a deployment without Ray: one call by one, of a server or a baseline of its own."""
    if deployment.application is not None:
        return False
    return isinstance(deployment, ExtractiveConfig) or (
        isinstance(deployment, OpenAIConfig) and deployment.batch is None
    )


class AnsweringHere:
    """Answers runs that differ in questions and directory alone, one after the other; index and encoder stay open."""

    def __init__(self, config: Config, tell: Callable[[str], None]) -> None:
        """Open the index and name the models; ``tell`` shows a line of progress.

        Raises:
            ConfigError: The configuration cannot be used, or a server is not there.
            DataError: Its index cannot be used.
        """
        config = resolve_paths(config)
        check_models(config, "ask", tell)
        self._tell, self._deployments = tell, config.used_deployments
        self._backends = {name: _backend(deployment) for name, deployment in self._deployments.items()}
        replicas = {
            name: Replica(backend.chat, self._deployments[name].max_ongoing) for name, backend in self._backends.items()
        }
        self._ledger = LocalLedger(config.ledger.path, replicas, tell, config.ledger.flush_s)
        self._index = _open_shards(config, open_index(config))

    def answer(self, config: Config) -> AnswerSummary:
        """Answer a run's questions, vote, and write its directory, as ``engine.jobs.answer.run_answer`` does.

        Raises:
            ConfigError: The configuration cannot be used.
            DataError: Questions, ledger or the run directory cannot be used, or another process has the ledger.
        """
        began, checked = time.perf_counter(), check_run(config, "ask", self._tell)
        config, directory, identity = checked.config, checked.directory, checked.identity
        targets = {name: Target(name) for name in self._deployments}
        models = tuple(models_of(config, targets, member) for member in range(config.ensemble.members))
        context = RunContext(config, self._ledger, models, checked.prompts, targets)
        record, summary = run_record(config), AnswerSummary(config.run)
        with directory.own(), self._ledger.hold():
            paid = directory.paid(identity)
            directory.begin(record, identity, paid)
            prices = {name: deployment.paid_price for name, deployment in self._deployments.items()}
            spending = Spending(config.budget, self._ledger, prices, paid)

            async def answer() -> tuple[AnswerSummary, Tables]:
                try:
                    result: tuple[AnswerSummary, Tables] = await start_block(
                        config, InProcessExecutor(context, self._index, checked.questions)
                    )
                    return result
                finally:
                    for backend in self._backends.values():
                        await backend.close()  # its connections belong to this event loop

            with spending.watch():
                counts, tables = run_apart(answer())
            summary.add(counts)
            summary.stopped = (spending.stopped or counts.stopped) if summary.n_unanswered else ""
            self._ledger.flush()
            write_run(config, directory, [tables])
            summary.add_paid(paid)
            summary.wall_s = time.perf_counter() - began
            directory.finish(record, summary, identity, parsing_of(checked.index))
        return summary


def _backend(deployment: Deployment) -> Backend:
    """Build the client of a server, with a rate limit of this process's own, or a baseline."""
    limits = isinstance(deployment, OpenAIConfig) and deployment.is_limited
    limiter = TokenBucket(deployment.requests_per_s, deployment.tokens_per_minute) if limits else None  # type: ignore[union-attr]
    backend: Backend = deployment.make_backend(limiter)
    return backend


def _open_shards(config: Config, index: Index) -> LocalIndex:
    encoder = config.index.encoder
    limits = isinstance(encoder, EndpointConfig) and encoder.is_limited
    limiter = TokenBucket(encoder.requests_per_s, encoder.tokens_per_minute) if limits else None  # type: ignore[union-attr]
    texts, images = QueryEncoder(config, None, limiter), make_image_query_encoder(config)

    @functools.cache
    def shard(number: int) -> LocalIndex:
        return LocalIndex(index.shards[number], texts, image_encoder=images, peer=shard)

    return shard(0)
