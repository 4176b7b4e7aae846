"""Growth with the work: a table of every step (`growth_table.py`), or the index job with the corpus.

    python benchmarks/growth.py [--rows page,build,…] [--divide 1] [--together]      # all rows: growth_table.py
    python benchmarks/growth.py --sentences 25000,250000,1000000 [--shard-sentences 25000]
    python benchmarks/growth.py --job [--sentences ...]            # files to index, on Ray
    python benchmarks/growth.py --s3 [--sentences 2000,8000] [--shard-sentences 1000]

The index job, its last stage alone (`--sentences`) or all of it: synthetic documents of 200 sentences with ready
vectors of 384 dimensions. A shard holds as many sentences at every size (`index.shards` grows with the corpus) and is
reduced by a process of its own, one after the other. Counted per shard: the seconds of propagation, FAISS, BM25, tables
and writing, and the memory of the process: before it reduces, and at most. Then the manifest is published, with the
statistics of BM25 over all shards. Limits: the exponent of seconds over sentences (1: linear), and the largest shard's
memory over the smallest size's.

With ``--job`` the same documents are text files, parsed, encoded by a tiny model that torch runs, and reduced by the
index job, as many shards at once as there are cores. With ``--s3`` the index lies on a local S3 server, which counts
requests and the bytes that are read of what parsers and encoders left: as many per shard at every size.
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
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import growth_table

from kohaku_ray.config import load_config
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.index.build import REJECT_SCHEMA, IndexSettings, build_shard, content_of, publish_shards
from kohaku_ray.index.flatten import document_table, flatten
from tests.index import large_index
from tests.kit import s3_server, tiny_encoder

WANTED_EXPONENT = 1.1
WANTED_MEMORY = 1.15
WANTED_BYTES = 1.15
SETTINGS = IndexSettings(encoder=large_index.IDENTITY)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=growth_table.rows_of, default=list(growth_table.ROWS), help="of the table")
    parser.add_argument("--divide", type=int, default=1, help="sizes of the table")
    parser.add_argument("--together", action="store_true", help="all of the table in one process: quick, for a test")
    parser.add_argument("--sentences", help="only the index job, at these sizes")
    parser.add_argument("--shard-sentences", type=int, default=25_000)
    parser.add_argument("--job", action="store_true", help="the whole job on Ray, from files")
    parser.add_argument("--s3", action="store_true", help="the whole job, its index on a local S3 server")
    arguments = parser.parse_args()
    if not (arguments.sentences or arguments.job or arguments.s3):
        growth_table.print_table(arguments.rows, arguments.divide, arguments.together)
        return 0
    sizes = [int(size) for size in (arguments.sentences or "25000,250000,1000000").split(",")]
    if arguments.job or arguments.s3:
        return whole_jobs(sizes, arguments.shard_sentences, arguments.s3)
    print(f"{arguments.shard_sentences:,} sentences per shard, load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    heads = ("sentences", "shards", "reduce s", "s/shard", "publish s", "ms/1,000", "input GiB", "peak GiB", "all s")
    print("".join(f"{head:>11}" for head in heads))
    grown = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as path:
            grown.append(build(path, size, max(size // arguments.shard_sentences, 1)))
    is_kept = is_linear(grown)
    if len(grown) > 1:
        ratio = grown[-1]["peak_gib"] / grown[0]["peak_gib"]
        is_kept &= ratio <= WANTED_MEMORY
        print(f"largest shard's peak memory, last over first size: {ratio:.2f} (target ≤ {WANTED_MEMORY})")
    return 0 if is_kept else 1


def is_linear(grown: list[dict[str, Any]]) -> bool:
    """Print the exponent of seconds over sentences between sizes; whether all keep the limit."""
    is_kept = True
    for before, after in itertools.pairwise(grown):
        exponent = math.log(after["seconds"] / before["seconds"]) / math.log(after["size"] / before["size"])
        is_kept &= exponent <= WANTED_EXPONENT
        step = f"{before['size']:,} → {after['size']:,}"
        print(f"exponent of seconds over sentences, {step}: {exponent:.3f} (target ≤ {WANTED_EXPONENT})")
    return is_kept


def whole_jobs(sizes: list[int], shard_sentences: int, on_s3: bool) -> int:
    """Run the index job at every size, and print its rows."""
    heads = ("sentences", "shards", "parse s", "encode s", "reduce s", "all s", "requests", "KiB/shard")
    print("".join(f"{head:>11}" for head in heads))
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        texts = [text_of(number) for number in range(20)]
        encoder = tiny_encoder.build(Path(home), texts)
        os.environ |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"} if on_s3 else {}
        s3 = stack.enter_context(s3_server.serving()) if on_s3 else None
        grown = [whole_job(f"{home}/{size}", size, max(size // shard_sentences, 1), encoder, s3) for size in sizes]
    if s3 is not None:
        ratio = grown[-1]["bytes"] / grown[0]["bytes"]
        print(f"bytes read per shard, last over first size: {ratio:.2f} (target ≤ {WANTED_BYTES})")
        return 0 if ratio <= WANTED_BYTES else 1
    return 0 if is_linear(grown) else 1


def whole_job(home: str, size: int, n_shards: int, encoder: str, s3: Any) -> dict[str, Any]:
    """Index ``size`` sentences from files."""
    documents = Path(home, "documents")
    documents.mkdir(parents=True)
    for number in range(size // large_index.SENTENCES):
        (documents / f"r{number:06}.txt").write_text(text_of(number), encoding="utf-8")
    path = f"{home}/index" if s3 is None else s3.uri(f"{size}/index")
    overrides = [f"documents.paths=[{documents}]", "documents.metadata=null", f"index.path={path}"]
    overrides += [f"index.shards={n_shards}", f"index.encoder.model={encoder}", "cluster.num_cpus=2"]
    if s3 is not None:
        s3.requests.clear()
        s3.sent.clear()
    done = run_index(load_config("default", overrides))
    stages = (done.parse_s, done.encode_s, done.reduce_s)
    left = 0 if s3 is None else sum(n for path, n in s3.sent.items() if "/pending/" in path) / n_shards
    counts = ("-", "-") if s3 is None else (f"{len(s3.requests):,}", f"{left / 1024:,.0f}")
    seconds = sum(stages)
    figures = (f"{size:,}", f"{n_shards}", *(f"{part:.1f}" for part in (*stages, seconds)), *counts)
    print("".join(f"{figure:>11}" for figure in figures), flush=True)
    return {"size": size, "seconds": seconds, "bytes": left}


def text_of(number: int) -> str:
    """A document as a text file: its title, then its paragraphs."""
    document = large_index.document(number)
    return "\n\n".join([document.title, *(paragraph.text for paragraph in document.sections[0].paragraphs)])


def build(path: str, size: int, n_shards: int) -> dict[str, Any]:
    """Build an index of ``size`` sentences, one shard per process, and print its row."""
    began, context = time.perf_counter(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        done = list(pool.map(reduce_one, [(path, size, n_shards, shard) for shard in range(n_shards)]))
    publishing = time.perf_counter()
    rejects = pa.Table.from_pylist([], REJECT_SCHEMA)
    infos = [shard["info"] for shard in done]
    publish_shards(path, infos, rejects=rejects, settings=SETTINGS, views=large_index.VIEWS)
    publish_s = time.perf_counter() - publishing
    per_shard = [shard["seconds"] for shard in done]
    seconds, peak = sum(per_shard) + publish_s, max(shard["peak_gib"] for shard in done)
    figures = (
        f"{size:,}",
        f"{n_shards}",
        f"{sum(per_shard):.2f}",
        f"{statistics.median(per_shard):.2f}",
        f"{publish_s:.2f}",
        f"{1e6 * seconds / size:.1f}",
        f"{max(shard['input_gib'] for shard in done):.3f}",
        f"{peak:.3f}",
        f"{time.perf_counter() - began:.1f}",
    )
    print("".join(f"{figure:>11}" for figure in figures), flush=True)
    return {"size": size, "seconds": seconds, "peak_gib": peak}


def reduce_one(job: tuple[str, int, int, int]) -> dict[str, Any]:
    """Build one shard in this process."""
    path, size, n_shards, shard = job
    documents = large_index.trees(range(size // large_index.SENTENCES), n_shards, shard)
    tables = [(flatten(document), document_table([document])) for document in documents]
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
