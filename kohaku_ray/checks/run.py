"""Check what a run is made of, on a cluster or in one process, before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kohaku_ray.checks.deployments import (
    Addresses,
    add_addresses,
    check_deployment,
    check_vision,
    check_windows,
    shared_identities,
)
from kohaku_ray.checks.gold import check_gold
from kohaku_ray.checks.servers import check_servers
from kohaku_ray.collection.indexes import difference, open_index, parser_note
from kohaku_ray.collection.sources import check_places, question_table, questions_of, read_metadata
from kohaku_ray.config import Config
from kohaku_ray.errors import IndexMismatchError
from kohaku_ray.index.store import Index
from kohaku_ray.models.prompts import Prompts
from kohaku_ray.records import Question
from kohaku_ray.runs.identity import identity_of
from kohaku_ray.runs.tracking import check_tracking
from kohaku_ray.settings import resolve_paths
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.store.segments import SegmentStore

Tell = Callable[[str], object]
"""Shows a line of progress."""


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """A run that can be made.

    Attributes:
        config: Its configuration, with absolute paths.
        questions: What it answers.
        prompts: Templates of its system.
        index: What it searches.
        directory: It is written to.
        identity: Digest of all that decides its outputs.
    """

    config: Config
    questions: Sequence[Question]
    prompts: Prompts
    index: Index
    directory: RunDirectory
    identity: str


def check_models(config: Config, job: str, tell: Tell, *, asks_servers: bool = True) -> None:
    """Check the deployments of a run for a ``job``, and warn of servers that are not there and may not be needed.

    Raises:
        ConfigError: One of them cannot be used, or a server that is needed is not there.
    """
    for key, deployment in config.used_deployments.items():
        check_deployment(key, deployment)
    check_vision(config)
    for fault in check_servers(config, config.used_deployments) if asks_servers else ():
        tell(f"{job:<7} warning: {fault}")
    check_windows(config)
    addresses: Addresses = {}
    add_addresses(config, addresses)
    for shared in shared_identities(addresses):
        tell(f"{job:<7} warning: {shared}")


def check_run(config: Config, job: str, tell: Tell, *, strict: bool = False) -> CheckedRun:
    """Check a run's files, templates and index.

    Args:
        config: The run.
        job: Name of the job that makes it, for warnings.
        tell: Takes these.
        strict: Refuse an index that was made from other documents than the configured ones, instead of a warning.

    Raises:
        ConfigError: The configuration cannot be used.
        DataError: Questions, gold answers, index, ledger or the run directory cannot be used.
        IndexMismatchError: ``strict``, and the index was made from other documents.
    """
    config = resolve_paths(config)
    check_places(config)
    check_tracking(config)
    odd: list[str] = []
    table = question_table(config)
    questions = questions_of(config, odd, table)
    read_metadata(config.documents.metadata, odd)
    for what in odd:
        tell(f"{job:<7} warning: {what}")
    prompts = config.declaration.prompts(config.prompts)
    index = open_index(config)
    gold = check_gold(config, index, table=table)
    for problem in gold.problems:
        raise problem
    if gold.lacking:  # what else is odd about them stands beside the score
        tell(f"{job:<7} warning: {gold.lacking}")
    directory = RunDirectory(config.run)
    directory.check_writable(tell)
    SegmentStore(config.ledger.path).check_writable()
    warning = difference(index, config)
    if warning and strict:
        raise IndexMismatchError(warning)
    if warning:
        tell(f"{job:<7} warning: {warning}")
    elif note := parser_note(index, config):
        tell(f"{job:<7} {note}")
    return CheckedRun(config, questions, prompts, index, directory, identity_of(config, index))
