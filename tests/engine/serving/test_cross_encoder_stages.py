"""Hybrid's stages ranked by a real cross-encoder behind Serve: its scores in the trace, and each pair scored once."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pyarrow.parquet as pq
import pytest

from kohaku_ray.config import load_config
from kohaku_ray.engine.actors.pool import ActorPool
from kohaku_ray.engine.jobs.answer import run_answer
from kohaku_ray.index.store import Index
from kohaku_ray.settings import resolve_paths

RANKED = ("subquery_ranking", "clustering", "final_ranking")
"""Stages that a cross-encoder ranks."""


@pytest.fixture(scope="module")
def ran(news_index, tiny_encoder, pairs_application, pairs_deployment, tmp_path_factory):
    """A run over the news sample: its trace, the pairs scored, and the texts of its index."""
    home = tmp_path_factory.mktemp("ranked")
    overrides = [
        *(
            "hybrid.cross_encoder=pairs",
            "hybrid.min_relevance=null",
            f"deployments.pairs={json.dumps(pairs_deployment)}",
        ),
        *(f"index.path={news_index}", f"index.encoder.model={tiny_encoder}"),
        *(f"ledger.path={home}/ledger", f"run={home}/run", "questions.limit=4", "ensemble.members=2"),
    ]
    config = resolve_paths(load_config("hybrid", overrides))
    pool = ActorPool(config, n_workers=1)
    try:
        pool.wait_until_ready()
        summary = run_answer(config, pool=pool)
        counts = pool.counts()
    finally:
        pool.close()
    assert (summary.n_questions, summary.n_member_errors) == (4, 0)
    steps = defaultdict(list)
    for row in pq.read_table(f"{config.run}/trace.parquet").to_pylist(maps_as_pydicts="strict"):
        steps[row["question_id"], row["step"]].append(row)
    questions = {
        row["question_id"]: row["question"] for row in pq.read_table(f"{config.run}/votes.parquet").to_pylist()
    }
    nodes = Index.open(config.index.path).nodes
    texts = {nodes.node_id(row): nodes.text_of(row) for row in range(len(nodes))}
    return steps, questions, texts, counts


@pytest.mark.ray
@pytest.mark.slow
def test_each_stage_has_the_cross_encoders_scores_and_says_so(ran, ranker):
    from sentence_transformers import CrossEncoder

    bare = CrossEncoder(ranker, max_length=128, device="cpu")
    steps, questions, texts, _ = ran
    for key, question in questions.items():
        for stage in RANKED:
            head, *items = steps[key, stage]
            assert items
            assert "no cross-encoder" not in head["note"]
            name = "score.0" if stage == "subquery_ranking" else "score"  # the question is the first sub-query
            scored = [row for row in items if name in row["scores"]]
            assert scored
            expected = bare.predict([(question, texts[row["node_id"]]) for row in scored], show_progress_bar=False)
            np.testing.assert_allclose([row["scores"][name] for row in scored], expected, atol=1e-5)
        final = [row["scores"]["score"] for row in steps[key, "final_ranking"][1:]]
        assert final == sorted(final, reverse=True)


@pytest.mark.ray
@pytest.mark.slow
def test_each_pair_is_scored_once(ran):
    steps, questions, texts, counts = ran
    pairs = set()
    for key, question in questions.items():
        queries = [row["text"] for row in steps[key, "expansion"][1:]]
        assert queries[0] == question
        for row in steps[key, "search"][1:]:
            found_by = {int(name.split(".")[1]) for name in row["scores"] if "." in name}
            pairs |= {(queries[number], texts[row["node_id"]]) for number in found_by}
        pairs |= {(question, texts[row["node_id"]]) for row in steps[key, "fusion"][1:]}
    assert counts["pairs ranked", "computed"] == len(pairs) > 4 * 12
    assert counts["pairs ranked", "asked"] < 1.5 * len(pairs), "two members share one preparation"
