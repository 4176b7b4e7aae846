"""An index in shards on a real cluster: built by a task each, held by a retriever each, the same answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import ray
from kit.runs_here import index_here

from kohaku_ray.config import load_config
from kohaku_ray.engine.actors import pool
from kohaku_ray.engine.actors.pool import ActorPool
from kohaku_ray.engine.jobs import index_stream
from kohaku_ray.engine.jobs.answer import run_answer
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.engine.serving.applications import serving
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.store import Index
from kohaku_ray.run.collection.indexing import build_bytes
from kohaku_ray.sample import path as sample_path
from kohaku_ray.settings import resolve_paths

pytestmark = [pytest.mark.ray, pytest.mark.slow]

OUTPUTS = ("submission.csv", "answers.parquet", "votes.parquet", "trace.parquet")


def test_shards_are_built_and_searched_each_on_its_own_and_answer_alike(cluster, tiny_encoder, tmp_path, capsys):
    documents = tmp_path / "documents"
    shutil.copytree(sample_path("documents"), documents)
    settings = [f"documents.paths=[{documents}]", "index.encoders=1", f"index.encoder.model={tiny_encoder}"]
    settings += [
        f"ledger.path={tmp_path}/ledger",
        "questions.limit=8",
        "ensemble.members=2",
        "cluster.retriever.cpus=0.2",
    ]

    def config(n_shards: int, name: str):
        return load_config("demo", [*settings, f"index.path={tmp_path}/{name}", f"index.shards={n_shards}"])

    def answered(n_shards: int, run: str, *, kill: int | None = None) -> dict[str, bytes]:
        it = resolve_paths(config(n_shards, f"index{n_shards}").model_copy(update={"run": str(tmp_path / run)}))
        actors = ActorPool(it, n_workers=2)
        with serving(it.used_deployments):
            actors.wait_until_ready()
            if kill is not None:
                ray.kill(actors.retrievers[kill], no_restart=False)
            run_answer(it, pool=actors)
        actors.close()
        return {name: (tmp_path / run / name).read_bytes() for name in OUTPUTS}

    whole = index_here(config(1, "index1"))["counts"]
    parts = run_index(config(3, "index3")).counts
    assert {name: parts[name] for name in ("n_documents", "n_nodes", "n_terms")} == {
        name: whole[name] for name in ("n_documents", "n_nodes", "n_terms")
    }
    assert Index.open(f"{tmp_path}/index3").n_shards == parts["n_shards"] == 3
    expected = answered(1, "run1")
    assert answered(3, "run3", kill=1) == expected

    (documents / "added.md").write_text("# Added\n\nThe new device draws 12 W in all.\n")
    more = run_index(config(3, "index3")).counts
    assert (more["n_encoded"], more["n_shards_kept"]) == (1, 2)
    assert "reduce  3 shards, 2 unchanged" in "".join(capsys.readouterr())
    assert not list(Path(tmp_path / "index3").glob("pending/*"))


def test_auto_takes_as_many_shards_as_the_largest_node_can_build_and_a_build_that_cannot_fit_is_refused(
    cluster, tiny_encoder, tmp_path, capsys, monkeypatch
):
    """scale5.md, 2: one shard of 1.9 M sentences was killed at 24 GiB, without a word of index.shards."""
    settings = [f"documents.paths=[{sample_path('documents')}]", f"index.encoder.model={tiny_encoder}"]
    settings += ["index.encoders=1", f"index.path={tmp_path}/index"]
    whole = run_index(load_config("demo", settings)).counts
    need = build_bytes(whole["n_nodes"], 32)
    monkeypatch.setattr(index_stream, "node_resources", lambda: [{"CPU": 2.0, "memory": need / 3}])
    fixed = load_config("demo", [*settings, "index.shards=1"])
    with pytest.raises(
        ConfigError, match=r"the largest node has .* for it \(index\.shards 1\): set index\.shards to 3"
    ):
        run_index(fixed)
    assert Index.open(f"{tmp_path}/index").n_shards == 1, "the index that was there stays"
    parts = run_index(load_config("demo", settings)).counts
    assert "reduce  4 shards" in "".join(capsys.readouterr())
    names = ("n_documents", "n_nodes", "n_terms")
    assert {name: parts[name] for name in names} == {name: whole[name] for name in names}
    assert parts["n_encoded"] == 0, "nothing was encoded again"
    assert Index.open(f"{tmp_path}/index").n_shards == 4


def test_index_suggests_lists_and_answer_starts_retrievers_by_the_measured_time_of_a_query(
    cluster, tiny_encoder, tmp_path, capsys, monkeypatch
):
    """scale5.md, 5: 16 ms of CPU per query at a million vectors, in no count of retrievers."""
    settings = [f"documents.paths=[{sample_path('documents')}]", f"index.encoder.model={tiny_encoder}"]
    settings += ["index.encoders=1", f"index.path={tmp_path}/index", f"run={tmp_path}/run", f"ledger.path={tmp_path}/l"]
    config = resolve_paths(load_config("demo", [*settings, "cluster.retriever.cpus=0.1", "questions.limit=1"]))
    run_index(config)
    actors = ActorPool(config, n_workers=1)
    actors.wait_until_ready()
    measured = [ms for _, ms in ray.get([retriever.ready.remote() for retriever in actors.retrievers])]
    assert all(0 < ms < 4 for ms in measured), "some hundred vectors are searched at once"
    n = len(actors.retrievers)
    capsys.readouterr()
    monkeypatch.setattr(pool, "COUNTED_MS", 0.0)
    ray.get(actors._add_retrievers(2000.0))
    assert len(actors.retrievers) > n
    assert "more retriever" in "".join(capsys.readouterr())
    actors.close()
