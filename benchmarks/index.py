"""The index job against `SentenceTransformer.encode`: the same unique sentences, the same machine, the same run.

    python benchmarks/index.py [--rounds N] [--steady] [--texts 2000] [--config configs/wattbot.yaml] [--set KEY=VALUE]

The job is a whole process: start-up, parsing, encoding, propagation, FAISS, BM25 and writing. The peer is one process
that loads the model and calls `encode` with its default batch size; its start-up counts too. The gain of its best batch
size is measured on a sample. Before the measurement both run on a few texts, so that neither reads its libraries from
a cold disk. Job and peer take turns, round by round; the median counts.

`--steady` measures the encoder alone: two processes of one thread each, ours (texts in, vectors out) and the bare model
(the same token batches, forward only) in turns, on at most `--texts` of the texts.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from kohaku_ray.collection.indexes import make_encoder
from kohaku_ray.collection.sources import find_sources
from kohaku_ray.config import Config, load_config
from kohaku_ray.documents.parse import parse_file
from kohaku_ray.documents.read import read_bytes
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.flatten import flatten
from kohaku_ray.index.identity import locate_model, token_counter
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.settings import EncoderConfig
from kohaku_ray.settings import resolve_paths

BATCH_SIZES = (8, 16, 32, 64)
DEFAULT_BATCH = 32
LIMIT_GIB = 2.5
WANTED_RATIO = 1.3
WANTED_OF_BARE = 0.90
LONGEST_STEADY = 250
"""Tokens of a text that fits any model's window: the bare model truncates longer texts, ours does not."""
N_PROCESSES = 2
N_SLICES = 10
SAMPLE_S = 1.0
"""Seconds between samples of the processes: short enough for their peaks, long enough to leave them the cores."""

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
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steady", action="store_true", help="only the encoder")
    parser.add_argument("--texts", type=int, default=2000, help="of the encoder alone, at most")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        overrides = [*arguments.overrides, f"index.path={scratch}/index"]
        config = load_config(arguments.config, overrides)
        texts = unique_texts(config)
        if arguments.steady:
            lengths = token_counter(config.index.encoder.model, config.index.encoder.revision)(texts)
            fitting = [text for text, n in zip(texts, lengths, strict=True) if n < LONGEST_STEADY]
            return steady(config, fitting[:: max(len(fitting) // arguments.texts, 1)][: arguments.texts])
        is_kept = whole_jobs(arguments.config, overrides, config, texts, Path(scratch), arguments.rounds)
    return 0 if is_kept else 1


def whole_jobs(
    config_path: str, overrides: Sequence[str], config: Config, texts: Sequence[str], scratch: Path, n_rounds: int
) -> bool:
    model = config.index.encoder.model
    file, sample = scratch / "texts.json", scratch / "sample.json"
    file.write_text(json.dumps(texts))
    sample.write_text(json.dumps(texts[:: max(len(texts) // 512, 1)]))
    tried = {size: run_peer(sample, model, size)["encode_s"] for size in BATCH_SIZES}
    best = min(tried, key=lambda size: tried[size])
    least = min(find_sources(resolve_paths(config)), key=os.path.getsize)
    run_job(config_path, [*overrides, f"documents.paths=[{least}]", f"index.path={scratch}/little"])
    peers, runs = [], []
    for _ in range(n_rounds):
        shutil.rmtree(config.index.path, ignore_errors=True)
        runs.append(run_job(config_path, overrides))
        peers.append(run_peer(file, model, DEFAULT_BATCH))
    print(f"{len(texts)} unique texts, {os.cpu_count()} cores, {model}, median of {n_rounds} round(s)")
    print(f"{'':<44}{'wall s':>8}{'CPU s':>8}{'texts/s':>9}{'peak GiB':>10}{'ratio':>7}{'target':>8}  of each round")
    print_row(f"SentenceTransformer.encode, batch {DEFAULT_BATCH}", peers, len(texts), "")
    ratios = [peer["wall_s"] / run["wall_s"] for peer, run in zip(peers, runs, strict=True)]
    ratio = statistics.median(ratios)
    bounds = f"{ratio:>7.2f}{WANTED_RATIO:>8}  " + " ".join(f"{each:.2f}" for each in ratios)
    print_row("kohaku-ray index", runs, len(texts), bounds)
    gain = tried[DEFAULT_BATCH] / tried[best]
    print(f"on a sample, encode is {gain:.2f} × as fast with its best batch size, {best}, as with the default")
    print("processes of the last job, those with a second of CPU: peak GiB, CPU s")
    job = runs[-1]
    for name, peak in sorted(job["peaks_gib"].items(), key=lambda item: -job["cpu_by_process"][item[0]]):
        if job["cpu_by_process"][name] >= 1:
            print(f"{peak:7.2f}{job['cpu_by_process'][name]:8.1f}  {name}")
    return ratio >= WANTED_RATIO and peak_gib(runs) <= LIMIT_GIB


def print_row(name: str, runs: Sequence[Mapping[str, Any]], n_texts: int, bounds: str) -> None:
    wall_s, cpu_s = (statistics.median(run[key] for run in runs) for key in ("wall_s", "cpu_s"))
    print(f"{name:<44}{wall_s:>8.1f}{cpu_s:>8.1f}{n_texts / wall_s:>9.0f}{peak_gib(runs):>10.2f}{bounds}")


def peak_gib(runs: Sequence[Mapping[str, Any]]) -> float:
    """Memory of the largest process of all runs."""
    return max(peak for run in runs for peak in run["peaks_gib"].values())


def steady(config: Config, texts: Sequence[str]) -> int:
    """Run ours and the bare model in turns, slice by slice; both processes run the same one at the same time."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(N_PROCESSES), context.Queue()
    os.environ["OMP_NUM_THREADS"] = "1"
    workers = [
        context.Process(target=work, args=(config.model_dump_json(), texts[part::N_PROCESSES], barrier, results))
        for part in range(N_PROCESSES)
    ]
    for worker in workers:
        worker.start()
    gathered = [results.get(timeout=900) for _ in workers]
    if failed := [result for result in gathered if isinstance(result, str)]:
        raise SystemExit(failed[0])
    slices = list(zip(*gathered, strict=True))
    for worker in workers:
        worker.join()
    encoder = config.index.encoder
    print(f"{len(texts)} texts, {N_PROCESSES} processes of one thread, {encoder.precision}")
    print(f"{'':<28}{'wall s':>9}{'CPU s':>9}{'texts/s':>9}")
    totals = {}
    for name in ("bare model", "SentenceEncoder"):
        wall = sum(max(worker[name][0] for worker in part) for part in slices)
        cpu = sum(worker[name][1] for part in slices for worker in part)
        totals[name] = wall, cpu
        print(f"{name:<28}{wall:>9.2f}{cpu:>9.2f}{len(texts) / wall:>9.0f}")
    ratio, of_cpu = (totals["bare model"][which] / totals["SentenceEncoder"][which] for which in (0, 1))
    print(f"of the bare model: {ratio:.2f} (target ≥ {WANTED_OF_BARE}); by CPU seconds {of_cpu:.2f}")
    return 0 if ratio >= WANTED_OF_BARE else 1


def work(config_json: str, texts: Sequence[str], barrier: Any, results: Any) -> None:
    """One process of ``steady``: puts its slices, or why it failed, into ``results``."""
    try:
        results.put(measured_slices(config_json, texts, barrier))
    except Exception:
        barrier.abort()  # the other one waits there
        results.put(traceback.format_exc())


def measured_slices(config_json: str, texts: Sequence[str], barrier: Any) -> list[dict[str, tuple[float, float]]]:
    """Measure wall and CPU seconds of both, for each slice."""
    import torch

    config = Config.model_validate_json(config_json)
    encoder, model = make_encoder(config, on_gpu=False), plain_model(config.index.encoder)
    bare = torch.inference_mode()(lambda batch: model[0].auto_model(**batch))
    slices = []
    for number in range(-1, N_SLICES):  # the first one warms up
        part = texts[max(number, 0) :: N_SLICES]
        batches = token_batches(encoder, model, part)
        ways = {
            "SentenceEncoder": functools.partial(encoder.encode_passages, part),
            "bare model": functools.partial(list, map(bare, batches)),
        }
        row = {}
        for name in sorted(ways, reverse=number % 2 == 0):
            barrier.wait()
            wall, cpu = time.perf_counter(), time.process_time()
            ways[name]()
            row[name] = time.perf_counter() - wall, time.process_time() - cpu
        slices.append(row)
    return slices[1:]


def plain_model(encoder: EncoderConfig) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(locate_model(encoder.model), revision=encoder.revision, device="cpu").eval()


def token_batches(encoder: SentenceEncoder, model: Any, texts: Sequence[str]) -> list[dict[str, Any]]:
    """The encoder's token batches: longest text first, as many rows as fit."""
    distinct = list(dict.fromkeys(texts))
    lengths = [len(ids) for ids in model.tokenizer(distinct)["input_ids"]]
    queue = sorted(range(len(distinct)), key=lambda row: -lengths[row])
    batches = []
    while queue:
        longest = lengths[queue[0]]
        n_tokens = encoder._batch_tokens or encoder._model.tokens_that_fit(longest)  # as it is configured, or by itself
        n_rows = max(1, n_tokens // longest)
        features = model.preprocess([distinct[row] for row in queue[:n_rows]])
        batches.append({name: value for name, value in features.items() if hasattr(value, "numpy")})
        queue = queue[n_rows:]
    return batches


def unique_texts(config: Config) -> list[str]:
    texts: dict[str, None] = {}
    for file in find_sources(resolve_paths(config)):
        nodes = NodeTable(flatten(parse_file(file, read_bytes(file))))
        texts.update(dict.fromkeys(texts_to_encode(nodes, config.index)[1]))
    return list(texts)


def run_peer(texts: Path, model: str, size: int) -> dict:
    result = measure([sys.executable, "-c", PEER, str(texts), model, str(size)])
    return {**result, **json.loads(result["output"].splitlines()[-1])}


def run_job(config: str, overrides: Sequence[str]) -> dict:
    flags = [part for override in overrides for part in ("--set", override)]
    return measure([sys.executable, "-m", "kohaku_ray", "index", config, *flags])


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
    return {
        "wall_s": wall_s,
        "cpu_s": sum(watch.cpu_by_process.values()),
        "cpu_by_process": watch.cpu_by_process,
        "peaks_gib": watch.peaks_gib,
        "output": output,
    }


class _Watch:
    """Samples a process tree: Ray's processes leave the session, but keep their command line's session directory."""

    def __init__(self, pid: int) -> None:
        self._root, self._done = psutil.Process(pid), threading.Event()
        self._peaks_gib: dict[int, float] = {}
        self._cpu_s: dict[int, float] = {}
        self._names: dict[int, str] = {}
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    @property
    def peaks_gib(self) -> dict[str, float]:
        return {self._names[pid]: peak for pid, peak in self._peaks_gib.items()}

    @property
    def cpu_by_process(self) -> dict[str, float]:
        return {self._names[pid]: cpu_s for pid, cpu_s in self._cpu_s.items()}

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_S):
            try:
                family = [self._root, *self._root.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            for process in family:
                self._note(process)

    def _note(self, process: psutil.Process) -> None:
        try:
            with process.oneshot():
                pid, name = process.pid, process.name()
                memory = process.memory_info()
                times = process.cpu_times()
        except psutil.Error:
            return
        # Shared memory is the object store's, mapped by every process: it counts once, at its owner.
        private_bytes = memory.rss if "raylet" in name else memory.rss - memory.shared
        self._peaks_gib[pid] = max(self._peaks_gib.get(pid, 0.0), private_bytes / 2**30)
        self._cpu_s[pid] = times.user + times.system
        if "IDLE" not in name or pid not in self._names:  # a worker is named by its task, not by its idle state
            self._names[pid] = f"{name[:40]} ({pid})"


if __name__ == "__main__":
    sys.exit(main())
