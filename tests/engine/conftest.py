"""The sample collection indexed once per test session, and one actor pool for its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kohaku_ray.config import Config, load_config
from kohaku_ray.run.record.summary import AnswerSummary


@pytest.fixture(scope="session")
def sample_index(cluster, tmp_path_factory) -> tuple[str, object]:
    """Path of the sample collection's index, and what the index job said of it."""
    from kohaku_ray.engine.jobs.index import run_index

    path = str(tmp_path_factory.mktemp("sample") / "index")
    return path, run_index(load_config("demo", [f"index.path={path}", "index.encoders=2"]))


@pytest.fixture(scope="session")
def pool(sample_index) -> Iterator[object]:
    """Actors over the sample index: up for the whole session; its stand-in model is asked by the ledger's shards."""
    from kohaku_ray.engine.actors.pool import ActorPool
    from kohaku_ray.settings import resolve_paths

    config = resolve_paths(load_config("demo", [f"index.path={sample_index[0]}"]))
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
def sample_config(sample_index, tmp_path: Path) -> Callable[..., Config]:
    """Make a configuration over the sample index, with its own run and ledger below ``tmp_path``."""

    def make(*overrides: str, name: str = "run") -> Config:
        defaults = [f"index.path={sample_index[0]}", f"ledger.path={tmp_path}/ledger", f"run={tmp_path}/{name}"]
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
