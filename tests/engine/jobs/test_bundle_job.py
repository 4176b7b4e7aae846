"""A run of the answer job, bundled: made again in one process, it is the same to the last cell."""

from __future__ import annotations

from kohaku_ray.api import bundle, replay


def test_a_run_on_the_cluster_is_the_same_without_it(run_answer, sample_config, tmp_path):
    overrides = ("ensemble.members=3", "ensemble.early_stop=row", "kohaku.max_retries=1", "questions.limit=12")
    run_answer(sample_config(*overrides, name="waves"))
    run_answer(sample_config("ensemble.vote.weights=agreement", "ensemble.scope=question", "questions.limit=5"))
    for name in ("waves", "run"):
        made = bundle(f"{tmp_path}/{name}", f"{tmp_path}/{name}.zip", with_index=name == "run")
        assert made.n_replies > 5
        assert replay(f"{tmp_path}/{name}.zip").differences == ()
