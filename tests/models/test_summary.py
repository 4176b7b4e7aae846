from __future__ import annotations

import polars as pl
import pytest
from kit.rows import check_rows
from run_files import usage

from kohaku_ray.models.calls import Call
from kohaku_ray.models.summary import SERVER_FACTS, AnswerSummary, describe_servers, group_errors, spent


def test_texts_that_differ_in_ids_alone_are_one_and_a_status_is_kept():
    texts = [f"HTTP 401 Unauthorized (request req-{number:010d})" for number in range(7)]
    assert group_errors([*texts, None, "", "HTTP 500 broken\n  twice"]) == {
        "HTTP 401 Unauthorized (request …)": 7,
        "HTTP 500 broken twice": 1,
    }


@check_rows(
    ("named", "is_told"),
    [
        (["gpt-4o"], False),
        (["gpt-4o-2024-08-06"], False),
        (["openai/GPT-4o"], False),
        (["gpt-4o:latest"], False),
        (["gpt-4o-mini"], True),
        (["cheap-fallback-1b"], True),  # agentgateway#1361, odysseus#868
        (["gpt-4o", "cheap-fallback-1b"], True),
        (["gpt-4o-2024-08-06", "gpt-4o-2024-05-13"], True),
        ([], False),
    ],
)
def test_a_deployment_whose_replies_name_another_model_or_several_says_so(named, is_told):
    summary = AnswerSummary("")
    for name in [*named, *named]:
        block = AnswerSummary("")
        block.name_servers([answered("big", name)], {"big": ("gpt-4o", "")})
        summary.add(block)
    lines = describe_servers(*(getattr(summary, name) for name in SERVER_FACTS))
    assert len(lines) == is_told
    for line in lines:
        assert line.startswith("deployments.big.model is gpt-4o, and its replies name ")
        assert all(f"{name} (2 times)" in line for name in named)


def test_replies_that_another_address_gave_are_told():
    summary = AnswerSummary("")
    calls = [answered("big", "m", server) for server in ("here", "there", "")]
    summary.name_servers(calls, {"big": ("m", "here")})
    [line] = describe_servers(*(getattr(summary, name) for name in SERVER_FACTS))
    assert line.startswith("deployments.big: 1 of its replies came from another address than its base_url")
    assert "set deployments.big.identity" in line


def answered(deployment: str, served_model: str, server: str = "") -> Call:
    sums = dict.fromkeys(("wait_s", "queue_s", "service_s", "gpu_s", "joules", "dollars"), 0.0)
    return Call("k", "answer", 0, "made", deployment, "", 9, 0, 3, served_model=served_model, server=server, **sums)


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
    split = [usage("q3", n, key=f"{n + 2:08x}0", prompt_tokens=300) for n in range(2)]  # ensemble.scope: question
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
