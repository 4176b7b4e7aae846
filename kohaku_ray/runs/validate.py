"""Check a configuration against files and cluster without starting anything."""

from __future__ import annotations

from kohaku_ray.config import Config
from kohaku_ray.errors import DataError, IndexMismatchError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.runs.demand import answer_demand, check_demand, cluster_address, local_cpus
from kohaku_ray.runs.deployments import check_deployment
from kohaku_ray.runs.indexes import open_index
from kohaku_ray.runs.sources import find_sources, questions_of, read_metadata, resolve, resolve_paths


def validate(config: Config) -> list[str]:
    """Check everything that can be checked in seconds; returns one line per finding.

    Raises:
        ConfigError: A setting does not fit.
        DataError: A file cannot be used.
    """
    config = resolve_paths(config)
    files = find_sources(config)
    metadata = read_metadata(config.documents.metadata)
    questions = questions_of(config)
    config.declaration.prompts(config.prompts)
    for metric in config.declaration.metrics:
        find_metric(metric)
    for key, deployment in config.used_deployments.items():
        check_deployment(key, deployment, here=cluster_address(config.cluster) is None)
    demand = answer_demand(config)
    return [
        f"documents: {len(files)} files, {len(metadata)} with metadata",
        f"questions: {len(questions)} in {resolve(config.questions.path)}",
        f"index: {_index_state(config)}",
        *(f"deployments.{key}: {deployment.kind}" for key, deployment in config.used_deployments.items()),
        f"demand: {demand.cpus:g} CPUs and {demand.gpus:g} GPUs for {demand.reason}; {_cluster_state(config)}",
        "valid",
    ]


def _index_state(config: Config) -> str:
    try:
        index = open_index(config)
    except IndexMismatchError:
        raise
    except DataError as error:
        return str(error)
    counts = index.manifest["counts"]
    return f"{config.index.path}: {counts['n_documents']} documents, {counts['n_vectors']} vectors"


def _cluster_state(config: Config) -> str:
    address = cluster_address(config.cluster)
    if address is not None:
        return f"checked when the job joins {address}"
    check_demand(answer_demand(config), {"CPU": local_cpus(config.cluster)})
    return f"a local cluster of {local_cpus(config.cluster)} CPUs has them"
