"""A sweep on a real cluster: what cells share, what stops none of the others, and that it goes on where it stopped."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from kit.answers import COMPARED, deployment, steps_of
from kit.fake_openai import Action, FakeOpenAI, completion
from kit.runs_here import index_here, run_here

from kohaku_ray.cli import main
from kohaku_ray.engine.jobs import sweep as sweeping
from kohaku_ray.engine.jobs.sweep import dry_run, finish_sweep, run_sweep
from kohaku_ray.evaluation.report import run_score
from kohaku_ray.pages import terminal
from kohaku_ray.runs.identity import finished_before
from kohaku_ray.sample import path as sample_path
from kohaku_ray.store.segments import SegmentStore
from kohaku_ray.sweep.collect import collect
from kohaku_ray.sweep.estimate import estimate
from kohaku_ray.sweep.load import load_sweep
from kohaku_ray.sweep.plan import plan_sweep

pytestmark = pytest.mark.ray

LIMIT = 8
SIZES = {"ensemble.vote.strategy": ["answer_priority", "union"], "ensemble.members": [1, 2, 4, 5]}
TABLES = [
    {"name": "depth", "axes": {"kohaku.queries": [2, 4], "kohaku.top_k": [4, 8]}, "show": ["matches", "characters"]},
    {"name": "words", "axes": {"kohaku.bm25_top_k": [0, 2]}},
    {"name": "lengths", "axes": {"index.encoder.dim": [64, None, 999]}},
    {"name": "sizes", "pool": {"members": 4}, "subsamples": "all", "axes": SIZES},
]


def write_sweep(home: Path, tables: list[dict], name: str = "mine", **more) -> str:
    path = home / f"{name}.yaml"
    places = {"output": str(home / f"out-{name}"), "runs": str(home / "runs"), "indexes": str(home / "indexes")}
    common = {"kohaku.top_k_final": None, "questions.limit": LIMIT, "ledger.path": str(home / "ledger")}
    common |= {"cluster.retriever.replicas": 1, "index.encoders": 1}  # one starts sooner than two on few cores
    values = {"base": ["paper"], **places, "seeds": [0, 1], "tables": tables, **more}
    values["set"] = common | more.get("set", {})
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return str(path)


def without_spending(page: str) -> str:
    """What of a page must be the same after every start."""
    text = Path(page).read_text()
    assert text.count('<section id="spending"') == 1
    return re.sub(r'<section id="spending".*?</section>', "", text, flags=re.DOTALL)


def recorded(ledger: str) -> set[str]:
    """Keys of the replies that a ledger holds."""
    return set(SegmentStore(ledger).load(lambda _: True).entries)


@pytest.fixture(scope="module")
def swept(cluster, tmp_path_factory):
    """One whole sweep of the sample collection: its plan, what it did, what it measured, its page.

    The index with whole vectors is there.
    """
    home = tmp_path_factory.mktemp("sweep")
    plan = plan_sweep(load_sweep(write_sweep(home, TABLES, concurrency=2), ["demo"]))
    [whole] = [config for config in plan.indexes.values() if config.index.encoder.dim is None]
    index_here(whole)
    summary = run_sweep(plan)
    text, files, _ = finish_sweep(plan, summary)
    return plan, summary, text, files, collect(plan, summary.failed)


@pytest.fixture(scope="module")
def indexes(cluster, tmp_path_factory) -> str:
    """Directory of the index of sweeps that are not about indexing."""
    home = tmp_path_factory.mktemp("indexes")
    one = write_sweep(home, [{"name": "one", "axes": {"kohaku.top_k": [4]}}], indexes=str(home))
    for config in plan_sweep(load_sweep(one, ["demo"])).indexes.values():
        index_here(config)
    return str(home)


def cells_of(sweep, name):
    [table] = [table for table in sweep.tables if table.name == name]
    return {tuple(cell.labels.values()): cell for cell in table.cells}


@pytest.mark.slow
def test_every_cell_that_can_be_run_is_and_one_that_fails_stops_no_other(swept):
    plan, summary, _, _, sweep = swept
    states = {(table.name, *cell.labels.values()): cell.state for table in sweep.tables for cell in table.cells}
    assert states.pop(("lengths", "999")) == "failed"
    assert states.pop(("sizes", "answer_priority", "5")) == states.pop(("sizes", "union", "5")) == "skipped"
    assert set(states.values()) == {"finished"}
    reason = cells_of(sweep, "lengths")["999",].reason
    assert "dim is 999 but" in reason
    assert "gives 384" in reason
    assert len(summary.failed) == 2, "two seeds"
    assert summary.n_made == len(plan.runs) - 2
    assert (summary.n_indexes, len(plan.indexes)) == (1, 3), "whole was there, 999 cannot be built"
    assert "cannot be drawn from 4" in cells_of(sweep, "sizes")["union", "5"].reason


@pytest.mark.slow
def test_a_cell_is_what_the_same_run_alone_gives_to_the_byte(swept, tmp_path):
    plan = swept[0]
    run_id = next(iter(plan.tables[1].cells[1].runs.values()))
    config = plan.runs[run_id]
    ledger = config.ledger.model_copy(update={"path": str(tmp_path / "ledger")})
    alone = config.model_copy(update={"run": str(tmp_path / run_id), "ledger": ledger})
    run_here(alone)
    assert json.loads(Path(alone.run, "run.json").read_text())["n_calls"]["made"] > 0
    for name in COMPARED:
        assert Path(alone.run, name).read_bytes() == Path(config.run, name).read_bytes(), name


@pytest.mark.slow
def test_scores_are_those_of_the_score_command(swept):
    plan, _, _, _, sweep = swept
    for cell, planned in zip(sweep.tables[0].cells, plan.tables[0].cells, strict=True):
        assert len(cell.question_ids) == LIMIT
        assert cell.is_thin
        for score, run_id in zip(cell.scores, planned.runs.values(), strict=True):
            config = plan.runs[run_id]
            assert score == pytest.approx(score_of(f"{config.run}/submission.csv"), abs=1e-12)


def score_of(submission: str) -> float:
    """The score command's figure."""
    [record] = run_score(sample_path("questions.csv"), [submission], limit=LIMIT).records
    return record["score"]


@pytest.mark.slow
def test_what_cells_have_in_common_is_encoded_searched_and_asked_once(swept):
    plan, summary, _, _, _ = swept
    keys = Counter()
    for config in plan.finished.values():
        keys.update(pq.read_table(f"{config.run}/usage.parquet")["key"].to_pylist())
    assert summary.n_calls["made"] == len(keys), "every distinct call is made once"
    assert summary.n_calls.total() == keys.total()
    assert len(keys) < keys.total(), "cells have calls in common"
    expected = estimate(plan, recorded)
    assert len(keys) <= expected.n_opening + expected.n_answers_most
    queries = {
        (config.index.path, row["text"]) for config in plan.finished.values() for row in steps_of(config.run, "plan")
    }
    encoded, searched = (summary.shared[f"queries {what}", "computed"] for what in ("encoded", "searched"))
    assert encoded == len(queries) <= searched < summary.shared["queries searched", "asked"]
    assert summary.shared["queries encoded", "asked"] > 4 * encoded


@pytest.mark.slow
def test_a_study_at_full_size_is_the_pools_own_vote(swept):
    plan, _, _, _, sweep = swept
    cell = cells_of(sweep, "sizes")["answer_priority", "4"]
    [run_id] = {run for planned in plan.tables[3].cells for run in planned.runs.values()}
    assert cell.total.shape == (1, LIMIT)
    assert cell.scores[0] == pytest.approx(score_of(f"{plan.runs[run_id].run}/submission.csv"), abs=1e-12)


@pytest.mark.slow
def test_finished_runs_are_not_made_again_and_the_page_is_the_same(swept, tmp_path):
    plan, _, _, files, _ = swept
    before = without_spending(files[0])
    stamps = {config.run: Path(config.run, "submission.csv").stat().st_mtime_ns for config in plan.finished.values()}
    again = run_sweep(plan)
    assert (again.n_made, len(again.failed)) == (0, 2)
    assert again.n_calls.total() == 0
    assert all(finished_before(config) for config in plan.finished.values()), "answer takes them for finished too"
    for run, stamp in stamps.items():
        assert Path(run, "submission.csv").stat().st_mtime_ns == stamp
    _, pages, _ = finish_sweep(plan, again)
    assert without_spending(pages[0]) == before
    text = dry_run(plan)
    assert f"{len(plan.runs)} distinct runs, {len(plan.runs) - 2} finished" in text
    assert re.search(r"planning +(\d+) distinct calls before any search, \1 in the ledger", text)
    names = {Path(file).name for file in pages}
    assert {"sweep.html", "depth.md", "depth.csv", "depth.tex", "sizes.csv"} <= names


@pytest.fixture(scope="module")
def models_apart(indexes, tmp_path_factory):
    """A sweep over four models, started twice: one without a key, one whose replies are prose, one that fails at first.

    Its file, its server, and of each start the exit code, what it printed, and the actor pools that it took; the last
    start is of a sweep without the prose.
    """
    failing = True

    def script(index, body):
        if body["model"] == "prose":
            return Action(body=completion("I would rather not say."))
        return Action(status=400, body={"error": {"message": "no such thing"}}) if failing else Action()

    home, pools, starts = tmp_path_factory.mktemp("models"), [], []

    class Counted(sweeping.ActorPool):
        def __init__(self, *given):
            pools.append(self)
            super().__init__(*given)

    with FakeOpenAI(script) as server, pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENROUTER_API_KEY", raising=False)
        patch.setattr(sweeping, "ActorPool", Counted)
        patch.setattr(terminal, "LINES_EVERY_S", (0.0, 0.0))  # the slower a start was, the rarer its lines
        axis = {"floor": {"roles.answer.model": "extractive"}}
        axis["keyless"] = {"with": "models/openrouter", "deployments.gateway.model": "some/model"}
        for name, tries in (("api", {"max_tries": 1}), ("prose", {})):
            axis[name] = {"roles.answer.model": name, f"deployments.{name}": deployment(server, model=name, **tries)}
        common = {"seeds": [0], "indexes": indexes, "prefer": ["encoders/jina_v3"], "by": "split"}
        path = write_sweep(home, [{"name": "m", "axes": {"model": dict(axis)}}], **common)
        del axis["prose"]
        without = write_sweep(home, [{"name": "m", "axes": {"model": axis}}], "without", **common)
        for file in (path, path, without):
            n_before, out, err = len(pools), io.StringIO(), io.StringIO()
            with redirect_stdout(out), redirect_stderr(err):
                code = main(["sweep", file, "--base", "demo", "--set", "kohaku.queries=1"])
            starts.append((code, out.getvalue(), err.getvalue(), len(pools) - n_before))
            failing = False
    return path, server, starts


@pytest.mark.slow
def test_a_run_with_rows_in_error_is_named_and_tried_again(models_apart):
    _, server, [(first, out, err, _), (again, _, err_again, _), (without_prose, *_)] = models_apart
    assert (first, again) == (3, 3), "with rows in error"
    assert without_prose == 0, "all that can be run is"
    assert f"{LIMIT} model calls got no reply: repeat the sweep" in err
    assert re.search(r"^sweep   0\.\d/3 runs ", err, re.MULTILINE), "as questions are answered"
    assert "failed" in out
    assert "got no reply" not in err_again
    assert Counter(request.body["model"] for request in server.log)["api"] == 2 * LIMIT


@pytest.mark.slow
def test_what_is_missing_is_named_on_terminal_and_page_and_the_rest_is_run(models_apart):
    path, _, [_, (_, out, err, _), _] = models_apart
    page = (Path(path).parent / "out-mine" / "sweep.html").read_text(encoding="utf-8")
    preferred = "encoders/jina_v3 is preferred but left out"
    for text in (out, err, page):
        assert preferred in text
        assert "jinaai/jina-embeddings-v3" in text
        assert "OPENROUTER_API_KEY" in text
    assert "skipped   m (keyless): deployments.gateway" in err, "before anything is run"
    assert re.search(r"^floor +best 0\.\d{3}", out, re.MULTILINE)
    assert re.search(r"^keyless +skipped \[1\]", out, re.MULTILINE)
    assert "3 of 4" in page
    assert 'id="groups"' in page


@pytest.mark.slow
def test_a_reply_that_cannot_be_read_is_a_wrong_answer_and_not_asked_again(models_apart):
    path, server, [_, (_, out, _, _), _] = models_apart
    assert f"{LIMIT} of {3 * LIMIT} answers carry an error" in out
    assert Counter(request.body["model"] for request in server.log)["prose"] == LIMIT
    sweep = collect(plan_sweep(load_sweep(path, ["demo"], ["kohaku.queries=1"])), {})
    cells = cells_of(sweep, "m")
    assert {name for (name,), cell in cells.items() if cell.state == "finished"} == {"floor", "api", "prose"}
    assert cells["prose",].scores[0] < cells["floor",].scores[0]
    assert {run.facts["model"] for run in sweep.runs} == {"extractive", "api", "prose"}


@pytest.mark.slow
def test_models_that_follow_one_another_on_an_index_share_its_actors(models_apart):
    assert [n_pools for *_, n_pools in models_apart[2]] == [1, 1, 0], "three models, the one that failed again, none"


@pytest.mark.chaos
@pytest.mark.long
def test_killed_three_times_it_ends_with_the_same_page(cluster, indexes, tmp_path):
    """Replies take a while: without, the last runs end between two looks at them."""
    with FakeOpenAI(lambda index, body: Action(delay_s=0.2)) as server:
        common = {"deployments.fake": deployment(server), "roles.answer.model": "fake"}
        path = write_sweep(tmp_path, TABLES[:2], seeds=[0], indexes=indexes, set=common)
        command = [sys.executable, "-m", "kohaku_ray", "sweep", path, "--base", "demo"]
        command += ["--set", f"cluster.address={cluster}"]
        n_runs = len(plan_sweep(load_sweep(path, ["demo"])).runs)
        for n in (n_runs // 5, n_runs * 2 // 5, n_runs // 2):
            driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            deadline = time.monotonic() + 240
            while finished(tmp_path) < n:
                assert driver.poll() is None, driver.stdout.read()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            driver.send_signal(signal.SIGKILL)
            driver.wait()
            assert finished(tmp_path) < n_runs
        pages = []
        for _ in range(2):
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stdout + done.stderr
            pages.append(without_spending(tmp_path / "out-mine" / "sweep.html"))
            # the second time from nothing, and uninterrupted
            for name in ("runs", "ledger", "out-mine"):
                shutil.rmtree(tmp_path / name)
    assert pages[0] == pages[1]


def finished(home: Path) -> int:
    return sum('"finished"' in file.read_text() for file in home.glob("runs/*/run.json"))


@pytest.mark.slow
def test_a_budget_is_of_all_runs_and_a_larger_one_goes_on(cluster, indexes, tmp_path, capsys):
    delays = [0.2, 1.0]  # of calls before and after the budget's end, which a busy machine may see late
    with FakeOpenAI(lambda index, body: Action(delay_s=delays[index >= 19])) as server:
        common = {"deployments.fake": deployment(server, max_ongoing=2), "roles.answer.model": "fake"}
        common |= {"ensemble.members": 2, "kohaku.queries": 1, "budget.tokens": 2000}
        tables = [{"name": "one", "axes": {"kohaku.top_k": [4, 8, 16]}}]
        path = write_sweep(tmp_path, tables, seeds=[0], indexes=indexes, set=common, concurrency=1)
        assert main(["sweep", path, "--base", "demo"]) == 3
        delays[1], n_first = 0.2, server.n_requests
        assert 15 < n_first < 19 + 2 + 2 * 10, "the calls in flight and those of a second"
        assert "not made: budget.tokens is 2,000 and 2," in capsys.readouterr().err
        assert main(["sweep", path, "--base", "demo"]) == 3
        assert server.n_requests == n_first
        assert main(["sweep", path, "--base", "demo", "--set", "budget.tokens=90_000"]) == 0
        asked = Counter(json.dumps([r.body["messages"], r.body["seed"]]) for r in server.log)
        assert set(asked.values()) == {1}, "each call was made once"
        paid = [json.loads(file.read_text())["paid"]["tokens"] for file in tmp_path.glob("runs/*/run.json")]
        assert sum(paid) >= 100 * server.n_requests


@pytest.mark.slow
def test_two_sweeps_at_once_ask_once(cluster, indexes, tmp_path):
    """The second is another process's."""
    with FakeOpenAI(lambda index, body: Action(delay_s=0.05)) as server:
        common = {"deployments.fake": deployment(server), "roles.answer.model": "fake"}
        paths = []
        for name, axis in (("one", [4, 8]), ("two", [8, 16])):
            tables = [{"name": name, "axes": {"kohaku.top_k": axis}}]
            settings = {"seeds": [0], "runs": str(tmp_path / f"runs-{name}"), "indexes": indexes}
            paths.append(write_sweep(tmp_path, tables, name=name, set=common, concurrency=1, **settings))
        here, there = (["sweep", path, "--base", "demo", "--set", f"cluster.address={cluster}"] for path in paths)
        command = [sys.executable, "-m", "kohaku_ray", *there]
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in driver.stdout:
            if " runs on " in line:
                break
        assert main(here) == 0
        output, _ = driver.communicate(timeout=400)
        assert driver.returncode == 0, output
        asked = Counter(json.dumps([r.body["messages"], r.body["seed"]]) for r in server.log)
        assert set(asked.values()) == {1}
        keys = set()
        n_asked = 0
        for file in tmp_path.glob("runs-*/*/usage.parquet"):
            rows = pq.read_table(file)["key"].to_pylist()
            keys.update(rows)
            n_asked += len(rows)
        assert len(asked) == len(keys) < n_asked
