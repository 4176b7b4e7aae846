"""Export of a sweep's finished runs, its tables and its page to a tracker."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from kohaku_ray.run.identity import summary_of
from kohaku_ray.run.results import scores_of
from kohaku_ray.run.tracking import Exported, export, is_tracked, track
from kohaku_ray.sweep.plan import Plan


def track_sweep(plan: Plan, files: Sequence[str], figures: Mapping[str, float]) -> list[str]:
    """Export the finished runs of a sweep that were not exported before; with them the sweep's tables and its page.

    Args:
        plan: The sweep.
        files: Paths of its tables and its page.
        figures: Its counts by name.

    Returns:
        Where they are now, the sweep last; empty: no tracker is configured, or there was nothing new.

    Raises:
        ConfigError: The tracker's package is missing.
        DataError: The tracker refused; every run is whole, and the next start of the sweep exports what is left.
    """
    output = os.path.abspath(plan.loaded.sweep.output)
    name, where = os.path.basename(output), []
    left = [config for config in plan.finished.values() if not is_tracked(config)]
    for config in left:
        summary = summary_of(config.run)
        where.append(track(config, summary, scores_of(config, summary)[0], name) or "")
    if left:
        own = {"sweep": plan.loaded.where, "runs": str(len(plan.runs))}
        where.append(export(left[0], Exported(name, own, figures, files, name), output))
    return where
