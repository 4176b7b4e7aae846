"""A sweep that switches stages of hybrid off: recall after every step, citations and cost, one row per setting."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import yaml
from kit.runs_here import run_here

from kohaku_ray.cli import main
from kohaku_ray.sweep.load import load_sweep
from kohaku_ray.sweep.plan import plan_sweep


def test_a_row_per_switched_off_stage(news_index, tiny_encoder, tmp_path, capsys):
    [table] = load_sweep("hybrid_stages").sweep.tables
    base = {
        "base": "hybrid",
        "index": {"path": news_index, "encoder": {"model": tiny_encoder}},
        "ledger": {"path": f"{tmp_path}/ledger"},
        "questions": {"limit": 3},
        "ensemble": {"members": 1},
        "hybrid": {"min_relevance": None},
    }
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    values = {
        "base": f"{tmp_path}/base.yaml",
        "output": f"{tmp_path}/sweep",
        "runs": f"{tmp_path}/runs",
        "seeds": [0],
        "axes": {"stages": {"all": {"hybrid.mmr": True}, "no mmr": {"hybrid.mmr": False}}},
        "show": list(table.show),
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(values))
    for config in plan_sweep(load_sweep(f"{tmp_path}/sweep.yaml")).runs.values():
        run_here(config)
    assert main(["sweep", f"{tmp_path}/sweep.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_made"] == 0
    [file] = Path(tmp_path, "sweep/tables").glob("*.csv")
    with open(file, encoding="utf-8", newline="") as opened:
        rows = {row["stages"]: row for row in csv.DictReader(opened)}
    assert set(rows) == {"all", "no mmr"}
    for stage in ("search", "fusion", "netloc_cap", "final_ranking"):
        assert all(0 < float(row[f"recall@10 {stage}"]) <= 1 for row in rows.values())
    assert float(rows["all"]["recall@10 mmr"]) > 0
    assert rows["no mmr"]["recall@10 mmr"] == "", "a stage that is off keeps nothing of its own"
    for row in rows.values():
        assert all(row[name] for name in ("precision", "recall", "distinct_netlocs", "tokens", "seconds", "blanks"))
        assert float(row["tokens"]) > 100
    page = next(Path(tmp_path, "sweep").glob("*.html")).read_text(encoding="utf-8")
    assert "recall@10 final_ranking" in page
