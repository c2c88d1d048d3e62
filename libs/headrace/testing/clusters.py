"""Three nats-servers with JetStream as one cluster, and the leaders of its streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import nats
from nats.errors import Error as NatsError

from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.ports import free_port
from headrace.testing.servers import SessionServers

LEADER_S = 60


@contextlib.asynccontextmanager
async def nats_cluster(session_servers: SessionServers) -> AsyncIterator[list[EmbeddedNats]]:
    """The servers `n0`, `n1` and `n2`, for as long as the block runs."""
    routes = [free_port() for _ in range(3)]
    clients = [free_port() for _ in range(3)]
    servers = [
        session_servers.new_nats(
            port=client,
            config={
                "server_name": f"n{number}",
                "cluster": {
                    "name": "C",
                    "host": "127.0.0.1",
                    "port": route,
                    "routes": [f"nats://127.0.0.1:{other}" for other in routes if other != route],
                },
            },
        )
        for number, (route, client) in enumerate(zip(routes, clients, strict=True))
    ]
    await asyncio.gather(*(server.start() for server in servers))
    try:
        yield servers
    finally:
        for server in servers:
            session_servers.discard(server)


async def leader_of(servers: list[EmbeddedNats], stream: str) -> EmbeddedNats:
    """The server that leads the stream; waits for an election."""
    client = await nats.connect([server.url for server in servers])
    try:
        async with asyncio.timeout(LEADER_S):
            while True:
                with contextlib.suppress(NatsError, TimeoutError):
                    info = await client.jetstream(timeout=1).stream_info(stream)
                    if info.cluster is not None and info.cluster.leader:
                        return servers[int(info.cluster.leader[1:])]
                await asyncio.sleep(0.2)
    finally:
        await client.close()
