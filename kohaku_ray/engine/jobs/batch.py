"""The batch job: it asks the requests of a file on a Ray cluster and writes files of replies and errors, in order."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter

from kohaku_ray.answering.batch import BatchSummary, ask_lines, write_outcome
from kohaku_ray.config import Config
from kohaku_ray.engine.actors.pool import SAY_EVERY_S, n_ledger_shards
from kohaku_ray.engine.cluster import print_progress
from kohaku_ray.engine.session import Session
from kohaku_ray.errors import ConfigError
from kohaku_ray.pages.terminal import Progress
from kohaku_ray.run.checks.demand import replicas_demand
from kohaku_ray.run.checks.deployments import check_deployment
from kohaku_ray.run.checks.servers import check_servers
from kohaku_ray.run.exchange.batch_file import BatchModels, errors_path, read_lines, writing
from kohaku_ray.run.lease import repeated
from kohaku_ray.run.record.summary import pluralize
from kohaku_ray.run.segments import SegmentStore
from kohaku_ray.settings import check_kept, resolve_paths


def run_batch(config: Config, source: str, output: str) -> BatchSummary:
    """Answer the requests of a batch file, each distinct one once.

    To resume an interrupted job, call this again: recorded replies are read from the ledger. ``roles`` and ``seed``
    are for what lines leave open. The output is in the input's order; ``errors_path`` has the lines in error.

    Raises:
        ConfigError: The configuration or the cluster does not fit; nothing was started.
        DataError: Input, output or ledger cannot be used.
    """
    began, config = time.perf_counter(), resolve_paths(config)
    source, output = os.path.abspath(source), os.path.abspath(output)
    check_kept({"the output": output, "ledger.path": config.ledger.path})
    if os.path.realpath(source) in map(os.path.realpath, (output, errors_path(output))):
        raise ConfigError(f"{source} is both the input and an output: name another output")
    models, summary, n_good = BatchModels(config), BatchSummary(output), Counter[str]()
    for line in read_lines(source, models):
        n_good.update([line.deployment] if line.error is None else [])
        summary.n_lines += 1
    deployments = {key: models.deployments[key] for key in sorted(n_good)}
    for key, deployment in deployments.items():
        check_deployment(key, deployment)
    for fault in check_servers(config, deployments):
        print_progress(f"batch   warning: {fault}")
    with writing(output) as files:
        if not deployments:
            for line in read_lines(source, models):
                write_outcome(line, line.error, files, summary)
        else:
            SegmentStore(config.ledger.path).check_writable()
            print_progress(f"batch   {pluralize(n_good.total(), 'request')}: waiting for {', '.join(deployments)}")
            with Session(config.cluster, config.ledger) as session:
                session.check(replicas_demand(deployments), written={"ledger.path": config.ledger.path})
                n_shards = n_ledger_shards(config, deployments)
                ledger = session.open_ledger(config.ledger, n_shards, deployments.values())
                applications = session.start_replicas(deployments)
                with Progress("batch", summary.n_lines, "lines") as progress:
                    shown: tuple[int, str] = 0, ""

                    def show(n_done: int, paid: str) -> None:
                        nonlocal shown
                        shown = n_done, paid
                        progress.show(n_done, paid)

                    def show_batches() -> None:  # no line is done for hours
                        if batches := ledger.describe_batches():
                            progress.show(shown[0], ", ".join(filter(None, [shown[1], batches])))

                    with repeated(show_batches, SAY_EVERY_S, "progress"):
                        asyncio.run(ask_lines(config, models, source, ledger, applications, files, summary, show))
    summary.errors = errors_path(output) if summary.n_errors else None
    summary.seconds = time.perf_counter() - began
    return summary
