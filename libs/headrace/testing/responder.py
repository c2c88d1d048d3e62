"""A snapshot-responder for tests, and a consumer that requests snapshots and checks them.

Promises that a snapshot which `Consumer` returns is complete: every chunk once, no chunk after the
last, one LSN, as many rows as its meta message counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import msgpack
import nats
import nats.errors
import psycopg
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import chunk_subject, snapshot_request_subject, table_token
from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import SUPERUSER, EmbeddedPostgres
from headrace.settings import PostgresSettings
from headrace.testing.names import Names
from headrace.testing.servers import SessionServers

PUBLICATION = "pub_snapshots"
RESULT_TIMEOUT_S = 240.0
READY_TIMEOUT_S = 30.0


@dataclass
class Responder:
    """A database, a nats-server and a responder, shared by many tests: a JVM starts slowly."""

    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    database: str
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        return self.postgres.dsn(self.database)

    def settings(self) -> PostgresSettings:
        return PostgresSettings("127.0.0.1", self.postgres.port, self.database, SUPERUSER)

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "PG_HOST": "127.0.0.1",
            "PG_PORT": str(self.postgres.port),
            "PG_DB": self.database,
            "POSTGRES_BRIDGE_USER": SUPERUSER,
            "NATS_URL": self.nats.url,
            "HEADRACE_PUB": PUBLICATION,
            "HEADRACE_SLOT": "snapshots",
            "HEADRACE_HTTP_PORT": "0",
            "HEADRACE_LOG_LEVEL": "debug",
            "HEADRACE_SNAPSHOT_RANGE_BYTES": str(256 * 1024),
            "HEADRACE_SNAPSHOT_SLOT_WAIT_S": "2",
            "HEADRACE_SNAPSHOT_ACK_WAIT_S": "2",
            "HEADRACE_LEASE_TTL_S": "1",
            # As a manifest leaves it that names no server.
            "SPARK_REMOTE": "",
        }

    def start(self) -> None:
        with self.log.open("ab") as log:
            command: list[str | Path] = [
                Path(sys.executable).with_name("headrace"),
                "snapshot-responder",
            ]
            self.process = subprocess.Popen(command, env=self.environment(), stdout=log, stderr=log)

    def wait_until_ready(self) -> None:
        """Wait until it answers: a request that arrives before its subscription is stored, and gets
        no reply.
        """
        self.wait_until(b"event=ready")

    def wait_until(self, said: bytes) -> None:
        """Wait for these words in the log of all its processes."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while said not in self.log.read_bytes():
            assert time.monotonic() < deadline, self.log.read_text()[-2000:]
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(20) == 0, self.log.read_text()[-2000:]


@contextlib.contextmanager
def running_responder(session_servers: SessionServers, folder: Path) -> Iterator[Responder]:
    """A responder on the shared PostgreSQL, with an empty publication."""
    postgres, server = session_servers.shared_postgres(18), session_servers.new_nats()
    server.start_blocking()
    database = Names.new().other("snapshots")
    with psycopg.connect(postgres.dsn(), autocommit=True) as administration:
        administration.execute(f'CREATE DATABASE "{database}" TEMPLATE template0')
        made = Responder(postgres, server, database, folder / "responder.log")
        with psycopg.connect(made.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE PUBLICATION {PUBLICATION}")
        made.start()
        try:
            made.wait_until_ready()
            yield made
            made.stop()
        finally:
            if made.process is not None and made.process.poll() is None:
                made.process.kill()
                made.process.wait()
            session_servers.discard(server)
            administration.execute(f'DROP DATABASE "{database}" WITH (FORCE)')


@dataclass
class Snapshot:
    meta: dict[str, Any]
    chunks: list[dict[str, Any]]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for chunk in self.chunks for row in chunk["data"]]


class SnapshotFailedError(Exception):
    """The responder published an error; its body is the first argument."""


@dataclass
class Consumer:
    """A consumer: requests a snapshot, waits for the meta or error message, reads the chunks."""

    responder: Responder
    client: Client
    sql: Any
    results: asyncio.Queue[tuple[str, dict[str, Any]]] = field(default_factory=asyncio.Queue)

    async def ask(self, token: str, options: object = None, timeout: float = 20) -> dict[str, Any]:
        payload = b"" if options is None else msgpack.packb(options)
        deadline = time.monotonic() + timeout
        while True:
            try:
                answer = await self.client.request(
                    snapshot_request_subject(token), payload, timeout=5
                )
                body: dict[str, Any] = decode(answer.data)
            except nats.errors.NoRespondersError:
                assert time.monotonic() < deadline, self.responder.log.read_text()[-2000:]
                await asyncio.sleep(0.1)
            else:
                return body

    async def result(self, snapshot_id: str) -> Snapshot:
        async with asyncio.timeout(RESULT_TIMEOUT_S):
            while True:
                kind, body = await self.results.get()
                if body["snapshot_id"] == snapshot_id:
                    break
        if kind == "error":
            raise SnapshotFailedError(body)
        return await self.read(body)

    async def read(self, meta: dict[str, Any]) -> Snapshot:
        token, snapshot_id = table_token(meta["schema"], meta["table"]), meta["snapshot_id"]
        chunks = [
            decode((await self._stored(chunk_subject(token, snapshot_id, number))).data or b"")
            for number in range(meta["batch_count"])
        ]
        with contextlib.suppress(NotFoundError):
            await self._stored(chunk_subject(token, snapshot_id, meta["batch_count"]))
            raise AssertionError("the stream has more chunks than the meta message says")
        snapshot = Snapshot(meta, chunks)
        assert [chunk["chunk"] for chunk in chunks] == list(range(meta["batch_count"]))
        assert {chunk["lsn"] for chunk in chunks} <= {meta["lsn"]}
        assert len(snapshot.rows) == meta["row_count"]
        return snapshot

    async def _stored(self, subject: str) -> Any:
        return await self.client.jsm().get_last_msg("INIT", subject, direct=True)

    async def snapshot(self, token: str, options: object = None) -> Snapshot:
        answer = await self.ask(token, options)
        assert answer["status"] in {"accepted", "joined"}, answer
        return await self.result(answer["snapshot_id"])

    async def publish(self, definition: str, name: str, suffix: str = "") -> None:
        await self.sql.execute(f"CREATE TABLE {name} {definition}")
        await self.sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {name} {suffix}")

    async def fill(self, name: str, rows: int) -> None:
        """Publish a table of so many rows, with ids from 1 and some text."""
        await self.publish("(id int, pad text)", name)
        await self.sql.execute(
            f"INSERT INTO {name} SELECT g, repeat('x', 400) "  # noqa: S608  # a constant
            f"FROM generate_series(1, {rows}) g"
        )

    async def listen(self) -> None:
        """Record every result from now on."""
        await self.client.subscribe("init.meta.>", cb=self._note)
        await self.client.subscribe("init.error.>", cb=self._note)
        await self.client.flush()

    async def _note(self, message: Any) -> None:
        self.results.put_nowait((message.subject.split(".")[1], decode(message.data)))


@contextlib.asynccontextmanager
async def connected_consumer(responder: Responder) -> AsyncIterator[Consumer]:
    """A consumer that records every result from now on."""
    client = await nats.connect(responder.nats.url)
    sql = await asyncpg.connect(responder.dsn)
    made = Consumer(responder, client, sql)
    try:
        await made.listen()
        yield made
    finally:
        await client.close()
        await sql.close()


def child_pids(pid: int) -> list[int]:
    direct: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            direct += map(int, task.read_text().split())
    return direct + [deeper for child in direct for deeper in child_pids(child)]


def libraries_of(pid: int, *names: str) -> set[str]:
    mapped = {
        Path(line.split()[-1]).name for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
    }
    return {library for library in mapped if any(name in library for name in names)}


def jvm_of(pid: int) -> int | None:
    for child in child_pids(pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/comm").read_text().strip() == "java":
                return child
    return None


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
