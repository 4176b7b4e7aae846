"""``MemberTools`` over an index in this process: views by name, errors, what the members of a question share."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from kit.rows import check_rows

from kohaku_ray.answering.tools import MemberTools, RunContext
from kohaku_ray.config import Config, load_config
from kohaku_ray.config.roles import models_of
from kohaku_ray.errors import ConfigError
from kohaku_ray.models.prompts import Prompt
from kohaku_ray.models.target import Target


class Noting:
    """An index that notes what it is asked, and gives back what was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []

    def __getattr__(self, name):
        async def call(items, *params):
            self.asked.append((name, list(items), params))
            return [
                np.full(3, position, np.float32) if name in ("embed", "vectors") else position
                for position, _ in enumerate(items)
            ]

        return call


def tools_of(settings=None, **more) -> tuple[MemberTools, Noting]:
    config = Config.model_validate({"settings": {"queries": 1, "top_k_final": None} | (settings or {}), **more})
    models = (models_of(config, dict.fromkeys(config.deployments, Target("application")), 0),)
    targets = {name: Target(f"{name}-application") for name in config.deployments}
    index = Noting()
    context = RunContext(config, None, models, config.declaration.prompts(), targets)
    return MemberTools(index, context, "q1", 0), index


async def test_a_view_is_searched_by_its_kinds():
    tools, index = tools_of()
    vectors = np.eye(3, dtype=np.float32)[:2]
    await tools.search("nodes", vectors, 7)
    await tools.search("nodes", vectors, 7, within=["b", "a"])
    await tools.lexical("paragraphs", ["one", "two"], 4, within=[])
    nodes = ("sentence", "paragraph")
    assert [(name, len(items), params) for name, items, params in index.asked] == [
        ("search", 2, (nodes, 7, None)),
        ("search", 2, (nodes, 7, ("b", "a"))),
        ("lexical", 2, (("paragraph",), 4, ())),
    ]
    for _, _, params in index.asked:
        hash(params)


def test_an_unknown_view_is_named_with_those_there_are():
    tools, _ = tools_of()
    with pytest.raises(ConfigError, match=r"no view 'chunks': system declares nodes, paragraphs"):
        asyncio.run(tools.search("chunks", np.eye(3, dtype=np.float32), 7))


def test_a_role_that_uses_leaves_out_is_named():
    tools, _ = tools_of()
    with pytest.raises(ConfigError, match=r"system kohaku asks role 'plan' but uses\(\) says that it asks answer"):
        asyncio.run(tools.chat(Prompt("", "?", {}), role="plan"))
    assert tools.limits("answer").max_tokens == 1024


def test_pairs_are_ranked_by_the_named_cross_encoder_or_refused():
    tools, index = tools_of()
    with pytest.raises(ConfigError, match="system kohaku ranks pairs but its settings name no cross-encoder"):
        asyncio.run(tools.rank_pairs([("a", "b")]))
    tools, index = tools_of({"cross_encoder": "pairs"}, deployments={"pairs": {"kind": "cross_encoder", "model": "x"}})
    scores = asyncio.run(tools.rank_pairs([("a", "b"), ("a", "c")]))
    assert (scores.tolist(), scores.dtype) == ([0, 1], np.float64)
    assert index.asked == [("rank_pairs", [("a", "b"), ("a", "c")], (Target("pairs-application"),))]


def test_rows_of_any_integer_type_are_one_question():
    tools, index = tools_of()
    vectors = asyncio.run(tools.vectors(np.array([4, 2], np.int32)))
    assert vectors.shape == (2, 3)
    asyncio.run(tools.nodes([np.int64(4), 2], 512))
    asyncio.run(tools.nodes((4, np.int32(2)), 512))
    assert index.asked == [("vectors", [4, 2], ()), *[("nodes", [(4, 2)], (512, tools.context.tokenizers))] * 2]


@pytest.mark.parametrize("name", ["embed", "vectors"])
def test_nothing_asked_is_nothing_found(name):
    tools, _ = tools_of()
    assert len(asyncio.run(getattr(tools, name)([]))) == 0


@pytest.fixture
def members():
    """Make the tools of members of one question; ``changed`` are fields of the last member's models."""
    config = load_config("demo", ["ensemble.members=3"])

    def make(**changed):
        models = [models_of(config, {"extractive": Target("app")}, member) for member in range(3)]
        models[1] = {role: replace(model, temperature=0.123) for role, model in models[1].items()}
        models[2] = {role: replace(model, **changed) for role, model in models[2].items()}
        context, shared = SimpleNamespace(models=models), {}
        return [MemberTools(None, context, "q", member, shared=shared) for member in range(3)]

    return make


def made_by(tools, keys=("key",)):
    made = []

    async def make_at(key):
        made.append(key)
        await asyncio.sleep(0)
        return object()

    async def run():
        return await asyncio.gather(
            *(tool.shared_by_members(key, lambda key=key: make_at(key)) for key in keys for tool in tools)
        )

    return asyncio.run(run()), made


def test_members_that_differ_in_temperature_alone_share_it(members):
    results, made = made_by(members())
    assert len(set(map(id, results))) == 1
    assert made == ["key"]


@check_rows(
    "changed", [{"window_tokens": 9}, {"max_tokens": 9}, {"identity": "x"}, {"tokenizer": "t"}, {"revision": "r"}]
)
def test_a_member_of_another_model_or_window_makes_its_own(members, changed):
    results, made = made_by(members(**changed))
    assert results[0] is results[1] is not results[2]
    assert len(made) == 2


def test_each_key_is_made_once(members):
    _, made = made_by(members(), ("one", "two", "one"))
    assert made == ["one", "two"]


async def test_an_error_reaches_every_member(members):
    async def fail():
        await asyncio.sleep(0)
        raise ValueError("no context")

    asked = (member.shared_by_members("key", fail) for member in members())
    assert [str(error) for error in await asyncio.gather(*asked, return_exceptions=True)] == ["no context"] * 3
