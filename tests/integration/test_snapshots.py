"""Snapshots keep their promises: exact at their LSN, complete or an error, each chunk once, whatever is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
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
import psycopg
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from headrace.contract.events import decode
from headrace.contract.naming import chunk_subject, snapshot_request_subject, table_token
from headrace.contract.values import SESSION_SETTINGS, ValueOptions, converter
from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import SUPERUSER, EmbeddedPostgres
from headrace.lsn import parse_lsn
from headrace.pgoutput import Begin, Insert
from headrace.pgoutput import decode as decode_change
from headrace.postgres.connection import connect
from headrace.settings import PostgresSettings
from headrace.snapshot_responder.csv_rows import CsvRows
from headrace.testing.names import Names
from headrace.testing.servers import SessionServers

pytestmark = pytest.mark.spark

PUBLICATION = "pub_snapshots"
RESULT_TIMEOUT_S = 90.0


@dataclass
class Suite:
    """A database, a NATS of its own and a responder, shared by the tests of this module: a JVM starts slowly."""

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
        }

    def start(self) -> None:
        with self.log.open("ab") as log:
            command: list[str | Path] = [Path(sys.executable).with_name("headrace"), "snapshot-responder"]
            self.process = subprocess.Popen(command, env=self.environment(), stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(20) == 0, self.log.read_text()[-2000:]


@pytest.fixture(scope="module")
def suite(session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    postgres, server = session_servers.shared_postgres(18), session_servers.new_nats()
    server.start_blocking()
    database = Names.new().other("snapshots")
    with psycopg.connect(postgres.dsn(), autocommit=True) as administration:
        administration.execute(f'CREATE DATABASE "{database}" TEMPLATE template0')
        made = Suite(postgres, server, database, tmp_path_factory.mktemp("responder") / "responder.log")
        with psycopg.connect(made.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE PUBLICATION {PUBLICATION}")
        made.start()
        try:
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
    """The responder said that there is no snapshot; its body is the first argument."""


@dataclass
class Consumer:
    """What a consumer does: asks, waits for the meta or error message, reads the chunks."""

    suite: Suite
    client: Client
    sql: Any
    results: asyncio.Queue[tuple[str, dict[str, Any]]] = field(default_factory=asyncio.Queue)

    async def ask(self, token: str, options: object = None, timeout: float = 20) -> dict[str, Any]:
        payload = b"" if options is None else msgpack.packb(options)
        deadline = time.monotonic() + timeout
        while True:
            try:
                answer = await self.client.request(snapshot_request_subject(token), payload, timeout=5)
                body: dict[str, Any] = decode(answer.data)
            except nats.errors.NoRespondersError:
                assert time.monotonic() < deadline, self.suite.log.read_text()[-2000:]
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
        with pytest.raises(NotFoundError):
            await self._stored(chunk_subject(token, snapshot_id, meta["batch_count"]))
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


@pytest_asyncio.fixture
async def consumer(suite: Suite) -> AsyncIterator[Consumer]:
    client = await nats.connect(suite.nats.url)
    sql = await asyncpg.connect(suite.dsn)
    made = Consumer(suite, client, sql)

    async def note(message: Any) -> None:
        made.results.put_nowait((message.subject.split(".")[1], decode(message.data)))

    await client.subscribe("init.meta.>", cb=note)
    await client.subscribe("init.error.>", cb=note)
    await client.flush()
    try:
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
    mapped = {Path(line.split()[-1]).name for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
    return {library for library in mapped if any(name in library for name in names)}


def jvm_of(pid: int) -> int | None:
    for child in child_pids(pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/comm").read_text().strip() == "java":
                return child
    return None


async def test_a_snapshot_has_every_row_with_null_apart_from_the_empty_string(consumer: Consumer) -> None:
    await consumer.publish("(id int PRIMARY KEY, note text)", "plain")
    await consumer.sql.execute(
        "INSERT INTO plain SELECT g, CASE g % 3 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE E'a,\"b\\n' || g END "
        "FROM generate_series(1, 25000) g"
    )
    snapshot = await consumer.snapshot("plain")
    assert {row["id"]: row["note"] for row in snapshot.rows} == {
        number: (None, "", f'a,"b\n{number}')[number % 3] for number in range(1, 25001)
    }
    assert all(len(chunk["data"]) <= 10_000 for chunk in snapshot.chunks)
    assert snapshot.meta["table"] == "plain"
    assert snapshot.meta["schema"] == "public"
    assert snapshot.meta["source"] == "snapshots"
    assert snapshot.meta["format"] == "msgpack"


async def test_a_snapshot_has_exactly_what_committed_before_its_lsn_while_writers_run(
    suite: Suite, consumer: Consumer
) -> None:
    await consumer.publish("(id int PRIMARY KEY)", "busy")
    await consumer.sql.execute("INSERT INTO busy SELECT generate_series(1, 2000)")
    slot = f"exact_{secrets.token_hex(4)}"
    await consumer.sql.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    stop = asyncio.Event()
    writers = [asyncio.create_task(_write(suite, stop, place)) for place in range(3)]
    try:
        await asyncio.sleep(0.2)
        for _ in range(3):
            snapshot = await consumer.snapshot("busy")
            await asyncio.sleep(0.1)
            changes = await consumer.sql.fetch(
                "SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', "
                "'publication_names', $2)",
                slot,
                PUBLICATION,
            )
            before, after = _by_commit([row["data"] for row in changes], parse_lsn(snapshot.meta["lsn"]))
            assert after, "the writers must have gone on after the snapshot, or the test shows nothing"
            assert before, "the writers must have begun before it"
            ids = [row["id"] for row in snapshot.rows]
            assert len(ids) == len(set(ids))
            assert set(ids) == set(range(1, 2001)) | before
    finally:
        stop.set()
        await asyncio.gather(*writers)
        await consumer.sql.execute(f"SELECT pg_drop_replication_slot('{slot}')")


async def _write(suite: Suite, stop: asyncio.Event, place: int) -> None:
    """Short and long transactions, some of which are acknowledged before their commit is flushed."""
    connection = await asyncpg.connect(suite.dsn)
    await connection.execute(f"SET synchronous_commit = {('on', 'off', 'local')[place]}")
    number = 10_000_000 * (place + 1)
    while not stop.is_set():
        async with connection.transaction():
            for _ in range(3):
                number += 1
                await connection.execute("INSERT INTO busy VALUES ($1)", number)
                await asyncio.sleep(0.003 * place)
    await connection.close()


def _by_commit(messages: list[bytes], lsn: int) -> tuple[set[int], set[int]]:
    before: set[int] = set()
    after: set[int] = set()
    commit_lsn = 0
    for raw in messages:
        change = decode_change(raw)
        if isinstance(change, Begin):
            commit_lsn = change.final_lsn
        elif isinstance(change, Insert):
            value = change.new[0]
            assert isinstance(value, bytes)
            (before if commit_lsn < lsn else after).add(int(value))
    return before, after


VALUES = {
    "bool": ["true", "false"],
    "int2": ["-32768"],
    "int8": ["9223372036854775807", "-9223372036854775808", "0"],
    "oid": ["4294967295"],
    "float4": ["0.1", "'NaN'", "'-Infinity'"],
    "float8": ["0.1", "'NaN'", "'Infinity'", "'-0'", "1e308", "5e-324", "0.30000000000000004"],
    "numeric": ["'NaN'", "1.10", "'1" + "0" * 400 + ".5'"],
    "money": ["'-1234.50'"],
    "text": ["''", "'NULL'", "'a,b'", "'\"'", r"E'\\.'", r"E'line\nbreak\r\ttab'", "'😀ä'", r"E'\\N'", "' '"],
    "char(5)": ["'ab'"],
    "uuid": ["'f4b0611f-7258-47f8-bceb-0eba9ac5195a'"],
    "jsonb": ['\'{"a": [1, 1e400, null], "b": "x,\\"y"}\'', "'null'"],
    "json": ['\'{"a":1, "a":2}\''],
    "bytea": [r"'\x00ff'", "''"],
    "timestamptz": ["'2025-12-12 12:00:34.338547+00'", "'2025-12-12 12:00:34+00'", "'infinity'", "'0044-03-15 BC'"],
    "timestamp": ["'2025-12-12 12:00:34.5'", "'-infinity'", "'12025-01-01'"],
    "date": ["'2025-12-12'", "'infinity'"],
    "timetz": ["'12:00:34.5+02'"],
    "interval": ["'1 year 2 days 03:04:05.678'"],
    "int4[]": ["'{{1,2},{3,NULL}}'"],
    "text[]": ["ARRAY['a,b', NULL, '', '\"']"],
    "mood": ["'so so'"],
    "positive": ["7"],
    "pair": ["ROW(1, 'x,\"y')"],
    "int4range": ["'[1,5)'"],
    "inet": ["'10.0.0.1/8'"],
    "bit(3)": ["B'101'"],
}


async def test_every_value_has_the_form_that_the_converters_give_an_event(suite: Suite, consumer: Consumer) -> None:
    await consumer.sql.execute(
        "CREATE TYPE mood AS ENUM ('so so'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);"
        "CREATE TYPE pair AS (a int, b text)"
    )
    columns = [f"c{place}" for place in range(len(VALUES))]
    definition = ", ".join(f"{name} {kind}" for name, kind in zip(columns, VALUES, strict=True))
    await consumer.publish(f"(id serial, {definition})", "valued")
    await consumer.sql.execute("INSERT INTO valued DEFAULT VALUES")
    for name, literals in zip(columns, VALUES.values(), strict=True):
        for literal in literals:
            await consumer.sql.execute(f"INSERT INTO valued ({name}) VALUES ({literal})")
    plain = await connect(suite.settings(), "test")
    oids = [
        row["oid"]
        for row in await plain.fetch(
            "SELECT atttypid::int8 AS oid FROM pg_attribute WHERE attrelid = 'valued'::regclass AND attnum > 1 "
            "ORDER BY attnum"
        )
    ]
    printed = await plain.fetch(
        "SELECT id, "
        + ", ".join(f"CASE WHEN {c} IS NOT NULL THEN format('%s', {c}) END" for c in columns)
        + " FROM valued ORDER BY id"
    )
    await plain.close()
    snapshot = await consumer.snapshot("valued")
    converters = [converter(oid, ValueOptions(), _domains(oids, columns)) for oid in oids]
    for row, texts in zip(sorted(snapshot.rows, key=lambda row: row["id"]), printed, strict=True):
        for name, convert, text in zip(columns, converters, list(texts)[1:], strict=True):
            expected = None if text is None else convert(text.encode())
            assert repr(row[name]) == repr(expected), name
    as_text = await consumer.snapshot("valued", {"values": "text"})
    for row, texts in zip(sorted(as_text.rows, key=lambda row: int(row["id"])), printed, strict=True):
        assert [row[name] for name in columns] == list(texts)[1:]


def _domains(oids: list[int], columns: list[str]) -> Any:
    from headrace.contract.values import TypeInfo, TypeKind

    positive = oids[list(VALUES).index("positive")]
    return {positive: TypeInfo(TypeKind.DOMAIN, base_oid=23)}.get


async def test_an_empty_table_is_a_snapshot_without_chunks(consumer: Consumer) -> None:
    await consumer.publish("(id int)", "empty")
    snapshot = await consumer.snapshot("empty")
    assert (snapshot.meta["batch_count"], snapshot.meta["row_count"]) == (0, 0)


async def test_a_table_without_a_primary_key_keeps_its_equal_rows(consumer: Consumer) -> None:
    await consumer.publish("(a int, b text)", "keyless")
    await consumer.sql.execute("INSERT INTO keyless SELECT 1, NULL FROM generate_series(1, 1234)")
    snapshot = await consumer.snapshot("keyless")
    assert snapshot.rows == [{"a": 1, "b": None}] * 1234


async def test_a_table_of_one_nullable_column_loses_no_null(consumer: Consumer) -> None:
    await consumer.publish('("only" text)', "single")
    await consumer.sql.execute("INSERT INTO single VALUES (NULL), (''), ('x'), (NULL)")
    assert [row["only"] for row in (await consumer.snapshot("single")).rows] == [None, "", "x", None]


async def test_a_partitioned_table_has_the_rows_of_all_its_partitions(consumer: Consumer) -> None:
    sql = consumer.sql
    await sql.execute("CREATE TABLE parted (id int, tag text) PARTITION BY LIST (tag)")
    await sql.execute("CREATE TABLE parted_a PARTITION OF parted FOR VALUES IN ('a')")
    # A partition with its columns in another order, and partitions of its own.
    await sql.execute("CREATE TABLE parted_b (tag text, id int) PARTITION BY RANGE (id)")
    await sql.execute("ALTER TABLE parted ATTACH PARTITION parted_b FOR VALUES IN ('b')")
    await sql.execute("CREATE TABLE parted_b1 PARTITION OF parted_b FOR VALUES FROM (0) TO (1000)")
    await sql.execute(
        "INSERT INTO parted SELECT g, CASE WHEN g < 500 THEN 'b' ELSE 'a' END FROM generate_series(1, 999) g"
    )
    await sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE parted")
    refused = await consumer.ask("parted")
    assert refused["status"] == "rejected"
    assert "publish_via_partition_root" in refused["reason"]
    await sql.execute(f"ALTER PUBLICATION {PUBLICATION} SET (publish_via_partition_root = true)")
    try:
        snapshot = await consumer.snapshot("parted")
    finally:
        await sql.execute(f"ALTER PUBLICATION {PUBLICATION} SET (publish_via_partition_root = false)")
    assert {(row["id"], row["tag"]) for row in snapshot.rows} == {
        (number, "b" if number < 500 else "a") for number in range(1, 1000)
    }
    assert len(snapshot.rows) == 999


async def test_awkward_names_arrive_raw_on_an_encoded_subject(consumer: Consumer) -> None:
    schema, table, column = 'Sché "ma".x', "tab le.*>'", 'co"l; $1 {x} \\ %'
    quoted = [name.replace('"', '""') for name in (schema, table, column)]
    await consumer.sql.execute(f'CREATE SCHEMA "{quoted[0]}"')
    await consumer.publish(f'("{quoted[2]}" int, "ü" text)', f'"{quoted[0]}"."{quoted[1]}"')
    await consumer.sql.execute(f'INSERT INTO "{quoted[0]}"."{quoted[1]}" VALUES (1, \'x\')')
    snapshot = await consumer.snapshot(table_token(schema, table))
    assert snapshot.rows == [{column: 1, "ü": "x"}]
    assert (snapshot.meta["schema"], snapshot.meta["table"]) == (schema, table)


async def test_the_publications_row_filter_and_column_list_hold(consumer: Consumer) -> None:
    await consumer.publish("(id int PRIMARY KEY, shown text, secret text)", "partial", "(id, shown) WHERE (id > 10)")
    await consumer.sql.execute("INSERT INTO partial SELECT g, 'x' || g, 'hidden' FROM generate_series(1, 20) g")
    snapshot = await consumer.snapshot("partial")
    assert snapshot.rows == [{"id": number, "shown": f"x{number}"} for number in range(11, 21)]


async def test_generated_columns_are_there_only_if_the_publication_has_them(consumer: Consumer) -> None:
    await consumer.publish("(id int, twice int GENERATED ALWAYS AS (id * 2) STORED)", "generated")
    await consumer.sql.execute("INSERT INTO generated VALUES (21)")
    assert (await consumer.snapshot("generated")).rows == [{"id": 21}]
    await consumer.sql.execute(f"ALTER PUBLICATION {PUBLICATION} SET (publish_generated_columns = stored)")
    try:
        assert (await consumer.snapshot("generated")).rows == [{"id": 21, "twice": 42}]
    finally:
        await consumer.sql.execute(f"ALTER PUBLICATION {PUBLICATION} SET (publish_generated_columns = none)")


async def test_a_request_chooses_columns_and_rows_as_data(consumer: Consumer) -> None:
    await consumer.publish('(id int, name text, "gr\'p" text)', "chosen")
    await consumer.sql.execute(
        "INSERT INTO chosen SELECT g, 'n''' || g, NULLIF(g % 2, 0)::text FROM generate_series(1, 9) g"
    )
    options = {"columns": ["name"], "filter": [["id", ">=", 3], ["gr'p", "is null"], ["name", "in", ["n'4", "n'6"]]]}
    assert (await consumer.snapshot("chosen", options)).rows == [{"name": "n'4"}, {"name": "n'6"}]
    hostile = {"filter": [["name", "=", "x'; DROP TABLE chosen; --"]]}
    assert (await consumer.snapshot("chosen", hostile)).rows == []
    assert len((await consumer.snapshot("chosen")).rows) == 9


async def test_a_filter_that_postgresql_refuses_is_one_clear_error(consumer: Consumer) -> None:
    await consumer.publish("(id int)", "judged")
    await consumer.sql.execute("INSERT INTO judged VALUES (1)")
    with pytest.raises(SnapshotFailedError, match="refuses the filter"):
        await consumer.snapshot("judged", {"filter": [["id", "=", "not a number"]]})


@pytest.mark.parametrize(
    ("token", "payload", "reason"),
    [
        ("nowhere", b"", "doesn't exist"),
        ("seen_by_a_view", b"", "is a view"),
        ("unpublished", b"", "is not in the publication"),
        ("plain.x", b"", "not the token of a table"),
        ("=zz", b"", "not the token of a table"),
        ("plain", b"\xc1garbage", "neither MessagePack nor JSON"),
        ("plain", b'{"colums": ["id"]}', "unknown options: colums"),
        ("plain", b'{"columns": ["nope"]}', "no published columns nope"),
        ("plain", b'{"filter": [["id", "= 1 OR 1 =", 1]]}', "a condition of filter is not"),
        ("plain", b"[1]", "not a map"),
    ],
)
async def test_what_cannot_be_served_is_refused_at_once_with_the_reason(
    consumer: Consumer, token: str, payload: bytes, reason: str
) -> None:
    await consumer.sql.execute(
        "CREATE TABLE IF NOT EXISTS plain (id int PRIMARY KEY, note text);"
        "CREATE TABLE IF NOT EXISTS unpublished (id int);"
        "CREATE OR REPLACE VIEW seen_by_a_view AS SELECT 1 AS id"
    )
    with contextlib.suppress(asyncpg.DuplicateObjectError):
        await consumer.sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE plain")
    answer = decode((await consumer.client.request(snapshot_request_subject(token), payload, timeout=20)).data)
    assert answer["status"] == "rejected"
    assert reason in answer["reason"]
    with pytest.raises(SnapshotFailedError) as failed:
        await consumer.result(answer["snapshot_id"])
    body = failed.value.args[0]
    assert reason in body["error"]
    if token in {"nowhere", "unpublished", "seen_by_a_view"}:
        assert "plain" in body["available_tables"]
        assert "unpublished" not in body["available_tables"]


async def test_equal_requests_at_once_share_one_snapshot_and_others_get_their_own(consumer: Consumer) -> None:
    await consumer.publish("(id int, pad text)", "shared")
    await consumer.sql.execute("INSERT INTO shared SELECT g, repeat('x', 500) FROM generate_series(1, 20000) g")
    options = [None, None, {"columns": ["id"]}, None]
    answers = await asyncio.gather(*(consumer.ask("shared", option) for option in options))
    whole = [answers[0], answers[1], answers[3]]
    assert len({answer["snapshot_id"] for answer in whole}) == 1
    assert sorted(answer["status"] for answer in whole) == ["accepted", "joined", "joined"]
    assert answers[2]["status"] == "accepted"
    metas: dict[str, dict[str, Any]] = {}
    async with asyncio.timeout(RESULT_TIMEOUT_S):
        while len(metas) < 2:
            kind, body = await consumer.results.get()
            assert kind == "meta", body
            metas[body["snapshot_id"]] = body
    for answer in (answers[0], answers[2]):
        assert len((await consumer.read(metas[answer["snapshot_id"]])).rows) == 20000
    info = await consumer.client.jetstream().stream_info("SNAPSHOT_REQUESTS")
    assert info.state.messages == 0


async def test_an_older_transaction_that_does_not_end_is_named_with_its_pid(suite: Suite, consumer: Consumer) -> None:
    await consumer.publish("(id int)", "held_up")
    blocker = await asyncpg.connect(suite.dsn, server_settings={"application_name": "forgotten console"})
    await blocker.execute("BEGIN; SELECT pg_current_xact_id()")
    try:
        with pytest.raises(SnapshotFailedError) as failed:
            await consumer.snapshot("held_up")
        error = failed.value.args[0]["error"]
        assert f"pid {blocker.get_server_pid()}" in error
        assert "forgotten console" in error
    finally:
        await blocker.close()
    slots = await consumer.sql.fetchval(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'headrace_snap%'"
    )
    assert slots == 0


async def test_a_row_larger_than_a_message_fails_loudly_and_leaves_nothing(consumer: Consumer) -> None:
    await consumer.publish("(id int, body text)", "huge")
    await consumer.sql.execute("INSERT INTO huge SELECT g, 'small' FROM generate_series(1, 1000) g")
    await consumer.sql.execute("INSERT INTO huge VALUES (0, repeat('x', 3000000))")
    with pytest.raises(SnapshotFailedError, match=r"a row of 30000\d\d bytes .* max_payload") as failed:
        await consumer.snapshot("huge")
    snapshot_id = failed.value.args[0]["snapshot_id"]
    await asyncio.sleep(0.3)
    info = await consumer.client.jsm().stream_info("INIT", subjects_filter=f"init.snap.huge.{snapshot_id}.>")
    assert not info.state.subjects
    assert len((await consumer.snapshot("huge", {"columns": ["id"]})).rows) == 1001


async def test_rows_that_a_policy_hides_are_an_error_not_a_smaller_snapshot(suite: Suite, consumer: Consumer) -> None:
    role = f"limited_{secrets.token_hex(4)}"
    await consumer.publish("(id int)", "guarded")
    await consumer.sql.execute(
        f"INSERT INTO guarded VALUES (1); ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;"
        f"CREATE ROLE {role} LOGIN REPLICATION; GRANT SELECT ON guarded TO {role}"
    )
    from headrace.settings import Settings, SourceSettings
    from headrace.snapshot_responder.request import SnapshotRequest
    from headrace.snapshot_responder.source import RefusedError, held_snapshot

    postgres = PostgresSettings("127.0.0.1", suite.postgres.port, suite.database, role)
    settings = Settings(postgres=postgres, source=SourceSettings(publication=PUBLICATION))
    try:
        with pytest.raises(RefusedError, match="row-level security"):
            async with held_snapshot(settings, SnapshotRequest("guarded", "public", "guarded")):
                pass
    finally:
        await consumer.sql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_a_killed_jvm_still_ends_in_a_complete_snapshot_with_nothing_doubled(
    suite: Suite, consumer: Consumer
) -> None:
    await consumer.publish("(id int, pad text)", "survivor")
    await consumer.sql.execute("INSERT INTO survivor SELECT g, repeat('x', 400) FROM generate_series(1, 60000) g")
    await consumer.snapshot("survivor", {"filter": [["id", "<", 10]]})
    jvm = jvm_of(suite.pid)
    assert jvm is not None
    chunks = await consumer.client.subscribe("init.snap.survivor.>")
    await consumer.client.flush()
    answer = await consumer.ask("survivor")
    await chunks.next_msg(timeout=RESULT_TIMEOUT_S)
    os.kill(jvm, signal.SIGKILL)
    snapshot = await consumer.result(answer["snapshot_id"])
    assert sorted(row["id"] for row in snapshot.rows) == list(range(1, 60001))
    assert jvm_of(suite.pid) not in {jvm, None}


async def test_a_request_outlives_a_sigkill_of_the_responder_and_its_spark_dies_with_it(
    suite: Suite, consumer: Consumer
) -> None:
    await consumer.publish("(id int, pad text)", "outlived")
    await consumer.sql.execute("INSERT INTO outlived SELECT g, repeat('x', 400) FROM generate_series(1, 60000) g")
    chunks = await consumer.client.subscribe("init.snap.outlived.>")
    await consumer.client.flush()
    answer = await consumer.ask("outlived")
    await chunks.next_msg(timeout=RESULT_TIMEOUT_S)
    family = child_pids(suite.pid)
    assert suite.process is not None
    suite.process.kill()
    suite.process.wait()
    suite.start()
    with pytest.raises(SnapshotFailedError, match="interrupted"):
        await consumer.result(answer["snapshot_id"])
    kind, body = await asyncio.wait_for(consumer.results.get(), RESULT_TIMEOUT_S)
    assert kind == "meta", body
    assert body["snapshot_id"] != answer["snapshot_id"]
    snapshot = await consumer.read(body)
    assert sorted(row["id"] for row in snapshot.rows) == list(range(1, 60001))
    info = await consumer.client.jetstream().stream_info("SNAPSHOT_REQUESTS")
    assert info.state.messages == 0
    async with asyncio.timeout(20):
        while alive := [pid for pid in family if _is_alive(pid)]:
            assert alive
            await asyncio.sleep(0.1)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_the_responder_itself_loads_nothing_of_spark_or_arrow(suite: Suite, consumer: Consumer) -> None:
    await consumer.publish("(id int)", "light")
    await consumer.sql.execute("INSERT INTO light VALUES (1)")
    assert (await consumer.snapshot("light")).rows == [{"id": 1}]
    assert not libraries_of(suite.pid, "arrow", "pandas", "numpy", "pyspark")


def test_json_values_of_a_copy_are_the_converters_too() -> None:
    from headrace.contract.values import Encoding

    converters = [converter(oid, ValueOptions(Encoding.JSON), lambda _: None) for oid in (23, 701, 17, 1184)]
    rows = CsvRows(["a", "b", "c", "d"], converters).rows(b'1,NaN,"\\x00ff",2025-12-12 12:00:34+00\n,,,\n')
    assert rows[0] == {"a": 1, "b": "NaN", "c": "AP8=", "d": "2025-12-12T12:00:34Z"}
    assert rows[1] == dict.fromkeys("abcd")
    assert json.dumps(rows)
    assert "DateStyle" in SESSION_SETTINGS
