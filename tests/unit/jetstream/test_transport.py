"""The transport below nats-py's client."""

from __future__ import annotations

import asyncio
from urllib.parse import urlparse

import pytest

from headrace.jetstream.connection import _Transport


async def test_a_cancelled_wait_for_the_end_of_a_connection_cancels_no_other_wait() -> None:
    ended = asyncio.Event()

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = _Transport()
    await transport.connect(urlparse(f"nats://127.0.0.1:{port}"), 1024, 5)
    one = asyncio.create_task(transport.wait_closed())
    another = asyncio.create_task(transport.wait_closed())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    transport.close()  # type: ignore[no-untyped-call]  # nats-py's
    await asyncio.wait_for(another, 10)
    ended.set()
    server.close()
