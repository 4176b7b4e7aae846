"""The batch job: the requests of a file → the ledger and model replicas → files of replies and errors, in order."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kohaku_ray.answering.tools import LedgerClient
from kohaku_ray.config import Config
from kohaku_ray.engine.actors.pool import n_ledger_shards
from kohaku_ray.engine.cluster import print_progress
from kohaku_ray.engine.serving.applications import QUEUED
from kohaku_ray.engine.session import Session
from kohaku_ray.errors import ConfigError, ContextOverflowError, DataError, ModelError, TransientModelError
from kohaku_ray.pages.terminal import Progress
from kohaku_ray.run.batch_file import BatchModels, BatchOutput, Line, LineError, errors_path, read_lines, writing
from kohaku_ray.run.demand import replicas_demand
from kohaku_ray.run.deployments import check_deployment
from kohaku_ray.run.models import dollars
from kohaku_ray.run.segments import LedgerReply, SegmentStore
from kohaku_ray.run.sources import check_kept
from kohaku_ray.run.summary import pluralize, sources_said
from kohaku_ray.settings import resolve_paths

AHEAD = 4
"""Lines that are read ahead of the first one without a reply, per call that may be in flight."""

MOST_AHEAD_MIB = 64
"""Bytes of these lines, beyond which none is read."""


@dataclass(slots=True)
class BatchSummary:
    """The counts of a batch job."""

    output: str  # path of the replies
    errors: str | None = None  # path of the lines in error; None: there are none
    stopped: str = ""  # why lines were not asked: the budget was spent; empty: none was left out for it
    n_lines: int = 0  # of the input, without blank ones
    n_errors: Counter[str] = field(default_factory=Counter)  # lines in error, by their code
    n_calls: Counter[str] = field(default_factory=Counter)  # replies by source: made, ledger, joined
    spent: Counter[str] = field(default_factory=Counter)  # by the calls made: prompt_tokens, completion_tokens, dollars
    paid: Counter[str] = field(default_factory=Counter)  # tokens and dollars of the distinct replies, whoever made them
    wall_s: float = 0.0

    def text(self) -> str:
        """Format it for a terminal."""
        said = [
            f"{self.n_calls.total():,} of {pluralize(self.n_lines, 'line')} answered: {self.output} "
            f"({sources_said(self.n_calls)})"
        ]
        if self.errors is not None:
            kinds = ", ".join(f"{code} {n:,}" for code, n in self.n_errors.most_common())
            said.append(f"{pluralize(self.n_errors.total(), 'line')} in error ({kinds}): {self.errors}")
        if self.stopped:
            said.append(f"stopped asking: {self.stopped}")
        return "\n".join(said)


def run_batch(config: Config, source: str, output: str) -> BatchSummary:
    """Answer the requests of a batch file, each distinct one once.

    To resume an interrupted job, call this again: recorded replies are read from the ledger. ``roles`` and ``seed``
    are for what lines leave open. The output is in the input's order; ``errors_path`` has the lines in error.

    Raises:
        ConfigError: The configuration or the cluster does not fit; nothing was started.
        DataError: Input, output or ledger cannot be used.
    """
    began, config = time.perf_counter(), resolve_paths(config)
    check_kept({"the output": os.path.abspath(output), "ledger.path": config.ledger.path})
    if os.path.realpath(source) in map(os.path.realpath, (output, errors_path(output))):
        raise ConfigError(f"{source} is both the input and an output: name another output")
    models, summary, n_good = BatchModels(config), BatchSummary(output), Counter[str]()
    for line in read_lines(source, models):
        n_good.update([line.deployment] if line.error is None else [])
        summary.n_lines += 1
    deployments = {key: models.deployments[key] for key in sorted(n_good)}
    for key, deployment in deployments.items():
        check_deployment(key, deployment)
    with writing(output) as files:
        if not deployments:
            for line in read_lines(source, models):
                _conclude(line, line.error, files, summary)
        else:
            SegmentStore(config.ledger.path).check_writable()
            print_progress(f"batch   {pluralize(n_good.total(), 'request')}: waiting for {', '.join(deployments)}")
            with Session(config.cluster) as session:
                session.check(replicas_demand(deployments), written={"ledger.path": config.ledger.path})
                ledger = session.open_ledger(config.ledger, n_ledger_shards(config, deployments))
                applications = session.start_replicas(deployments)
                asyncio.run(ask_all(config, models, source, ledger, applications, files, summary))
    summary.errors = errors_path(output) if summary.n_errors else None
    summary.wall_s = time.perf_counter() - began
    return summary


async def ask_all(
    config: Config,
    models: BatchModels,
    source: str,
    ledger: LedgerClient,
    applications: Mapping[str, str],
    files: BatchOutput,
    summary: BatchSummary,
) -> None:
    """Ask the lines of a file, as many at once as the deployments take, and write what becomes of them in order.

    Memory: the lines between the first one without a reply and the last one read, see ``AHEAD``.

    Raises:
        DataError: The ledger or the output cannot be written.
    """
    places = {key: int((1 + QUEUED) * one.max_ongoing) * one.most_replicas for key, one in models.deployments.items()}
    slots = {key: asyncio.Semaphore(places[key]) for key in applications}
    most, n_lost = AHEAD * sum(places[key] for key in applications), 0
    counted_keys: set[str] = set()

    async def asked(line: Line) -> LedgerReply | LineError | DataError:
        nonlocal n_lost
        assert line.request is not None
        async with slots[line.deployment]:
            if why := config.budget.over(summary.paid):
                summary.stopped = why
                return LineError("not_asked", f"not asked: {why}", status=None)
            if config.fail_after is not None and n_lost >= config.fail_after:
                return LineError("not_asked", f"not asked: {n_lost} calls in a row had got no reply", status=None)
            try:
                found = await ledger.ask(line.request, applications[line.deployment])
            except ContextOverflowError as error:
                return LineError("context_length_exceeded", str(error), "body.messages")
            except ModelError as error:
                n_lost += isinstance(error, TransientModelError)
                return LineError("request_failed", str(error), status=None)
            except DataError as error:
                return error
        n_lost = 0 if found.source == "made" else n_lost
        if found.key not in counted_keys:
            counted_keys.add(found.key)
            used = used_by(line, found)
            summary.paid.update(
                {"tokens": used["prompt_tokens"] + used["completion_tokens"], "dollars": used["dollars"]}
            )
        return found

    def used_by(line: Line, found: LedgerReply) -> dict[str, Any]:
        reply = found.entry.reply
        cost = dollars(reply, models.deployments[line.deployment].price)
        return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens, "dollars": cost}

    async def first() -> None:
        line, task = ahead.popleft()
        outcome = line.error if task is None else await task
        if isinstance(outcome, DataError):
            raise outcome
        if isinstance(outcome, LedgerReply) and outcome.source == "made":
            summary.spent.update(used_by(line, outcome))
        _conclude(line, outcome, files, summary)
        progress.show(summary.n_calls.total() + summary.n_errors.total(), config.budget.shown(summary.paid))

    ahead: deque[tuple[Line, asyncio.Task[Any] | None]] = deque()
    n_bytes = 0
    with Progress("batch", summary.n_lines, "lines") as progress:
        for line in read_lines(source, models):
            is_asked = line.error is None and line.deployment in slots
            ahead.append((line, asyncio.create_task(asked(line)) if is_asked else None))
            n_bytes += line.n_bytes
            while len(ahead) >= most or (n_bytes > MOST_AHEAD_MIB * 2**20 and ahead):
                n_bytes -= ahead[0][0].n_bytes
                await first()
        while ahead:
            await first()


def _conclude(line: Line, outcome: LedgerReply | LineError | None, files: BatchOutput, summary: BatchSummary) -> None:
    if isinstance(outcome, LedgerReply):
        summary.n_calls[outcome.source] += 1
        files.write(line, (outcome.key, outcome.entry.reply))
    else:  # a line that has neither was another one when the file was checked
        error = outcome or LineError("not_asked", "the file changed during the job: repeat the command", status=None)
        summary.n_errors[error.code] += 1
        files.write(line, error)
