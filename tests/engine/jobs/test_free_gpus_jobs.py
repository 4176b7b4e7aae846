"""`auto` on a cluster that has GPUs by name: jobs say what it became, and go on where FAISS cannot use them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kohaku_ray.index.gpu import without_gpu_support

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
import ray
from kohaku_ray.config import load_config
from kohaku_ray.engine.actors import pool
from kohaku_ray.engine.jobs import index_stream
from kohaku_ray.engine.jobs.answer import run_answer
from kohaku_ray.engine.jobs.index import run_index

folder, encoder = sys.argv[1:]
ray.init(address="local", num_cpus=3, num_gpus=1, namespace="kohaku_ray", include_dashboard=False, log_to_driver=False)
own = [f"documents.paths=[{folder}/in]", "documents.metadata=null", f"index.encoder.model={encoder}"]
own += [f"index.path={folder}/index", "index.factory='IVF4,Flat'", f"ledger.path={folder}/ledger"]
own += ["index.encoder.device=cpu", "questions.limit=4", "ensemble.members=2"]
pool.without_gpu_support = index_stream.without_gpu_support = lambda: ""  # the driver's alone: actors see the real one
run_index(load_config("demo", own))
answered = run_answer(load_config("demo", [*own, f"run={folder}/first"]))
print("no GPU is free", file=sys.stderr)

@ray.remote(num_gpus=1)
class Other:
    def up(self): return True

other = Other.remote()
ray.get(other.up.remote())
pool.choose_when_freed.__globals__["FREED_S"] = 1.0
run_answer(load_config("demo", [*own, f"run={folder}/second"]))
print(json.dumps([answered.n_answers, answered.n_member_errors]))
ray.shutdown()
"""


def test_jobs_take_free_gpus_and_say_so_and_go_on_where_faiss_cannot(tmp_path, tiny_encoder):
    (tmp_path / "in").mkdir()
    for number in range(4):
        text = " ".join(f"Rack {n} of hall {number} drew {n * 7 % 97} kW." for n in range(100))
        (tmp_path / "in" / f"hall{number}.txt").write_text(text)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), tiny_encoder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [8, 0]
    lines = done.stderr.splitlines()
    at = lines.index("no GPU is free")
    free, taken = ([line for line in part if "auto" in line] for part in (lines[:at], lines[at:]))
    for_cpus = without_gpu_support()
    assert "the one for CPUs" in for_cpus
    assert free == [
        f"reduce  index.build_gpus auto: 0 (index.build_gpus is set, but {for_cpus}; or set index.build_gpus to 0)",
        "answer  cluster.retriever.gpus auto: 1 (each of 1 retriever gets a GPU, of unknown size)",
        f"answer  index.search_device auto: FAISS searches on the CPU, since {for_cpus}",
    ]
    [line] = taken
    assert line.startswith("answer  cluster.retriever.gpus auto: 0 (")
    first, second = ((tmp_path / run / "submission.csv").read_bytes() for run in ("first", "second"))
    assert first == second
