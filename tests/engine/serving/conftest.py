"""One cross-encoder behind Serve for all tests of the room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit import tiny_cross_encoder

from kohaku_ray.models.target import Target


@pytest.fixture(scope="session")
def ranker(tiny_encoder, tmp_path_factory) -> str:
    """Path of a tiny cross-encoder."""
    return tiny_cross_encoder.build(tmp_path_factory.mktemp("cross_encoder"), tiny_encoder)


@pytest.fixture(scope="session")
def pairs_deployment(ranker) -> dict:
    return {"kind": "cross_encoder", "model": ranker, "max_tokens": 128, "start_tries": 1}


@pytest.fixture(scope="session")
def pairs_application(cluster, pairs_deployment) -> Iterator[Target]:
    """Its running application: jobs that use the deployment join it."""
    from kohaku_ray.engine.serving.applications import serving
    from kohaku_ray.models.cross_encoder import CrossEncoderConfig

    with serving({"pairs": CrossEncoderConfig(**pairs_deployment)}) as names:
        yield names["pairs"]
