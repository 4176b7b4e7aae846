from __future__ import annotations

import polars as pl
import pytest
from run_files import usage

from kohaku_ray.run.record.summary import group_errors, spent


def test_texts_that_differ_in_ids_alone_are_one_and_a_status_is_kept():
    texts = [f"HTTP 401 Unauthorized (request req-{number:010d})" for number in range(7)]
    assert group_errors([*texts, None, "", "HTTP 500 broken\n  twice"]) == {
        "HTTP 401 Unauthorized (request …)": 7,
        "HTTP 500 broken twice": 1,
    }


def test_calls_are_added_up_by_deployment():
    rows = [usage("q1", 0, joules=5.0), usage("q1", 1, deployment="big", joules=7.0), usage("q2", 0, joules=3.0)]
    big, extractive = spent(pl.DataFrame(rows, infer_schema_length=None))
    assert (big.deployment, big.n_calls, big.joules) == ("big", 1, 7.0)
    assert (extractive.n_calls, extractive.prompt_tokens, extractive.completion_tokens) == (2, 1000, 80)
    assert (extractive.cached_share, extractive.queue_s, extractive.service_s) == (0.2, 1.0, 4.0)
    assert (extractive.gpu_s, extractive.joules, extractive.dollars) == (2.0, 8.0, pytest.approx(0.002))


def test_the_bound_of_the_cached_share_is_that_of_calls_with_one_prompt():
    """By hand: three members of 300 tokens share 600; one reply used twice, and prompts of their own, share nothing."""
    members = [usage("q1", n, key=f"{0:08x}{n}", prompt_tokens=300) for n in range(3)]
    alone = [usage("q2", n, key=f"{1:08x}0", prompt_tokens=300) for n in range(2)]
    split = [usage("q3", n, key=f"{n + 2:08x}0", prompt_tokens=300) for n in range(2)]  # ensemble.evidence: split
    plan = [usage("q1", -1, role="plan", key=f"{9:08x}0", prompt_tokens=100)]
    [row] = spent(pl.DataFrame([*members, *alone, *split, *plan], infer_schema_length=None))
    assert row.cached_bound == pytest.approx(600 / 2200)


def test_energy_that_was_not_measured_everywhere_is_not_known():
    [both] = spent(pl.DataFrame([usage("q1", 0, joules=5.0), usage("q1", 1, joules=None)], infer_schema_length=None))
    assert both.joules is None


def test_without_prompts_there_is_no_cached_share():
    [row] = spent(pl.DataFrame([usage("q1", 0, prompt_tokens=0, cached_tokens=0)], infer_schema_length=None))
    assert row.cached_share is row.cached_bound is None
    assert spent(pl.DataFrame()) == []
