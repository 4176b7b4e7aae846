"""One page of each kind, whole, as reviewed: in golden/. To renew them: GOLDEN=1, and read the difference.

Plots stand there as what they say, what is packed as it opens; a sweep's page is without the questions of its cells.
"""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from kit.sweeps import small_sweep
from pages import opened, without_drawings
from run_files import index, small_run, small_truth, write_truth
from test_compare_page import other_run, set_in_run

from kohaku_ray.pages.compare_page import write_comparison
from kohaku_ray.pages.index_map import write_index_map
from kohaku_ray.pages.report import write_report
from kohaku_ray.pages.runs_page import write_runs
from kohaku_ray.pages.sweep_page import page
from kohaku_ray.store.directory import facts_checksum
from kohaku_ray.store.listing import list_runs
from kohaku_ray.sweep.statistics import compute_sweep_stats

GOLDEN = Path(__file__).with_name("golden")
PACKED = re.compile(r'<script type="text/plain" id="chunk-\d+">[A-Za-z0-9+/=]*</script>\n')


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two runs that differ in one setting, with the first's index and their truth."""
    home = tmp_path_factory.mktemp("golden")
    for run, value in ((small_run(home / "a"), "frequency"), (other_run(home / "b"), "max")):
        set_in_run(run, **{"kohaku.rerank": value, "kohaku.top_k": "8"})
    index(home / "a" / "index", "a2024", "b2025")
    small_truth(home / "truth.csv")
    write_truth(home / "two.csv", ("q1", "41", ["a2024"]), ("q2", "52", ["b2025"]))
    return home


def run_page(home):
    return opened(Path(write_report(str(home / "a"), str(home / "truth.csv"))).read_text(encoding="utf-8"))


def compare_page(home):
    runs = [str(home / name) for name in "ab"]
    page = write_comparison(str(home / "two.csv"), runs, str(home / "compare.html"), "wattbot")
    return opened(Path(page).read_text(encoding="utf-8"))


def sweep_page(home):
    """A grid with every state, subsamples, and a table without scores."""
    sweep = small_sweep(6)
    sweep = replace(sweep, tables=tuple(sweep.tables[number] for number in (0, 3, 5)))
    return PACKED.sub("", page(sweep, compute_sweep_stats(sweep)))


def runs_page(home):
    """One that is finished and scored, one with errors, one that never ended."""
    run_page(home)  # keeps the score
    for name, changed in (("a", {}), ("b", {"n_member_errors": 1}), ("c", {"status": "running"})):
        file = home / name / "run.json"
        file.parent.mkdir(exist_ok=True)
        facts = json.loads((file if file.exists() else home / "a" / "run.json").read_text())
        facts |= {"n_questions": 4, **changed}
        file.write_text(json.dumps({**facts, "checksum": facts_checksum(facts)}))
        os.utime(file, (1.6e9, 1.6e9 + ord(name)))
    html = Path(write_runs(list_runs(str(home)))).read_text(encoding="utf-8")
    return re.sub(r"2020-09-1\d \d\d:\d\d", "2020-09-13 12:28", html)  # of this machine's time zone


def index_map(home):
    """What the drawing says: its texts, and how many marks of each colour it has."""
    svg = Path(write_index_map(str(home / "a" / "index"))).read_text(encoding="utf-8")
    said = re.findall(r"<text[^>]*>([^<]*)</text>|<(?:title|desc)[^>]*>([^<]*)<", svg)
    return "\n".join("".join(parts) for parts in said) + "\n"


@pytest.mark.parametrize("make", [run_page, compare_page, sweep_page, runs_page, index_map])
def test_a_page_is_the_golden_one(make, home):
    golden = GOLDEN / f"{make.__name__.removesuffix('_page')}.{'txt' if make is index_map else 'html'}"
    shown = without_drawings(make(home)).replace(str(home), "runs")
    if os.environ.get("GOLDEN"):
        golden.write_text(shown, encoding="utf-8")
    assert shown.splitlines() == golden.read_text(encoding="utf-8").splitlines()
