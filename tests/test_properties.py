import re
from pathlib import Path

import pytest
from hypothesis import settings
from kit.properties import scaled

pytest_plugins = ["pytester"]

TESTS = Path(__file__).parent


def under(profile: str, n_examples: int) -> int:
    loaded = settings.get_current_profile_name()
    settings.load_profile(profile)
    try:
        return scaled(n_examples)
    finally:
        settings.load_profile(loaded)


@pytest.mark.parametrize("n_examples", [5, 25, 60, 400])
def test_the_quick_tier_tries_a_share_and_the_slow_one_more_than_a_test_asks_for(n_examples):
    quick, thorough = under("dev", n_examples), under("thorough", n_examples)
    assert min(n_examples, 10) <= quick <= n_examples < thorough
    assert under("ci", n_examples) == quick


def test_every_number_of_examples_follows_the_profile():
    fixed = [
        f"{path.relative_to(TESTS)}: {found}"
        for path in TESTS.rglob("*.py")
        for found in re.findall(r"max_examples=\d+", path.read_text(encoding="utf-8"))
        if path.name != "properties.py"
    ]
    assert not fixed, "write max_examples=scaled(N), with scaled from kit.properties"


def test_a_test_of_the_cluster_is_a_ray_test(pytester):
    pytester.makeconftest((TESTS / "conftest.py").read_text(encoding="utf-8"))
    pytester.syspathinsert(TESTS)
    pytester.makepyfile("def test_one(cluster): ...\ndef test_two(tmp_path): ...")
    result = pytester.runpytest_inprocess("--collect-only", "-q", "-m", "ray")
    result.stdout.fnmatch_lines(["*::test_one", "*1/2 tests collected (1 deselected)*"])
