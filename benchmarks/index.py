"""The index job against `SentenceTransformer.encode`: the same unique sentences, the same machine, the same run.

    python benchmarks/index.py [--config configs/wattbot.yaml] [--set KEY=VALUE]

The job is a whole process: start-up, parsing, encoding, propagation, FAISS, BM25 and writing. The peer is one process
that loads the model and calls `encode` at its best batch size, found first on a sample; its start-up counts too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from kohaku_ray.config import load_config
from kohaku_ray.documents.parse import parse_file, read_bytes
from kohaku_ray.engine.sources import find_sources
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.tree.flatten import flatten
from kohaku_ray.tree.nodes import NodeTable

BATCH_SIZES = (16, 32, 64, 128)
LIMIT_GIB = 2.5
WANTED_RATIO = 1.3

PEER = """
import json, sys, time
from sentence_transformers import SentenceTransformer
from kohaku_ray.index.identity import locate_model
texts = json.load(open(sys.argv[1]))
model = SentenceTransformer(locate_model(sys.argv[2]), device="cpu")
size = int(sys.argv[3])
began = time.perf_counter()
model.encode(texts, batch_size=size, show_progress_bar=False, normalize_embeddings=True)
print(json.dumps({"encode_s": time.perf_counter() - began}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/wattbot.yaml")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        overrides = [*arguments.overrides, f"index.path={scratch}/index"]
        config = load_config(arguments.config, overrides)
        texts = unique_texts(config.documents.paths, config.index.paragraph_vectors)
        file = Path(scratch) / "texts.json"
        file.write_text(json.dumps(texts))
        sample = Path(scratch) / "sample.json"
        sample.write_text(json.dumps(texts[:: max(len(texts) // 512, 1)]))
        model = config.index.encoder.model
        job = run_job(arguments.config, overrides)
        best = min(BATCH_SIZES, key=lambda size: run_peer(sample, model, size)["encode_s"])
        peer = run_peer(file, model, best)
    ratio = peer["wall_s"] / job["wall_s"]
    print(f"{len(texts)} unique texts, {os.cpu_count()} cores, {model}")
    print(f"{'':<34}{'wall s':>9}{'CPU s':>9}{'texts/s':>9}{'peak GiB':>10}")
    for name, row in ((f"SentenceTransformer.encode, batch {best}", peer), ("kohaku-ray index, whole job", job)):
        print(
            f"{name:<34}{row['wall_s']:>9.1f}{row['cpu_s']:>9.1f}{len(texts) / row['wall_s']:>9.0f}"
            f"{max(row['peaks_gib'].values()):>10.2f}"
        )
    print(f"ratio {ratio:.2f} (wanted ≥ {WANTED_RATIO})")
    print("peak memory of every process of the job, GiB:")
    for name, peak in sorted(job["peaks_gib"].items(), key=lambda item: -item[1]):
        print(f"  {peak:5.2f}  {name}")
    return 0 if ratio >= WANTED_RATIO and max(job["peaks_gib"].values()) <= LIMIT_GIB else 1


def unique_texts(paths: Sequence[str], paragraph_vectors: str) -> list[str]:
    texts: dict[str, None] = {}
    for file in find_sources(paths):
        nodes = NodeTable(flatten(parse_file(file, read_bytes(file))))
        texts.update(dict.fromkeys(texts_to_encode(nodes, paragraph_vectors)[1]))  # type: ignore[arg-type]
    return list(texts)


def run_peer(texts: Path, model: str, size: int) -> dict:
    result = measure([sys.executable, "-c", PEER, str(texts), model, str(size)])
    return {**result, **json.loads(result["output"].splitlines()[-1])}


def run_job(config: str, overrides: Sequence[str]) -> dict:
    flags = [part for override in overrides for part in ("--set", override)]
    return measure([sys.executable, "-m", "kohaku_ray.cli", "index", config, *flags])


def measure(command: list[str]) -> dict:
    """Run a command; wall and CPU seconds and the peak memory of every process of its tree."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    watch = _Watch(process.pid)
    output, _ = process.communicate()
    wall_s = time.perf_counter() - began
    watch.stop()
    if process.returncode:
        raise SystemExit(f"{command[:4]} ended with {process.returncode}")
    return {"wall_s": wall_s, "cpu_s": watch.cpu_s, "peaks_gib": watch.peaks_gib, "output": output}


class _Watch:
    """Samples a process tree: Ray's processes leave the session, but keep their command line's session directory."""

    def __init__(self, pid: int) -> None:
        self._root, self._done = psutil.Process(pid), threading.Event()
        self._seen: dict[int, psutil.Process] = {}
        self._cpu: dict[int, float] = {}
        self.peaks_gib: dict[str, float] = {}
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    @property
    def cpu_s(self) -> float:
        return sum(self._cpu.values())

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(0.2):
            try:
                family = [self._root, *self._root.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            for process in family:
                self._note(process)

    def _note(self, process: psutil.Process) -> None:
        try:
            with process.oneshot():
                memory = process.memory_info()
                times = process.cpu_times()
                name = f"{process.name()[:40]} ({process.pid})"
        except psutil.Error:
            return
        # Shared memory is the object store's, mapped by everybody: it is counted once, at its owner.
        own = memory.rss if "raylet" in name else memory.rss - memory.shared
        self.peaks_gib[name] = max(self.peaks_gib.get(name, 0.0), own / 2**30)
        self._cpu[process.pid] = max(self._cpu.get(process.pid, 0.0), times.user + times.system)


if __name__ == "__main__":
    sys.exit(main())
