"""Valkey has every change once, as rows and as streams despite kills.

The hashes are compared with SQL of the source, the streams with PostgreSQL's record of its commits.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from valkey.asyncio import Valkey

from headrace.lsn import Position
from headrace.testing.oracle import Change
from headrace.testing.valkey import ValkeyServer
from tests.support.sink_kills import POINTS, SinkLine

VALKEY_POINTS = (*POINTS, "sink.half_written", "sink.half_committed")


def plan(valkey: ValkeyServer, form: str) -> dict[str, Any]:
    return {
        "name": "shop",
        "to": f"valkey://127.0.0.1:{valkey.port}",
        "options": {"form": form},
    }


def connected(valkey: ValkeyServer) -> Any:
    """A client. Its methods are typed for the blocking client too."""
    return Valkey(port=valkey.port, socket_timeout=60, socket_connect_timeout=60)


async def changes(client: Any) -> list[Change]:
    """The changes of rows in the stream of all tables."""
    found = []
    for _, fields in await client.xrange("{shop}:changes"):
        payload = json.loads(fields[b"value"])
        if payload["operation"] != "SCHEMA":
            position = Position(payload["tx"]["lsn"], payload["tx"]["seq"])
            found.append(Change(position, payload["operation"], payload["table"]))
    return found


# In one script, because the sink writes meanwhile: every member of the set has its hash.
ROWS = """
local found = {}
for _, member in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  found[#found + 1] = redis.call('HMGET', KEYS[1] .. ':' .. member, 'id', 'n', 'note')
end
return found
"""


async def rows(client: Any) -> set[tuple[str, ...]]:
    """The rows of the table orders."""
    found = await client.eval(ROWS, 1, "{shop}:public.orders")
    return {tuple(one.decode() for one in row) for row in found}


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_a_stream_has_every_change_once_after_kills(
    line: SinkLine, own_valkey: ValkeyServer
) -> None:
    streams = {**plan(own_valkey, "streams"), "destination": "changes"}
    async with connected(own_valkey) as client:

        async def count() -> int:
            return len(await changes(client))

        committed = await line.delivered_after_kills(streams, VALKEY_POINTS, count)
        assert await changes(client) == committed


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_rows_are_the_sources_after_kills_of_sink_and_server(
    line: SinkLine, own_valkey: ValkeyServer
) -> None:
    state = plan(own_valkey, "state")
    await line.database.execute(
        "INSERT INTO orders SELECT g, 0, 'n' FROM generate_series(1, 900) g"
    )
    async with line.sink({**state, "events_max": 20}) as process:
        for round_ in range(4):
            await own_valkey.kill()
            await line.database.execute(
                f"UPDATE orders SET n = n + 1; DELETE FROM orders WHERE id % 31 = {round_}"
            )
            await own_valkey.start()
            async with connected(own_valkey) as client, asyncio.timeout(60):
                before = await client.hget("{shop}:headrace", "position")
                await line.database.execute("UPDATE orders SET n = n + 1 WHERE id < 500")
                while await client.hget("{shop}:headrace", "position") == before:  # noqa: ASYNC110  # another process
                    await asyncio.sleep(0.02)
        assert process.returncode is None, line.output()
    await line.killed_while_writing(state, VALKEY_POINTS)
    found = await line.database.fetch("SELECT id::text, n::text, note FROM orders")
    wanted = {tuple(row) for row in found}
    async with line.sink(state), connected(own_valkey) as client:
        async with asyncio.timeout(120):
            while await rows(client) != wanted:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.2)
        keys = [key async for key in client.scan_iter("{shop}:public.orders:*")]
        assert len(keys) == len(wanted)
