"""An index in shards on a real cluster: built by a task each, held by a retriever each, the same answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import ray
from kit.runs_here import index_here, run_here

from kohaku_ray.collection.indexing import build_bytes
from kohaku_ray.config import load_config
from kohaku_ray.engine.actors.pool import ActorPool
from kohaku_ray.engine.jobs import index_stream
from kohaku_ray.engine.jobs.answer import run_answer
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.store import Index
from kohaku_ray.sample import path as sample_path
from kohaku_ray.settings import resolve_paths

pytestmark = [pytest.mark.ray, pytest.mark.slow]

OUTPUTS = ("submission.csv", "answers.parquet", "votes.parquet", "trace.parquet")
COUNTS = ("n_documents", "n_nodes", "n_terms")


def test_auto_shards_are_built_and_searched_each_on_its_own_and_answer_alike(
    cluster, tiny_encoder, tmp_path, capsys, monkeypatch
):
    """As many as the largest node can build; a build that cannot fit is refused.

    scale5.md, 2: one shard of 1.9 M sentences was killed at 24 GiB, without a word of index.shards.
    """
    documents = tmp_path / "documents"
    shutil.copytree(sample_path("documents"), documents)
    settings = [f"documents.paths=[{documents}]", "index.encoders=1", f"index.encoder.model={tiny_encoder}"]
    settings += [f"index.path={tmp_path}/index", "questions.limit=8", "ensemble.members=2"]
    config = load_config("demo", [*settings, "cluster.retriever.cpus=0.2", f"ledger.path={tmp_path}/ledger"])
    whole = index_here(config)["counts"]
    run_here(config.model_copy(update={"run": f"{tmp_path}/whole"}))

    need = build_bytes(whole["n_nodes"], 32)
    monkeypatch.setattr(index_stream, "node_resources", lambda: [{"CPU": 2.0, "memory": need / 3}])
    with pytest.raises(
        ConfigError, match=r"the largest node has .* for it \(index\.shards 1\): set index\.shards to 3"
    ):
        run_index(load_config("demo", [*settings, "index.shards=1"]))
    assert Index.open(f"{tmp_path}/index").n_shards == 1, "the index that was there stays"
    parts = run_index(config).counts
    assert "reduce  4 shards" in "".join(capsys.readouterr())
    assert {name: parts[name] for name in COUNTS} == {name: whole[name] for name in COUNTS}
    assert parts["n_encoded"] == 0, "nothing was encoded again"
    assert Index.open(f"{tmp_path}/index").n_shards == parts["n_shards"] == 4

    config = resolve_paths(config.model_copy(update={"run": f"{tmp_path}/parts"}))
    config = config.model_copy(update={"ledger": config.ledger.model_copy(update={"path": f"{tmp_path}/another"})})
    actors = ActorPool(config, n_workers=2)
    try:
        actors.wait_until_ready()
        ray.kill(actors.retrievers[1], no_restart=False)
        run_answer(config, pool=actors)
    finally:
        actors.close()
    for name in OUTPUTS:
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name

    (documents / "added.md").write_text("# Added\n\nThe new device draws 12 W in all.\n")
    more = run_index(config).counts
    assert (more["n_encoded"], more["n_shards_kept"]) == (1, 3)
    assert "reduce  4 shards, 3 unchanged" in "".join(capsys.readouterr())
    assert not list(Path(tmp_path / "index").glob("pending/*"))
