"""What grows with the work: CPU seconds and memory of each step at 1 × and 10 × its size, and by slope at 100 ×.

    python benchmarks/growth.py [--rows page,build,…] [--divide 1]

Each step runs in a process of its own; another one makes what it reads. CPU seconds are those of all its
threads, memory is its peak of resident memory, of which some 200 MiB are Python's modules. Sizes are divided by
``--divide``. 100 × is a straight line through the two figures.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
sys.modules["index"] = importlib.import_module("tests.index")  # not index.py, which lies beside this file

SPAWN = multiprocessing.get_context("spawn")

Work = Callable[[str, int], dict[str, float] | None]
"""Takes a directory and a size; figures that it measures itself go before CPU seconds and memory."""


@dataclass(frozen=True)
class Row:
    """A step: what is made for it, what is measured, and its size at 1 ×."""

    what: str
    unit: str
    size: int
    prepare: Work
    work: Work


def page_prepare(home: str, n: int) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from page import write_run

    write_run(Path(home), n, 5)


def page_work(home: str, n: int) -> None:
    from kohaku_ray.pages.report import write_report

    write_report(home, f"{home}/truth.csv")


def nothing(home: str, n: int) -> None:
    """Nothing is made beforehand."""


def build_work(home: str, n: int) -> dict[str, float]:
    import pyarrow as pa
    from index import large_index

    from kohaku_ray.index.build import IndexSettings, build_shard
    from kohaku_ray.index.flatten import document_table, flatten

    documents = list(large_index.trees(range(max(n // large_index.SENTENCES, 1)), 1, 0))
    nodes, table = pa.concat_tables(map(flatten, documents)), document_table(documents)
    del documents
    settings, ready, began = IndexSettings(encoder=large_index.IDENTITY), large_index.ready(nodes), time.process_time()
    build_shard(home, 0, "", nodes=nodes, documents=table, settings=settings, views=large_index.VIEWS, **ready)
    return {"cpu_s": time.process_time() - began}


def text_files(home: str, n: int) -> list[str]:
    """Write so many documents of 100 sentences; returns the overrides of a configuration that indexes them."""
    from index import large_index
    from kit import tiny_encoder

    Path(home, "docs").mkdir()
    texts = [[paragraph.text for paragraph in large_index.document(k).sections[0].paragraphs[:20]] for k in range(n)]
    for number, paragraphs in enumerate(texts):
        Path(home, "docs", f"r{number:06}.md").write_text(f"# Report {number}\n\n" + "\n\n".join(paragraphs))
    encoder = tiny_encoder.build(Path(home), [" ".join(paragraphs) for paragraphs in texts[:20]])
    Path(home, "encoder").write_text(encoder)
    return changed_overrides(home)


def changed_overrides(home: str) -> list[str]:
    encoder = Path(home, "encoder").read_text()
    places = [f"documents.paths=[{home}/docs]", f"index.path={home}/index", f"run={home}/run"]
    return [*places, "documents.metadata=null", f"index.encoder.model={encoder}"]


def change_prepare(home: str, n: int) -> None:
    from kit.runs_here import index_here

    from kohaku_ray.config import load_config

    index_here(load_config("demo", text_files(home, n)))
    with Path(home, "docs", "r000000.md").open("a") as file:
        file.write("\n\nOne sentence more.\n")


def change_work(home: str, n: int) -> dict[str, float]:
    from kit.runs_here import index_here

    from kohaku_ray.config import load_config

    spent = index_here(load_config("demo", changed_overrides(home)))
    assert spent["n_encoded"] == 1, "one text is new"
    return {"parse_cpu_s": spent["parse_cpu_s"]}


def run_prepare(home: str, n: int) -> None:
    from kit import tiny_encoder
    from kit.runs_here import index_here, run_here

    from kohaku_ray.config import load_config
    from kohaku_ray.sample import path

    with open(path("questions.csv"), newline="", encoding="utf-8") as file:
        asked = list(csv.DictReader(file))
    rows = [
        {**row, "id": f"r{turn}{row['id']}", "question": f"{row['question']} ({turn})"}
        for turn in range(-(-n // len(asked)))
        for row in asked
    ]
    with Path(home, "questions.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, asked[0].keys())
        writer.writeheader()
        writer.writerows(rows[:n])
    Path(home, "encoder").write_text(tiny_encoder.build(Path(home), [row["question"] for row in asked]))
    config = load_config("demo", run_overrides(home))
    index_here(config)
    run_here(config)


def run_overrides(home: str, run: str = "run") -> list[str]:
    encoder = Path(home, "encoder").read_text()
    places = [f"index.path={home}/index", f"ledger.path={home}/ledger", f"run={home}/{run}"]
    return [*places, f"questions.path={home}/questions.csv", "questions.limit=null", f"index.encoder.model={encoder}"]


def resume_work(home: str, n: int) -> dict[str, float]:
    from kit.runs_here import run_here

    from kohaku_ray.config import load_config

    began = time.process_time()
    run_here(load_config("demo", run_overrides(home, "again")))
    return {"ms_per_question": 1000 * (time.process_time() - began) / n}


JOINED = 32
"""Questions per part: the most of a block, whatever the number of replicas."""


def join_prepare(home: str, n: int) -> None:
    """Answer some questions, and write their rows again and again as the parts of a run that asked for ``n``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from kohaku_ray.store.directory import RunDirectory
    from kohaku_ray.store.tables import SCHEMAS

    run_prepare(home, JOINED)
    parts, run = joined_parts(home), RunDirectory(f"{home}/run")
    tables = {name: run.read_table(name) for name in SCHEMAS}
    ids = tables["votes"]["question_id"].to_pylist()
    with Path(home, "questions.csv").open(newline="", encoding="utf-8") as file:
        asked = {row["id"]: row for row in csv.DictReader(file)}
    with Path(home, "questions.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, next(iter(asked.values())).keys())
        writer.writeheader()
        for first in range(0, n, JOINED):
            chosen = ids[: n - first]
            writer.writerows({**asked[key], "id": f"{first}{key}"} for key in chosen)
            block = {}
            for name, table in tables.items():
                rows = table.filter(pc.is_in(table["question_id"], pa.array(chosen)))
                renamed = pc.binary_join_element_wise(str(first), rows["question_id"], "")
                block[name] = rows.set_column(0, "question_id", renamed)
            parts.write([f"{first}{key}" for key in chosen], block, {})


def joined_parts(home: str) -> Any:
    from kohaku_ray.store.parts import RunParts

    return RunParts(f"{home}/joined", "run")


def join_work(home: str, n: int) -> dict[str, float]:
    from kohaku_ray.config import load_config
    from kohaku_ray.engine.actors.voter import Voter

    parts = joined_parts(home)
    names = [parts.name(block) for block in blocks_of(f"{home}/questions.csv")]
    Voter().write(load_config("demo", run_overrides(home, "joined")), parts, names)
    return {"parts_mib": sum(Path(home, "joined", "parts", name).stat().st_size for name in names) / 2**20}


def blocks_of(file: str) -> list[list[str]]:
    with open(file, newline="", encoding="utf-8") as rows:
        ids = [row["id"] for row in csv.DictReader(rows)]
    return [ids[first : first + JOINED] for first in range(0, len(ids), JOINED)]


def scores_prepare(home: str, n: int) -> None:
    join_prepare(home, n)
    join_work(home, n)


def scores_work(home: str, n: int) -> None:
    from kohaku_ray.runs.scoring import score_run

    scored, why_not = score_run(f"{home}/joined", f"{home}/questions.csv", ("wattbot",), None)
    assert scored is not None, why_not


def bundle_work(home: str, n: int) -> None:
    from kohaku_ray.answering.bundle import make_bundle

    make_bundle(f"{home}/run", f"{home}/run.zip")


def sweep_prepare(home: str, n: int, n_questions: int) -> None:
    run_prepare(home, n_questions)
    plan = sweep_plan(home, n)
    for config in plan.runs.values():
        shutil.copytree(f"{home}/run", config.run, copy_function=os.link)


def sweep_plan(home: str, n: int) -> Any:
    from kohaku_ray.sweep.load import load_sweep
    from kohaku_ray.sweep.plan import plan_sweep

    places = "".join(f"{name}: {home}/{name}\n" for name in ("output", "runs", "indexes"))
    text = f"{places}seeds: {list(range(n))}\naxes: {{kohaku.rerank: [none]}}\n"
    Path(home, "sweep.yaml").write_text(f"base: demo\n{text}")
    return plan_sweep(load_sweep(f"{home}/sweep.yaml", [], run_overrides(home)))


def sweep_work(home: str, n: int) -> None:
    from kohaku_ray.sweep.collect import collect

    record = collect(sweep_plan(home, n), {})
    assert len(record.runs) == n


def search_work(home: str, n: int) -> dict[str, float]:
    import numpy as np

    from kohaku_ray.index.propagate import unit_rows
    from kohaku_ray.index.vectors import VectorIndex

    vectors = unit_rows(np.random.default_rng(0).standard_normal((n, 384), dtype=np.float32))
    return {"ms_per_query": VectorIndex.build(vectors, np.arange(n)).query_ms()}


def nodes_prepare(home: str, n: int) -> None:
    from index import large_index

    large_index.build(home, n, 1)


def nodes_work(home: str, n: int) -> dict[str, float]:
    from kohaku_ray.index.store import Index

    shard, before = Index.open(home).shards[0], own_bytes()
    len(shard.nodes)
    return {"bytes_per_node": (own_bytes() - before) / len(shard.nodes)}


def own_bytes() -> int:
    """Resident memory of this process that no file backs."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def rows(divide: int = 1) -> dict[str, Row]:
    """The steps, each of a divided size."""
    n_questions = max(1000 // divide, 4)
    cells, copies = f"runs of {n_questions} questions", partial(sweep_prepare, n_questions=n_questions)
    whole = {
        "page": Row("a run's page", "questions × 5", 1000, page_prepare, page_work),
        "build": Row("build of one shard", "sentences", 40_000, nothing, build_work),
        "change": Row("one changed document", "documents of 100 sentences", 140, change_prepare, change_work),
        "resume": Row("resume, all calls recorded", "questions × 5", 40, run_prepare, resume_work),
        "join": Row("files from a run's parts", "questions × 5", 10_000, join_prepare, join_work),
        "scores": Row("a run's scores", "questions × 5", 10_000, scores_prepare, scores_work),
        "bundle": Row("bundle", "questions × 5", 40, run_prepare, bundle_work),
        "sweep": Row("tables of a sweep", cells, 30, copies, sweep_work),
        "search": Row("flat search on CPUs", "vectors of 384", 100_000, nothing, search_work),
        "nodes": Row("node table of a retriever", "sentences", 20_000, nodes_prepare, nodes_work),
    }
    return {name: replace(row, size=max(row.size // divide, 1)) for name, row in whole.items()}


ROWS = tuple(rows())


def print_table(names: Sequence[str], divide: int, together: bool = False) -> None:
    """Measure steps, and print their table; ``together``: in one process, whose memory is then no step's own."""
    print(f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    print(f"{'step':<28}{'figure':<18}{'1 ×':>10}{'10 ×':>10}{'100 ×':>10}  size at 1 ×")
    with ProcessPoolExecutor(1, mp_context=SPAWN) as preparing:  # one for all: it loads the encoder's libraries once
        of_size = rows(divide)
        for row in (of_size[name] for name in names):
            one, ten = (measure(row, n, preparing, together) for n in (row.size, 10 * row.size))
            for figure, first in one.items():
                slope = (ten[figure] - first) / 9
                figures = "".join(f"{value:>10,.1f}" for value in (first, ten[figure], max(first + 99 * slope, 0.0)))
                print(f"{row.what:<28}{figure:<18}{figures}  {row.size:,} {row.unit}", flush=True)


def measure(row: Row, size: int, preparing: ProcessPoolExecutor, together: bool) -> dict[str, float]:
    """Run a step of a size."""
    with tempfile.TemporaryDirectory() as home:
        preparing.submit(row.prepare, home, size).result()
        if together:
            return preparing.submit(measured, row.work, home, size).result()
        with ProcessPoolExecutor(1, mp_context=SPAWN) as process:
            return process.submit(measured, row.work, home, size).result()


def measured(work: Work, home: str, size: int) -> dict[str, float]:
    began = time.process_time()
    own = work(home, size) or {}
    figures = {"cpu_s": time.process_time() - began, **own}
    return {**figures, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def rows_of(names: str) -> list[str]:
    """Read names of rows."""
    chosen = names.split(",")
    if unknown := [name for name in chosen if name not in ROWS]:
        raise argparse.ArgumentTypeError(f"no row {', '.join(unknown)}: choose from {', '.join(ROWS)}")
    return chosen
