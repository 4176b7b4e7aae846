"""A long run's page in Chromium: time to write it, its size, time to open it, and to open one question.

    python benchmarks/page.py [--questions 2000] [--members 15] [--starts 5] [--keep DIR]

The run is made up: every text is drawn word by word from the words of the sample documents, by their frequency, so that
no phrase repeats and deflate finds less than in a real run. Needs `playwright` and Chromium at --chromium.
`open` is from the address to a list that filters, `cpu` the processor time of the page's process until then: on a busy
machine the first is longer. The page must open in 2 s and have at most 30 MB; the exit code is 1 if it does not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import kohaku_ray.sample
from kohaku_ray.evaluation.submissions import SubmissionRow, write_submission
from kohaku_ray.pages.report import write_report
from kohaku_ray.store.tables import SCHEMAS

MOST_OPEN_S, MOST_BYTES = 2.0, 30_000_000
N_MATCHES, MATCH_WORDS, EXPLANATION_WORDS = 32, 110, 60
FACTS = {"status": "finished", "wall_s": 1.0, "system": "kohaku", "metrics": ["wattbot", "kaggle"], "models": {}}


def words() -> Callable[[int], str]:
    """Return a function that writes so many words of the sample documents."""
    files = Path(kohaku_ray.sample.__file__).parent.joinpath("documents").rglob("*.md")
    known = re.findall(r"\S+", " ".join(file.read_text(encoding="utf-8") for file in files))
    rng = np.random.default_rng(0)
    return lambda n: " ".join(known[number] for number in rng.integers(0, len(known), n))


def rows_of(question_id: str, n_members: int, write: Callable[[int], str], rng: np.random.Generator) -> dict[str, Any]:
    """Write one question's rows of every table."""
    text, gold, skill = write(14), str(rng.integers(10, 1000)), rng.uniform(0.1, 1.0)
    given = [gold if rng.random() < skill else str(rng.integers(10, 1000)) for _ in range(n_members)]
    answers = [
        {
            "question_id": question_id,
            "member": member,
            "attempt": 0,
            "seed": int(rng.integers(2**31)),
            "answer": f"It is {value}.",
        }
        | {"answer_value": value, "answer_unit": "MW", "ref_ids": ["doc1"], "explanation": write(EXPLANATION_WORDS)}
        | {"is_blank": False, "n_foreign_refs": 0, "flags": [], "measures": {"context_tokens": 4e3, "snippets": 9.0}}
        | {"reply": write(EXPLANATION_WORDS), "details": None, "error": None}
        for member, value in enumerate(given)
    ]
    groups = {value: float(given.count(value)) for value in given}
    winner = given.index(max(groups, key=lambda value: groups[value]))
    vote = {name: answers[winner][name] for name in ("answer", "answer_value", "answer_unit", "ref_ids", "explanation")}
    vote |= {"question_id": question_id, "question": text, "asked_unit": "MW", "is_blank": False, "winner": winner}
    vote |= {
        "groups": [*groups],
        "group_weights": [*groups.values()],
        "n_members": n_members,
        "n_blank": 0,
        "n_errors": 0,
    }
    blank = {
        "question_id": question_id,
        "member": -1,
        "attempt": 0,
        "error": None,
        "doc_id": None,
        "kind": None,
        "node_id": None,
    }
    trace = [blank | {"step": "plan", "rank": rank, "text": write(12), "scores": {}, "note": ""} for rank in range(4)]
    for rank in range(N_MATCHES):
        doc = f"doc{rng.integers(0, 40)}"
        trace.append(
            blank
            | {
                "step": "evidence",
                "rank": rank,
                "text": write(MATCH_WORDS),
                "node_id": f"{doc}:sec{rank}:p{rank}",
                "doc_id": doc,
            }
            | {"kind": "paragraph", "note": "dense", "scores": {"score": float(rng.random()), "similarity": 0.5}}
        )
    tokens = {
        "prompt_tokens": 4000,
        "cached_tokens": 0,
        "completion_tokens": 90,
        "wait_s": 1.0,
        "queue_s": 0.5,
        "service_s": 2.0,
    }
    usage = [
        {
            "question_id": question_id,
            "member": member,
            "key": "00",
            "role": "answer",
            "attempt": 0,
            "source": "made",
            "replica": "",
        }
        | dict(deployment="big", gpu_s=0.0, joules=None, dollars=0.001, **tokens)
        for member in range(n_members)
    ]
    truth = SubmissionRow(question_id, text, "", gold, "MW", ("doc1",))
    return {"answers": answers, "votes": [vote], "trace": trace, "usage": usage, "truth": [truth]}


def write_run(directory: Path, n_questions: int, n_members: int) -> Path:
    """Write a made-up run, and its gold answers as ``truth.csv``."""
    directory.mkdir(parents=True, exist_ok=True)
    write, rng = words(), np.random.default_rng(1)
    tables: dict[str, list[Any]] = {name: [] for name in (*SCHEMAS, "truth")}
    for number in range(n_questions):
        for name, rows in rows_of(f"q{number:04d}", n_members, write, rng).items():
            tables[name] += rows
    for name, schema in SCHEMAS.items():
        pq.write_table(pa.Table.from_pylist(tables[name], schema=schema), directory / f"{name}.parquet")
    config = f"system: kohaku\nensemble: {{members: {n_members}, scope: answer, vote: {{compat: null}}}}\n"
    (directory / "config.yaml").write_text(config)
    (directory / "run.json").write_text(json.dumps(FACTS))
    names = ("question_id", "question", "answer", "answer_value")
    given = [SubmissionRow(*(vote[name] for name in names), "MW", ("doc1",)) for vote in tables["votes"]]
    write_submission(directory / "submission.csv", given)
    write_submission(directory / "truth.csv", tables["truth"])
    return directory


def measure(page: str, chromium: str, n_starts: int) -> dict[str, float]:
    """Open a page in new browsers; medians in seconds."""
    from playwright.sync_api import sync_playwright

    times: dict[str, list[float]] = {"open": [], "paint": [], "cpu": [], "question": [], "filter": []}
    with sync_playwright() as driver:
        for _ in range(n_starts):
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            devtools = tab.context.new_cdp_session(tab)
            devtools.send("Performance.enable")
            start = time.perf_counter()
            tab.goto(f"file://{page}", wait_until="load")
            tab.wait_for_function("document.querySelector('#controls output').textContent !== ''")
            times["open"].append(time.perf_counter() - start)
            metrics = devtools.send("Performance.getMetrics")["metrics"]
            times["cpu"].append(next(metric["value"] for metric in metrics if metric["name"] == "ProcessTime"))
            paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            times["paint"].append(tab.evaluate(paint) / 1000)
            start = time.perf_counter()
            tab.evaluate("[...document.querySelectorAll('details.q')].at(-1).open = true")
            tab.wait_for_selector("details.q[open] .members")
            times["question"].append(time.perf_counter() - start)
            start = time.perf_counter()
            tab.select_option("select[name=mark]", "wrong")
            tab.wait_for_function("document.querySelector('details.q[hidden]') !== null")
            times["filter"].append(time.perf_counter() - start)
            browser.close()
    print(f"fastest start: {min(times['open']):.2f} s; load average {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--members", type=int, default=15)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = write_run((arguments.keep or Path(scratch)).absolute(), arguments.questions, arguments.members)
        start = time.perf_counter()
        page = write_report(str(run), str(run / "truth.csv"))
        write_s, n_bytes = time.perf_counter() - start, Path(page).stat().st_size
        shown = re.search(r"Shown: at most.*?other text", Path(page).read_text(encoding="utf-8"))
        medians = measure(page, arguments.chromium, arguments.starts)
    print(f"{arguments.questions} questions × {arguments.members} members")
    print(f"written in {write_s:.1f} s, {n_bytes / 1e6:.1f} MB")
    print(shown[0] if shown else "")
    print("  ".join(f"{name} {seconds:.2f} s" for name, seconds in medians.items()), f"(median of {arguments.starts})")
    return int(medians["open"] > MOST_OPEN_S or n_bytes > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
