"""The replica that hosts a cross-encoder; its clients are in ``handles``, which imports no Serve."""

from __future__ import annotations

import asyncio

import numpy as np
from ray import serve

from kohaku_ray.config.deployments import CrossEncoderConfig
from kohaku_ray.documents.lean_imports import without_sklearn
from kohaku_ray.errors import ModelError
from kohaku_ray.index.identity import model_directory

BATCH_WAIT_S = 0.005
"""Seconds to wait for further calls to share a batch."""


class PairReplica:
    """Hosts one cross-encoder of sentence-transformers."""

    def __init__(self, deployment: CrossEncoderConfig) -> None:
        with without_sklearn():
            from sentence_transformers import CrossEncoder

        self._model = CrossEncoder(
            str(model_directory(deployment.model, deployment.revision)),
            max_length=deployment.max_tokens,
            device="cuda" if deployment.gpus else "cpu",
            trust_remote_code=deployment.trust_remote_code,
            model_kwargs={"dtype": deployment.precision or "auto"},
        )
        self._batch_pairs = deployment.batch_pairs

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=BATCH_WAIT_S)
    async def rank(self, calls: list[list[tuple[str, str]]]) -> list[list[float]]:
        """Score the pairs of several calls together; the library sorts them by length.

        In a thread, so that the replica goes on taking calls and answering health checks; Serve makes one batch at a
        time.
        """
        pairs = [pair for call in calls for pair in call]
        try:
            scores = await asyncio.to_thread(
                self._model.predict, pairs, batch_size=self._batch_pairs, show_progress_bar=False
            )
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"the cross-encoder broke on {len(pairs)} pairs: {error}") from error
        ends = np.cumsum([len(call) for call in calls])[:-1]
        return [part.tolist() for part in np.split(np.asarray(scores, np.float64).reshape(len(pairs)), ends)]
