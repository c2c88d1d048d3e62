"""A connection to NATS that is reset while something is being said is one that was lost, and
nothing worse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import urlparse

import pytest
import uvloop

from headrace.embedded.nats import EmbeddedNats
from headrace.jetstream.connection import _Transport, connect_once
from headrace.settings import NatsSettings
from headrace.testing.plugin import OwnNats


async def _reset(url: str) -> _Transport:
    transport = _Transport()
    await transport.connect(urlparse(url), buffer_size=65_536, connect_timeout=5)
    assert transport._io_writer is not None
    transport._io_writer.transport.abort()
    await asyncio.sleep(0.01)
    return transport


@pytest.mark.parametrize(
    "say", [lambda to: to.write(b"PING\r\n"), lambda to: to.writelines([b"PING\r\n"])]
)
async def test_a_word_on_a_connection_that_was_just_reset_is_an_error_that_is_reconnected_after(
    own_nats: OwnNats, say: Callable[[_Transport], None]
) -> None:
    server = await own_nats()

    async def once() -> None:
        transport = await _reset(server.url)
        # uvloop, which services run on, would say RuntimeError: nats-py would no longer reconnect.
        with pytest.raises(ConnectionResetError):
            say(transport)

    await asyncio.to_thread(uvloop.run, once())


async def test_a_client_whose_connection_is_reset_again_and_again_comes_back_each_time(
    own_nats: OwnNats,
) -> None:
    server = await own_nats()
    await asyncio.to_thread(uvloop.run, _come_back(server))


async def _come_back(server: EmbeddedNats) -> None:
    client = await connect_once(NatsSettings(url=server.url, reconnect_wait_s=0.01), "test")
    for _ in range(20):
        transport = client._transport
        assert isinstance(transport, _Transport)
        assert transport._io_writer is not None
        transport._io_writer.transport.abort()
        async with asyncio.timeout(30):
            while True:
                try:
                    async with asyncio.timeout(0.2):
                        await client.flush()
                    break
                except Exception:  # noqa: BLE001  # no matter how the connection fails, it must come back
                    await asyncio.sleep(0.01)
    assert client.is_connected
    await client.close()
