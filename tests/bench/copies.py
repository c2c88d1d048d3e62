"""How fast a copy in PostgreSQL catches up, compared with PostgreSQL doing the same by hand.

The stream holds the backlog, and the suite is stopped, before the mirror starts; the archive holds
the same changes for `headrace replay`. The limit of runs of inserts is COPY of the same rows into
tables with the same indexes. The limit of mixed changes are the same changes as prepared statements
in a pipeline, a thousand changes a transaction, whose parameters are converted beforehand.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg
import nats
import psycopg

from headrace.consumer import Event, MemoryWatermarks, Subscription, follow
from headrace.embedded.process import tied
from headrace.mirror.mirror_state import lanes_of, seen_by
from headrace.mirror.postgres_values import text_of
from headrace.mirror.table import Table
from headrace.testing.mirror_process import MirrorProcess
from headrace.testing.seeded import seed, shape_of
from headrace.testing.suite import HEADRACE, Suite
from tests.bench.machine import Machine, cpu_s, rss_max_mib
from tests.bench.result import Figure

# Changes/s that a copy which is behind applies, and its share of the work by hand.
LEAST_PER_S = 100_000
LEAST_MIXED, LEAST_INSERTS = 0.5, 0.7
# One iteration of the mixture: three transactions.
CHANGES = 15
TIMEOUT_S = 540.0
GROUP = 1000
SERVICES = ("wal-reader", "publisher", "schema-publisher", "archiver")
_LOOK_S = 0.05
_CUSTOMERS, _ITEMS = 2000, 10_000
_TABLES = {
    "customers": "id int PRIMARY KEY, name text, balance numeric(12,2), payments int",
    "stock": "id int PRIMARY KEY, quantity int, sold bigint, changed timestamptz",
    "orders": "id bigint PRIMARY KEY, customer int, state text, total numeric(12,2), at timestamptz",
    "order_lines": "order_id bigint, line int, item int, quantity int, amount numeric(12,2), "
    "PRIMARY KEY (order_id, line)",
    "new_orders": "order_id bigint PRIMARY KEY, at timestamptz",
    "payments": "id bigint PRIMARY KEY, customer int, amount numeric(12,2), at timestamptz, note text",
}
_FIRST = f"""
INSERT INTO customers SELECT g, 'customer ' || g, 0, 0 FROM generate_series(0, {_CUSTOMERS - 1}) g;
INSERT INTO stock SELECT g, 100000, 0, now() FROM generate_series(0, {_ITEMS - 1}) g
"""
# New orders, payments and deliveries, each in a separate transaction.
_MIX = f"""
DO $$ BEGIN FOR g IN 1..{{rounds}} LOOP
    INSERT INTO orders VALUES (g, g * 7 % {_CUSTOMERS}, 'new', g * 1.25, clock_timestamp());
    INSERT INTO new_orders VALUES (g, clock_timestamp());
    INSERT INTO order_lines SELECT g, n, (g * 31 + n * 977) % {_ITEMS}, n, n * 2.5
        FROM generate_series(1, 4) n;
    UPDATE stock SET quantity = quantity - 1, sold = sold + 1, changed = clock_timestamp()
        WHERE id IN (SELECT (g * 31 + n * 977) % {_ITEMS} FROM generate_series(1, 4) n);
    COMMIT;
    UPDATE customers SET balance = balance - 10, payments = payments + 1 WHERE id = g * 13 % {_CUSTOMERS};
    INSERT INTO payments VALUES (g, g * 13 % {_CUSTOMERS}, 10, clock_timestamp(), 'payment number ' || g);
    COMMIT;
    DELETE FROM new_orders WHERE order_id = g - 50;
    UPDATE orders SET state = 'delivered' WHERE id = g - 50;
    UPDATE customers SET balance = balance + 12.5 WHERE id = g * 7 % {_CUSTOMERS};
    COMMIT;
END LOOP; END $$
"""
_INSERTS = """
DO $$ BEGIN FOR g IN 0..{rounds} LOOP
    INSERT INTO payments SELECT g * 100 + n, n, n * 1.25, clock_timestamp(), 'payment number ' || n
        FROM generate_series(0, 99) n; COMMIT;
END LOOP; END $$
"""


@dataclass(frozen=True, slots=True)
class CopyBacklog:
    """Changes that are in the stream `CDC` and in the archive, and of no suite that runs."""

    machine: Machine
    name: str
    tables: tuple[str, ...]
    environment: Mapping[str, str]
    archive: Path
    last_seq: int

    async def target(self, name: str) -> str:
        """The address of a new and empty database."""
        await self.machine.database.execute(f"CREATE DATABASE {name}")
        return self.machine.postgres.dsn(name)

    async def shapes(self) -> dict[str, Table]:
        """The tables, by name."""
        source: Any = self.machine.database
        return {name: await shape_of(source, "public", name) for name in self.tables}


async def measure(machine: Machine, rows: int, environment: dict[str, str]) -> list[Figure]:
    """A mixture, then inserts only, of about this many changes each."""
    found: list[Figure] = []
    for name, work in (("mixed", _MIX), ("inserts", _INSERTS)):
        rounds = rows // (CHANGES if name == "mixed" else 100)
        async with backlog(machine, name, work.format(rounds=rounds), environment) as made:
            found += await _figures(made)
    return found


@asynccontextmanager
async def backlog(
    machine: Machine, name: str, work: str, environment: Mapping[str, str]
) -> AsyncIterator[CopyBacklog]:
    """Let the suite publish and archive the work, and stop it."""
    database, slot = machine.database, f"bench_{name}"
    for table, columns in _TABLES.items():
        await database.execute(f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} ({columns})")
    await database.execute(f"CREATE PUBLICATION {slot} FOR TABLE {', '.join(_TABLES)}")
    folder = machine.folder / slot
    archive = folder / "archive"
    archive.mkdir(parents=True)
    more = {
        "HEADRACE_PUB": slot,
        "HEADRACE_ARCHIVE_URL": archive.as_uri(),
        "HEADRACE_ARCHIVE_FILE_AGE_MAX_S": "2",
        "HEADRACE_CDC_BYTES_MAX": str(1 << 31),
    }
    settings = machine.environment(slot, **more, **environment)
    async with Suite(settings, folder, SERVICES) as suite:
        for service in ("publisher", "archiver"):
            await suite.logged(service, "epoch_joined", 60)
        async with database.acquire() as session:
            # The work itself is not what is measured.
            await session.execute("SET synchronous_commit = off")
            await session.execute(_FIRST)
            await session.execute(work)
        await _confirmed(machine, slot)
        for service in SERVICES:
            await suite.stop(service)
    client = await nats.connect(machine.nats.url)
    last_seq = (await client.jetstream().stream_info("CDC")).state.last_seq
    yield CopyBacklog(machine, slot, tuple(_TABLES), settings, archive, last_seq)
    await client.jetstream().delete_stream("CDC")
    await client.close()
    await machine.drop_slot(slot)
    await database.execute(f"DROP PUBLICATION {slot}")


async def _confirmed(machine: Machine, slot: str) -> None:
    """Wait until stream and archive have everything that was committed."""
    database = machine.database
    end = await database.fetchval("SELECT pg_current_wal_lsn()")
    query = "SELECT confirmed_flush_lsn >= $2 FROM pg_replication_slots WHERE slot_name = $1"
    async with asyncio.timeout(TIMEOUT_S):
        while not await database.fetchval(query, slot, end):  # noqa: ASYNC110  # PostgreSQL gives no event for it
            await asyncio.sleep(_LOOK_S)


async def _figures(made: CopyBacklog) -> list[Figure]:
    mixed = made.name.endswith("mixed")
    if mixed:
        limit, cost = await by_hand(made)
        limit_name = "prepared statements in a pipeline"
    else:
        limit, cost = await copied(made)
        limit_name = "COPY of the same rows"
    least = LEAST_MIXED if mixed else LEAST_INSERTS
    title = "mixed changes" if mixed else "inserts"
    found = []
    for name, measured in (("mirror", await mirrored(made)), ("replay", await replayed(made))):
        ratio = measured.value / limit
        found.append(
            replace(
                measured,
                name=f"{name} behind, {title}",
                limit=limit,
                limit_name=limit_name,
                ratio=ratio,
                target=f"≥ {least:g} and {LEAST_PER_S:,}/s",
                cpu_us=measured.cpu_us | cost,
                met=ratio >= least and measured.value >= LEAST_PER_S,
            )
        )
    return found


async def mirrored(made: CopyBacklog) -> Figure:
    """A mirror that starts at the beginning of the stream, from its first commit to its last."""
    url = await made.target(f"{made.name}_mirror")
    source: Any = made.machine.database
    await seed(url, source, made.name, [("public", table) for table in made.tables])
    options = [word for table in made.tables for word in ("--table", table)]
    mirror = MirrorProcess(made.environment, made.machine.folder, made.name, url, *options)
    await mirror.start()
    connection = await asyncpg.connect(url)
    try:
        first = await _seen(connection, 1)
        pids = {
            "mirror": mirror.pid,
            "PostgreSQL": await connection.fetchval(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'headrace mirror'"
            ),
            "nats-server": made.machine.nats.pid,
        }
        before = {name: cpu_s(pid) for name, pid in pids.items()}
        began = time.monotonic()
        last = await _seen(connection, made.last_seq)
        seconds = time.monotonic() - began
        changes = last - first
        cpu = {name: (cpu_s(pid) - before[name]) / changes * 1e6 for name, pid in pids.items()}
        rss = {"mirror": rss_max_mib(mirror.pid)}
    finally:
        await connection.close()
        await mirror.kill()
    return Figure("", changes / seconds, "changes/s", cpu_us=cpu, rss_mib=rss)


async def _seen(connection: Any, stream_seq: int) -> int:
    """Wait until the mirror has committed everything up to this message; how far it is then."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            marks = dict(await connection.fetch("SELECT key, value FROM headrace_mirror.marks"))
            if (seen := seen_by(lanes_of(marks))) >= stream_seq:
                return seen
            await asyncio.sleep(_LOOK_S)


async def replayed(made: CopyBacklog) -> Figure:
    """`headrace replay --into`, from its start as a program to its end."""
    url = await made.target(f"{made.name}_replay")
    began, busy = time.monotonic(), _children_cpu_s()
    process = await asyncio.create_subprocess_exec(
        *tied([HEADRACE, "replay", "--into", url], signal.SIGKILL),
        env={**os.environ, **made.environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()[-3000:]
    seconds = time.monotonic() - began
    changes = made.last_seq
    cpu = {"replay": (_children_cpu_s() - busy) / changes * 1e6}
    return Figure("", changes / seconds, "changes/s", cpu_us=cpu)


def _children_cpu_s() -> float:
    """Of programs that ended."""
    times = os.times()
    return times.children_user + times.children_system


async def _changes(made: CopyBacklog) -> AsyncIterator[Event]:
    client = await nats.connect(made.machine.nats.url)
    seen = 0
    try:
        async with follow(client, Subscription(), MemoryWatermarks()) as consumer:
            while seen < made.last_seq:
                for event in await consumer.take():
                    seen = event.stream_seq
                    if event.operation in {"INSERT", "UPDATE", "DELETE"}:
                        yield event
    finally:
        await client.close()


@dataclass(slots=True)
class Effort:
    """Work by hand: from its first statement to its last."""

    connection: psycopg.AsyncConnection[Any]
    changes: int
    began: float = 0.0
    busy: tuple[float, float] = (0.0, 0.0)

    def begin(self) -> None:
        """Everything is converted and created."""
        self.began, self.busy = time.monotonic(), self._busy()

    def end(self) -> tuple[float, dict[str, float]]:
        """Changes per second, and the processor time for each."""
        seconds = time.monotonic() - self.began
        names = ("by hand", "by hand, PostgreSQL")
        spent = [now - before for now, before in zip(self._busy(), self.busy, strict=True)]
        cpu = {name: one / self.changes * 1e6 for name, one in zip(names, spent, strict=True)}
        return self.changes / seconds, cpu

    def _busy(self) -> tuple[float, float]:
        return time.process_time(), cpu_s(self.connection.info.backend_pid)


async def by_hand(made: CopyBacklog) -> tuple[float, dict[str, float]]:
    """Prepared statements in a pipeline."""
    url = await made.target(f"{made.name}_hand")
    shapes = await made.shapes()
    statements = [_statement(shapes[event.table], event) async for event in _changes(made)]
    async with await psycopg.AsyncConnection.connect(url) as connection:
        connection.prepare_threshold = 0
        await _create(connection)
        effort = Effort(connection, len(statements))
        effort.begin()
        for start in range(0, len(statements), GROUP):
            async with connection.pipeline(), connection.cursor() as cursor:
                for sql, values in statements[start : start + GROUP]:
                    await cursor.execute(sql, values)
                await connection.commit()
        return effort.end()


def _statement(table: Table, event: Event) -> tuple[bytes, list[str | None]]:
    row = event.data if event.operation != "DELETE" else {}
    where = event.old or {name: event.data[name] for name in table.primary_key}
    found = " AND ".join(f"{name} = %s::{table.type_of(name)}" for name in where)
    if event.operation == "INSERT":
        sql = f"INSERT INTO {table.name} VALUES ({', '.join(_marks(table, row))})"
        return sql.encode(), _texts(table, row)
    if event.operation == "DELETE":
        return f"DELETE FROM {table.name} WHERE {found}".encode(), _texts(table, where)
    pairs = zip(row, _marks(table, row), strict=True)
    sets = ", ".join(f"{name} = {mark}" for name, mark in pairs)
    sql = f"UPDATE {table.name} SET {sets} WHERE {found}"
    return sql.encode(), [*_texts(table, row), *_texts(table, where)]


def _marks(table: Table, row: Mapping[str, Any]) -> list[str]:
    return [f"%s::{table.type_of(name)}" for name in row]


def _texts(table: Table, row: Mapping[str, Any]) -> list[str | None]:
    return [
        None if value is None else text_of(table.type_of(name))(value)
        for name, value in row.items()
    ]


async def copied(made: CopyBacklog) -> tuple[float, dict[str, float]]:
    """COPY from a client, a thousand rows a transaction."""
    url = await made.target(f"{made.name}_hand")
    source = made.machine.database
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await _create(connection)
        rows: Sequence[Any] = await source.fetch(
            "SELECT format('%s	%s	%s	%s	%s', p.id, p.customer, p.amount, p.at, p.note) AS line FROM payments p ORDER BY id"
        )
        lines = [f"{row['line']}\n" for row in rows]
        effort = Effort(connection, len(lines))
        effort.begin()
        for start in range(0, len(lines), GROUP):
            async with (
                connection.cursor() as cursor,
                cursor.copy(b"COPY payments FROM STDIN") as copy,
            ):
                await copy.write("".join(lines[start : start + GROUP]))
            await connection.commit()
        return effort.end()


async def _create(connection: psycopg.AsyncConnection[Any]) -> None:
    """The tables with an index on their keys, as a mirror has them."""
    for table, columns in _TABLES.items():
        await connection.execute(f"CREATE TABLE {table} ({columns})".encode())
    await connection.commit()
