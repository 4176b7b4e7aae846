"""Memory of the driver while one job answers many questions: it must not grow with them.

    python benchmarks/driver_memory.py [--questions 10000]

Questions are the sample's, numbered so that each is another; one member, one query, the extractive backend. Printed are
the driver's resident memory at tenths of the job and what a question adds between the second tenth and the last, beside
what a question's rows in the run's files take. The exit code is 1 if a question adds more than 1 KiB.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from kohaku_ray.config import load_config
from kohaku_ray.engine.cluster import connected
from kohaku_ray.engine.jobs import answer
from kohaku_ray.engine.jobs.index import run_index
from kohaku_ray.runs.sources import resolve
from kohaku_ray.runs.summary import AnswerSummary

MOST_BYTES = 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=10_000)
    n = parser.parse_args().questions
    with tempfile.TemporaryDirectory() as folder:
        questions = Path(folder, "questions.csv")
        write_questions(questions, n)
        own = [f"questions.path={questions}", f"run={folder}/run", f"ledger.path={folder}/ledger"]
        own += [f"index.path={folder}/index", "ensemble.members=1", "kohaku.queries=1", "kohaku.max_retries=0"]
        config = load_config("demo", own)
        run_index(config)
        with connected(config.cluster):
            points = measured(lambda: answer.run_answer(config), n)
        n_bytes = sum(file.stat().st_size for file in Path(folder, "run").iterdir())
    return report(points, n, n_bytes)


def write_questions(path: Path, n: int) -> None:
    with open(resolve("sample:questions.csv"), newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for number in range(n):
            row = rows[number % len(rows)]
            writer.writerow({**row, "id": f"{row['id']}-{number}", "question": f"({number}) {row['question']}"})


def measured(run: object, n: int) -> list[tuple[int, int]]:
    """Answered questions and the driver's bytes, ten times a second while the job runs."""
    points: list[tuple[int, int]] = []
    done, process = threading.Event(), psutil.Process()
    summaries: list[AnswerSummary] = []
    add = AnswerSummary.add

    def counted(self: AnswerSummary, result: object) -> None:
        summaries.append(self) if not summaries else None
        add(self, result)

    def watch() -> None:
        while not done.is_set():
            points.append((summaries[0].n_questions if summaries else 0, process.memory_info().rss))
            time.sleep(0.1)

    AnswerSummary.add = counted
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        run()
    finally:
        done.set()
        thread.join()
        AnswerSummary.add = add
    return points


def report(points: list[tuple[int, int]], n: int, n_bytes: int) -> int:
    tenths = [max((rss for at, rss in points if at <= n * part / 10), default=0) for part in range(1, 11)]
    print("driver, MiB at tenths of the job: " + ", ".join(f"{rss / 2**20:.1f}" for rss in tenths))
    each = (tenths[-1] - tenths[1]) / (0.8 * n)
    print(f"a question adds {each:,.0f} bytes to the driver (at most {MOST_BYTES:,})")
    print(f"and {n_bytes / n:,.0f} bytes to the run's files: {each / (n_bytes / n):.3f} of them")
    return int(each > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
