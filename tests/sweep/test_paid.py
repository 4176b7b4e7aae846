"""What a sweep has paid is summed in its log: a job that starts again looks into no run that the log names."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from kohaku_ray.errors import DataError
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.sweep import paid as room
from kohaku_ray.sweep.paid import LOG, SweepPaid


@pytest.fixture
def plan(tmp_path):
    runs = {name: SimpleNamespace(run=str(tmp_path / "runs" / name)) for name in ("a", "b")}
    return SimpleNamespace(runs=runs, output=str(tmp_path / "output"))


@pytest.fixture
def read(monkeypatch):
    """Names of the directories whose ``run.json`` was read."""
    names = []

    class Watched(RunDirectory):
        def facts(self):
            names.append(Path(self.path).name)
            return super().facts()

    monkeypatch.setattr(room, "RunDirectory", Watched)
    return names


def record(directory: str | Path, **paid: float) -> None:
    Path(directory).mkdir(parents=True)
    Path(directory, "run.json").write_text(json.dumps({"status": "finished", "paid": paid}))


def test_a_second_start_sums_the_log_and_reads_no_run(plan, read):
    first = SweepPaid(plan)
    first.add(plan.runs["a"].run, {"tokens": 10, "dollars": 0.5})
    first.add(plan.runs["b"].run, {"tokens": 5, "dollars": 0.0})
    first.add(plan.runs["b"].run, {"tokens": 7, "dollars": 0.25})  # made again, with what it had paid before
    assert first.total() == {"tokens": 17, "dollars": 0.75}
    read.clear()
    assert SweepPaid(plan).total() == {"tokens": 17, "dollars": 0.75}
    assert read == []


def test_runs_and_shards_that_the_log_lacks_are_read_once(plan, read, tmp_path):
    record(plan.runs["a"].run, tokens=10, dollars=0.5)  # of a version that logged nothing, or of `answer`
    record(tmp_path / "output" / "race" / "a" / "first", tokens=3, dollars=0.1)
    spent = SweepPaid(plan)
    for _ in range(3):
        assert spent.total() == {"tokens": 13, "dollars": 0.6}
    assert sorted(read) == ["a", "b", "first"]


def test_a_run_that_another_job_has_made_counts_what_it_says(plan):
    spent = SweepPaid(plan)
    record(plan.runs["b"].run, tokens=4, dollars=0.2)
    spent.add(plan.runs["b"].run, {})
    assert spent.total() == {"tokens": 4, "dollars": 0.2}


def test_lines_of_others_and_amounts_that_are_none_count_nothing(plan):
    Path(plan.output).mkdir()
    of_runs = [("../elsewhere", 1000, 9.0), ("../runs/a", "many", None)]
    lines = [json.dumps({"act": "paid", "run": run, "tokens": n, "dollars": cost}) for run, n, cost in of_runs]
    Path(plan.output, LOG).write_text("\n".join(lines))
    assert SweepPaid(plan).total() == {}


def test_garbage_in_the_log_is_passed_over_and_a_torn_line_stays_alone(plan):
    Path(plan.output).mkdir()
    lines = [
        '{"act": "paid"',
        "\x00\xff",
        "[]",
        '{"act": 3}',
        '{"act": "paid", "run": 7, "tokens": 9}',
        '{"act": "seen", "questions": 4, "in_race": []}',  # of a release that steered races
        "[" * 100_000,
        '{"act": "pa',
    ]
    Path(plan.output, LOG).write_text("\n".join(lines))
    SweepPaid(plan).add(plan.runs["a"].run, {"tokens": 10, "dollars": 0.5})
    assert SweepPaid(plan).total() == {"tokens": 10, "dollars": 0.5}


def test_a_log_that_cannot_be_opened_is_said_by_its_path(plan):
    spent = SweepPaid(plan)
    Path(plan.output, LOG).mkdir(parents=True)
    with pytest.raises(DataError, match=r"sweep\.jsonl: cannot be written \(Is a directory\): .* -o"):
        spent.add(plan.runs["a"].run, {"tokens": 10, "dollars": 0.5})
    with pytest.raises(DataError, match=r"sweep\.jsonl: cannot be read \(Is a directory\)"):
        SweepPaid(plan)


def test_the_log_holds_its_directories_as_they_lie_to_it(plan, tmp_path):
    SweepPaid(plan).add(plan.runs["a"].run, {"tokens": 1, "dollars": 0.0})
    entry = json.loads(Path(plan.output, LOG).read_text())
    assert entry["run"] == "../runs/a"
