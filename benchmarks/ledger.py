"""A large ledger: seconds until a shard knows its keys, memory per key, look-ups.

    python benchmarks/ledger.py [--entries 1000000] [--rows 65536]

Entries of 400 characters lie in segments of so many rows, as shards merge them. A fresh process opens them as the only
shard. The limit, of the same run: the time to read the segments, compare their digests, and turn the keys into text.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from kohaku_ray.store.segments import SEGMENT_SCHEMA, SegmentStore

WANTED_BYTES, WANTED_S, WANTED_LOOKUPS_PER_S = 200, 60.0, 1000.0
N_ENTRIES_WANTED = 10_000_000
TEXT = "The answer is 4.3 MWh, as the second paragraph of the report says. " * 6
N_LOOKUPS = 5_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--opened", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.opened:
        return opened(arguments.opened)
    with tempfile.TemporaryDirectory() as home:
        write(home, arguments.entries, arguments.rows)
        return subprocess.run([sys.executable, __file__, "--opened", home], check=False).returncode


def write(home: str, n_entries: int, n_rows: int) -> None:
    """Write segments of synthetic entries."""
    store, rng = SegmentStore(home, "0of1"), np.random.default_rng(0)
    for start in range(0, n_entries, n_rows):
        n = min(n_rows, n_entries - start)
        data = rng.bytes(16 * n)
        keys = [data[start : start + 16].hex() for start in range(0, len(data), 16)]
        columns = {"key": keys, "model": ["m"] * n, "text": [TEXT] * n, "finish_reason": ["stop"] * n}
        columns |= {"replica": [""] * n, "generation": [0] * n}
        others = [field for field in SEGMENT_SCHEMA if field.name not in columns]
        missing = {field.name: ["" if pa.types.is_string(field.type) else 1] * n for field in others}
        table = pa.table({name: {**columns, **missing}[name] for name in SEGMENT_SCHEMA.names}, schema=SEGMENT_SCHEMA)
        store._write_table(table, f"{start:020d}", "0of1")


def own_bytes() -> int:
    """Resident memory of this process that no file backs: mapped segments are the page cache's."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def opened(home: str) -> int:
    """Open a ledger, and print what it takes."""
    files = sorted(Path(home, "segments").iterdir())
    n_bytes = sum(file.stat().st_size for file in files)
    began = time.process_time()
    store = SegmentStore(home, "0of1")
    for file in files:
        store.table_of(f"segments/{file.name}").column("key").to_pylist()
    limit_s = time.process_time() - began
    store.table_of.cache_clear()

    before, began = own_bytes(), time.process_time()
    recorded = store.index(lambda _: True)
    start_s, n = time.process_time() - began, len(recorded)
    each = (own_bytes() - before) / n
    keys = random.Random(1).sample(list(recorded), min(N_LOOKUPS, n))
    began = time.perf_counter()
    assert all(recorded[key].reply.text == TEXT for key in keys)
    per_s = len(keys) / (time.perf_counter() - began)

    scaled_s = start_s * N_ENTRIES_WANTED / n
    print(f"{n:,} entries, {n_bytes / 2**20:,.0f} MiB in {len(files)} segments")
    each_us, ratio = 1e6 * start_s / n, start_s / limit_s
    print(f"start {start_s:.2f} s of CPU, {ratio:.2f} × reading the keys; {each_us:.2f} µs per entry")
    print(f"at that pace {N_ENTRIES_WANTED:,} entries take {scaled_s:.0f} s (target ≤ {WANTED_S:.0f})")
    print(f"{each:.0f} bytes per entry (target ≤ {WANTED_BYTES})")
    print(f"{per_s:,.0f} recorded replies read per second (target ≥ {WANTED_LOOKUPS_PER_S:,.0f})")
    is_kept = each <= WANTED_BYTES and scaled_s <= WANTED_S and per_s >= WANTED_LOOKUPS_PER_S
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
