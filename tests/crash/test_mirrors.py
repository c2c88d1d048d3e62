"""Three mirrors bootstrap and follow while pgbench and a DDL script run, one of them killed again
and again.

The verifier, which compares with the source itself, is the oracle. Once in CI; HEADRACE_MIRROR_RUNS
(`./taskw test:mirrors`) sets how often, each time with other timing. The seed is printed,
HEADRACE_MIRROR_SEED repeats it.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.postgres_install import postgres_binaries
from headrace.testing.database import Database
from headrace.testing.mirror_process import MirrorProcess, different
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.seeded import WITH_SNAPSHOTS
from headrace.testing.suite import Suite

RUNS = int(os.environ.get("HEADRACE_MIRROR_RUNS", "1"))
LOAD_S = float(os.environ.get("HEADRACE_MIRROR_LOAD_S", "8"))
SETTINGS = {
    "HEADRACE_DEDUPE_WINDOW_S": "0.1",
    "HEADRACE_PROGRESS_INTERVAL_S": "0.2",
    "HEADRACE_STATUS_INTERVAL_S": "0.2",
    "HEADRACE_LEASE_TTL_S": "1",
    "HEADRACE_CATALOG_INTERVAL_S": "1",
    "HEADRACE_CHUNK_ROWS_MAX": "2000",
    # On a machine that does much else.
    "HEADRACE_SPARK_START_TIMEOUT_S": "300",
    "HEADRACE_SNAPSHOT_RANGE_BYTES": str(1024 * 1024),
}
PREPARE = """
-- A busy machine copies a fifth of it often enough; the writers' updates of the rest find no row.
DELETE FROM pgbench_accounts WHERE aid > 20000;
CREATE TABLE notes (id bigint PRIMARY KEY, body text, n int, at timestamptz DEFAULT now(), doc jsonb);
ALTER TABLE notes ALTER body SET STORAGE EXTERNAL;
CREATE TABLE pairs (a int, b text, n int, PRIMARY KEY (a, b));
CREATE TABLE keyless (a int, b numeric, c text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE SCHEMA app;
CREATE TABLE app.tags (id int PRIMARY KEY, name varchar(20));
CREATE PUBLICATION headrace FOR ALL TABLES;
"""

ALWAYS_THERE = ("notes", "pairs", "keyless", "tags", "accounts", "branches", "history", "tellers")
BOOTSTRAP_S = 300.0
DELIVERIES = ("event", "transaction", "batch")

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@dataclass
class World:
    source: Database
    target: Database
    environment: dict[str, str]
    suite: Suite
    folder: Path


@pytest.mark.timeout(700 + 300 * RUNS)
async def test_three_mirrors_are_equal_to_their_source_after_load_ddl_and_kills(
    own_postgres: OwnPostgres, own_nats: OwnNats, database: Database, tmp_path: Path
) -> None:
    seed = int(os.environ.get("HEADRACE_MIRROR_SEED") or time.time_ns() % 1_000_000)
    postgres, nats = await own_postgres(), await own_nats()
    source = Database(postgres, "postgres")
    await _pgbench(postgres, "-i", "-q", "-s", "1")
    await source.execute(PREPARE)
    environment = {**SETTINGS, **postgres.environment(), "PG_DB": "postgres", "NATS_URL": nats.url}
    try:
        async with Suite(environment, tmp_path, WITH_SNAPSHOTS) as suite:
            for service in WITH_SNAPSHOTS[:2]:
                await suite.logged(service, "event=", timeout_s=60)
            world = World(source, database, environment, suite, tmp_path)
            for number in range(RUNS):
                began, delivery = time.monotonic(), DELIVERIES[number % len(DELIVERIES)]
                if number:
                    assert await suite.stop("publisher") == 0
                    await suite.start("publisher", HEADRACE_DELIVERY=delivery)
                print(
                    (
                        f"mirrors: {number + 1} of {RUNS}, {delivery}, "
                        f"HEADRACE_MIRROR_SEED={seed + number}"
                    ),
                    flush=True,
                )
                rows = await _run(world, random.Random(seed + number), number)
                print(f"  equal: {rows} rows in {time.monotonic() - began:.0f} s", flush=True)
    finally:
        await source.close()


async def _run(world: World, chance: random.Random, number: int) -> dict[str, int]:
    folder = world.folder / f"run{number}"
    folder.mkdir()
    await world.target.execute(
        "DO $$ DECLARE s text; BEGIN FOR s IN SELECT nspname FROM pg_namespace WHERE nspname IN "
        "('public', 'app', 'headrace_mirror') LOOP EXECUTE format('DROP SCHEMA %I CASCADE', s); "
        "END LOOP; END $$;"
        "CREATE SCHEMA public"
    )
    mirrors = [
        MirrorProcess(world.environment, folder, "sqlite", f"sqlite:///{folder}/one.db"),
        MirrorProcess(world.environment, folder, "postgres", world.target.dsn),
        MirrorProcess(world.environment, folder, "killed", f"sqlite:///{folder}/killed.db"),
    ]
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        work = [
            tasks.create_task(
                _pgbench(world.source.server, "-n", "-c", "4", "-T", str(int(LOAD_S)), "-R", "150")
            ),
            tasks.create_task(_ddl(world.source.dsn, chance, number, stop)),
            tasks.create_task(_killed(mirrors[2], chance, stop)),
        ]
        await asyncio.sleep(chance.random() * LOAD_S / 3)
        await mirrors[0].start()
        await asyncio.sleep(chance.random() * LOAD_S / 4)
        await mirrors[1].start()
        await work[0]
        stop.set()
    try:
        for mirror in mirrors:
            await _bootstrapped(mirror, world.suite)
        return await _all_equal(mirrors)
    finally:
        for mirror in mirrors:
            if mirror.runs:
                assert await mirror.stop() == 0


async def _bootstrapped(mirror: MirrorProcess, suite: Suite) -> None:
    """Every table has been there once; which one has not, and what was said of it, if one stands
    still.
    """
    try:
        async with asyncio.timeout(BOOTSTRAP_S):
            while missing := [
                name
                for name in ALWAYS_THERE
                if not re.search(rf"bootstrap_done .*{name}\b", mirror.log)
            ]:
                assert mirror.runs, mirror.log[-4000:]
                await asyncio.sleep(0.2)
    except TimeoutError:
        # Tables are found by what the schema-publisher keeps, and copied by the snapshot-responder.
        services = "\n\n".join(
            suite.log(name)[-4000:] for name in ("schema-publisher", "snapshot-responder")
        )
        logs = f"{mirror.log[-4000:]}\n\n{services}"
        raise AssertionError(f"{mirror.to} has no {missing}:\n{logs}") from None


async def _all_equal(mirrors: Sequence[MirrorProcess]) -> dict[str, int]:
    answers = await asyncio.gather(
        *(mirror.verified("--wait", "300", timeout_s=600) for mirror in mirrors)
    )
    for mirror, (code, verdicts) in zip(mirrors, answers, strict=True):
        assert (code, different(verdicts)) == (0, []), mirror.log[-6000:]
        assert "row_missing" not in mirror.log
        assert len(verdicts) >= len(ALWAYS_THERE)
    return {verdict["table"]: verdict["rows"] for verdict in answers[0][1]}


async def _pgbench(postgres: EmbeddedPostgres, *arguments: str) -> None:
    """PostgreSQL's own TPC-B, from the same binaries."""
    process = await asyncio.create_subprocess_exec(
        str(postgres_binaries(18, None) / "pgbench"),
        *arguments,
        postgres.dsn(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-2000:]


async def _killed(mirror: MirrorProcess, chance: random.Random, stop: asyncio.Event) -> None:
    """SIGKILL in a loop, at any moment of its life; in the end it is let live."""
    await mirror.start()
    while not stop.is_set():
        await asyncio.sleep(chance.choice([0.3, 1, 2, 4]) * (0.5 + chance.random()))
        assert mirror.runs, mirror.log[-4000:]
        await mirror.kill()
        await mirror.start()


async def _ddl(dsn: str, chance: random.Random, number: int, stop: asyncio.Event) -> None:
    """Rows and shapes of some tables, changed together."""
    connection = await asyncpg.connect(dsn)
    script = Script(connection, chance, await _next_id(connection), number)
    try:
        while not stop.is_set():
            await script.step()
            await asyncio.sleep(chance.random() / 2)
    finally:
        await connection.close()


async def _next_id(connection: Any) -> int:
    return int(await connection.fetchval("SELECT coalesce(max(id), 0) + 1 FROM notes"))


class Script:
    """One change of rows or shapes after the other."""

    def __init__(self, connection: Any, chance: random.Random, first: int, number: int) -> None:
        self._do = connection.execute
        self._ask = connection.fetchval
        self._chance = chance
        self._id = first
        # Over all runs no name and no key is used twice.
        self._names = self._moved = number * 1000

    async def step(self) -> None:
        await self._chance.choices(
            [
                self._rows,
                self._moves,
                self._keyless,
                self._truncate,
                self._column,
                self._table,
                self._rewrite,
            ],
            [10, 4, 4, 1, 3, 1, 1],
        )[0]()

    async def _rows(self) -> None:
        first, self._id = self._id, self._id + 50
        await self._do(
            "INSERT INTO notes (id, body, n, doc) SELECT g, CASE g % 3 WHEN 0 THEN repeat('x' || "
            "g, 2000) "
            "WHEN 1 THEN '' END, g % 10, jsonb_build_object('g', g, 'list', ARRAY[g, NULL]) "
            "FROM generate_series($1::int8, $2::int8) g",
            first,
            first + 49,
        )
        # Large values that do not change are not sent.
        await self._do(
            "UPDATE notes SET n = n + 1 WHERE id % 7 = $1 AND id > $2", self._id % 7, first - 300
        )
        await self._do("DELETE FROM notes WHERE id % 11 = $1", self._id % 11)

    async def _moves(self) -> None:
        await self._do(
            "INSERT INTO pairs SELECT g, 'k' || g, 0 FROM generate_series(1, 20) g "
            "ON CONFLICT (a, b) DO UPDATE SET n = pairs.n + 1"
        )
        self._moved += 1
        await self._do(
            "UPDATE pairs SET a = a + 100 * $1::int, b = b || '''' WHERE a < 10", self._moved
        )
        await self._do("DELETE FROM pairs WHERE a > 100 AND random() < 0.3")

    async def _keyless(self) -> None:
        await self._do(
            "INSERT INTO keyless SELECT g % 3, 1.50, CASE WHEN g % 2 = 0 THEN 'same' END FROM "
            "generate_series(1, 9) g"
        )
        row = "(SELECT ctid FROM keyless ORDER BY random() LIMIT 1)"
        await self._do(f"UPDATE keyless SET b = b + 0.25 WHERE ctid = {row}")
        await self._do(f"DELETE FROM keyless WHERE ctid = {row}")

    async def _truncate(self) -> None:
        await self._do(
            self._chance.choice(
                ["TRUNCATE pairs, keyless", "TRUNCATE notes", "TRUNCATE app.tags, pairs"]
            )
        )

    async def _column(self) -> None:
        self._names += 1
        name = f"c{self._names}"
        last = await self._ask(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'app.tags'::regclass AND attnum > 2 "
            "AND NOT attisdropped ORDER BY random() LIMIT 1"
        )
        choices = [f"ADD COLUMN {name} text", f"ADD COLUMN {name} int DEFAULT 7"]
        if last:
            choices += [f"DROP COLUMN {last}", f"RENAME COLUMN {last} TO {name}"]
            choices += [f"ALTER COLUMN {last} TYPE text USING {last}::text || '!'"]
        await self._do(f"ALTER TABLE app.tags {self._chance.choice(choices)}")
        await self._do(
            "INSERT INTO app.tags (id, name) SELECT g, 'tag ' || g FROM generate_series($1::int, "
            "$2::int) g "
            "ON CONFLICT (id) DO UPDATE SET name = excluded.name || '+'",
            1,
            self._chance.randint(1, 30),
        )

    async def _table(self) -> None:
        """A table that is created, renamed, dropped, and created again."""
        there = await self._ask(
            "SELECT relname FROM pg_class WHERE relname IN ('visitor', 'guest') AND relkind = 'r'"
        )
        if there is None:
            await self._do("CREATE TABLE visitor (id int PRIMARY KEY, n int)")
            await self._do("INSERT INTO visitor SELECT g, g FROM generate_series(1, 50) g")
        elif there == "visitor" and self._chance.random() < 0.5:
            await self._do("ALTER TABLE visitor RENAME TO guest")
            await self._do("UPDATE guest SET n = n + 1 WHERE id % 2 = 0")
        else:
            await self._do(f"DROP TABLE {there}")

    async def _rewrite(self) -> None:
        await self._do("ALTER TABLE notes ALTER COLUMN n TYPE bigint USING n + 1")
        await self._do("ALTER TABLE notes ALTER COLUMN n TYPE int USING n - 1")
