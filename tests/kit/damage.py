"""Seeded damage to the files of a directory: a flipped bit, a cut end, a zeroed block, two files swapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np


def damaged(directory: Path, seeds: range) -> Iterator[str]:
    """Damage a directory once per seed, say how, and put it back; what would change no byte is left out."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    whole = {path: path.read_bytes() for path in files}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        path, kind = files[rng.integers(len(files))], ("flip", "cut", "zero", "swap")[seed % 4]
        changed = {path: bytearray(whole[path])}
        offset = int(rng.integers(max(len(whole[path]), 1)))
        if kind == "flip" and whole[path]:
            changed[path][offset] ^= 1 << int(rng.integers(8))
        elif kind == "cut":
            del changed[path][offset:]
        elif kind == "zero":
            block = changed[path][offset : offset + int(2 ** rng.integers(3, 13))]
            changed[path][offset : offset + len(block)] = bytes(len(block))
        elif kind == "swap":
            alike = [file for file in files if file != path and file.suffix == path.suffix] or files
            other = alike[rng.integers(len(alike))]
            changed = {path: bytearray(whole[other]), other: bytearray(whole[path])}
        if all(data == whole[item] for item, data in changed.items()):
            continue
        for item, data in changed.items():
            item.write_bytes(data)
        yield f"seed {seed}: {kind} at {offset} of {path.relative_to(directory)}"
        for item in changed:
            item.write_bytes(whole[item])
