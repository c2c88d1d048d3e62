"""Connections to RabbitMQ's streams leave no socket open."""

from __future__ import annotations

import asyncio

import pytest
from rstream.client import Addr

from headrace.sinks import rabbitmq_publishers
from headrace.sinks.rabbitmq_publishers import _Client, _Pool


async def test_a_login_that_the_server_ends_leaves_no_socket_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected: list[asyncio.StreamWriter | None] = []

    class Watched(_Client):
        async def start(self) -> None:
            await super().start()
            assert self._conn is not None
            connected.append(self._conn._writer)

        async def authenticate(self, *_: str) -> dict[str, str]:
            # The server ends the connection before it answers.
            async with asyncio.timeout(20):
                while self.is_connection_alive():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            raise ConnectionError

    async def end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    monkeypatch.setattr(rabbitmq_publishers, "_Client", Watched)
    server = await asyncio.start_server(end, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    pool = _Pool(
        *(host, port),
        vhost="/",
        username="guest",
        password="wrong",
        frame_max=1024,
        heartbeat=60,
        load_balancer_mode=False,
        max_retries=1,
    )
    with pytest.raises(ConnectionError):
        await pool.get("sink", Addr(host, port), lambda _: None)
    (writer,) = connected
    assert writer is not None
    assert writer.is_closing()
    server.close()
    await server.wait_closed()
