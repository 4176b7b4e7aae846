"""Systems: wrong names, modules, keys and models are answered with the way out before anything starts."""

from __future__ import annotations

import sys

import pytest
import yaml
from kit.rows import check_rows

from kohaku_ray.config import as_yaml, build_config, load_config
from kohaku_ray.errors import ConfigError
from kohaku_ray.extensions import installed
from kohaku_ray.systems.registry import find_system

OTHER = '''
from kohaku_ray.settings import Settings
from kohaku_ray.systems.base import Role, System, Uses

class OwnSettings(Settings):
    depth: int = 3
    """How deep."""
    needed: {needed}
    """Something."""

async def prepare(question, tools, settings): ...
async def answer(evidence, tools, settings): ...

SYSTEM = System(
    name="{name}", settings=OwnSettings, views={{}}, roles={{"judge": Role(template="a\\nb", max_tokens=5)}},
    uses=lambda settings: Uses(roles=("judge",)), prepare=prepare, {answer} metrics=("wattbot",),
)
'''


def forget_systems() -> None:
    find_system.cache_clear()
    installed.cache_clear()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package with a system, and with an entry point for it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules: list[str] = []

    def _install(
        name: str, code: str | None = None, answer: str = "answer=answer,", needed: str = "int = 1", point: str = ""
    ) -> str:
        module = f"{name}_module"
        modules.append(module)
        text = OTHER.format(name=name, answer=answer, needed=needed) if code is None else code
        (tmp_path / f"{module}.py").write_text(text)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[kohaku_ray.systems]\n{name} = {point or f'{module}:SYSTEM'}\n")
        forget_systems()
        return f"{module}:SYSTEM"

    yield _install
    forget_systems()
    for module in modules:
        sys.modules.pop(module, None)


def refused(*overrides: str, path: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    assert str(caught.value).startswith(path or "the defaults: ")
    return str(caught.value)


def test_an_unknown_system_is_guessed(install):
    assert "system kohako: no such system (did you mean kohaku?); systems: kohaku" in refused("system=kohako")
    install("nearby")
    assert "system nearbye: no such system (did you mean nearby?)" in refused("system=nearbye")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.at_all:SYSTEM", "cannot be loaded (ModuleNotFoundError: No module named 'nowhere'): install its"),
        ("[kohaku]", "system is ['kohaku']: name a system, such as kohaku, or module:SYSTEM"),
    ],
)
def test_what_is_no_system_is_said(name, message):
    assert message in refused(f"system={name}")


@pytest.mark.parametrize(
    ("answer", "message"),
    [("", "missing 1 required positional argument: 'answer'"), ("answer=None,", "has no function answer: give its")],
)
def test_a_system_without_answer_is_refused(install, answer, message):
    assert message in refused(f"system={install('half', answer=answer)}")


def test_a_system_may_not_be_called_like_a_section(install):
    assert "is called ensemble, a section that is there already: rename it" in refused(f"system={install('ensemble')}")


def test_a_key_of_another_system_is_said(install):
    install("other")
    message = refused("other.depth=3")
    assert "other are settings of another system, and system is kohaku: set system to other, or drop them" in message
    assert "kohaku are settings of another system, and system is other" in refused("system=other", "kohaku.top_k=3")
    config = load_config(None, ["system=other", "other.depth=7"])
    assert config.settings.depth == 7
    assert "other:\n  depth: 7\n" in as_yaml(config)
    assert build_config(yaml.safe_load(as_yaml(config)), "printed") == config


def test_a_key_that_a_setting_needs_is_said_with_all_else_that_is_wrong(install):
    install("needy", needed="int")
    message = refused("system=needy", "needy.depth=x", "seed=x")
    assert "needy.depth is 'x': input should be a valid integer" in message
    assert "needy.needed field required" in message
    assert load_config(None, ["system=needy", "needy.needed=3"]).settings.needed == 3
    assert "kohaku.top_k is 0" in (both := refused("kohaku.top_k=0", "seed=x"))
    assert "seed is 'x'" in both


RANKER = "deployments.ranker={kind: cross_encoder, model: m}"


@check_rows(
    ("overrides", "message"),
    [
        (
            ["roles.planner.model=extractive"],
            "roles has 'planner' but system kohaku has the roles plan, answer (did",
        ),
        (["roles.answer.model=big"], "roles.answer.model is 'big' but deployments has 'extractive': name one of them"),
        (["ensemble.models=[big]"], "ensemble.models is 'big' but deployments has 'extractive'"),
        (["kohaku.cross_encoder=big"], "kohaku.cross_encoder is 'big' but deployments has 'extractive'"),
        ([RANKER, "roles.answer.model=ranker"], "roles.answer.model is 'ranker', a deployment of kind cross_encoder"),
        (["kohaku.cross_encoder=extractive"], "kohaku.cross_encoder is 'extractive', a deployment of kind extractive"),
        (["roles.answer=big"], "roles.answer is 'big': a section is needed, with keys such as model"),
        (["roles.answer.modle=big"], "no key roles.answer.modle (did you mean roles.answer.model?)"),
    ],
)
def test_a_role_or_a_deployment_that_does_not_fit_is_said(overrides, message):
    assert message in refused(*overrides)
