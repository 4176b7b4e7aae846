"""How well an encoder's actor feeds a GPU, without one: its model is a clock that takes as long as a GPU would.

    python benchmarks/encoder_feed.py [--tokens 1500000] [--rates 0,600000,2000000]

Everything else is the index job's: blocks of tokenised texts, batches padded in a thread, vectors written. Beside it
stands the way before: texts tokenised by the encoder, a block at a time. ``rate`` is the GPU's tokens per second (an
H100 takes about 0.6 million of a model of 560 million parameters in bfloat16, 2 million of MiniLM in float32); 0: the
GPU takes no time, so that what is left is the host's. ``busy`` is the share of the time in which the clock computed.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
from gpu_sections import sentences

from kohaku_ray.collection.indexes import encoder_settings
from kohaku_ray.collection.indexing import NEW_TEXT, Encode, new_texts, sorted_window
from kohaku_ray.config import load_config
from kohaku_ray.engine.jobs.index_stream import ENCODER_THREADS
from kohaku_ray.index.identity import token_counter, vector_keys


class Clock:
    """A GPU that computes passes one after the other, each as long as its padded tokens take."""

    def __init__(self, rate: float, dim: int) -> None:
        self.busy_s, self.n_tokens, self._rate, self._dim = 0.0, 0, rate, dim
        self._free_at, self._lock = 0.0, threading.Lock()

    def embed(self, features: Any, **task: Any) -> Callable[[], Any]:
        """Start a pass; the function that it returns waits for its end."""
        n_rows, n_tokens = features["input_ids"].shape
        with self._lock:
            took = n_rows * n_tokens / self._rate if self._rate else 0.0
            self._free_at = done_at = max(self._free_at, time.perf_counter()) + took
            self.busy_s += took
            self.n_tokens += int(features["attention_mask"].sum())

        def wait() -> Any:
            if (left_s := done_at - time.perf_counter()) > 0:
                time.sleep(left_s)
            return np.full((n_rows, self._dim), 0.1, np.float32)

        return wait


def feed(
    blocks: list[pa.Table], overrides: list[str], rate: float, *, ids: bool, threads: int
) -> tuple[float, float, float]:
    """Encode blocks; returns tokens per second, tokens per second of CPU, and the share of time the clock computed."""
    with tempfile.TemporaryDirectory() as folder:
        encode = Encode(load_config("demo", [*overrides, f"index.path={folder}"]), gpu=True)
        encoder = encode._encoder
        encoder._pool, encoder._batch_tokens = None, 1 << 15  # as on a GPU
        clock = Clock(rate, encoder.dim)
        encoder._model.embed = clock.embed  # type: ignore[method-assign]
        encode._takes_ids = ids
        encode(blocks[-1])
        clock.busy_s, clock.n_tokens = 0.0, 0
        began, cpu = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(encode, blocks):
                pass
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return clock.n_tokens / wall_s, clock.n_tokens / cpu_s, clock.busy_s / wall_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1_500_000)
    parser.add_argument("--rates", type=lambda given: [float(rate) for rate in given.split(",")], default=[0, 6e5, 2e6])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    overrides = ["index.encoder.batch_tokens=32768"]
    config = load_config("demo", overrides)
    texts = list(dict.fromkeys(sentences(arguments.tokens // 27)))
    keys = [key.tobytes() for key in vector_keys(encoder_settings(config), texts)]
    n_tokens = token_counter(config.index.encoder.model)(texts) + 2
    columns = [keys, n_tokens, texts, np.zeros(len(texts), np.int64)]
    began = time.process_time()
    window = new_texts([{"texts": pa.table(columns, names=NEW_TEXT.names).cast(NEW_TEXT)}], config)
    stage_s = time.process_time() - began
    blocks = sorted_window(window, 1, gpu=True)
    rows = [blocks.slice(number, 1) for number in range(len(blocks))]
    print(f"{len(texts):,} texts, {int(n_tokens.sum()):,} tokens, {len(rows)} blocks")
    print(f"the CPU stage tokenises {n_tokens.sum() / stage_s / 1e6:.2f} M tokens per second of CPU")
    ways = {
        "before: text, a block at a time": {"ids": False, "threads": 1},
        "tokens, a block at a time": {"ids": True, "threads": 1},
        f"now: tokens, {ENCODER_THREADS} blocks in hand": {"ids": True, "threads": ENCODER_THREADS},
    }
    for rate in arguments.rates:
        best = dict.fromkeys(ways, (0.0, 0.0))
        for _ in range(arguments.rounds):
            for name, way in ways.items():
                best[name] = max(best[name], feed(rows, overrides, rate, **way))
        for name, (per_s, per_cpu_s, busy) in best.items():
            share = f", busy {busy:.2f}" if rate else ""
            cpu = f"{per_cpu_s / 1e6:5.2f} M per second of CPU"
            print(f"rate {rate / 1e6:.1f} M/s  {name:<34}{per_s / 1e6:6.2f} M tokens/s, {cpu}{share}")


if __name__ == "__main__":
    main()
