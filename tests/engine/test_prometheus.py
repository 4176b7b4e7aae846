"""Our Prometheus metrics: one table, the dashboard's names, and what a node exports after a run."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from kohaku_ray.engine import metrics
from kohaku_ray.engine.metrics import METRICS

DASHBOARD = Path(__file__).parents[2] / "cluster" / "grafana-dashboard.json"
NAME = re.compile(r"ray_(kohaku_\w+)")


def dashboard_queries() -> list[str]:
    board = json.loads(DASHBOARD.read_text())
    variables = [str(variable.get("definition", "")) for variable in board["templating"]["list"]]
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]] + variables


def test_the_dashboard_shows_every_metric_and_no_other():
    shown = {
        name.removesuffix("_bucket") if METRICS.get(name.removesuffix("_bucket")) else name
        for query in dashboard_queries()
        for name in NAME.findall(query)
    }
    assert shown == set(METRICS)


def test_the_dashboard_groups_by_labels_that_there_are():
    for query in dashboard_queries():
        for labels, rest in re.findall(r"by \(([^)]*)\) \((.*)", query):
            name = NAME.findall(rest)[0].removesuffix("_bucket")
            assert {label.strip() for label in labels.split(",")} <= {*METRICS[name].labels, "le"}, query


def test_outside_a_cluster_nothing_is_made(monkeypatch):
    monkeypatch.setattr(metrics.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(metrics, "_metric", lambda name: pytest.fail(f"{name} was made"))
    metrics.add("kohaku_ray_questions_total", 1, outcome="answered")


def scrape() -> Counter[tuple[str, str]]:
    """Sum of every counter of ours over all processes, by name and labels of ours."""
    import ray

    total: Counter[tuple[str, str]] = Counter()
    for node in ray.nodes():
        address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        for line in urllib.request.urlopen(address, timeout=10).read().decode().splitlines():
            match = re.fullmatch(r"ray_(kohaku_\w+)(?:\{(.*)\})? (\S+)", line)
            if match:
                labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                metric = METRICS.get(re.sub(r"_(bucket|sum|count)$", "", match[1]), METRICS.get(match[1]))
                assert metric is not None, line
                total[match[1], ",".join(f"{name}={labels[name]}" for name in metric.labels)] += float(match[3])
    return total


def scrape_settled() -> Counter[tuple[str, str]]:
    """Scrape when nothing more of earlier tests arrives: by RAY_metrics_report_interval_ms of conftest.py, or later."""
    now = scrape()
    while True:
        before, _ = now, time.sleep(5)
        if (now := scrape()) == before:
            return now


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_node_exports_the_numbers_of_a_run(run_answer, sample_config):
    before = scrape_settled()
    config = sample_config("deployments.metered={kind: extractive}", "model=metered", "questions.limit=6")
    first = run_answer(config)
    second = run_answer(config)
    made = first.n_calls["made"]
    assert made > 0
    assert second.n_calls["ledger"] == sum(second.n_calls.values())

    def counted() -> dict[str, float]:
        counts: Counter[str] = Counter()
        for (name, labels), value in scrape().items():
            if "deployment=metered" in labels:
                source = re.search(r"source=(\w+)", labels)
                counts[f"{name} {source[1]}" if source else name] += value
            elif name == "kohaku_ray_questions_total":
                counts[name] += value - before[name, labels]
        return dict(counts)

    wanted = {
        "kohaku_ray_questions_total": first.n_questions + second.n_questions,
        "kohaku_ray_calls_total made": made,
        "kohaku_ray_calls_total ledger": first.n_calls["ledger"] + second.n_calls["ledger"],
        "kohaku_ray_calls_total joined": first.n_calls["joined"],
        "kohaku_ray_prompt_tokens_total": first.spent["prompt_tokens"],
        "kohaku_ray_completion_tokens_total": first.spent["completion_tokens"],
        "kohaku_ray_service_seconds_count": made,
    }
    wanted = {name: value for name, value in wanted.items() if value}
    until = time.monotonic() + 60
    while any(counted().get(name) != value for name, value in wanted.items()) and time.monotonic() < until:
        time.sleep(1)
    counts = counted()
    assert {name: counts.get(name) for name in wanted} == wanted
