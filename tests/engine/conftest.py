"""One actor pool per test session for runs on the sample's index, and their configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from kohaku_ray.config import Config, load_config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.models.summary import AnswerSummary


@pytest.fixture(scope="session")
def pool(cluster, sample_here) -> Iterator[object]:
    """Actors over the sample index: up for the whole session; its stand-in model is asked by the ledger's shards."""
    from kohaku_ray.engine.actors.pool import ActorPool
    from kohaku_ray.settings import resolve_paths

    config = resolve_paths(load_config("demo", [f"index.path={sample_here}"]))
    actors = ActorPool(config, n_workers=3)
    actors.wait_until_ready()
    yield actors
    actors.close()


@pytest.fixture(scope="session")
def run_answer(pool) -> Callable[..., AnswerSummary]:
    """Answer through the session's actors, whatever pool the caller names: a command names none."""
    from kohaku_ray.engine.jobs import answer

    ours = answer.run_answer
    return lambda config, **settings: ours(config, **settings | {"pool": pool})


@pytest.fixture
def keep_up(cluster) -> Iterator[Callable[[Mapping[str, Deployment]], object]]:
    """Keep the replicas of deployments up until the test ends: each of its jobs would start them again."""
    from kohaku_ray.engine.serving.applications import serving

    with ExitStack() as up:
        yield lambda deployments: up.enter_context(serving(deployments))


@pytest.fixture
def sample_config(sample_here, tmp_path: Path) -> Callable[..., Config]:
    """Make a configuration over the sample index, with its own run and ledger below ``tmp_path``."""

    def make(*overrides: str, name: str = "run") -> Config:
        defaults = [f"index.path={sample_here}", f"ledger.path={tmp_path}/ledger", f"run={tmp_path}/{name}"]
        return load_config("demo", [*defaults, *overrides])

    return make


@pytest.fixture
def small_config(tiny_encoder, tmp_path: Path) -> Callable[..., Config]:
    """Make a configuration with its index, ledger and run below ``tmp_path``, and one encoder that loads at once."""

    def make(preset: str, *overrides: str, run: str = "run") -> Config:
        defaults = [
            f"{name}={tmp_path}/{folder}" for name, folder in (("index.path", "index"), ("ledger.path", "ledger"))
        ]
        defaults += [f"run={tmp_path}/{run}", "index.encoders=1", f"index.encoder.model={tiny_encoder}"]
        defaults += ["cluster.retriever.replicas=1"]  # each takes a core seconds to start
        return load_config(preset, [*defaults, *overrides])

    return make
