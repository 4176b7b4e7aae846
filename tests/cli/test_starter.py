"""From ``init`` to a checked configuration, and what a shell completes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kohaku_ray.cli import main

PAGE = "# Water report 2023\n\nThe campus used 41,200 m3 of water in 2023. Aquaflow delivered the pumps.\n"


def settings_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


@pytest.mark.parametrize("gold", [False, True])
def test_init_then_a_document_then_valid(tmp_path, capsys, monkeypatch, gold):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert main(["init", "new", *(["--gold"] if gold else [])]) == 0
    config = Path("new/my.yaml")
    assert len(settings_of(config.read_text())) <= 10
    assert str(config) in capsys.readouterr().out
    assert main(["validate", str(config)]) == 2
    assert "new/documents holds no documents" in capsys.readouterr().err
    Path("new/documents/water_report.md").write_text(PAGE)
    assert main(["validate", str(config)]) == 0
    out = capsys.readouterr().out
    assert "documents: 1 file (1 .md)" in out
    assert "metadata: 1 row\n" in out
    assert ("scored by wattbot, kaggle" in out) == gold
    assert ("init DIR --gold` writes a template" in out) == (not gold)


def test_init_overwrites_nothing(tmp_path, capsys):
    (tmp_path / "questions.csv").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert "has questions.csv already, which init does not overwrite" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["questions.csv"]
    assert (tmp_path / "questions.csv").read_text() == "mine"
    assert main(["init", str(tmp_path / "questions.csv" / "below")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def completed(line: str, folder: Path) -> list[str]:
    """Ask as a shell does: completions come over file descriptor 8."""
    code = """
import os, sys
os.dup2(os.open("out", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 8)
sys.argv = ["kohaku-ray"]
from kohaku_ray.cli import main
main()
"""
    ask = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    subprocess.run([sys.executable, "-c", code], cwd=folder, env={**os.environ, **ask}, capture_output=True)
    return [item.strip() for item in (folder / "out").read_text().split("\n")]


def test_a_shell_completes_commands_presets_sweeps_and_files(tmp_path):
    pytest.importorskip("argcomplete")
    (tmp_path / "mine.yaml").write_text("")
    (tmp_path / "mine.pdf").write_text("")
    assert {"validate", "vote"} <= set(completed("kohaku-ray v", tmp_path))
    completions = completed("kohaku-ray answer m", tmp_path)
    assert {"mixed", "models/ollama", "mine.yaml"} <= set(completions)
    assert "mine.pdf" not in completions
    assert "paper" in completed("kohaku-ray sweep p", tmp_path)
    assert "--strategy" in completed("kohaku-ray vote --st", tmp_path)


def test_a_script_for_the_shell_is_printed(capsys):
    pytest.importorskip("argcomplete")
    assert main(["completion", "bash"]) == 0
    subprocess.run(["bash", "-n"], input=capsys.readouterr().out, text=True, check=True)
