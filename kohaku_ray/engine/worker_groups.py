"""Read the worker groups of a cluster that grows: what a node of each would have."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

LAUNCHED = Path("~/ray_bootstrap_config.yaml")
"""Where Ray's cluster launcher (`ray up`) puts its file on the head."""

KUBERNETES_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""The namespace of a pod. Beside it lies the token by which KubeRay's autoscaler, in the head's pod, reads groups."""


def read_worker_groups() -> dict[str, dict[str, float]] | None:
    """Return the resources of a node of each group that may have nodes, by its name; None: nothing here tells.

    Only the head knows, where jobs that are submitted to a cluster run.
    """
    try:
        types = _node_types()
    except Exception:  # a file or an answer of another form, or no right to ask
        return None
    if types is None:
        return None
    return {name: dict(group["resources"]) for name, group in types.items() if group.get("max_workers") != 0}


def read_most_resources() -> dict[str, float] | None:
    """Sum the resources of every node that there may be, as ``read_worker_groups``; None: nothing here tells."""
    try:
        types = _node_types()
    except Exception:  # as above
        return None
    if types is None:
        return None
    total = Counter[str]()
    for group in types.values():
        n_nodes = int(group.get("max_workers", 1))
        total.update({kind: amount * n_nodes for kind, amount in group["resources"].items()})
    return dict(total)


def _node_types() -> Mapping[str, Any] | None:
    launched = LAUNCHED.expanduser()
    if launched.is_file():
        types: Mapping[str, Any] = yaml.safe_load(launched.read_text(encoding="utf-8"))["available_node_types"]
        return types
    name = os.environ.get("RAY_CLUSTER_NAME")
    if not name or not KUBERNETES_NAMESPACE.is_file():
        return None
    # As the autoscaler itself reads it, so that what it would not find is missing here, too.
    from ray.autoscaler._private.kuberay.autoscaling_config import _generate_available_node_types_from_ray_cr_spec
    from ray.autoscaler._private.kuberay.node_provider import KubernetesHttpApiClient

    cluster = KubernetesHttpApiClient(KUBERNETES_NAMESPACE.read_text(encoding="utf-8")).get(f"rayclusters/{name}")
    of_kuberay: Mapping[str, Any] = _generate_available_node_types_from_ray_cr_spec(cluster["spec"])
    return of_kuberay
