"""Route calls to vLLM replicas: Ray Serve's consistent hashing, with the load of every replica bounded."""

from __future__ import annotations

import sys
from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from kohaku_ray.models.placement import BOUND


class QuestionRouter(ConsistentHashRouter):
    """Sends all calls of a session, which is a question, to one replica (see ``Placement``).

    A call waits for its question's replica, however busy or slow to respond: another would prefill the context again.
    Only a replica that dies loses its questions.
    """

    def initialize_state(self, bound: float = BOUND, **kwargs: Any) -> None:
        """Read the deployment's ``request_router_kwargs``; ``bound`` is that of ``Placement``."""
        # Imported here: Serve ships this class by value, with module variables of its own.
        from kohaku_ray.models.placement import placement_of

        # The placement needs the whole ring's order.
        super().initialize_state(num_fallback_replicas=sys.maxsize - 1, **kwargs)
        self._placement = placement_of(self._deployment_id.app_name, bound)
        self._calls: dict[str, str] = {}

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Offer a call only to its question's replica."""
        ranks: list[list[Any]] = await super().choose_replicas(candidate_replicas, pending_request)
        session = pending_request.metadata.session_id if pending_request is not None else None
        if not session or not ranks:
            return ranks
        order = {replica.replica_id: replica for [replica] in ranks}
        return [[order[self._placement.choose_replica(session, list(order), order)]]]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Record the start of a call."""
        session = pending_request.metadata.session_id
        if session:
            self._calls[pending_request.metadata.internal_request_id] = session
            self._placement.began(session)

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """Record the end of a call."""
        session = self._calls.pop(internal_request_id, None)
        if session is not None:
            self._placement.ended(session)
