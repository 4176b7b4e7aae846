"""Growth of the index job's last stage with the corpus: seconds to reduce and memory per shard.

    python benchmarks/growth.py [--sentences 25000,250000,1000000] [--shard-sentences 25000]

Synthetic documents of 200 sentences with ready vectors of 384 dimensions. A shard holds as many sentences at every size
(`index.shards` grows with the corpus) and is reduced by a process of its own, one after the other. Counted per shard:
the seconds of propagation, FAISS, BM25, tables and writing, and the memory of the process: before it reduces, and at
most. Then the manifest is published, with the statistics of BM25 over all shards. Limits: the exponent of seconds over
sentences (1: linear), and the largest shard's memory over the smallest size's.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import psutil
import pyarrow as pa

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kohaku_ray.index.build import REJECT_SCHEMA, IndexSettings, build_shard, content_of, publish_shards
from kohaku_ray.index.flatten import document_table, flatten
from tests.index import large_index

WANTED_EXPONENT = 1.1
WANTED_MEMORY = 1.15
SETTINGS = IndexSettings(encoder=large_index.IDENTITY)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", default="25000,250000,1000000")
    parser.add_argument("--shard-sentences", type=int, default=25_000)
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sentences.split(",")]
    print(f"{arguments.shard_sentences:,} sentences per shard, load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    heads = ("sentences", "shards", "reduce s", "s/shard", "publish s", "ms/1,000", "input GiB", "peak GiB", "all s")
    print("".join(f"{head:>11}" for head in heads))
    grown = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as path:
            grown.append(build(path, size, max(size // arguments.shard_sentences, 1)))
    is_kept = True
    for before, after in itertools.pairwise(grown):
        exponent = math.log(after["seconds"] / before["seconds"]) / math.log(after["size"] / before["size"])
        is_kept &= exponent <= WANTED_EXPONENT
        step = f"{before['size']:,} → {after['size']:,}"
        print(f"exponent of seconds over sentences, {step}: {exponent:.3f} (target ≤ {WANTED_EXPONENT})")
    if len(grown) > 1:
        ratio = grown[-1]["peak_gib"] / grown[0]["peak_gib"]
        is_kept &= ratio <= WANTED_MEMORY
        print(f"largest shard's peak memory, last over first size: {ratio:.2f} (target ≤ {WANTED_MEMORY})")
    return 0 if is_kept else 1


def build(path: str, size: int, n_shards: int) -> dict[str, Any]:
    """Build an index of ``size`` sentences, one shard per process, and print its row."""
    began, context = time.perf_counter(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        done = list(pool.map(reduce_one, [(path, size, n_shards, shard) for shard in range(n_shards)]))
    publishing = time.perf_counter()
    rejects = pa.Table.from_pylist([], REJECT_SCHEMA)
    infos = [one["info"] for one in done]
    publish_shards(path, infos, rejects=rejects, settings=SETTINGS, views=large_index.VIEWS)
    publish_s = time.perf_counter() - publishing
    per_shard = [one["seconds"] for one in done]
    seconds, peak = sum(per_shard) + publish_s, max(one["peak_gib"] for one in done)
    figures = (
        f"{size:,}",
        f"{n_shards}",
        f"{sum(per_shard):.2f}",
        f"{statistics.median(per_shard):.2f}",
        f"{publish_s:.2f}",
        f"{1e6 * seconds / size:.1f}",
        f"{max(one['input_gib'] for one in done):.3f}",
        f"{peak:.3f}",
        f"{time.perf_counter() - began:.1f}",
    )
    print("".join(f"{figure:>11}" for figure in figures), flush=True)
    return {"size": size, "seconds": seconds, "peak_gib": peak}


def reduce_one(job: tuple[str, int, int, int]) -> dict[str, Any]:
    """Build one shard in this process."""
    path, size, n_shards, shard = job
    documents = large_index.trees(range(size // large_index.SENTENCES), n_shards, shard)
    tables = [(flatten(one), document_table([one])) for one in documents]
    nodes, table = (pa.concat_tables(part) for part in zip(*tables, strict=True))
    del tables
    ready = large_index.ready(nodes)
    content = content_of(dict.fromkeys(table["doc_id"].to_pylist(), "-"), SETTINGS, large_index.VIEWS)
    input_gib, began = psutil.Process().memory_info().rss / 2**30, time.perf_counter()
    info = build_shard(
        path, shard, content, nodes=nodes, documents=table, settings=SETTINGS, views=large_index.VIEWS, **ready
    )
    seconds = time.perf_counter() - began
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"info": info, "seconds": seconds, "input_gib": input_gib, "peak_gib": peak_gib}


if __name__ == "__main__":
    sys.exit(main())
