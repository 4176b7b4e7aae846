"""Check a configuration against files and cluster without starting anything."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from kohaku_ray.config import Config
from kohaku_ray.config.deployments import OpenAIConfig
from kohaku_ray.documents.content import default_doc_id
from kohaku_ray.documents.rows import HUB, ROW_FORMATS, suffix_of
from kohaku_ray.errors import DataError, IndexMismatchError, KohakuRayError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.truth import read_gold, scored_rows
from kohaku_ray.index.store import MANIFEST, Index
from kohaku_ray.run.demand import Demand, answer_demand, check_demand, cluster_address, local_cpus
from kohaku_ray.run.deployments import check_deployment, check_vision, check_windows
from kohaku_ray.run.directory import RunDirectory
from kohaku_ray.run.indexes import difference, first_of, open_index
from kohaku_ray.run.probe import reach
from kohaku_ray.run.sources import (
    check_images,
    describe_passed_over,
    find_sources,
    questions_of,
    read_metadata,
    resolve,
    resolve_paths,
)
from kohaku_ray.run.summary import counted
from kohaku_ray.run.tracking import check_tracking
from kohaku_ray.storage import below, is_file
from kohaku_ray.values.read import is_blank

T = TypeVar("T")

_NAMED_INSIDE = {"json", "html", "htm", "md", *(name.removeprefix(".") for name in ROW_FORMATS)}
"""Suffixes of files that may name their documents themselves."""


@dataclass(slots=True)
class Findings:
    """What a run with this configuration would use, and all that keeps it from running.

    Attributes:
        lines: One per finding.
        problems: Every error.
    """

    lines: list[str] = field(default_factory=list)
    problems: list[KohakuRayError] = field(default_factory=list)

    def of(self, check: Callable[[], T]) -> T | None:
        """Run a check; its error is one more problem."""
        try:
            return check()
        except KohakuRayError as error:
            self.problems.append(error)
            return None


def validate(config: Config, *, deep: bool = False) -> Findings:
    """Check everything that can be checked in seconds, also after a check has failed.

    Args:
        config: The configuration.
        deep: Also read every file of the index and of a finished run, and compare it with its checksum.
    """
    found = Findings()
    resolved = found.of(lambda: resolve_paths(config))
    if resolved is None:
        return found
    config = resolved
    files = found.of(lambda: find_sources(config))
    if files is not None:
        kinds = Counter(_kind(file) for file in files)
        found.lines.append(
            f"documents: {counted(len(files), 'file')} ({', '.join(f'{n} {kind}' for kind, n in kinds.most_common())})"
        )
        found.lines += filter(None, [found.of(lambda: describe_passed_over(config))])
    index = _index(config, found, deep)
    if deep:
        wrong = [] if index is None else found.of(index.damage) or []
        wrong += found.of(RunDirectory(config.run).damage) or []
        found.problems += wrong
        found.lines += [] if wrong else ["files: index and finished run, where there are any, are as they were written"]
    documents = None if index is None else found.of(lambda: index.documents["doc_id"].to_pylist())
    known = set(map(default_doc_id, files or []) if documents is None else documents)
    metadata = found.of(lambda: read_metadata(config.documents.metadata))
    if metadata:
        lacking = [name for name in metadata if name not in known]
        said = f", {len(lacking)} of them for no document ({first_of(lacking)})" if lacking else ""
        found.lines.append(f"metadata: {counted(len(metadata), 'row')}{said}")
    questions = found.of(lambda: questions_of(config))
    surely = index is not None or not any(one.startswith(HUB) or suffix_of(one) in _NAMED_INSIDE for one in files or [])
    gold = found.of(lambda: _gold(config, known, surely, found))
    if questions is not None:
        found.lines.append(f"questions: {len(questions)} in {resolve(config.questions.path)}{gold or ''}")
    found.of(lambda: config.declaration.prompts(config.prompts))
    here = cluster_address(config.cluster) is None
    found.of(lambda: check_images(config))
    for key, deployment in {**config.used_deployments, **config.caption_deployments}.items():
        found.of(lambda key=key, deployment=deployment: check_deployment(key, deployment, here=here))  # type: ignore[misc]
        what = [deployment.kind, getattr(deployment, "model", None)]
        if isinstance(deployment, OpenAIConfig):
            what.append(found.of(lambda key=key, deployment=deployment: reach(key, deployment)))  # type: ignore[misc]
        found.lines.append(f"deployments.{key}: {', '.join(one for one in what if one)}")
    found.of(lambda: check_windows(config))
    found.of(lambda: check_vision(config))
    found.of(lambda: check_tracking(config))
    demand = answer_demand(config)
    state = found.of(lambda: _cluster_state(config, demand))
    if state is not None:
        found.lines.append(f"demand: {demand.cpus:g} CPUs and {demand.gpus:g} GPUs for {demand.reason}; {state}")
    return found


def _kind(file: str) -> str:
    if file.startswith(HUB):
        return "on the hub, read when the job starts"
    return os.path.splitext(file)[1].lower() or "without a suffix"


def _index(config: Config, found: Findings, deep: bool) -> Index | None:
    try:
        index = open_index(config)
    except IndexMismatchError as error:
        found.problems.append(error)
        return None
    except DataError as error:
        if deep and is_file(below(config.index.path, MANIFEST)):
            found.problems.append(error)
        else:
            found.lines.append(f"index: {error}")
        return None
    except KohakuRayError as error:  # such as an encoder that is not there
        found.problems.append(error)
        return None
    counts = index.manifest["counts"]
    line = f"index: {config.index.path}: {counts['n_documents']} documents, {counts['n_vectors']} vectors"
    if counts["n_rejects"]:
        first = index.rejects.slice(0, 1).to_pylist()[0]
        line += f", {counts['n_rejects']} rejects, the first: {first['file']}: {first['reason']}"
    found.lines.append(line)
    if changed := difference(index, config):
        found.lines.append(f"warning: {changed}")
    return index


def _gold(config: Config, known: set[str], surely: bool, found: Findings) -> str:
    """Say whether the question file has gold answers, so that the run is scored; add what is wrong with them.

    Args:
        config: The run.
        known: Ids of the documents.
        surely: Whether no document can have another id.
        found: Is added to.
    """
    metrics = [find_metric(name) for name in config.declaration.metrics]
    path = resolve(config.questions.path)
    try:
        truth, fitting, note = read_gold(path, metrics)
    except DataError as error:
        return f", not scored: {str(error).removeprefix(f'{path}: ').removeprefix(f'{os.path.basename(path)} ')}"
    rows = scored_rows(truth, fitting, config.questions.limit).rows
    empty = [key for key, row in rows.items() if not fitting[0].gold(row)]
    if empty:
        found.problems.append(
            DataError(
                f"{path}: {len(empty)} of {len(rows)} questions have no gold answer ({first_of(empty)}): give each "
                "one, or is_blank where the documents do not answer"
            )
        )
    cited = {ref: None for row in rows.values() for ref in row.ref_ids if not is_blank(ref)}
    folded = {name.lower() for name in known}
    lacking = [ref for ref in cited if folded and ref.lower() not in folded]
    if lacking:
        said = (
            f"the gold answers cite {counted(len(lacking), 'document')} not there ({first_of(lacking)}): correct "
            "ref_id, or add them to documents.paths"
        )
        if surely:
            found.problems.append(DataError(f"{path}: {said}"))
        else:
            found.lines.append(f"warning: {said}, unless files name their documents themselves")
    return f", scored by {', '.join(metric.name for metric in fitting)}{f'; {note}' if note else ''}"


def _cluster_state(config: Config, demand: Demand) -> str:
    address = cluster_address(config.cluster)
    if address is not None:
        return f"checked when the job joins {address}"
    check_demand(demand, {"CPU": local_cpus(config.cluster)})
    return f"a local cluster of {local_cpus(config.cluster)} CPUs has them"
