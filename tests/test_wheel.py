"""The package as a package index gives it: its metadata, what it points to, and the demo from an empty directory."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from types import SimpleNamespace

import pytest

from kohaku_ray.cli import main

ROOT = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).parent / "uv"
LINKS = os.environ.get("UV_FIND_LINKS", os.environ.get("PIP_FIND_LINKS", ""))
COMMANDS = ("kohaku-ray index demo", "kohaku-ray answer demo")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    if not UV.exists():
        pytest.skip("uv builds the wheel, and is not in this environment")
    built = subprocess.run([UV, "build", "--wheel", "--quiet", "-o", folder, ROOT], capture_output=True, text=True)
    if built.returncode and "error sending request" in built.stderr + built.stdout:
        pytest.skip("no package registry is there, which has the build's backend")
    assert built.returncode == 0, built.stderr
    [path] = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_metadata_and_readme_stand_without_the_repository(wheel):
    with zipfile.ZipFile(wheel) as files:
        [name] = [item for item in files.namelist() if item.endswith("METADATA")]
        metadata = message_from_bytes(files.read(name))
        names = files.namelist()
    readme = metadata.get_payload()
    assert metadata["License-Expression"] == "Apache-2.0"
    links = [link for link in re.findall(r"\]\(([^)]*)\)", readme) if not link.startswith(("https://", "#"))]
    assert not links
    assert {
        "kohaku_ray/py.typed",
        "kohaku_ray/config/presets/demo.yaml",
        "kohaku_ray/config/presets/sweeps/paper.yaml",
        *(f"kohaku_ray/docs/{page.name}" for page in (ROOT / "docs").glob("*.md")),
    } <= {*names}
    assert wheel.stat().st_size < 2e6
    assert not [name for name in names if not name.startswith(("kohaku_ray/", "kohaku_ray-"))]


def test_the_readmes_links_lead_to_the_source_where_there_is_one(monkeypatch):
    interface = SimpleNamespace(MetadataHookInterface=object)  # hatchling is there while a wheel is built
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    write_outside = runpy.run_path(str(ROOT / "hatch_build.py"))["write_outside"]
    text = "![A](docs/a.png)\n\n[B](docs/b.md#c) and [D](https://d.org), [E](#e)\n"
    assert write_outside(text, "https://h.org/x/") == (
        "![A](https://h.org/x/docs/a.png)\n\n[B](https://h.org/x/docs/b.md#c) and [D](https://d.org), [E](#e)\n"
    )
    assert write_outside(text, None) == "\n\nB (`kohaku-ray docs b`) and [D](https://d.org), [E](#e)\n"


@pytest.mark.parametrize("arguments", [["init", "new"], ["sweep", "--help"], ["answer", "nosuch"]])
def test_nothing_that_is_printed_points_to_the_repository(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SystemExit):
        main(arguments)
    printed = "".join(capsys.readouterr()) + "".join(file.read_text() for file in tmp_path.rglob("*.yaml"))
    assert not re.search(r"\b(?:configs|tests)/", printed), printed


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_demo_runs_from_an_empty_directory_in_a_fresh_environment(wheel, tmp_path):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RAY_", "VIRTUAL"))
    }
    environment |= {"UV_FIND_LINKS": LINKS} if LINKS else {"UV_TORCH_BACKEND": "cpu"}
    python = tmp_path / "fresh/bin/python"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "fresh"], check=True, env=environment)
    limits = ["--constraint", ROOT / "constraints.txt", "--override", ROOT / "overrides.txt"]
    install = [UV, "pip", "install", "--quiet", "--python", python, *limits, f"{wheel}[cpu]"]
    subprocess.run(install, check=True, env=environment)
    empty = tmp_path / "empty"
    empty.mkdir()
    environment |= {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(" && ".join(COMMANDS), shell=True, cwd=empty, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "Traceback" not in ran.stderr
    assert re.search(r"wattbot +0\.\d{4}", ran.stdout), ran.stdout
    assert {"report.html", "submission.csv"} <= {file.name for file in (empty / "runs/demo").iterdir()}
    where = subprocess.run(
        [python, "-c", "import kohaku_ray; print(kohaku_ray.__file__)"],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert str(tmp_path / "fresh") in where.stdout


def test_documents_without_pdfs_need_no_pymupdf(tmp_path):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/pymupdf.py").write_text("raise ModuleNotFoundError('it is not installed', name='pymupdf')")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("# Water\n\nThe hall used 41 MW.")
    (tmp_path / "docs/b.pdf").write_bytes((ROOT / "kohaku_ray/sample/documents/ferro2025.pdf").read_bytes())
    given = ["--set", f"documents.paths=[{tmp_path}/docs]", "--set", "documents.metadata=null"]
    command = [sys.executable, "-m", "kohaku_ray", "documents", "demo", *given]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "hidden"), str(ROOT)])}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "a  a.md  'Water'" in ran.stdout
    assert "rejected: b.pdf needs the package pymupdf" in ran.stdout
    assert "Traceback" not in ran.stderr


def test_extras_that_the_pages_name_are_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set(
        re.findall(r"kohaku-ray\[([a-z,-]+)\]", "".join(file.read_text() for file in (ROOT / "docs").glob("*.md")))
    )
    assert {extra for names in named for extra in names.split(",")} <= project["optional-dependencies"].keys()
