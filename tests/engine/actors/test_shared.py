"""What the members of a question share, and what they do not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kohaku_ray.config import load_config
from kohaku_ray.engine.actors.tools import EngineTools
from kohaku_ray.run.models import models_of


@pytest.fixture
def tools():
    """Make the tools of members of one question; ``changed`` are fields of the last member's models."""
    config = load_config("demo", ["ensemble.members=3"])

    def make(**changed):
        models = [models_of(config, {"extractive": "app"}, member) for member in range(3)]
        models[1] = {role: replace(model, temperature=0.123) for role, model in models[1].items()}
        models[2] = {role: replace(model, **changed) for role, model in models[2].items()}
        context, shared = SimpleNamespace(models=models), {}
        return [EngineTools(None, context, "q", member, shared=shared) for member in range(3)]

    return make


def made_by(members, keys=("key",)):
    made = []

    async def make_at(key):
        made.append(key)
        await asyncio.sleep(0)
        return object()

    async def run():
        return await asyncio.gather(*(one.once(key, lambda key=key: make_at(key)) for key in keys for one in members))

    return asyncio.run(run()), made


def test_members_that_differ_in_temperature_alone_share_it(tools):
    found, made = made_by(tools())
    assert len(set(map(id, found))) == 1
    assert made == ["key"]


@pytest.mark.parametrize(
    "changed", [{"window_tokens": 9}, {"max_tokens": 9}, {"identity": "x"}, {"tokenizer": "t"}, {"revision": "r"}]
)
def test_a_member_of_another_model_or_window_makes_its_own(tools, changed):
    found, made = made_by(tools(**changed))
    assert found[0] is found[1] is not found[2]
    assert len(made) == 2


def test_each_key_is_made_once(tools):
    _, made = made_by(tools(), ("one", "two", "one"))
    assert made == ["one", "two"]


def test_an_error_reaches_every_member(tools):
    async def fail():
        await asyncio.sleep(0)
        raise ValueError("no context")

    async def run():
        return await asyncio.gather(*(one.once("key", fail) for one in tools()), return_exceptions=True)

    assert [str(one) for one in asyncio.run(run())] == ["no context"] * 3
