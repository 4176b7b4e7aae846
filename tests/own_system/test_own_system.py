"""A system outside the package runs under every command, and not one line of the package knows it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml
from kit.runs_here import index_here, run_here
from pages import opened

from kohaku_ray.cli import main
from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError
from kohaku_ray.extensions import installed
from kohaku_ray.sweep.load import load_sweep
from kohaku_ray.sweep.plan import plan_sweep
from kohaku_ray.systems.registry import find_system

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "kohaku_ray"
NAME = "tests.own_system.lookup:SYSTEM"


def test_it_is_one_short_file():
    assert len((HERE / "lookup.py").read_text().splitlines()) < 72


@pytest.mark.parametrize(
    ("rooms", "word"),
    [
        (("engine", "run", "pages", "sweep", "ensemble", "evaluation", "config"), r"kohaku(?!_ray|-ray|rag)"),
        (("documents", "retrieval", "evaluation", "values"), r"(?i)\b(news|novels?|french|hybrid|narrative|backstor)"),
    ],
)
def test_no_room_but_its_own_knows_a_systems_name(rooms, word):
    files = [file for room in rooms for file in (PACKAGE / room).rglob("*.*") if file.suffix in {".py", ".j2", ".css"}]
    assert len(files) > 40
    lines = [
        f"{file.relative_to(PACKAGE)}:{number}: {line}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(word, line)
    ]
    assert not lines, "\n".join(lines)


def test_it_is_found_by_its_entry_point(tmp_path, monkeypatch):
    package = tmp_path / "lookup_package-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: lookup-package\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[kohaku_ray.systems]\nlookup = {NAME}\nbroken = not_there:SYSTEM\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(HERE.parents[1])
    monkeypatch.syspath_prepend(str(HERE.parents[1]))
    find_system.cache_clear()
    installed.cache_clear()
    try:
        assert find_system("lookup").name == "lookup"
        config = load_config(None, ["system=lookup", "lookup.paragraphs=7", "kohaku.top_k=3"][:2])
        assert config.settings.paragraphs == 7
        with pytest.raises(ConfigError, match="kohaku are settings of another system, and system is lookup"):
            load_config(None, ["system=lookup", "kohaku.top_k=3"])
        with pytest.raises(ConfigError, match=r"broken: not_there:SYSTEM cannot be loaded \(ModuleNotFoundError"):
            load_config(None, ["system=broken"])
    finally:
        find_system.cache_clear()
        installed.cache_clear()


def test_a_module_beside_the_configuration_is_found_from_the_command_line(tmp_path):
    (tmp_path / "mine.py").write_text((HERE / "lookup.py").read_text())
    (tmp_path / "mine.yaml").write_text("system: mine:SYSTEM\nlookup: {paragraphs: 3}\nindex: {path: index}\n")
    command = [sys.executable, "-c", "from kohaku_ray.cli import main; main(['validate', 'mine.yaml', '--settings'])"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "  paragraphs: 3\n" in done.stdout, done.stderr
    assert "valid" in done.stdout


@pytest.fixture(scope="module")
def home(tiny_encoder, tmp_path_factory):
    """A configuration of the own system, its index built and its questions answered."""
    home = tmp_path_factory.mktemp("own")
    values = {
        "base": "demo",
        "system": NAME,
        "run": f"{home}/run",
        "index": {"path": f"{home}/index", "encoder": {"model": tiny_encoder}, "encoders": 1},
        "ledger": {"path": f"{home}/ledger"},
        "questions": {"limit": 6},
        "ensemble": {"members": 2},
        "lookup": {"paragraphs": 3},
        "cluster": {"retriever": {"replicas": 1}},
    }
    (home / "own.yaml").write_text(yaml.safe_dump(values))
    config = load_config(f"{home}/own.yaml")
    index_here(config)
    run_here(config)
    return home


@pytest.mark.slow
def test_index_and_answer_write_its_tables(home):
    trace = pl.read_parquet(home / "run/trace.parquet")
    assert trace["step"].unique().to_list() == ["lookup"]
    assert trace["member"].unique().to_list() == [-1]
    assert len(trace) == 6 * 3
    answers = pl.read_parquet(home / "run/answers.parquet")
    assert len(answers) == 12
    assert answers["measures"].to_list()[0] == {"paragraphs": 3.0}
    facts = json.loads((home / "run/run.json").read_text())
    assert (facts["system"], facts["metrics"]) == ("lookup", ["exact", "wattbot"])


@pytest.mark.slow
def test_validate_show_vote_score_compare_and_report(home, capsys):
    assert main(["validate", f"{home}/own.yaml", "--settings"]) == 0
    assert "  paragraphs: 3\n" in capsys.readouterr().out
    assert main(["show", f"{home}/run", "s001"]) == 0
    shown = capsys.readouterr().out
    assert "lookup: 3" in shown
    assert "bm25" in shown
    assert main(["vote", f"{home}/run/submission.csv", f"{home}/run/submission.csv", "-o", f"{home}/voted.csv"]) == 0
    truth = load_config("demo").questions.path
    from kohaku_ray.collection.sources import resolve

    assert main(["score", f"{home}/voted.csv", "--truth", resolve(truth), "--metric", "exact"]) == 0
    assert "exact" in capsys.readouterr().out
    assert main(["compare", f"{home}/run", f"{home}/voted.csv", "--metric", "exact"]) == 0
    assert main(["report", f"{home}/run"]) == 0
    page = (home / "run/report.html").read_text(encoding="utf-8")
    assert "Lookup: 3" in opened(page)
    assert "baseline" in page


@pytest.mark.slow
def test_a_sweep_over_its_own_key(home, capsys):
    sweep = {
        "base": f"{home}/own.yaml",
        "output": f"{home}/sweep",
        "runs": f"{home}/sweep-runs",
        "indexes": f"{home}/sweep-indexes",
        "seeds": [0],
        "axes": {"lookup.paragraphs": [1, 5]},
        "show": ["paragraphs", "blanks"],
    }
    (home / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    assert main(["sweep", f"{home}/sweep.yaml", "--dry-run"]) == 0
    dry = capsys.readouterr().out
    assert "2 distinct runs" in dry
    plan = plan_sweep(load_sweep(f"{home}/sweep.yaml"))
    for config in plan.indexes.values():
        index_here(config)
    for config in plan.runs.values():
        run_here(config)
    assert main(["sweep", f"{home}/sweep.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_made"] == 0
    [page] = Path(home, "sweep").glob("*.html")
    assert "Score: exact, " in page.read_text(encoding="utf-8")
    [table] = Path(home, "sweep/tables").glob("*.csv")
    assert len(pl.read_csv(table)) == 2
