"""Names of the built-in metrics: the command line lists them and loads no numpy for it."""

from __future__ import annotations

from collections.abc import Mapping

METRICS: Mapping[str, str] = {
    "wattbot": "kohaku_ray.evaluation.wattbot:WATTBOT",
    "kaggle": "kohaku_ray.evaluation.wattbot:KAGGLE",
    "exact": "kohaku_ray.evaluation.exact:EXACT",
    "answer": "kohaku_ray.evaluation.answer_text:ANSWER",
    "label": "kohaku_ray.evaluation.label:LABEL",
    "citations": "kohaku_ray.evaluation.citations:CITATIONS",
    "retrieval": "kohaku_ray.evaluation.retrieval_metrics:RETRIEVAL",
}
"""Built-in metrics by name."""

DEFAULT_METRIC = "wattbot"
