"""Ask a batch file's requests through the ledger, and write replies and errors in the file's order."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kohaku_ray.answering.tools import LedgerClient
from kohaku_ray.config import Config
from kohaku_ray.errors import ContextOverflowError, DataError, ModelError, RefusedAccessError, TransientModelError
from kohaku_ray.models.openai import OpenAIConfig
from kohaku_ray.run.checks.demand import QUEUED
from kohaku_ray.run.exchange.batch_file import BatchLine, BatchModels, BatchOutput, LineError, read_lines
from kohaku_ray.run.models import dollars
from kohaku_ray.run.record.summary import describe_sources, pluralize
from kohaku_ray.run.segments import LedgerReply

AHEAD = 4
"""Lines that are read ahead of the first one without a reply, per call that may be in flight."""

MOST_AHEAD_MIB = 64
"""Bytes of these lines, beyond which none is read. Not by a provider's batch: no line has a reply before it ends."""


@dataclass(slots=True)
class BatchSummary:
    """The counts of a batch job: what ``batch --json`` prints."""

    output: str  # path of the replies
    errors: str | None = None  # path of the lines in error; None: there are none
    stopped: str = ""  # why lines were not asked: the budget was spent, or access refused; empty: none was left out
    n_lines: int = 0  # of the input, without blank ones
    n_errors: Counter[str] = field(default_factory=Counter)  # lines in error, by their code
    calls: Counter[str] = field(default_factory=Counter)  # replies by source: made, ledger, joined
    used: Counter[str] = field(default_factory=Counter)  # by the calls made: prompt_tokens, completion_tokens, dollars
    paid: Counter[str] = field(default_factory=Counter)  # tokens and dollars of the distinct replies, whoever made them
    seconds: float = 0.0

    def text(self) -> str:
        """Format it for a terminal."""
        lines = [
            f"{self.calls.total():,} of {pluralize(self.n_lines, 'line')} answered: {self.output} "
            f"({describe_sources(self.calls)})"
        ]
        if self.errors is not None:
            kinds = ", ".join(f"{code} {n:,}" for code, n in self.n_errors.most_common())
            lines.append(f"{pluralize(self.n_errors.total(), 'line')} in error ({kinds}): {self.errors}")
        if self.stopped:
            lines.append(f"stopped asking: {self.stopped}")
        return "\n".join(lines)


async def ask_lines(
    config: Config,
    models: BatchModels,
    source: str,
    ledger: LedgerClient,
    applications: Mapping[str, str],
    files: BatchOutput,
    summary: BatchSummary,
    show_progress: Callable[[int, str], None],
) -> None:
    """Ask the lines of a file, as many at once as the deployments take, and write what becomes of them in order.

    ``show_progress`` gets the number of lines that are done, and what was paid.

    Memory: the lines between the first one without a reply and the last one read, see ``AHEAD`` and ``MOST_AHEAD_MIB``.

    Raises:
        DataError: The ledger or the output cannot be written.
    """
    n_slots = {key: int((1 + QUEUED) * deployment.most_in_flight) for key, deployment in models.deployments.items()}
    slots = {key: asyncio.Semaphore(n_slots[key]) for key in applications}
    most, n_lost = AHEAD * sum(n_slots[key] for key in applications), 0
    asked = [models.deployments[key] for key in applications]
    by_batch = any(isinstance(deployment, OpenAIConfig) and deployment.batch is not None for deployment in asked)
    most_bytes = math.inf if by_batch else MOST_AHEAD_MIB * 2**20
    counted_keys: set[str] = set()

    async def ask(line: BatchLine) -> LedgerReply | LineError | DataError:
        nonlocal n_lost
        assert line.request is not None
        async with slots[line.deployment]:
            if why := summary.stopped or config.budget.over(summary.paid):
                summary.stopped = why
                return LineError("not_asked", f"not asked: {why}", status=None)
            if config.fail_after is not None and n_lost >= config.fail_after:
                return LineError("not_asked", f"not asked: {n_lost} calls in a row had got no reply", status=None)
            try:
                reply = await ledger.ask(line.request, applications[line.deployment])
            except ContextOverflowError as error:
                return LineError("context_length_exceeded", str(error), "body.messages")
            except RefusedAccessError as error:
                summary.stopped = summary.stopped or str(error)
                return LineError("request_failed", str(error), status=None)
            except ModelError as error:
                n_lost += isinstance(error, TransientModelError)
                return LineError("request_failed", str(error), status=None)
            except DataError as error:
                return error
        n_lost = 0 if reply.source == "made" else n_lost
        if reply.key not in counted_keys:
            counted_keys.add(reply.key)
            used = count_used(line, reply)
            summary.paid.update(
                {"tokens": used["prompt_tokens"] + used["completion_tokens"], "dollars": used["dollars"]}
            )
        return reply

    def count_used(line: BatchLine, ledger_reply: LedgerReply) -> dict[str, Any]:
        reply = ledger_reply.entry.reply
        cost = dollars(reply, models.deployments[line.deployment].paid_price)
        return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens, "dollars": cost}

    async def write_first() -> None:
        line, task = ahead.popleft()
        outcome = line.error if task is None else await task
        if isinstance(outcome, DataError):
            raise outcome
        if isinstance(outcome, LedgerReply) and outcome.source == "made":
            summary.used.update(count_used(line, outcome))
        write_outcome(line, outcome, files, summary)
        show_progress(summary.calls.total() + summary.n_errors.total(), config.budget.shown(summary.paid))

    ahead: deque[tuple[BatchLine, asyncio.Task[Any] | None]] = deque()
    n_bytes = 0
    for line in read_lines(source, models):
        is_asked = line.error is None and line.deployment in slots
        ahead.append((line, asyncio.create_task(ask(line)) if is_asked else None))
        n_bytes += line.n_bytes
        while len(ahead) >= most or (n_bytes > most_bytes and ahead):
            n_bytes -= ahead[0][0].n_bytes
            await write_first()
    while ahead:
        await write_first()


def write_outcome(
    line: BatchLine, outcome: LedgerReply | LineError | None, files: BatchOutput, summary: BatchSummary
) -> None:
    """Write a reply or an error in its place, and count it."""
    if isinstance(outcome, LedgerReply):
        summary.calls[outcome.source] += 1
        files.write(line, (outcome.key, outcome.entry.reply))
    else:  # a line that has neither was another one when the file was checked
        error = outcome or LineError("not_asked", "the file changed during the job: repeat the command", status=None)
        summary.n_errors[error.code] += 1
        files.write(line, error)
