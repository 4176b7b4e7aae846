"""Jobs on a cluster that has GPUs by name: encoders hold them, and encode while later files are parsed.

Ray counts GPUs that nobody has, so everything but the computing itself is what a cluster of GPUs does.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from kit import own_ray

from kohaku_ray.index.store import Index

SCRIPT = """
import json, sys
import ray
from kohaku_ray.config import load_config
from kohaku_ray.engine.jobs import index_stream
from kohaku_ray.engine.jobs.index import run_index

folder, encoder = sys.argv[1:]
own = {"namespace": "kohaku_ray", "include_dashboard": False, "log_to_driver": False}
ray.init(address="local", num_cpus=2, num_gpus=1, **own)
index_stream.WINDOW_TEXTS = 64
own = [f"documents.paths=[{folder}/in]", "documents.metadata=null", f"index.encoder.model={encoder}", "index.parsers=1"]
own += ["index.encoder_gpus=0.5", "index.encoders=2"]
of_gpus = [*own, f"index.path={folder}/gpu"]
with_gpus = run_index(load_config("demo", of_gpus))
print("without", file=sys.stderr)
without = run_index(load_config("demo", [*own, f"index.path={folder}/cpu", "index.encoder.device=cpu"]))
print(json.dumps({"texts_by_encoder": with_gpus.texts_by_encoder, "counts": [with_gpus.counts, without.counts]}))
ray.shutdown()
"""
N_FILES = 24


@pytest.mark.slow
def test_encoders_hold_gpus_and_encode_while_later_files_are_parsed(tmp_path, tiny_encoder):
    (tmp_path / "in").mkdir()
    for number in range(N_FILES):  # long to parse and quick to encode: a sentence that repeats has one vector
        sentences = " ".join(f"Rack {n} of hall {number} drew {n * 7 % 97} kW." for n in range(24))
        (tmp_path / "in" / f"hall{number:02}.txt").write_text(sentences + " And so it went on. " * 36_000)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), tiny_encoder]
    environment = own_ray.environment()
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    figures, lines = json.loads(done.stdout.splitlines()[-1]), done.stderr.splitlines()
    with_gpus, without = lines[: lines.index("without")], lines[lines.index("without") :]
    while_parsing = [line for line in with_gpus if line.startswith("parse") and line.endswith(" texts encoded")]
    assert while_parsing, lines
    # How many depends on which is faster; the first window has 63 texts, for one of its 64 repeats.
    progress = [(int(line.split("/")[0].split()[-1]), int(line.split()[-3])) for line in while_parsing]
    assert any(0 < n_files < N_FILES and n_texts > 0 for n_files, n_texts in progress), progress
    assert len(figures["texts_by_encoder"]) == 2  # two share the one GPU
    assert not [line for line in without if line.endswith(" texts encoded")], "they hold the parser's CPUs"
    assert figures["counts"][0] == figures["counts"][1]
    on_gpu, on_cpu = (Index.open(f"{tmp_path}/{kind}").shards[0] for kind in ("gpu", "cpu"))
    for role in ("nodes", "documents"):
        assert on_gpu.files[role]["checksum"] == on_cpu.files[role]["checksum"]


LATE = """
import json, subprocess, sys, threading
import ray
from ray.cluster_utils import Cluster
from kohaku_ray.config import load_config
from kohaku_ray.engine.jobs import index_stream
from kohaku_ray.engine.jobs.index import run_index

folder, encoder = sys.argv[1:]
index_stream.SAY_EVERY_S = 2.0
store = 100 * 2**20
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": store})
ray.init(address=cluster.address, namespace="kohaku_ray", log_to_driver=False)
given = threading.Event()
lines, nodes = [], []
say = index_stream.print_progress

def seen(line):
    lines.append((line, given.is_set()))
    say(line)
    if line.startswith("index   waiting") and any(one.startswith("parse  ") for one, _ in lines) and not given.is_set():
        given.set()
        nodes.append(subprocess.Popen([sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1",
                                       f"--address={cluster.address}", '--resources={"encoder_node": 1}']))

index_stream.print_progress = seen
own = [f"documents.paths=[{folder}/in]", "documents.metadata=null", f"index.encoder.model={encoder}",
       f"index.path={folder}/late", "index.encoders=1", "index.encoder.device=cpu", "cluster.autoscaling=true",
       "index.resources={encoder_node: 0.001}"]
summary = run_index(load_config("demo", own))
print(json.dumps({"lines": lines, "parse_s": summary.parse_s, "encode_s": summary.encode_s,
                  "counts": summary.counts}), flush=True)
for node in nodes:
    node.terminate()
    node.wait(60)  # Ray drains it for up to 30 s
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
def test_a_job_whose_encoders_have_no_node_yet_says_so_and_counts_what_is_parsed_meanwhile(tmp_path, tiny_encoder):
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / "in" / f"{number}.txt").write_text(f"Hall {number} draws {number} MW. It is cooled by air.")
    done = subprocess.run(
        [sys.executable, "-c", LATE, str(tmp_path), tiny_encoder],
        capture_output=True,
        text=True,
        timeout=500,
        env=own_ray.environment(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    # Once the node is there, an encoder holds a part of it while its model loads.
    waiting = [line for line, given in figures["lines"] if line.startswith("index   waiting") and not given]
    assert waiting[0].startswith("index   waiting for 1 encoder (1 CPU and 0.001 encoder_nodes each)")
    assert "0 encoder_nodes free; 4 of 4 files are parsed" in waiting[-1]
    parsed = next(was_given for line, was_given in figures["lines"] if line.startswith("parse  "))
    assert not parsed, "what is parsed is counted, and BM25 begun, before an encoder has a node"
    assert figures["parse_s"] < figures["encode_s"], "waiting for encoders is no parsing"
    assert figures["counts"]["n_documents"] == 4
