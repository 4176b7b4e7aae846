"""What a replica that Ray Serve runs does besides answering: it tells the ledger, and listens on this machine alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import ray

from kohaku_ray.engine import NAMESPACE
from kohaku_ray.models.replica import CallOutcome


async def tell_shard(shard: str, outcomes: Mapping[str, CallOutcome]) -> None:
    """Send outcomes to the actor of a ledger's shard: a call outlasts its siblings by minutes, in batches by hours."""
    actor = await asyncio.to_thread(ray.get_actor, shard, NAMESPACE)
    await actor.record_early.remote(outcomes)


def listen_on_loopback() -> None:
    """Let the replica that starts in this process take calls by gRPC, which it unpickles, from this machine alone.

    Ray 2.60 binds that port to all interfaces, also where its other servers are on 127.0.0.1, and asks for no token. It
    serves nobody unless Serve is told to call by gRPC: handles call actors.
    """
    from ray._common.tls_utils import add_port_to_grpc_server
    from ray.serve._private import constants, replica

    if not (constants.RAY_SERVE_USE_GRPC_BY_DEFAULT or constants.RAY_SERVE_PROXY_USE_GRPC):
        replica.add_port_to_grpc_server = lambda server, _: add_port_to_grpc_server(server, "127.0.0.1:0")
