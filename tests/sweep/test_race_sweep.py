"""A raced sweep without Ray: what is asked, what leaves, what is shown, and that it goes on where it was."""

from __future__ import annotations

import csv
import json
import os
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml
from kit.installed import loaded_after
from kit.rows import check_rows

from kohaku_ray.config import as_yaml
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.evaluation.metrics import Metric, Part
from kohaku_ray.evaluation.race import Racer
from kohaku_ray.pages.race_page import describe_race, nice_ticks, race_chart, write_race
from kohaku_ray.pages.sweep_page import write_sweep
from kohaku_ray.pages.sweep_tables import score_table, write_csv
from kohaku_ray.pages.tables import as_text
from kohaku_ray.runs.identity import is_finished
from kohaku_ray.store.directory import facts_checksum
from kohaku_ray.store.storage import checksum
from kohaku_ray.store.tables import SCHEMAS
from kohaku_ray.sweep.collect import collect
from kohaku_ray.sweep.compare import Axis, CellView, RaceView, SweepCell, SweepTable, compare_column, select_best
from kohaku_ray.sweep.load import load_sweep
from kohaku_ray.sweep.plan import plan_sweep
from kohaku_ray.sweep.race import SweepRace
from kohaku_ray.sweep.statistics import compute_stats

QUALITY = {1: 0.5, 2: 0.6, 4: 0.75, 16: 0.95, 32: 0.97}
"""Share of questions that a cell answers right, by its top_k."""


@pytest.fixture
def load(tmp_path):
    """Load a sweep over 120 questions, or as many as given, all its places below ``tmp_path``."""

    def make(n_questions: int = 120, **values):
        questions = tmp_path / f"questions{n_questions}.csv"
        with questions.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["id", "question", "answer_value", "answer_unit", "ref_id"])
            rows.writerows(
                [f"q{i:03}", f"How many are {i}?", str(i + 1), "is_blank", '["a"]'] for i in range(n_questions)
            )
        places = {name: str(tmp_path / name) for name in ("output", "runs", "indexes")}
        common = {"kohaku.top_k_final": None, "questions.path": str(questions)}
        defaults = {"seeds": [0], "race": {"error": 0.05, "tolerance": 0.01}}
        defaults |= {} if "tables" in values else {"axes": {"kohaku.top_k": [1, 4, 16]}}
        common |= values.pop("set", {})
        path = tmp_path / "mine.yaml"
        path.write_text(
            yaml.safe_dump({"base": ["paper"], **places, **defaults, **values, "set": common}, sort_keys=False)
        )
        overrides = [f"ledger.path={tmp_path}/ledger", f"index.path={tmp_path}/index"]
        return load_sweep(str(path), ["demo"], overrides)

    return make


def answer(config, question_ids) -> None:
    """Write what is read of a finished run: right answers to as many questions as its cell's quality."""
    directory = Path(config.run)
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("config.yaml", *(f"{table}.parquet" for table in SCHEMAS)):
        (directory / name).touch()
    with (directory / "submission.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "question", "answer", "answer_value", "answer_unit", "ref_id"])
        for question_id in question_ids:
            luck = np.random.default_rng(int(question_id[1:]) + 1000 * config.seed).random()
            value = str(int(question_id[1:]) + 1) if luck < QUALITY[config.settings.top_k] else "9999"
            rows.writerow([question_id, "", "", value, "is_blank", '["a"]'])
    facts = {"status": "finished", "run": str(directory), "n_calls": {"made": 2 * len(question_ids)}}
    facts["checksums"] = {"submission.csv": checksum((directory / "submission.csv").read_bytes())}
    (directory / "run.json").write_text(json.dumps({**facts, "checksum": facts_checksum(facts)}))


def drive(race: SweepRace, n_steps: int = 10_000, lost=(), shown=None) -> list[tuple[str, ...]]:
    """Do what a race asks for, as the job does; returns the questions of each piece of work."""
    asked = []
    for _ in range(n_steps):
        work = race.advance(lost, lambda: shown.append(race.view({}, is_running=True)) if shown is not None else None)
        if work is None:
            break
        asked.append(work.question_ids)
        for config in work.configs.values():
            answer(config, work.question_ids)
    return asked


def begin(loaded, n_steps: int = 0) -> SweepRace:
    """A race that has taken its first steps."""
    race = SweepRace(plan_sweep(loaded))
    drive(race, n_steps)
    return race


def by_name(race: SweepRace) -> dict[str, tuple[str, int]]:
    """Why each cell left, and the questions it has answered."""
    [table] = race.tables.values()
    return {table.names[racer.name]: (racer.left, racer.n) for racer in table.race.standings()}


def test_losers_leave_early_and_the_winner_alone_is_made_whole(load):
    race, shown = begin(load()), []
    assert race.count_answers(()) == (0, 3 * 120)
    asked = drive(race, shown=shown)
    left = by_name(race)
    n_answered = sum(n for _, n in left.values())
    assert race.count_answers(()) == (n_answered, n_answered + 120 - left["top_k=16"][1]), "of the winner alone"
    assert left["top_k=16"][0] == ""
    assert left["top_k=1"][0] == "beaten"
    assert left["top_k=1"][1] < 60
    assert left["top_k=4"][0] == "beaten"
    [whole] = race.runs_to_finish.values()
    assert whole.settings.top_k == 16
    assert [view.n_seen for view in shown] == [race.size * number for number in range(1, len(asked) + 1)]
    flat = [key for ids in asked for key in ids]
    assert len(set(flat)) == len(flat), "a shard is asked of all cells at once"
    assert flat != sorted(flat), "in one random order"
    view = race.view({}, is_running=False)
    assert view.drops == tuple(
        f"{name} dropped after {left[name][1]} questions (beaten)" for name in ("top_k=4", "top_k=1")
    ), "the last first"
    n_left = 120 - left["top_k=1"][1] + 120 - left["top_k=4"][1]
    assert view.n_saved == 2 * n_left, "two calls per question"
    assert view.n_asked == 2 * sum(n for _, n in left.values())
    answer(whole, race.order)
    view = race.view({}, is_running=False)
    assert (view.n_saved, view.n_asked) == (2 * n_left, 2 * (3 * 120 - n_left)), "the winner has answered all"


def test_the_order_is_seeded_and_the_same_for_every_cell(load):
    orders = [SweepRace(plan_sweep(load(race={"seed": seed}))).order for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


def test_off_is_as_if_there_were_no_race(load, tmp_path):
    off, unsaid = load(race=False), load(race="off")
    assert off.sweep == unsaid.sweep
    assert off.sweep.race is None
    plan = plan_sweep(off)
    for config in plan.runs.values():
        answer(config, [f"q{i:03}" for i in range(120)])
    assert set(plan.runs) == set(plan_sweep(load(race=True)).runs), "cells are the same runs"


@check_rows(
    ("race", "message"),
    [
        ({"error": 1.0}, "race.error"),
        ({"error": -0.1}, "race.error"),
        ({"tolerance": 2}, "race.tolerance"),
        ({"shard": 0}, "race.shard"),
        ({"errors": 0.1}, r"no key race.errors \(did you mean error"),
        ("maybe", "race"),
    ],
)
def test_what_a_race_cannot_be_is_said(load, race, message):
    with pytest.raises(ConfigError, match=message):
        load(race=race)


def test_a_job_that_was_killed_between_shards_goes_on_and_asks_nothing_twice(load):
    first = begin(load())
    asked = drive(first, 3)
    again = begin(load())
    shown = []
    asked += drive(again, shown=shown)
    flat = [key for ids in asked for key in ids]
    assert len(set(flat)) == len(flat)
    assert shown[0].n_seen == 3 * first.size, "shards that the first start has observed are not shown again"
    last = SweepRace(plan_sweep(load()))
    assert drive(last) == []
    assert by_name(last) == by_name(again)
    drops = [race.view({}, is_running=False).drops for race in (again, last)]
    assert drops[0] == drops[1]
    assert len(drops[0]) == 2


def test_a_job_that_was_stopped_goes_on_without_the_cells_that_were_taken_out_of_its_file(load):
    first = begin(load())
    asked = drive(first, 3)
    again = SweepRace(plan_sweep(load(axes={"kohaku.top_k": [1, 16]})))
    later = drive(again)
    assert set(by_name(again)) == {"top_k=1", "top_k=16"}
    assert again.order == first.order
    assert not {key for ids in later for key in ids} & {key for ids in asked for key in ids}, "nothing is asked twice"


def test_a_job_that_was_killed_within_a_shard_asks_the_cells_that_lack_it(load):
    race = SweepRace(plan_sweep(load()))
    work = race.advance((), lambda: None)
    assert work is not None
    run, config = next(iter(work.configs.items()))
    answer(config, work.question_ids)
    again = SweepRace(plan_sweep(load())).advance((), lambda: None)
    assert again is not None
    assert again.question_ids == work.question_ids
    assert set(again.configs) == set(work.configs) - {run}


@pytest.mark.parametrize("damage", ["cut", "foreign ids", "missing rows", "odd counts"])
def test_a_damaged_shard_is_asked_again_and_no_cell_is_scored_by_it(load, damage):
    """attack5, A9 and A10: missing rows counted as wrong answers, and the cell was dropped."""
    loaded = load()
    race = begin(loaded, 2)
    shard = next(Path(race.output, "race").glob("*/*"))
    file = shard / ("run.json" if damage == "odd counts" else "submission.csv")
    text = file.read_text()
    changed = {
        "cut": text[: len(text) // 2],
        "foreign ids": text.replace("q0", "x0").replace("q1", "x1"),
        "missing rows": "".join(text.splitlines(keepends=True)[:-1]),
        "odd counts": text.replace('"made": ', '"made": null, "x": '),
    }
    file.write_text(changed[damage])
    again = SweepRace(plan_sweep(loaded))
    work = again.advance((), lambda: None)
    assert [config.run for config in work.configs.values()] == [str(shard)]
    assert not is_finished(str(shard)), "the job makes it anew"
    answer(next(iter(work.configs.values())), work.question_ids)
    drive(again)
    drive(whole := SweepRace(plan_sweep(load())))
    assert by_name(again) == by_name(whole)


def test_a_finished_run_that_was_changed_is_refused_by_the_race_and_the_tables(load):
    """Of the shards of a race alone the checksum was compared."""
    loaded = load()
    race = SweepRace(plan_sweep(loaded))
    answer(config := next(iter(race.plan.runs.values())), race.order)
    file = Path(config.run, "submission.csv")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    for read in (
        lambda: SweepRace(plan_sweep(loaded)).advance((), lambda: None),
        lambda: collect(plan_sweep(loaded), {}),
    ):
        with pytest.raises(DataError, match=r"submission.csv is not what the run wrote: repeat `kohaku-ray answer"):
            read()


PENALTY = Metric(
    name="penalty",
    title="Right answers less a quarter of the wrong ones",
    parts={"value": Part(1.0), "wrong": Part(-0.25)},
    rate=lambda truth, given: {
        "value": float(given.answer_value == truth.answer_value),
        "wrong": float(given.answer_value != truth.answer_value),
    },
    unanswerable=lambda truth: False,
)


def test_a_metric_that_takes_points_off_is_raced(load):
    assert PENALTY.ends == (-0.25, 1.0)
    race = SweepRace(plan_sweep(load(set={"questions.metrics": [f"{__name__}:PENALTY"]})))
    drive(race)
    assert by_name(race)["top_k=16"][0] == ""
    assert by_name(race)["top_k=1"][0] == "beaten"
    assert {racer.bounds[0] >= -0.25 for table in race.tables.values() for racer in table.racers.values()} == {True}
    assert min(racer.mean for table in race.tables.values() for racer in table.racers.values()) < 0.5


def test_a_set_smaller_than_a_shard_is_one_shard(load):
    race = SweepRace(plan_sweep(load(n_questions=3, race={"shard": 50})))
    assert [len(ids) for ids in drive(race)] == [3]
    assert {left for left, _ in by_name(race).values()} == {""}


def test_cells_with_other_questions_are_not_raced(load):
    race = SweepRace(plan_sweep(load(axes={"kohaku.top_k": [1, 16], "questions.limit": [None, 7]})))
    asked = drive(race)
    assert all("q" in key for ids in asked for key in ids)
    assert len(by_name(race)) == 2
    assert "2 cells outside the race, of other questions or votes by agreement: answered whole." in race.notes
    assert {config.questions.limit for config in race.runs_to_finish.values()} == {None, 7}


def test_a_tie_of_all_cells_runs_all_of_them_to_the_end(load, monkeypatch):
    for top_k in QUALITY:
        monkeypatch.setitem(QUALITY, top_k, 0.9)
    race = SweepRace(plan_sweep(load()))
    drive(race)
    assert set(by_name(race).values()) == {("", 120)}
    assert len(race.runs_to_finish) == 3


def test_where_every_cell_fails_nothing_more_is_asked(load):
    plan = plan_sweep(load())
    race = SweepRace(plan)
    assert drive(race, lost=list(plan.runs)) == []
    [view] = [race.view(dict.fromkeys(plan.runs, "no key"), is_running=True)]
    assert {cell.state for cells in view.tables.values() for cell in cells} == {"failed: no key"}


def test_a_cell_that_failed_is_raced_by_the_next_start(load):
    plan = plan_sweep(load())
    lost = next(run for run, config in plan.runs.items() if config.settings.top_k == 16)
    race = SweepRace(plan)
    drive(race, lost=[lost])
    again = SweepRace(plan)
    drive(again)
    assert by_name(again)["top_k=16"][0] == ""
    assert by_name(again)["top_k=1"][0] == "beaten"


def test_a_run_that_another_sweep_has_finished_is_compared_with_and_kept(load):
    plan = plan_sweep(load())
    done = next(config for config in plan.runs.values() if config.settings.top_k == 1)
    answer(done, [f"q{i:03}" for i in range(120)])
    race = SweepRace(plan)
    drive(race)
    assert by_name(race)["top_k=1"] == ("", by_name(race)["top_k=16"][1])


def test_tables_race_apart_and_a_cell_goes_on_for_the_table_where_it_is_good(load):
    tables = [
        {"name": "all", "axes": {"kohaku.top_k": [1, 4, 16]}},
        {"name": "few", "axes": {"kohaku.top_k": [1, 2]}},
    ]
    race = SweepRace(plan_sweep(load(tables=tables)))
    drive(race)
    low = next(cell for cell, name in race.names.items() if name == "top_k=2")
    assert race.dropped(low, "few") == ""
    weak = next(cell for cell, name in race.names.items() if name == "top_k=1")
    assert race.dropped(weak, "all").startswith("beaten: it left the race after ")
    assert race.tables["all"].race.error == race.tables["few"].race.error == 0.025


def test_seeds_are_averaged(load):
    race = SweepRace(plan_sweep(load(seeds=[0, 1, 2])))
    work = race.advance((), lambda: None)
    assert work is not None
    assert len(work.configs) == 9
    drive(race)
    assert by_name(race)["top_k=16"][0] == ""
    assert len(race.runs_to_finish) == 3


def test_two_jobs_do_not_race_one_sweep(load):
    race = SweepRace(plan_sweep(load()))
    other = SweepRace(race.plan).hold_lease()
    with race.hold_lease(), pytest.raises(DataError, match=r"sweep .*output belongs to process \d+ .* give -o"):
        other.__enter__()
    with race.hold_lease():
        pass


def test_dropped_cells_stand_with_what_was_seen_and_are_compared_with_nobody(load):
    plan = plan_sweep(load())
    race = SweepRace(plan)
    drive(race)
    for table in race.tables.values():
        for name in list(table.race.in_play)[:-1]:
            raise AssertionError(f"{name} is in the race still")
    sweep = collect(plan, {}, revise=race.mark_dropped)
    states = {cell.labels["kohaku.top_k"]: cell for cell in sweep.tables[0].cells}
    assert states["1"].state == states["4"].state == "dropped"
    assert states["16"].state == "unfinished"
    n = by_name(race)["top_k=1"][1]
    assert states["1"].question_ids == tuple(race.order[:n])
    assert states["1"].reason == f"beaten: it left the race after {n} of 120 questions"
    assert not states["1"].is_scored
    assert states["1"].scores[0] < 0.6


def test_a_race_goes_on_where_its_working_directory_was_unpacked_anew(load, tmp_path, monkeypatch):
    """As the second node on a host does with that of a submitted job; `_apply` ended in a traceback (users5.md 3.2)."""
    load()
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    overrides = [f"index.path={tmp_path}/index", "tracking.to=mlflow", "run=here", "ledger.path=there"]
    plan = plan_sweep(load_sweep(f"{tmp_path}/mine.yaml", ["demo"], overrides, "out"))
    working.rmdir()
    working.mkdir()
    with pytest.raises(FileNotFoundError):
        os.getcwd()
    race = SweepRace(plan)
    drive(race)
    assert by_name(race)["top_k=4"][0] == "beaten"
    sweep = collect(plan, {}, revise=race.mark_dropped)
    written = [write_race(race.view({}, is_running=False), race.output), *write_sweep(sweep, plan.output)]
    assert all(path.startswith(f"{working}/out/") and Path(path).is_file() for path in written)
    [whole] = race.runs_to_finish.values()
    assert whole.tracking.store == str(working)
    assert f"store: {working}" in as_yaml(whole)


def test_the_page_of_a_race_shows_it_and_reloads_while_it_runs(load, tmp_path):
    race, shown = begin(load(title="<b>Depth</b>")), []
    drive(race, shown=shown)
    page = Path(write_race(shown[2], str(tmp_path))).read_text()
    assert '<meta http-equiv="refresh"' in page
    assert "&lt;b&gt;Depth&lt;/b&gt;" in page
    assert "<b>Depth</b>" not in page
    assert "top_k=16" in page
    assert page.count("<polyline") == 3
    assert page.count("<polygon") >= 1
    lines = describe_race(shown[-1])
    assert len(lines) <= 10
    assert lines[0].startswith(f"{shown[-1].n_seen} of 120 questions: 1 of 3 cells in the race")


def view_of(name, curve, left=""):
    n, mean = curve[-1]
    racer = Racer(name, n, mean, (mean - 0.1, mean + 0.1), None, 1.0, left, False)
    return CellView(name, racer, left or "in the race", tuple((k, m, m - 0.1, m + 0.1) for k, m in curve))


def test_a_races_lines_are_named_at_their_ends_and_equal_ones_are_one():
    """users5.md, pages 2: the legend named 6 of 12 cells, equal curves hid each other and grey ones had no name."""
    best, other = [(5, 0.5), (10, 0.8)], [(5, 0.5), (10, 0.4)]
    cells = [view_of("rerank=a, k=2", best), view_of("rerank=b, k=2", best), view_of("rerank=b, k=1", other)]
    cells.append(view_of("rerank=b, k=<4>", other[:1], left="beaten"))
    chart = str(race_chart(cells, 10))
    names = re.findall(r'<span class="(name[^"]*)" style="top:([\d.]+)%[^>]*>([^<]*)</span>', chart)
    assert {(kind, name) for kind, _, name in names} == {
        *(("name", "k=2, 2 cells"), ("name", "rerank=b, k=1"), ("name left", "rerank=b, k=&lt;4&gt;"))
    }
    heights = sorted(float(top) for _, top, _ in names)
    assert all(b - a >= 8 for a, b in pairwise(heights)), "no name lies on another"
    assert chart.count("<polyline") == 3
    assert 'title="rerank=a, k=2; rerank=b, k=2"' in chart
    many = [view_of(f"cell {number}", [(5, 0.5), (10, number / 100)]) for number in range(40)]
    assert "Without a name: 28 further lines." in race_chart(many, 10)


def test_what_the_terminal_leaves_out_of_a_race_is_counted_once():
    """users6.md, 12: 4 of 6 cells, without a word of the others."""
    cells = [view_of(f"cell {number}", [(5, 0.5)]) for number in range(6)] + [
        view_of("gone", [(5, 0.1)], left="beaten")
    ]
    view = RaceView("T", "rule", 10, 5, {"one": tuple(cells), "two": tuple(cells[:2])})
    lines = describe_race(view)
    assert len(lines) <= 10
    assert [line for line in lines if "not shown" in line] == [
        "not shown here: 2 further cells, 1 further table, 1 cell that left"
    ]
    assert not any("not shown" in line for line in describe_race(replace(view, tables={"one": tuple(cells[:4])})))


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.64, 0.85, [0.6, 0.65, 0.7, 0.75, 0.8, 0.85]), (0, 41, [0, 10, 20, 30, 40, 50]), (0.5, 0.5, [0.5, 0.5002])],
)
def test_ticks_are_round_numbers(low, high, ticks):
    assert nice_ticks(low, high) == ticks


def test_importing_the_race_loads_neither_ray_nor_torch():
    assert not loaded_after("import kohaku_ray.sweep.race", "ray", "torch")


def made_cell(name: str, scores, state="finished") -> SweepCell:
    scores = np.atleast_2d(np.asarray(scores, dtype=float))
    ids = tuple(f"q{i}" for i in range(scores.shape[1]))
    reason = "beaten: it left the race" if state == "dropped" else ""
    return SweepCell(name, {"k": name}, state, reason, (0,), ids, {"value": scores}, scores)


def test_statistics_are_of_whole_cells_however_many_were_dropped():
    rng = np.random.default_rng(0)
    whole = [made_cell("a", rng.random(40)), made_cell("b", rng.random(40) / 2)]
    dropped = [made_cell(name, np.ones(8), "dropped") for name in "cdef"]
    selection = select_best([*dropped, *whole])
    assert selection is not None
    assert (selection.best, selection.n_cells, selection.n_questions, selection.n_left_out) == ("a", 2, 40, 4)
    assert set(selection.ranks) == {"a", "b"}
    assert [item.cell_id for item in compare_column([*dropped, *whole])] == ["a", "b"]
    table = SweepTable("t", "t", (Axis("k", tuple("abcdef")),), (*whole, *dropped))
    stats = compute_stats(table)
    text = as_text(score_table(stats))
    assert "(1.000) [1]" in text
    assert "best (1.000)" not in text
    rows = [line.split(",") for line in write_csv(stats).splitlines()]
    by_label = {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[1:]}
    assert (by_label["c"]["state"], by_label["c"]["n_questions"], by_label["c"]["rank"]) == ("dropped", "8", "")
    assert by_label["a"]["rank"] == "1"
