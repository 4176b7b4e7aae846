"""Route calls to replicas: to the least loaded one, or all of a question to one, with every replica's load bounded."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
from ray.serve.request_router import FIFOMixin, RequestRouter


class LeastLoadedRouter(FIFOMixin, RequestRouter):
    """Sends a call to the replica with the fewest requests of this process, which count from the choice on.

    A block's calls come in a burst. Serve's power of two choices takes many of them by the same counts, which rise only
    when a call is sent: replicas then differed by a round of calls at a run's end, while the others were idle
    (`benchmarks/flow.py`: busy 0.86 to 0.96 by chance, simulated 0.97 without).
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Start without calls."""
        super().initialize_state(**kwargs)
        self._loads: Counter[Any] = Counter()
        self._calls: dict[str, tuple[Any, int]] = {}  # replica and requests of each call that is placed

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Offer a call to the least loaded replica alone."""
        if not candidate_replicas:
            return []
        fewest = min(self._loads[replica.replica_id] for replica in candidate_replicas)
        # By chance: the shards of a ledger, which do not know of each other, must not all begin with the first.
        ties = [replica for replica in candidate_replicas if self._loads[replica.replica_id] == fewest]
        chosen = random.choice(ties)  # noqa: S311
        if pending_request is not None:
            # Where all replicas are full: without a pause Serve would offer it again and again, and do nothing else.
            pending_request.routing_context.should_backoff = True
            self._place(pending_request, chosen.replica_id)
        return [[chosen]]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Count a call where it went: Serve may give it the replica that was chosen for another."""
        self._place(pending_request, replica_id)

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """Count a call no longer."""
        replica, n_requests = self._calls.pop(internal_request_id, (None, 0))
        self._loads[replica] -= n_requests

    def _place(self, pending_request: Any, replica_id: Any) -> None:
        internal_id = pending_request.metadata.internal_request_id
        self.on_request_completed(None, internal_id)
        given = pending_request.args[0] if pending_request.args else None
        n_requests = len(given) if isinstance(given, (list, tuple)) else 1
        self._calls[internal_id] = replica_id, n_requests
        self._loads[replica_id] += n_requests


class QuestionRouter(ConsistentHashRouter):
    """Sends all calls of a session, which is a question, to one replica (see ``Placement``).

    A call waits for its question's replica, however busy or slow to respond: another would prefill the context again.
    Only a replica that dies loses its questions.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Start with the questions that this process has placed."""
        # Imported here: Serve ships this class by value, with module variables of its own.
        from kohaku_ray.models.placement import placement_of

        super().initialize_state(**kwargs)
        self._placement = placement_of(self._deployment_id.app_name)
        self._calls: dict[str, str] = {}

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Offer a call only to its question's replica; the ring is asked for a question's first call alone."""
        session = pending_request.metadata.session_id if pending_request is not None else None
        if session and (placed := self._placement.placed(session, self.curr_replicas)) is not None:
            pending_request.routing_context.should_backoff = True  # as Ray's own does
            return [[self.curr_replicas[placed]]]
        ranks: list[list[Any]] = await super().choose_replicas(candidate_replicas, pending_request)
        if not session or not ranks:
            return ranks
        order = [replica.replica_id for [replica] in ranks]
        return [[self.curr_replicas[self._placement.choose_replica(session, order, self.curr_replicas)]]]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Record the start of a call."""
        session = pending_request.metadata.session_id
        if session:
            self._calls[pending_request.metadata.internal_request_id] = session
            self._placement.begin_call(session)

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """Record the end of a call."""
        session = self._calls.pop(internal_request_id, None)
        if session is not None:
            self._placement.end_call(session)
