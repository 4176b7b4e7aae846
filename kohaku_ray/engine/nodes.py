"""Whether every node of a cluster sees the files of a job, found before its work starts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kohaku_ray.errors import ConfigError, KohakuRayError
from kohaku_ray.records import digest_text
from kohaku_ray.storage import Directory, below, read_file, without_options

ANSWER_S = 60.0
"""Longest time in which a node reads a few files: it starts a process for it."""


def check_nodes(read: Mapping[str, str], written: Mapping[str, str]) -> None:
    """Check that each node but this one reads the same files under the same paths.

    Nodes that an autoscaler starts later are not checked.

    Args:
        read: Files that workers read, by configuration key.
        written: Directories that workers write to, by configuration key; a file is put there and deleted again.

    Raises:
        ConfigError: A node does not see one of them; the text names both.
        DataError: A file cannot be read here, or a directory cannot be written.
    """
    here = ray.get_runtime_context().get_node_id()
    nodes = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    if not nodes:
        return
    with ExitStack() as probes:
        files = {**read, **{key: probes.enter_context(_probe(path)) for key, path in written.items()}}
        wanted = {key: (file, digest_text(read_file(file))) for key, file in files.items()}
        asked = {_ask(node["NodeID"], wanted): node for node in nodes}
        done, waiting = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)
        found = [(asked[ref], _answer(ref)) for ref in done]
        found += [(asked[ref], (next(iter(wanted)), f"no answer in {ANSWER_S:g} s")) for ref in waiting]
    for node, unseen in found:
        if unseen is not None:
            key, reason = unseen
            path = {**read, **written}[key]
            raise ConfigError(
                f"node {node['NodeManagerAddress']} ({node['NodeID'][:8]}) does not see {key} {without_options(path)}: "
                f"{reason}: mount the same storage on every node, with the same rights and environment, or set {key} "
                "to a place that all nodes share, such as s3://bucket/…"
            )


@contextmanager
def _probe(path: str) -> Iterator[str]:
    """Keep a file of unique content in a directory while the block runs."""
    directory, name = Directory(path), f"{uuid.uuid4().hex}.probe"
    directory.write(name, name.encode())
    try:
        yield below(path, name)
    finally:
        directory.remove(name)


def _ask(node: str, wanted: Mapping[str, tuple[str, str]]) -> Any:
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    options: dict[str, Any] = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": there}
    return ray.remote(unseen).options(**options).remote(dict(wanted))


def _answer(ref: Any) -> tuple[str, str] | None:
    try:
        found: tuple[str, str] | None = ray.get(ref)
        return found
    except RayError:
        return None  # the node left meanwhile: nothing will run there


def unseen(wanted: Mapping[str, tuple[str, str]]) -> tuple[str, str] | None:
    """Return the first key whose file is not seen on this node, with the reason; None: all are seen.

    Args:
        wanted: File and digest of its content by key.
    """
    for key, (file, content) in wanted.items():
        try:
            if digest_text(read_file(file)) != content:
                return key, "it is another directory there"
        except FileNotFoundError:
            return key, "there is no such file there"
        except (OSError, KohakuRayError) as error:
            return key, str(error)
    return None
