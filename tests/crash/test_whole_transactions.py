"""In transaction mode no reader sees part of a transaction, whenever it looks and however often the
publisher dies.

One reader asks for the last message without a pause, the other follows by transactions with the
library. (A consumer is given messages one by one, and a fetch may end between two of them while the
server stores a group; the rest is then in the server already, and needs no publisher.)
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import asyncpg
import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from headrace.consumer import MemoryWatermarks, Subscription, Transactions, follow
from headrace.contract import events
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.lsn import Position
from headrace.testing.line import SETTINGS
from headrace.testing.oracle import Change, Oracle, stored
from headrace.testing.plugin import OwnNats
from headrace.testing.suite import Suite
from tests.support.own_source import OwnSource

KILLS = 12
SETTLED_S = 60.0


async def write(postgres: EmbeddedPostgres, enough: asyncio.Event, seed: int) -> int:
    """Transactions of 2 to 200 rows over both tables; how many."""
    chance = random.Random(seed)
    connection: Any = await asyncpg.connect(postgres.dsn())
    made = row = 0
    try:
        while not enough.is_set():
            rows = chance.choice([2, 2, 3, 10, 50, 200])
            async with connection.transaction():
                for table in ("orders", "items"):
                    await connection.execute(
                        (
                            f"INSERT INTO {table} SELECT g, 'note ' || g FROM "
                            "generate_series($1::bigint, $2::bigint) g"
                        ),
                        row,
                        row + rows // 2 - 1,
                    )
                if chance.random() < 0.3:
                    await connection.execute("UPDATE orders SET note = 'again' WHERE id = $1", row)
                if chance.random() < 0.2:
                    await connection.execute("DELETE FROM items WHERE id = $1", row)
            made += 1
            row += rows // 2
            await asyncio.sleep(chance.random() / 50)
    finally:
        await connection.close()
    return made


@dataclass
class Reader:
    """Looks at the stream as often as it can; all that it finds must be whole.

    By reading messages, as any reader does: the sequence that the server's stream info names while
    it stores a batch is ahead of what it lets anybody read.
    """

    client: Client
    looks: int = 0
    # Of each transaction that was given out, its events' positions; and how often following began
    # again.
    given: list[list[Position]] = field(default_factory=list)
    lives: int = 0

    async def last_messages(self, done: asyncio.Event) -> None:
        """The stream's last message, by the leader and by a direct get: it is always the end of a
        transaction.
        """
        js = self.client.jetstream()
        while not done.is_set():
            for direct in (False, True):
                with contextlib.suppress(NotFoundError):
                    message = await js.get_last_msg("CDC", "cdc.>", direct=direct)
                    assert is_an_end(events.decode(message.data or b"")), (direct, message.seq)
                    self.looks += 1

    async def follow(self, done: asyncio.Event) -> None:
        """Whole transactions, by the library; every now and then from its watermark on, like one
        that was killed.
        """
        marks, chance = MemoryWatermarks(), random.Random(3)
        while not done.is_set():
            self.lives += 1
            async with follow(self.client, Subscription(), marks) as consumer:
                reader = Transactions(consumer)
                for _ in range(chance.randint(1, 40)):
                    # Now and then it dies with a transaction in hand that it has not applied.
                    if (
                        transaction := await reader.next(0.05)
                    ) is not None and chance.random() < 0.95:
                        assert transaction.ends
                        self.given.append(
                            [event.position for event in transaction.events if event.advances]
                        )
                        await reader.done(transaction)
                    elif transaction is not None:
                        break

    def judge(self, committed: list[Change]) -> None:
        """The events equal the committed changes, transaction by transaction."""
        by_transaction = [
            list(group)
            for _, group in groupby((one.position for one in committed), lambda at: at.lsn)
        ]
        given = [transaction for transaction in self.given if transaction]
        assert given == by_transaction[: len(given)]
        assert len(given) > KILLS


def is_an_end(payload: events.Payload) -> bool:
    return bool(payload["tx"]["last"]) or payload["tx"]["xid"] == 0


async def ends_whole(url: str) -> None:
    """With nobody publishing, the stream ends where a transaction ends: everything that a reader has started to see is stored."""
    client = await nats.connect(url)
    try:
        with contextlib.suppress(NotFoundError):
            message = await client.jetstream().get_last_msg("CDC", "cdc.>")
            assert is_an_end(events.decode(message.data or b"")), message.seq
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def reading(url: str) -> AsyncIterator[Reader]:
    """A reader at work for as long as the block lasts; what it found wrong is raised at its end."""
    client = await nats.connect(url)
    done = asyncio.Event()
    reader = Reader(client)
    tasks = [
        asyncio.create_task(work) for work in (reader.last_messages(done), reader.follow(done))
    ]
    try:
        yield reader
        done.set()
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()


@pytest.mark.slow
async def test_no_reader_ever_sees_part_of_a_transaction_while_the_publisher_is_killed_in_a_loop(
    own_source: OwnSource, own_nats: OwnNats, tmp_path: Path
) -> None:
    database = await own_source(
        "CREATE TABLE orders (id bigint PRIMARY KEY, note text); CREATE TABLE items (id bigint "
        "PRIMARY KEY, note text);"
        "CREATE PUBLICATION headrace FOR ALL TABLES"
    )
    server = await own_nats()
    oracle = await Oracle.begun(database)
    chance = random.Random(7)
    environment = {
        **SETTINGS,
        **database.environment(server.url),
    }
    settings = {**environment, "HEADRACE_DELIVERY": "transaction", "HEADRACE_LEASE_TTL_S": "0.5"}
    async with Suite(settings, tmp_path) as suite, contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        await suite.logged("publisher", "epoch_joined")
        async with reading(server.url) as reader:
            enough = asyncio.Event()
            writer = asyncio.create_task(write(database.server, enough, seed=1))
            for number in range(KILLS):
                await asyncio.sleep(chance.uniform(0.3, 1.0))
                await suite.kill("publisher")
                await ends_whole(server.url)
                await suite.start("publisher", **_failpoint(chance))
                # One that only stands by for the lease is not worth a kill.
                await joined(suite, number + 2)
            await suite.kill("publisher")
            await suite.start("publisher")
            enough.set()
            transactions = await writer
            committed = await oracle.changes()
            await settled(server.url, len(committed))
            async with asyncio.timeout(SETTLED_S):
                while reader.lives <= KILLS:  # noqa: ASYNC110  # a slow machine's reader began less often
                    await asyncio.sleep(0.05)
        assert reader.looks > KILLS
        reader.judge(committed)
    found = [event for event in await stored(server.url) if event.payload["operation"] != "SCHEMA"]
    assert [event.change for event in found] == committed
    assert len({event.change.position.lsn for event in found}) == transactions


async def joined(suite: Suite, times: int) -> None:
    async with asyncio.timeout(SETTLED_S):
        while suite.log("publisher").count("epoch_joined") < times:  # noqa: ASYNC110  # a file gives no event
            await asyncio.sleep(0.02)


def _failpoint(chance: random.Random) -> dict[str, str]:
    """Half of the publishers die inside a group, if they are not killed first."""
    if chance.random() < 0.5:
        return {}
    return {"HEADRACE_FAILPOINT": f"publisher.inside_atomic:{chance.randint(1, 60)}"}


async def settled(url: str, rows: int) -> None:
    client = await nats.connect(url)
    try:
        async with asyncio.timeout(SETTLED_S):
            while True:
                info = await client.jetstream().stream_info("CDC", subjects_filter="cdc.>")
                subjects = info.state.subjects or {}
                if (
                    sum(
                        count
                        for subject, count in subjects.items()
                        if not subject.endswith(".schema")
                    )
                    >= rows
                ):
                    return
                await asyncio.sleep(0.1)
    finally:
        await client.close()


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ["inside_atomic:1", "inside_atomic:29", "inside_atomic:49"])
async def test_a_group_whose_publisher_died_inside_it_leaves_nothing_visible(
    own_source: OwnSource, own_nats: OwnNats, tmp_path: Path, failpoint: str
) -> None:
    database = await own_source(
        "CREATE TABLE orders (id bigint PRIMARY KEY, note text); CREATE PUBLICATION headrace FOR "
        "ALL TABLES"
    )
    server = await own_nats()
    environment = {
        **SETTINGS,
        **database.environment(server.url),
    }
    settings = {**environment, "HEADRACE_DELIVERY": "transaction"}
    async with (
        Suite(settings, tmp_path, services=("wal-reader",)) as suite,
        contextlib.AsyncExitStack() as stack,
    ):
        stack.push_async_callback(database.close)
        await suite.start("publisher", HEADRACE_FAILPOINT=f"publisher.{failpoint}")
        await suite.logged("publisher", "epoch_joined")
        # 99 rows and their schema event; large enough that much of it has left the process when it
        # dies.
        await database.execute(
            "INSERT INTO orders SELECT g, repeat('x', 60000) FROM generate_series(1, 99) g"
        )
        assert await suite.exit_code("publisher", 20) == -9
        assert [event for event in await stored(server.url) if event.payload["tx"]["xid"]] == []
        await suite.start("publisher")
        await settled(server.url, 99)
        rows = [
            event for event in await stored(server.url) if event.payload["operation"] != "SCHEMA"
        ]
        assert [event.payload["data"]["id"] for event in rows] == list(range(1, 100))
        assert [event.change.position.seq for event in rows] == list(range(99))
