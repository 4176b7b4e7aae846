"""A real cross-encoder behind Serve: its scores, what is scored once, and a run that is ranked by it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from kit.ray_processes import our_processes
from ray import serve

from kohaku_ray.answering.local_index import LocalIndex
from kohaku_ray.engine.serving.applications import PairReplica
from kohaku_ray.engine.serving.handles import PAIRS_PER_CALL, rank_pairs
from kohaku_ray.errors import ConfigError, ModelError
from kohaku_ray.index.store import Index
from kohaku_ray.models.cross_encoder import CrossEncoderConfig
from kohaku_ray.models.target import Target

pytestmark = [pytest.mark.ray, pytest.mark.slow]

COUNTED = "pairs ranked"


@pytest.fixture(scope="module")
def model(ranker) -> str:
    return ranker


@pytest.fixture(scope="module")
def application(pairs_application) -> Target:
    return pairs_application


@pytest.fixture(scope="module")
def pairs(sample_here) -> list[tuple[str, str]]:
    """Questions with the sample's texts: more than one call takes, of all lengths."""
    nodes = Index.open(sample_here).nodes
    texts = [nodes.text_of(row) for row in range(len(nodes)) if nodes.text_of(row)]
    return [
        (f"How much energy does hall {index % 7} use?", text) for index, text in enumerate(texts[: PAIRS_PER_CALL + 60])
    ]


def bare_scores(model: str, pairs: list[tuple[str, str]]) -> np.ndarray:
    from sentence_transformers import CrossEncoder

    return CrossEncoder(model, max_length=128, device="cpu").predict(pairs, show_progress_bar=False)


@pytest.fixture(scope="module")
def expected(model, pairs) -> np.ndarray:
    """Scores of the bare model."""
    scores = bare_scores(model, pairs)
    assert np.ptp(scores) > 0.1, "scores that are all alike would hide a wrong order"
    return scores


def test_scores_are_the_bare_models(application, pairs, expected):
    np.testing.assert_allclose(asyncio.run(rank_pairs(application, pairs)), expected, atol=1e-5)


def test_a_model_in_half_precision_scores_nearly_the_same(model, pairs, expected):
    deployment = CrossEncoderConfig(model=model, max_tokens=128, precision="bfloat16")
    replica = PairReplica(deployment)
    assert {str(weight.dtype) for weight in replica._model.parameters()} == {"torch.bfloat16"}
    scores = asyncio.run(replica.rank(pairs[:40]))
    gap = np.abs(np.array(scores) - expected[:40])
    assert 0 < gap.mean() < 0.02, "roundings of 3 digits, which the model's large random weights amplify"
    assert np.corrcoef(scores, expected[:40])[0, 1] > 0.95
    whole = CrossEncoderConfig(model=model, max_tokens=128)
    assert {str(weight.dtype) for weight in PairReplica(whole)._model.parameters()} == {"torch.float32"}
    assert whole.model_identity == f"cross_encoder:{model} [null,128]", "as runs have recorded it"
    assert deployment.model_identity == f'cross_encoder:{model} [null,128,"bfloat16"]'


def test_a_replica_takes_calls_while_it_scores_and_scores_them_together(model, pairs, expected):
    replica, entered, free = PairReplica(CrossEncoderConfig(model=model, max_tokens=128)), [], threading.Event()
    predict = replica._model.predict

    def held(batch, **settings):
        entered.append(len(batch))
        assert free.wait(20), "the replica's event loop stood still"
        return predict(batch, **settings)

    replica._model.predict = held

    async def ask() -> list[list[float]]:
        scoring = asyncio.gather(replica.rank(pairs[:3]), replica.rank(pairs[3:5]))
        while not entered:
            await asyncio.sleep(0.01)
        left = asyncio.create_task(replica.rank(pairs[:40]))
        scoring = asyncio.gather(scoring, replica.rank(pairs[5:9]), replica.rank(pairs[9:10]))
        await asyncio.sleep(0)
        left.cancel()
        free.set()
        first, *more = await scoring
        return [*first, *more]

    np.testing.assert_allclose(np.concatenate(asyncio.run(ask())), expected[:10], atol=1e-5)
    assert entered == [5, 5], "what waits while the model works is one batch, without the call that was given up"


@pytest.fixture(scope="module")
def slow(application, model, tmp_path_factory) -> tuple[str, Path, Path]:
    """Name of an application of one replica, where it notes each batch's size, and the calls that a batch waits for.

    How fast Serve's router hands on twenty calls is up to the machine's load: eight seconds were seen.
    """
    notes, awaited = tmp_path_factory.mktemp("notes"), tmp_path_factory.mktemp("awaited") / "calls"

    class Slow(PairReplica):
        def __init__(self, deployment: CrossEncoderConfig) -> None:
            super().__init__(deployment)
            self._n_calls = 0
            self._predict, self._model.predict = self._model.predict, self.noted

        async def rank(self, pairs):
            self._n_calls += 1
            return await super().rank(pairs)

        def noted(self, batch, **settings):
            (notes / f"{time.monotonic()} {len(batch)}").touch()
            while self._n_calls < int(awaited.read_text()):
                time.sleep(0.05)
            return self._predict(batch, **settings)

    bound = serve.deployment(Slow, max_ongoing_requests=64).bind(CrossEncoderConfig(model=model, max_tokens=128))
    serve.run(bound, name="slow", route_prefix=None)
    yield "slow", notes, awaited
    serve.delete("slow")


def test_concurrent_callers_share_a_batch(slow, pairs, expected):
    name, notes, awaited = slow
    awaited.write_text("20")

    async def ask():
        return await asyncio.gather(*(rank_pairs(Target(name), pairs[start : start + 3]) for start in range(0, 60, 3)))

    results = asyncio.run(ask())
    sizes = [int(note.name.split()[1]) for note in notes.iterdir()]
    assert sum(sizes) == 60
    assert len(sizes) <= 2, "what comes during the first batch is the second, and no batch is made beside it"
    assert [len(scores) for scores in results] == [3] * 20
    np.testing.assert_allclose(np.concatenate(results), expected[:60], atol=1e-5)


def test_a_call_whose_replica_dies_is_made_again(slow, pairs, expected):
    name, notes, awaited = slow
    awaited.write_text("1000")
    n_before = len(list(notes.iterdir()))

    async def ask():
        asked = asyncio.create_task(rank_pairs(Target(name), pairs[:3]))
        while len(list(notes.iterdir())) == n_before:
            await asyncio.sleep(0.02)
        [replica] = [process for title, process in our_processes() if title.startswith(f"ray::ServeReplica:{name}:")]
        replica.kill()
        awaited.write_text("1")
        return await asked

    np.testing.assert_allclose(asyncio.run(ask()), expected[:3], atol=1e-5)
    assert len(list(notes.iterdir())) == n_before + 2, "the call was under way when its replica died"


def test_each_distinct_pair_is_scored_once_per_retriever(application, sample_config, pairs, expected):
    index = LocalIndex.open(sample_config(), score=rank_pairs)

    async def ask():
        callers = [pairs[:40], pairs[20:60], [*pairs[:10], *pairs[:10]]]
        return await asyncio.gather(*(index.rank_pairs(some, application) for some in callers))

    first, second, doubled = asyncio.run(ask())
    assert index.counted == {(COUNTED, "asked"): 100, (COUNTED, "computed"): 60}
    np.testing.assert_allclose(first, expected[:40], atol=1e-5)
    np.testing.assert_allclose(second, expected[20:60], atol=1e-5)
    assert doubled == [*first[:10], *first[:10]]


def test_a_replica_that_breaks_is_a_model_error_that_says_so(application):
    with pytest.raises(ModelError, match="the cross-encoder broke on 1 pair"):
        asyncio.run(rank_pairs(application, [("a query", None)]))


def evidence(run: str) -> list[dict]:
    rows = pq.read_table(f"{run}/trace.parquet").to_pylist(maps_as_pydicts="strict")
    return [row for row in rows if row["step"] == "evidence" and row["attempt"] == 0]


def test_a_run_is_ranked_by_it(application, pool, run_answer, sample_config, pairs_deployment, model):
    small = ("questions.limit=6", "ensemble.members=2", "kohaku.bm25_top_k=0", "kohaku.dedup=node")
    ranked = ("kohaku.cross_encoder=pairs", f"deployments.pairs={json.dumps(pairs_deployment)}")
    plain = run_answer(sample_config(*small, name="plain"))
    before = pool.counts()
    config = sample_config(*small, *ranked, name="ranked")
    summary = run_answer(config)
    assert (summary.n_questions, summary.n_member_errors) == (6, 0)
    counts = pool.counts() - before
    assert 2 * counts[COUNTED, "computed"] > counts[COUNTED, "asked"] > 6, "two members share what was ranked"

    rows = evidence(config.run)
    assert [row["node_id"] for row in rows] != [row["node_id"] for row in evidence(plain.run)]
    votes = pq.read_table(f"{config.run}/votes.parquet").to_pylist()
    questions = {row["question_id"]: row["question"] for row in votes}
    asked = [(questions[row["question_id"]], row["text"]) for row in rows]
    np.testing.assert_allclose([row["scores"]["score"] for row in rows], bare_scores(model, asked), atol=1e-5)
    for question in questions:
        scores = [row["scores"]["score"] for row in rows if row["question_id"] == question]
        assert scores == sorted(scores, reverse=True), "matches stand in the cross-encoder's order"

    before = pool.counts()
    again = run_answer(config.model_copy(update={"run": f"{config.run}-again"}))
    assert again.n_calls["made"] == 0
    assert (pool.counts() - before)[COUNTED, "computed"] == 0, "a retriever keeps what it has scored"
    assert Path(again.run, "trace.parquet").read_bytes() == Path(config.run, "trace.parquet").read_bytes()


def test_a_model_that_is_not_there_is_refused_before_anything_starts(run_answer, sample_config, tmp_path):
    ranked = ["kohaku.cross_encoder=pairs", f"deployments.pairs={{kind: cross_encoder, model: {tmp_path}/none}}"]
    config = sample_config(*ranked)
    with pytest.raises(ConfigError, match=rf"deployments\.pairs: .*{tmp_path}/none"):
        run_answer(config)
    assert not Path(config.run).exists()
    assert not Path(config.ledger.path).exists()
