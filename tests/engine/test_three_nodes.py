"""Three nodes and a head without CPUs on this machine: nodes die while jobs run, and the outputs stay the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from jobs.test_answer import COMPARED

from kohaku_ray.index.store import Index

HERE = Path(__file__).parent

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_a_node_dies_at_five_moments_of_a_run_and_once_while_indexing(sample_index, tmp_path):
    command = [sys.executable, str(HERE / "three_nodes.py"), str(tmp_path), sample_index[0]]
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1500, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["killed"] == ["Member", "LedgerShard", "Retriever", "ServeReplica", "Member", "MapWorker"]
    assert set(found["on_head"]) <= {"Applications", "ServeController", "Voter"}, "a head without CPUs holds no work"
    assert found["distinct"] == found["calls"] == 24 * 4
    assert found["asked"] - found["distinct"] <= 5 * 6, "at most the calls in flight and the unflushed are repeated"
    for name in COMPARED:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name
    index, sample = Index.open(str(tmp_path / "index")), Index.open(sample_index[0])
    assert index.nodes.table.equals(sample.nodes.table)
    assert len(pq.read_table(tmp_path / "killed" / "usage.parquet")) >= 24 * 4
