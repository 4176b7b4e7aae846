"""What every command gives back: one JSON object with ``--json``, one line with ``--quiet``."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from kit.installed import loaded_after
from kit.rows import check_rows

from kohaku_ray.answering.bundle import Bundled
from kohaku_ray.cli import main, results
from kohaku_ray.outcomes import plain
from kohaku_ray.sample import path as sample_path

GOLD = sample_path("questions.csv")


ROWS = re.findall(
    r"^\| ([a-z, ]+) \| .* \|$",
    (Path(__file__).parents[1] / "docs" / "commands.md").read_text(encoding="utf-8").partition("| command | keys |")[2],
    re.MULTILINE,
)
"""Commands whose keys docs/commands.md lists."""


def keys_of(command: str) -> set[str]:
    """The keys that docs/commands.md names of a command's object: words in backticks outside parentheses."""
    page = Path(__file__).parents[1] / "docs" / "commands.md"
    [row] = re.findall(rf"^\| {command} \| (.*) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", row)))


@check_rows("command", [row for row in ROWS if row != "report, completion"])
def test_the_documented_keys_are_the_fields_of_the_result(command):
    [result] = [
        kind
        for kind in (*vars(results).values(), Bundled)
        if getattr(kind, "__name__", "") in {f"{command.title()}Result", "Bundled"}
        and (command == "bundle") == (kind is Bundled)
    ]
    assert {item.name for item in fields(result)} == keys_of(command)


def test_values_become_json_with_secrets_hidden_and_without_nan():
    hide = lambda text: text.replace("secret", "${KEY}")  # noqa: E731
    assert plain({"a": [float("nan"), 1.5], "secret": ("my secret",)}, hide) == {
        "a": [None, 1.5],
        "${KEY}": ["my ${KEY}"],
    }


@pytest.fixture
def one_off(tmp_path) -> str:
    """The gold answers with one value changed."""
    text = Path(GOLD).read_text(encoding="utf-8")
    (tmp_path / "off.csv").write_text(text.replace("1383.9", "1400"), encoding="utf-8")
    return str(tmp_path / "off.csv")


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("command", ["vote", "score", "compare", "validate", "init", "documents", "report"])
def test_json_is_one_object_on_stdout_and_quiet_is_one_line(command, tmp_path, capsys, one_off):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.md").write_text("# A\n\nOne sentence.\n")
    settings = [f"run={tmp_path}/run", f"documents.paths=[{tmp_path}/d]", "documents.metadata=null"]
    overrides = ["default", *(part for item in settings for part in ("--set", item))]
    arguments = {
        "vote": ["vote", GOLD, one_off, "-o", str(tmp_path / "voted.csv")],
        "score": ["score", one_off, "--truth", GOLD],
        "compare": ["compare", GOLD, one_off, "--truth", GOLD],
        "validate": ["validate", "demo", "--settings", *overrides[1:3]],
        "init": ["init", str(tmp_path / "new")],
        "documents": ["documents", *overrides],
        "report": ["report", str(tmp_path / "none")],
    }[command]
    code, out, err = run(capsys, *arguments, "--json")
    value = json.loads(out)
    assert out.count("\n") == 1
    assert (value["command"], value["exit_code"]) == (command, code)
    if command == "report":  # an error
        assert value.keys() == {"command", "exit_code", "error"}
        assert value["error"]["message"] in err
    else:
        assert value.keys() == {"command", "exit_code", *keys_of(command)}
        assert err  # what a person reads
    if command == "init":
        arguments[1] += "2"
    code, out, err = run(capsys, *arguments, "--quiet")
    assert bool(err) == (command == "report")
    assert (len(out.splitlines()) == 1) == (command != "report")


def test_the_values_are_those_of_the_tables(tmp_path, capsys, one_off):
    _, out, _ = run(capsys, "compare", GOLD, one_off, "--truth", GOLD, "--json")
    pair = json.loads(out)["pair"]
    assert (pair["n_won"], pair["n_lost"]) == (0, 1)
    assert pair["flips"][0]["values"] == ["1383.9", "1400"]
    assert run(capsys, "score", one_off, "--truth", GOLD, "-q")[1].split()[:2] == [one_off, "wattbot"]
    lines = tmp_path / "voted.jsonl"
    assert main(["vote", GOLD, one_off, GOLD, "-o", str(tmp_path / "voted.csv"), "--jsonl", str(lines)]) == 0
    first = json.loads(lines.read_text(encoding="utf-8").splitlines()[0])
    assert (first["id"], first["answer_value"], first["unit"], first["refs"]) == (
        "s001",
        "1383.9",
        "MWh",
        ["halden2023"],
    )
    groups = [{"value": "1383.9", "weight": 2.0}, {"value": "1400", "weight": 1.0}]
    assert first["votes"] == {"members": 3, "blank": 0, "groups": groups}
    assert main(["score", one_off, "--truth", GOLD, "--jsonl", str(lines)]) == 0
    rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    wrong = [row["id"] for row in rows if row["score"]["wattbot"]["value"] < 1]
    assert wrong == ["s001"]
    assert rows[0]["score"]["wattbot"]["score"] == pytest.approx(0.25)


def test_help_imports_neither_arrays_nor_yaml():
    code = """
import kohaku_ray.cli
try: kohaku_ray.cli.main(["vote", "--help"])
except SystemExit: pass
"""
    heavy = ("numpy", "yaml", "pydantic", "importlib.metadata", "pyarrow", "tqdm", "argcomplete", "email")
    assert not loaded_after(code, *heavy)


@pytest.mark.parametrize("position", [0, 1])
def test_flags_stand_before_the_command_or_after_it(position, capsys):
    arguments = ["validate", "demo", "--set", "kohaku.topk=3"]
    code, out, err = run(capsys, *arguments[:position], "--json", *arguments[position:])
    assert (code, json.loads(out)["error"]["kind"]) == (2, "ConfigError")
    code, out, err = run(capsys, *arguments[:position], "-q", *arguments[position:])
    assert (code, out) == (2, "")
    assert "did you mean kohaku.top_k?" in err


def test_an_output_that_is_a_directory_is_said(capsys, one_off, tmp_path):
    code, _, err = run(capsys, "vote", GOLD, one_off, "-o", str(tmp_path))
    assert code == 2
    assert f"{tmp_path}: cannot be written (Is a directory): name a file in it." in err
