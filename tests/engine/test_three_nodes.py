"""Three nodes and a head without CPUs on this machine: nodes die, come or run out of room, outputs stay the same.

The short form is an index and a run whose nodes die; the long one has sweeps, a node that is waited for, full stores.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit import own_ray
from kit.answers import COMPARED
from three_nodes import ANSWER_VICTIMS, INDEX_VICTIMS, N_MOMENTS, N_QUESTIONS, NODE, PARTS, SHORT, SWEEP_VICTIMS

HERE = Path(__file__).parent

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def done(request, tiny_encoder, tmp_path_factory):
    """What each part found, and the directory of their outputs; parts after one that failed are missing."""
    home = tmp_path_factory.mktemp("nodes")
    mine = [item for item in request.session.items if item.module is request.module]
    parts = PARTS if any(item.get_closest_marker("long") for item in mine) else SHORT
    path = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / "three_nodes.py"), str(home), tiny_encoder, *parts]
    with (home / "found.jsonl").open("w") as output:
        ended = subprocess.run(
            command,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=3600,
            check=False,
            env=own_ray.environment(PYTHONPATH=path),
        )
    figures = {}
    for line in (home / "found.jsonl").read_text().splitlines():
        if line.startswith('{"'):
            figures |= json.loads(line)
    assert ended.returncode == 0, f"after {list(figures)}: {ended.stderr[-4000:]}"
    assert set(figures) == set(parts)
    return figures, home


def files_of(home: Path) -> dict[str, bytes]:
    """Read a directory's files; in an index's, builds are named by place, the checksum over their names is left out."""
    manifest = home / "manifest.json"
    text = manifest.read_text() if manifest.exists() else ""
    builds = list(dict.fromkeys(re.findall(r'[-"]([0-9a-f]{12})[".]', text)))

    def plain(name: bytes) -> bytes:
        for number, build in enumerate(builds):
            name = name.replace(build.encode(), b"BUILD%d" % number)
        return re.sub(rb'^ "checksum": "\w+",$', b"", name, flags=re.MULTILINE)

    return {
        plain(str(file.relative_to(home)).encode()).decode(): plain(file.read_bytes())
        for file in home.rglob("*")
        if file.is_file()
    }


def check_equal(directory: Path, other: Path) -> None:
    """Check that two directories hold the same files, byte by byte."""
    files, others = files_of(directory), files_of(other)
    assert sorted(files) == sorted(others)
    assert files
    assert [name for name in sorted(files) if files[name] != others[name]] == []


def check_sweeps_equal(whole: Path, other: Path) -> None:
    """Check that two sweeps of four runs have the same outputs and tables, byte by byte."""
    runs = sorted(run.name for run in (whole / "runs").iterdir())
    assert len(runs) == 4
    assert runs == sorted(run.name for run in (other / "runs").iterdir())
    for run in runs:
        for file in COMPARED:
            assert (whole / "runs" / run / file).read_bytes() == (other / "runs" / run / file).read_bytes(), (run, file)
    check_equal(whole / "output" / "tables", other / "output" / "tables")


def check_repeated(figures: dict) -> None:
    """Check that no call is made again whose reply was on disk when a node died."""
    assert figures["repeated"] <= figures["exposed"]


@pytest.mark.long
def test_a_sweep_on_three_nodes_that_die_equals_one_on_one_node(done):
    figures, home = done
    killed = figures["sweep_killed"]
    assert killed["killed"] == list(SWEEP_VICTIMS)
    assert killed["distinct"] == figures["sweep"]["distinct"] > 0
    assert figures["sweep"]["repeated"] == 0
    check_repeated(killed)
    whole, other = home / "sweep-one", home / "sweep-killed"
    check_sweeps_equal(whole, other)
    pages = [(sweep / "output" / "sweep.html").read_text() for sweep in (whole, other)]
    spending = re.compile(r'<section id="spending".*?</section>', re.DOTALL)
    assert [len(spending.findall(page)) for page in pages] == [1, 1]
    # Each sweep has a ledger of its own: the settings that the command adds differ, and so does their digest.
    kept = [re.sub(r"demo, [0-9a-f]{16}", "demo", spending.sub("", page)) for page in pages]
    assert kept[0] == kept[1]


def test_nodes_die_at_four_moments_of_a_run_and_those_that_come_are_used(done):
    figures, home = done
    killed = figures["answer"]
    assert killed["killed"] == list(ANSWER_VICTIMS)
    assert killed["distinct"] == killed["calls"] == N_QUESTIONS * 4
    check_repeated(killed)
    assert killed["added_at_work"] > 0
    for name in COMPARED:
        assert (home / "whole" / name).read_bytes() == (home / "killed" / name).read_bytes(), name


@pytest.mark.long
def test_a_driver_killed_at_twenty_moments_of_its_start_ends_with_the_same_bytes(done):
    figures, home = done
    killed = figures["start_killed"]
    assert killed["killed"] == ["driver"] * N_MOMENTS
    assert killed["distinct"] == figures["answer"]["calls"]
    check_repeated(killed)
    for name in COMPARED:
        assert (home / "whole" / name).read_bytes() == (home / "started" / name).read_bytes(), name


@pytest.mark.long
def test_a_race_killed_at_twenty_moments_ends_with_the_same_bytes(done):
    figures, home = done
    killed = figures["race_killed"]
    assert killed["killed"] == ["driver"] * N_MOMENTS
    assert killed["distinct"] == figures["race"]["distinct"] > 0
    check_repeated(killed)
    whole, other = home / "race-one", home / "race-killed"
    check_sweeps_equal(whole, other)


@pytest.mark.long
def test_a_node_that_is_added_to_a_waiting_run_is_used(done):
    figures, home = done
    assert "Retriever" in figures["added"]["at_work"]
    assert figures["added"]["repeated"] == 0
    for name in COMPARED:
        assert (home / "whole" / name).read_bytes() == (home / "added" / name).read_bytes(), name


def test_nodes_die_while_texts_are_encoded_and_while_the_index_is_reduced(done):
    figures, home = done
    assert figures["index_killed"]["killed"] == [[victim] for victim in INDEX_VICTIMS]
    for number in range(len(INDEX_VICTIMS)):
        check_equal(home / "index", home / f"index{number}")


@pytest.mark.long
def test_an_index_whose_objects_are_spilled_is_the_same(done):
    figures, home = done
    assert figures["spilled"]["bytes"] > 0
    assert min(figures["spilled"]["filled"]) > 0.9 * NODE["object_store_memory"]
    check_equal(home / "roomy", home / "tight")


def test_a_head_without_cpus_holds_no_work(done):
    figures, _ = done
    # The voter stands beside the driver, which is on the head here; the others take no CPU. Filler is this test's own.
    ours = {"Applications", "Voter", "Filler"}
    of_ray = {"ServeController", "ActorLocationTracker", "_AutoscalingCoordinatorActor", "_StatsActor"}
    assert set(figures["head"]["actors"]) <= ours | of_ray
    assert figures["head"]["tasks"], "what runs where was recorded"
    assert {name.partition(".")[0] for name in figures["head"]["tasks"]} <= ours | of_ray
