"""Compile times of the grammar that lists a context's documents as the only citations: first use, and cached.

The engine compiles a schema once and caches it, so that only the first of a question's members waits for it. Measured
with the engine's compiler (xgrammar) on a vocabulary of the given size, which affects the time more than the number of
documents.

    python benchmarks/grammar.py [--vocabulary 32000] [--documents 4,16,64,256]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib.metadata import version
from statistics import median

import numpy as np
import xgrammar

from kohaku_ray.models.schema import answer_schema

N_REPEATS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--documents", default="4,16,64,256")
    arguments = parser.parse_args()
    info = xgrammar.TokenizerInfo(vocabulary(arguments.vocabulary), vocab_type=xgrammar.VocabType.RAW)
    print(f"xgrammar {version('xgrammar')}, {arguments.vocabulary} tokens; milliseconds, median of {N_REPEATS}")
    print(f"{'documents':>10}{'engine’s first':>16}{'new context':>13}{'cached':>9}")
    for n in map(int, arguments.documents.split(",")):
        # Another context each time: otherwise the second is cached.
        schemas = [answer_schema([f"author{run}{number}2024" for number in range(n)]) for run in range(N_REPEATS)]
        compilers = [xgrammar.GrammarCompiler(info, max_threads=1) for _ in range(N_REPEATS)]
        first = [timed(compiler, schema) for compiler, schema in zip(compilers, schemas, strict=True)]
        new = [timed(compilers[0], schema) for schema in schemas[1:]]
        cached = [timed(compilers[0], schema) for schema in schemas]
        print(f"{n:>10}{median(first):>16.1f}{median(new):>13.1f}{median(cached):>9.3f}")
    return 0


def timed(compiler: xgrammar.GrammarCompiler, schema: dict) -> float:
    text = json.dumps(schema)
    began = time.perf_counter()
    compiler.compile_json_schema(text, any_whitespace=False)
    return (time.perf_counter() - began) * 1000


def vocabulary(n: int) -> list[bytes]:
    """All bytes, then seeded strings of letters, digits and punctuation, of lengths as in a trained vocabulary."""
    rng = np.random.default_rng(0)
    letters = np.frombuffer(b' etaoinshrdlcumwfgypbvk0123456789,."-_:{}[]', np.uint8)
    tokens = dict.fromkeys(bytes([byte]) for byte in range(256))
    while len(tokens) < n:
        length = int(rng.integers(2, 10))
        tokens[rng.choice(letters, length).tobytes()] = None
    return list(tokens)


if __name__ == "__main__":
    sys.exit(main())
