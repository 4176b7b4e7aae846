"""The package in a Python session or notebook: what it lists, how a run looks, and errors without library frames."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from run_files import small_run

import kohaku_ray
from kohaku_ray import Run, load_config
from kohaku_ray.errors import ConfigError


def test_what_there_is_is_listed_without_loading_it():
    code = "import sys, kohaku_ray; print(dir(kohaku_ray)); print('polars' in sys.modules, 'ray' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    listed, loaded = printed.splitlines()
    assert eval(listed) == ["Run", "Sweep", "__version__", "bundle", "load_config", "replay", "score", "vote"]
    assert loaded == "False False"
    assert all(getattr(kohaku_ray, name) for name in kohaku_ray.__all__)


@pytest.fixture
def run(tmp_path):
    truth = tmp_path / "t.csv"
    truth.write_text("id,question,answer_value,ref_id\nq1,How many?,41,a2024\n")
    return Run(load_config("default", [f"run={tmp_path}/<run>", f"questions.path={truth}"]))


def test_a_run_shows_its_directory_state_and_scores(run, monkeypatch):
    assert repr(run) == f"Run({run.path!r}, not answered yet)"
    assert "not answered yet" in run._repr_html_()
    small_run(Path(run.path))
    facts = json.loads(Path(run.path, "run.json").read_text())
    Path(run.path, "run.json").write_text(json.dumps({**facts, "status": "running"}))
    assert repr(run) == f"Run({run.path!r}, not finished)"
    Path(run.path, "run.json").write_text(json.dumps({**facts, "status": "finished", "n_unanswered": 0}))
    assert repr(run).startswith(f"Run({run.path!r}, finished, wattbot 1.0000")
    Path(run.path, "report.html").write_text("<p>page</p>")
    monkeypatch.chdir(Path(run.path).parent)
    html = run._repr_html_()
    assert "<tr><td>wattbot</td><td>1.0000</td></tr>" in html
    assert '<a href="&lt;run&gt;/report.html">' in html
    assert "<run>" not in html
    Path(run.config.questions.path).write_text("id,question\nq1,How many?\n")
    assert repr(run).endswith("finished, not scored)")


def test_an_error_in_a_notebook_is_its_message_alone():
    """IPython asks an exception for its traceback by this name."""
    with pytest.raises(ConfigError) as caught:
        load_config("default", ["sed=1"])
    assert caught.value._render_traceback_() == [f"ConfigError: {caught.value}"]


CELLS = """
import asyncio; asyncio.get_running_loop()
from kohaku_ray import Run, load_config; run = Run(load_config("demo", ["run=runs/<new>"])); run
load_config("demo", ["kohaku.topk=3"])
run.answer()
""".strip().splitlines()
"""The first shows that an event loop runs, in which the others do."""


def test_a_jupyter_kernel_shows_runs_and_errors_without_library_frames(tmp_path):
    manager = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    kernel, client = manager.start_new_kernel(startup_timeout=120, cwd=str(tmp_path))
    shown = []

    def keep(message):
        if message["msg_type"] in {"execute_result", "error", "stream"}:
            shown.append(message["content"])

    try:
        for cell in CELLS:
            client.execute_interactive(cell, timeout=120, output_hook=keep)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    loop, run, wrong_key, no_index = shown
    assert "running=True" in loop["data"]["text/plain"]
    assert "not answered yet" in run["data"]["text/plain"]
    assert "&lt;new&gt;</code>: not answered yet" in run["data"]["text/html"]
    assert wrong_key["traceback"] == ["ConfigError: demo: no key kohaku.topk (did you mean kohaku.top_k?)"]
    [line] = no_index["traceback"]
    assert line.startswith("DataError: there is no index at ")
