"""TLS in front of a server that was built without it: every connection is forwarded."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

from headrace.embedded.ports import LOOPBACK


@contextlib.asynccontextmanager
async def tls_tunnel(port: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    """Forward to a port on loopback; yields the port with TLS."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        answers, server = await asyncio.open_connection(LOOPBACK, port)
        try:
            await asyncio.gather(_pump(reader, server), _pump(answers, writer))
        finally:
            tasks.discard(task)
            writer.transport.abort()
            server.transport.abort()

    listener = await asyncio.start_server(accept, LOOPBACK, 0, ssl=context)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()
