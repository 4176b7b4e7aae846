"""Jobs on a cluster that has GPUs by name: encoders hold them, and encode while later files are parsed.

Ray counts GPUs that nobody has, so everything but the computing itself is what a cluster of GPUs does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kohaku_ray.index.store import Index

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SCRIPT = """
import json, sys
import ray
from kohaku_ray.config import load_config
from kohaku_ray.engine.jobs import index_stream
from kohaku_ray.engine.jobs.answer import run_answer
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.errors import ConfigError

folder, encoder, n_gpus = sys.argv[1], sys.argv[2], int(sys.argv[3])
own = {"namespace": "kohaku_ray", "include_dashboard": False, "log_to_driver": False}
ray.init(address="local", num_cpus=2, num_gpus=n_gpus, **own)
index_stream.WINDOW_TEXTS = 64
own = [f"documents.paths=[{folder}/in]", "documents.metadata=null", f"index.encoder.model={encoder}", "index.parsers=1"]
own += [f"index.path={folder}/{n_gpus}", "index.encoder_gpus=0.5", "index.encoders=2"]
refused = ""
try:
    run_index(load_config("demo", [*own, "index.build_gpus=0.5", "index.encoders=1"])) if n_gpus else None
except ConfigError as error:
    refused = str(error)
summary = run_index(load_config("demo", own))
asked = [f"run={folder}/run{n_gpus}", f"ledger.path={folder}/ledger{n_gpus}", "questions.limit=4", "ensemble.members=2"]
answered = run_answer(load_config("demo", [*own, *asked, f"cluster.retriever.gpus={0.5 * n_gpus}"]))
print(json.dumps({"texts_by_encoder": summary.texts_by_encoder, "counts": summary.counts,
                  "refused": refused, "n_answers": answered.n_answers, "n_errors": answered.n_member_errors}))
ray.shutdown()
"""
N_FILES = 24


def indexed(folder: Path, encoder: str, n_gpus: int) -> tuple[dict[str, object], list[str]]:
    """Index a folder in a cluster of its own: what the job did, and the lines it said."""
    command = [sys.executable, "-c", SCRIPT, str(folder), encoder, str(n_gpus)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr.splitlines()


def test_encoders_hold_gpus_and_encode_while_later_files_are_parsed(tmp_path, tiny_encoder):
    (tmp_path / "in").mkdir()
    for number in range(N_FILES):  # long to parse and quick to encode: a sentence that repeats has one vector
        own = " ".join(f"Rack {n} of hall {number} drew {n * 7 % 97} kW." for n in range(24))
        (tmp_path / "in" / f"hall{number:02}.txt").write_text(own + " And so it went on. " * 36_000)
    with_gpus, lines = indexed(tmp_path, tiny_encoder, 1)
    while_parsing = [line for line in lines if line.startswith("parse") and line.endswith(" texts encoded")]
    assert while_parsing, lines
    # How many depends on which is faster; the first window has 63 texts, for one of its 64 repeats.
    said = [(int(line.split("/")[0].split()[-1]), int(line.split()[-3])) for line in while_parsing]
    assert any(0 < n_files < N_FILES and n_texts > 0 for n_files, n_texts in said), said
    assert len(with_gpus["texts_by_encoder"]) == 2  # two share the one GPU
    assert with_gpus["refused"].startswith("index.build_gpus is set, but the FAISS that is installed")
    assert (with_gpus["n_answers"], with_gpus["n_errors"]) == (8, 0)  # the retriever holds half of the GPU
    without, lines = indexed(tmp_path, tiny_encoder, 0)
    assert not [line for line in lines if line.endswith(" texts encoded")], "they hold the parser's CPUs"
    assert without["counts"] == with_gpus["counts"]
    for kind in ("submission.csv", "answers.jsonl"):
        assert (tmp_path / "run1" / kind).read_bytes() == (tmp_path / "run0" / kind).read_bytes()
    one, other = (Index.open(str(tmp_path / str(n))).shards[0] for n in (1, 0))
    for role in ("nodes", "documents"):
        assert one.files[role]["checksum"] == other.files[role]["checksum"]
