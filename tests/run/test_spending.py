"""Adding up what calls took."""

import pytest
from run_files import usage

from kohaku_ray.run.spending import spent


def test_calls_are_added_up_by_deployment():
    rows = [usage("q1", 0, joules=5.0), usage("q1", 1, deployment="big", joules=7.0), usage("q2", 0, joules=3.0)]
    big, extractive = spent(rows)
    assert (big.deployment, big.n_calls, big.joules) == ("big", 1, 7.0)
    assert (extractive.n_calls, extractive.prompt_tokens, extractive.completion_tokens) == (2, 1000, 80)
    assert (extractive.cached_share, extractive.queue_s, extractive.service_s) == (0.2, 1.0, 4.0)
    assert (extractive.gpu_s, extractive.joules, extractive.dollars) == (2.0, 8.0, pytest.approx(0.002))


def test_energy_that_was_not_measured_everywhere_is_not_known():
    [both] = spent([usage("q1", 0, joules=5.0), usage("q1", 1, joules=None)])
    assert both.joules is None


def test_without_prompts_there_is_no_cached_share():
    [row] = spent([usage("q1", 0, prompt_tokens=0, cached_tokens=0)])
    assert row.cached_share is None
    assert spent([]) == []
