"""``EngineTools`` over an index in this process: views by name, and errors that name what a declaration lacks."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from kohaku_ray.config import Config
from kohaku_ray.engine.actors.tools import EngineTools, RunContext
from kohaku_ray.errors import ConfigError
from kohaku_ray.models.prompts import Prompt
from kohaku_ray.run.models import models_of


class Noting:
    """An index that notes what it is asked, and gives back what was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []

    def __getattr__(self, name):
        async def call(items, *params):
            self.asked.append((name, list(items), params))
            return [np.full(3, at, np.float32) if name in ("embed", "vectors") else at for at, _ in enumerate(items)]

        return call


def tools_of(settings=None, **more) -> tuple[EngineTools, Noting]:
    config = Config.model_validate({"settings": {"queries": 1, "top_k_final": None} | (settings or {}), **more})
    models = (models_of(config, dict.fromkeys(config.deployments, "application"), 0),)
    applications = {name: f"{name}-application" for name in config.deployments}
    index = Noting()
    context = RunContext(config, None, models, config.declaration.prompts(), applications)
    return EngineTools(index, context, "q1", 0), index


def test_a_view_is_searched_by_its_kinds():
    tools, index = tools_of()
    vectors = np.eye(3, dtype=np.float32)[:2]

    async def ask():
        await tools.search("nodes", vectors, 7)
        await tools.search("nodes", vectors, 7, within=["b", "a"])
        await tools.lexical("paragraphs", ["one", "two"], 4, within=[])

    asyncio.run(ask())
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
    assert index.asked == [("rank_pairs", [("a", "b"), ("a", "c")], ("pairs-application",))]


def test_rows_of_any_integer_type_are_one_question():
    tools, index = tools_of()
    found = asyncio.run(tools.vectors(np.array([4, 2], np.int32)))
    assert found.shape == (2, 3)
    asyncio.run(tools.nodes([np.int64(4), 2], 512))
    asyncio.run(tools.nodes((4, np.int32(2)), 512))
    assert index.asked == [("vectors", [4, 2], ()), *[("nodes", [(4, 2)], (512, tools.context.tokenizers))] * 2]


@pytest.mark.parametrize("name", ["embed", "vectors"])
def test_nothing_asked_is_nothing_found(name):
    tools, _ = tools_of()
    assert len(asyncio.run(getattr(tools, name)([]))) == 0
