"""An index in shards on a real cluster: built by a task each, held by a retriever each, the same answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import ray
from kit.runs_here import index_here

from kohaku_ray.config import load_config
from kohaku_ray.engine.actors.pool import ActorPool
from kohaku_ray.engine.jobs.answer import run_answer
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.engine.serving.applications import serving
from kohaku_ray.index.store import Index
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
