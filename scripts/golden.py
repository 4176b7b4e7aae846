"""Record what the presets, a sweep, an own system and every command put out, and compare two records to the byte.

    python scripts/golden.py record DIR [--only NAME,NAME] [--data]    # of this checkout; --data: also ../shared/data
    python scripts/golden.py compare BEFORE AFTER          # exit code 1, and a diff, where they differ

Tables are recorded as JSON lines, paths as DIR, seconds not at all: what is left depends on the code alone.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [str(Path(sys.executable).parent / "kohaku-ray")]
OWN = ["default", "--set", "system=tests.own_system.lookup:SYSTEM", "--set", "run=runs/own"]
OWN += ["--set", "index.path=runs/own/index", "--set", "ledger.path=runs/own/ledger"]
OWN += ["--set", "documents.paths=[sample:documents]", "--set", "questions.path=sample:questions.csv"]
SWEEP = """
base: demo
title: golden
seeds: [0, 1]
axes:
  kohaku.rerank: [none, frequency, combined]
  ensemble.members: [1, 3]
"""

Steps = dict[str, list[str]]


def _preset(name: str, *rest: str) -> Steps:
    return {f"{name}.index": ["index", name, *rest], f"{name}.answer": ["answer", name, *rest]}


QUICK: dict[str, Steps] = {
    "demo": {
        **_preset("demo"),
        "demo.again": ["answer", "demo"],
        "demo.validate": ["validate", "demo"],
        "demo.documents": ["documents", "demo", "--trees", "trees"],
        "demo.tree": ["documents", "demo", "--document", "halden2023"],
        "demo.show": ["show", "runs/demo", "s001"],
        "demo.ask": ["ask", "demo", "How much water did the Halden site use in 2022?"],
        "demo.score": ["score", "runs/demo", "--errors", "--metric", "wattbot", "--metric", "kaggle"],
        "demo.by": ["score", "runs/demo", "--by", "answer_type", "--jsonl", "scores.jsonl"],
        "demo.vote": ["vote", "runs/demo", "runs/demo", "-o", "voted.csv", "--strategy", "union"],
        "demo.compare": ["compare", "runs/demo", "voted.csv"],
        "demo.report": ["report", "runs/demo"],
        "demo.sweep": ["sweep", "golden.yaml", "-o", "runs/sweep"],
        "demo.dry": ["sweep", "paper", "--base", "demo", "--dry-run"],
        "demo.init": ["init", "mine", "--gold"],
        "demo.completion": ["completion", "bash"],
        "demo.unknown": ["validate", "demo", "--set", "kohaku.topk=3"],
    },
    "demo_figures": _preset("demo_figures", "--set", "kohaku.send_images=false"),
    "hybrid": _preset("hybrid"),
    "own": {"own.index": ["index", *OWN], "own.answer": ["answer", *OWN]},
}
DATA: dict[str, Steps] = {
    "wattbot": {**_preset("wattbot"), "wattbot.recorded": ["sweep", "recorded", "-o", "runs/recorded"]},
    "narrative": _preset("narrative"),
}
TABLES = ("answers", "votes", "trace")
FILES = ("submission.csv", "answers.jsonl", "scores.jsonl", "voted.csv", "my.yaml", "tables.json", "*.tex", "*.csv")
TIMED = {"seconds", "wall_s", "used", "load1", "tokens_per_s"}


def main() -> int:
    """Record or compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(required=True, dest="action")
    recording = actions.add_parser("record")
    recording.add_argument("directory", type=Path)
    recording.add_argument("--only", type=lambda text: text.split(","))
    recording.add_argument("--data", action="store_true")
    comparing = actions.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "compare":
        return compare(arguments.before, arguments.after)
    every = {**QUICK, **(DATA if arguments.data else {})}
    chosen = {name: steps for name, steps in every.items() if arguments.only is None or name in arguments.only}
    arguments.directory.mkdir(parents=True, exist_ok=True)
    for name, steps in chosen.items():
        record(steps, arguments.directory / name)
    return 0


def record(steps: Steps, target: Path) -> None:
    """Run the steps in an empty directory and write what they put out into ``target``."""
    target.mkdir(exist_ok=True)
    for old in target.iterdir():
        old.unlink()
    data = str((ROOT / "../shared/data").resolve())
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KOHAKU_DATA": os.environ.get("KOHAKU_DATA", data)}
    with tempfile.TemporaryDirectory(prefix="golden_") as folder:
        Path(folder, "golden.yaml").write_text(SWEEP)
        for name, command in steps.items():
            done = subprocess.run(
                [*COMMAND, "--json", *command], cwd=folder, env=environment, capture_output=True, text=True
            )
            print(f"{name}: exit code {done.returncode}", flush=True)
            told = json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout + done.stderr
            target.joinpath(f"{name}.json").write_text(_plain(told, folder))
        for file in sorted({file_found for pattern in FILES for file_found in Path(folder).rglob(pattern)}):
            target.joinpath(_flat(file, folder)).write_text(_unnamed(file.read_text(), folder))
        for file in sorted(file_found for table in TABLES for file_found in Path(folder).rglob(f"{table}.parquet")):
            target.joinpath(_flat(file, folder) + ".jsonl").write_text(_rows(file, folder))


def compare(before: Path, after: Path) -> int:
    """Print what differs between two records; returns 1 if anything does."""
    code, n_same = 0, 0
    for name in sorted(
        {
            str(file.relative_to(record_folder))
            for record_folder in (before, after)
            for file in record_folder.rglob("*.*")
        }
    ):
        files = [record_folder / name for record_folder in (before, after)]
        old, new = (file.read_text() if file.is_file() else "" for file in files)
        if old == new and all(file.is_file() for file in files):
            n_same += 1
            continue
        code = 1
        print(f"{name} differs")
        lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), "before", "after", n=0, lineterm=""))
        print("\n".join(line[:300] for line in lines[:20]))
    print(f"{n_same} files are the same")
    return code


def _flat(file: Path, folder: str) -> str:
    return str(file.relative_to(folder)).replace("/", "__")


def _unnamed(text: str, folder: str) -> str:
    return re.sub(r"\b\d+(\.\d+)? ?s\b", "N s", text.replace(folder, "DIR").replace(str(ROOT), "ROOT"))


def _plain(value: object, folder: str) -> str:
    return _unnamed(json.dumps(_timeless(value), indent=1, sort_keys=True, ensure_ascii=False), folder)


def _timeless(value: object) -> object:
    if isinstance(value, dict):
        return {name: _timeless(item) for name, item in value.items() if name not in TIMED}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def _rows(file: Path, folder: str) -> str:
    import pyarrow.parquet as pq

    rows = pq.read_table(file).to_pylist()
    return _unnamed("".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows), folder)


if __name__ == "__main__":
    sys.exit(main())
