"""Index and answer with everything on an object store: the bytes of a run on a disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.answers import COMPARED
from kit.runs_here import index_here

from kohaku_ray import sample
from kohaku_ray.config import load_config
from kohaku_ray.errors import StorageError
from kohaku_ray.store.storage import join_path, publish, read_file

SMALL = ("questions.limit=12", "ensemble.members=2", "index.encoders=1")


@pytest.fixture
def overrides(s3) -> list[str]:
    """The sample collection and every output on S3."""
    folder = Path(sample.path("documents"))
    for file in [*sorted(folder.rglob("*")), Path(sample.path("questions.csv")), Path(sample.path("metadata.csv"))]:
        if file.is_file():
            publish(s3.uri(f"sample/{file.relative_to(folder.parent).as_posix()}"), file.read_bytes())
    return [
        f"documents.paths=['{s3.uri('sample/documents')}']",
        f"documents.metadata={s3.uri('sample/metadata.csv')}",
        f"questions.path={s3.uri('sample/questions.csv')}",
        f"index.path={s3.uri('all/index')}",
        f"ledger.path={s3.uri('all/ledger')}",
        f"run={s3.uri('all/run')}",
        *SMALL,
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_a_run_with_everything_on_s3_equals_a_run_on_a_disk(s3, overrides, sample_config, run_answer):
    from kohaku_ray.api import Run
    from kohaku_ray.pages.report import write_report

    here = Run(sample_config(*SMALL))
    run_answer(here.config)

    config = load_config("demo", overrides)
    for method, path in (("PUT", "all/index"), ("PUT", "all/ledger"), ("GET", "all/index"), ("PUT", "all/run")):
        s3.fail("busy", method, path, times=3)
    s3.fail("drop", "GET", "all/index", times=2)
    s3.fail("cut", "GET", "sample/documents", times=2)
    s3_run = Run(config)
    s3_run.index()
    s3_run.answer()
    assert not [fault for fault in s3.faults if fault.times], "every fault was met"
    differ = [name for name in COMPARED if read_file(join_path(config.run, name)) != Path(here.path, name).read_bytes()]
    assert differ == []
    facts = json.loads(read_file(join_path(config.run, "run.json")))
    assert facts["status"] == "finished"
    assert facts["n_calls"]["made"] > 0

    again = Run(config).answer()
    assert again.summary is not None
    assert again.summary.wall_s == facts["wall_s"], "finished before: nothing to do"
    assert index_here(config)["n_encoded"] == 0, "every vector is in the index"
    page = write_report(config.run)
    assert page == join_path(config.run, "report.html")
    assert b"<html" in read_file(page)[:200]
    shown, expected = (run.show().rpartition("\n\n")[0] for run in (s3_run, here))  # the last part is of seconds
    assert shown
    assert shown == expected


@pytest.mark.parametrize(
    ("job", "key"),
    [("index", None), ("answer", None), ("answer", "index.path"), ("answer", "ledger.path"), ("answer", "run")],
)
def test_wrong_credentials_are_found_before_a_cluster_is_started(s3, overrides, sample_config, monkeypatch, job, key):
    """Of all places, and of each on its own."""
    import ray

    from kohaku_ray.engine.jobs.answer import run_answer
    from kohaku_ray.engine.jobs.index import run_index

    config = load_config("demo", overrides) if key is None else sample_config(f"{key}={s3.uri(f'alone/{key}')}")
    message = "" if key is None else rf"s3://kohaku/alone/{key}.*"
    message += "bucket kohaku refuses these credentials: set AWS_ACCESS_KEY_ID"
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("a cluster was started"))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    s3.demand_credentials(True)
    try:
        with pytest.raises(StorageError, match=message):
            {"index": run_index, "answer": run_answer}[job](config)
    finally:
        s3.demand_credentials(False)
