"""Check a configuration against files and cluster without starting anything."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kohaku_ray.config import Config
from kohaku_ray.config.deployments import OpenAIConfig
from kohaku_ray.documents.rows import HUB
from kohaku_ray.errors import DataError, IndexMismatchError, KohakuRayError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.truth import read_gold
from kohaku_ray.index.store import Index
from kohaku_ray.run.demand import Demand, answer_demand, check_demand, cluster_address, local_cpus
from kohaku_ray.run.deployments import check_deployment, check_vision, check_windows
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
from kohaku_ray.run.tracking import check_tracking

T = TypeVar("T")


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


def validate(config: Config) -> Findings:
    """Check everything that can be checked in seconds, also after a check has failed."""
    found = Findings()
    resolved = found.of(lambda: resolve_paths(config))
    if resolved is None:
        return found
    config = resolved
    files = found.of(lambda: find_sources(config))
    if files is not None:
        kinds = Counter(_kind(file) for file in files)
        found.lines.append(
            f"documents: {len(files)} files ({', '.join(f'{n} {kind}' for kind, n in kinds.most_common())})"
        )
        found.lines += filter(None, [found.of(lambda: describe_passed_over(config))])
    index = _index(config, found)
    metadata = found.of(lambda: read_metadata(config.documents.metadata))
    if metadata:
        found.lines.append(f"metadata: {len(metadata)} rows{_unmatched(metadata, files or [], index)}")
    questions = found.of(lambda: questions_of(config))
    if questions is not None:
        gold = found.of(lambda: _gold(config))
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


def _index(config: Config, found: Findings) -> Index | None:
    try:
        index = open_index(config)
    except IndexMismatchError as error:
        found.problems.append(error)
        return None
    except DataError as error:
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


def _unmatched(metadata: Collection[str], files: Sequence[str], index: Index | None) -> str:
    """Say which rows of the metadata describe no document: of the index, or without one, of the files by name."""
    if index is not None:
        known = set(index.documents["doc_id"].to_pylist())
    else:
        known = {os.path.splitext(os.path.basename(file))[0] for file in files}
    lacking = [name for name in metadata if name not in known]
    if not lacking:
        return ""
    return f", {len(lacking)} of them for no document ({first_of(lacking)})"


def _gold(config: Config) -> str:
    """Say whether the question file has gold answers, so that the run is scored."""
    metrics = [find_metric(name) for name in config.declaration.metrics]
    path = resolve(config.questions.path)
    try:
        _, found, note = read_gold(path, metrics)
    except DataError as error:
        return f", not scored: {str(error).removeprefix(f'{path}: ').removeprefix(f'{os.path.basename(path)} ')}"
    return f", scored by {', '.join(metric.name for metric in found)}{f'; {note}' if note else ''}"


def _cluster_state(config: Config, demand: Demand) -> str:
    address = cluster_address(config.cluster)
    if address is not None:
        return f"checked when the job joins {address}"
    check_demand(demand, {"CPU": local_cpus(config.cluster)})
    return f"a local cluster of {local_cpus(config.cluster)} CPUs has them"
