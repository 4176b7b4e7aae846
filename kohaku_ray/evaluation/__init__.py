"""Evaluation: scores, classes of errors, statistics."""

from __future__ import annotations

from collections.abc import Mapping

METRICS: Mapping[str, str] = {
    "wattbot": "kohaku_ray.evaluation.wattbot:WATTBOT",
    "kaggle": "kohaku_ray.evaluation.wattbot:KAGGLE",
    "wattbot2026": "kohaku_ray.evaluation.wattbot2026:WATTBOT2026",
    "exact": "kohaku_ray.evaluation.answers:EXACT",
    "answer": "kohaku_ray.evaluation.answers:ANSWER",
    "label": "kohaku_ray.evaluation.label:LABEL",
    "citations": "kohaku_ray.evaluation.references:CITATIONS",
    "retrieval": "kohaku_ray.evaluation.references:RETRIEVAL",
}
"""Built-in metrics by name: here, where the command line reads them without loading numpy."""

DEFAULT_METRIC = "wattbot"
