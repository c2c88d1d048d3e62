"""Embedded servers that die under `headrace up` and `headrace audit up` come back, and nothing is
lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from headrace.embedded.ports import free_port
from headrace.postgres.connection import BROKEN
from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.oracle import stored
from headrace.testing.up import Up
from tests.support.audit_trail import bemi_variables

pytestmark = pytest.mark.slow

MORE_ROWS = 100


class Writer:
    """Commits rows one by one, even while the server is down, until the test says that this was
    enough.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._enough = asyncio.Event()
        # Counted here, to know that it continues; only PostgreSQL knows what was committed.
        self._acknowledged = 0
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._write())

    async def goes_on(self) -> None:
        """Wait until it has written further rows."""
        wanted = self._acknowledged + MORE_ROWS
        async with asyncio.timeout(60):
            while self._acknowledged < wanted:
                self._news.clear()
                await self._news.wait()

    async def ends(self) -> None:
        self._enough.set()
        async with asyncio.timeout(60):
            await self._task

    async def _write(self) -> None:
        while not self._enough.is_set():
            with contextlib.suppress(asyncpg.PostgresError, *BROKEN):
                connection = await asyncpg.connect(self._dsn)
                try:
                    while not self._enough.is_set():
                        await connection.execute("INSERT INTO orders DEFAULT VALUES")
                        self._acknowledged += 1
                        self._news.set()
                finally:
                    connection.terminate()
            await asyncio.sleep(0.05)

    async def committed(self) -> list[int]:
        connection = await asyncpg.connect(self._dsn)
        try:
            return [
                row["id"] for row in await connection.fetch("SELECT id FROM orders ORDER BY id")
            ]
        finally:
            await connection.close()


def pid_of(server: str, output: str) -> int:
    """Of the last table or line that names it."""
    found = re.findall(rf"^{server} +\S+ +(\d+) ", output, re.MULTILINE)
    assert found, output
    return int(found[-1])


def children(pid: int) -> dict[int, tuple[str, str]]:
    """Name and state of each child of a process."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                state, parent = rest.split()[:2]
                if int(parent) == pid:
                    found[int(entry.name)] = (name, state)
    return found


def child(pid: int, name: str) -> int:
    (found,) = [
        one for one, (called, state) in children(pid).items() if called == name and state != "Z"
    ]
    return found


async def inserted(nats_url: str, count: int) -> list[int]:
    """The ids of the stream, by a plain reader, once there are so many."""
    found: list[int] = []
    async with asyncio.timeout(90):
        while len(found) < count:
            with contextlib.suppress(OSError):
                events = [event.payload for event in await stored(nats_url)]
                found = [
                    e["data"]["id"]
                    for e in events
                    if e["table"] == "orders" and e["operation"] == "INSERT"
                ]
            await asyncio.sleep(0.2)
    return found


async def test_servers_of_up_that_are_killed_come_back_and_every_row_arrives_once(
    running: Up,
) -> None:
    dsn = re.search(r"psql '(postgresql://[^']+)'", running.output)
    url = re.search(r"nats --server (\S+)", running.output)
    assert dsn
    assert url
    connection = await asyncpg.connect(dsn[1])
    await connection.execute(
        "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)"
    )
    await connection.close()
    writer = Writer(dsn[1])
    await writer.goes_on()
    os.kill(child(running.process.pid, "nats-server"), signal.SIGKILL)
    await running.says(r"nats-server ended \(killed by SIGKILL\); starting it again")
    await running.says(r"nats-server listens on 127\.0\.0\.1:\d+ again")
    os.kill(child(running.process.pid, "postgres"), signal.SIGKILL)
    await running.says(r"PostgreSQL ended \(killed by SIGKILL\); starting it again")
    await running.says(r"PostgreSQL listens on 127\.0\.0\.1:\d+ again")
    await writer.goes_on()
    await writer.ends()
    assert not [name for name, state in children(running.process.pid).values() if state == "Z"]
    committed = await writer.committed()
    assert await inserted(url[1], len(committed)) == committed
    running.process.send_signal(signal.SIGINT)
    assert await running.ends() == 0, running.output
    assert running.survivors() == []


async def test_a_server_that_dies_three_times_within_a_minute_ends_up_with_its_log(
    running: Up,
) -> None:
    for death in range(1, 4):
        os.kill(child(running.process.pid, "nats-server"), signal.SIGKILL)
        if death < 3:
            await running.says(rf"(?s)(nats-server listens on \S+ again.*){{{death}}}")
    assert await running.ends() == 1, running.output
    last = running.output[running.output.index("headrace: nats-server ended 3 times") :]
    assert "killed by SIGKILL; its log ends\n" in last
    assert "Server is ready" in last
    assert ".headrace/nats/server.log" in last
    assert running.survivors() == []


async def test_the_nats_server_of_audit_up_that_is_killed_comes_back_and_the_trail_is_whole(
    database: Database, names: Names, tmp_path: Path
) -> None:
    await database.execute(
        "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)"
    )
    environment = {
        **bemi_variables(database, names),
        # Of a suite that is elsewhere: not this trail's.
        "HEADRACE_SLOT": names.slot,
        "SLOT_NAME": f"{names.slot}_trail",
    }
    async with Up(tmp_path, command=("audit", "up"), **environment) as up:
        await up.says("is written to")
        slots = await database.fetch(
            "SELECT slot_name FROM pg_replication_slots WHERE database = $1", database.name
        )
        assert [row["slot_name"] for row in slots] == [f"{names.slot}_trail"]
        writer = Writer(database.dsn)
        await writer.goes_on()
        os.kill(child(up.process.pid, "nats-server"), signal.SIGKILL)
        await up.says(r"nats-server ended \(killed by SIGKILL\); starting it again")
        await up.says(r"nats-server listens on 127\.0\.0\.1:\d+ again")
        await writer.goes_on()
        await writer.ends()
        rows = await database.fetchval("SELECT count(*) FROM orders")
        async with asyncio.timeout(90):
            while await database.fetchval("SELECT count(*) FROM changes") < rows:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.1)
        missing = await database.fetchval(
            "SELECT count(*) FROM orders FULL JOIN (SELECT after ->> 'id' AS id, count(*) AS n "
            "FROM changes "
            "WHERE \"table\" = 'orders' GROUP BY 1) c ON c.id = orders.id::text WHERE n IS "
            "DISTINCT FROM 1"
        )
        assert missing == 0
        up.process.send_signal(signal.SIGTERM)
        assert await up.ends() == 0, up.output


async def answers(port: int, status: int) -> str:
    """The text from HEALTH_PORT, once it answers with this status."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as http:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(f"http://127.0.0.1:{port}/health") as answer:
                    if answer.status == status:
                        return await answer.text()
            await asyncio.sleep(0.1)


async def test_health_fails_while_the_trail_stands_still_where_that_was_asked_for(
    database: Database, names: Names, tmp_path: Path
) -> None:
    environment = {
        **bemi_variables(database, names),
        "HEALTH_PORT": str(free_port()),
        "HEADRACE_AUDIT_HEALTH_READY": "true",
    }
    port = int(environment["HEALTH_PORT"])
    async with Up(tmp_path, command=("audit", "up"), **environment) as up:
        await up.says("is written to")
        assert await answers(port, 200) == "ok\n"
        (reader,) = [
            int(line.split()[0])
            for line in up.survivors()
            if line.endswith("headrace.cli wal-reader")
        ]
        # The first process that notices reports it.
        for pid, reason in ((reader, "wal-reader"), (child(up.process.pid, "nats-server"), ": ")):
            os.kill(pid, signal.SIGSTOP)
            assert reason in await answers(port, 503)
            os.kill(pid, signal.SIGCONT)
            assert await answers(port, 200) == "ok\n"
        up.process.send_signal(signal.SIGTERM)
        assert await up.ends() == 0, up.output
