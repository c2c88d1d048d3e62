"""The audit's destination without the service: partitions, retention, an older auditor's table, a
second writer.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from headrace.audit import query
from headrace.audit.destination import ClaimedError, DestinationFencedError, connect
from headrace.audit.rows import RowMaker, change_id
from headrace.audit.settings import load_audit
from headrace.audit.stitching import Stitcher
from headrace.audit.table import AuditTable
from headrace.audit.table_book import Noted, TableBook
from headrace.audit_writer import page
from headrace.consumer import Event
from headrace.errors import HeadraceError, SettingError
from headrace.lsn import Position
from headrace.settings import PostgresSettings
from headrace.testing.certificates import Authority
from headrace.testing.database import Database
from headrace.testing.tls_front import TlsFront
from tests.support.audit_destinations import Destinations, batch

ZEMIS = """
CREATE TABLE changes (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), primary_key varchar(255), before jsonb NOT NULL DEFAULT '{}',
    after jsonb NOT NULL DEFAULT '{}', context jsonb NOT NULL DEFAULT '{}', database varchar(255) NOT NULL,
    schema varchar(255) NOT NULL, "table" varchar(255) NOT NULL, operation text NOT NULL,
    committed_at timestamptz NOT NULL, queued_at timestamptz NOT NULL, transaction_id bigint NOT NULL,
    position bigint NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
ALTER TABLE changes ADD CONSTRAINT changes_position_table_schema_database_operation_unique
    UNIQUE (position, "table", schema, database, operation);
INSERT INTO changes (database, schema, "table", operation, committed_at, queued_at, transaction_id, position)
VALUES ('d', 'public', 'old', 'CREATE', now(), now(), 1, 1);
"""


async def test_months_are_partitions_that_are_made_as_needed_and_go_whole(
    destinations: Destinations, database: Database
) -> None:
    destination = await destinations.open(HEADRACE_AUDIT_PARTITIONS="month")
    now = datetime.now(UTC)
    for number, days in enumerate((400, 200, 100, 0)):
        await destination.write(batch(10 * (number + 1), now - timedelta(days=days)))
    partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'changes'::regclass"
    assert (
        await database.fetchval("SELECT count(*) FROM changes"),
        await database.fetchval(partitions),
    ) == (12, 4)
    assert await destination.expire(150) == 2
    assert await database.fetchval("SELECT count(*) FROM changes") == 6
    assert await destination.expire(150) == 0


async def test_a_partition_that_is_not_the_audits_own_outlives_the_retention(
    destinations: Destinations, database: Database
) -> None:
    destination = await destinations.open(HEADRACE_AUDIT_PARTITIONS="month")
    await database.execute("CREATE TABLE changes_default PARTITION OF changes DEFAULT")
    await destination.write(batch(10, datetime.now(UTC) - timedelta(days=400)))
    assert await destination.expire(150) == 1
    assert await database.fetchval("SELECT to_regclass('changes_default')") is not None


def said(stitcher: Stitcher, seq: int, context: str) -> None:
    """A message of context in the transaction at 10."""
    tx = {"xid": 5, "lsn": 10, "ts": "2026-01-01T00:00:00Z", "seq": seq, "last": False}
    payload = {"operation": "MESSAGE", "prefix": "_bemi", "content": context, "tx": tx}
    stitcher.add(
        Event(
            "source", "", "", "MESSAGE", Position(10, seq), payload, "s", 1, "source", closes=True
        ),
        None,
    )


def inserted(stitcher: Stitcher, seq: int, *, last: bool = False, source: str = "source") -> None:
    """A row of it."""
    tx = {"xid": 5, "lsn": 10, "ts": "2026-01-01T00:00:00Z", "seq": seq, "last": last}
    payload = {"operation": "INSERT", "data": {"id": seq}, "tx": tx, "relation_id": 1}
    event = Event(
        source, "public", "users", "INSERT", Position(10, seq), payload, "s", 1, source, closes=True
    )
    stitcher.add(event, RowMaker("db", source, TableBook()).line(event, b"2026-01-01"))


async def test_a_late_context_that_jsonb_refuses_is_kept_as_text_of_rows_written_before_it_too(
    destinations: Destinations, database: Database
) -> None:
    destination, stitcher = await destinations.open(), Stitcher(2, 1 << 20)
    for seq in range(2):
        inserted(stitcher, seq)
    part = stitcher.cut()
    assert part is not None
    await destination.write(part)
    refused = '{"n": 1e-40000}'
    said(stitcher, 2, refused)
    inserted(stitcher, 3, last=True)
    rest = stitcher.cut()
    assert rest is not None
    await destination.write(rest)
    found = await database.fetch("SELECT context ->> '_text' AS text FROM changes")
    assert [row["text"] for row in found] == [refused] * 3


def test_contexts_are_counted_with_what_waits_for_a_commit_and_held_once_while_they_are_the_same() -> (
    None
):
    stitcher = Stitcher(1000, 1 << 30)
    context = json.dumps({"text": "x" * 100_000})
    for seq in range(0, 20, 2):
        said(stitcher, seq, context)
        inserted(stitcher, seq + 1)
    assert 100_000 < stitcher.size < 150_000
    said(stitcher, 20, context.replace("x", "y"))
    inserted(stitcher, 21, last=True)
    assert 200_000 < stitcher.size < 250_000
    made = stitcher.cut()
    assert made is not None
    assert len({id(one) for one in made.contexts}) == 2


async def test_without_partitions_old_rows_are_deleted(
    destinations: Destinations, database: Database
) -> None:
    destination = await destinations.open()
    now = datetime.now(UTC)
    await destination.write(batch(10, now - timedelta(days=10)))
    await destination.write(batch(20, now))
    assert await destination.expire(7) == 3
    assert await database.fetchval("SELECT count(*) FROM changes") == 3


async def test_old_rows_are_deleted_the_oldest_first(
    destinations: Destinations, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revert in between would take a row's older change for its last one."""
    monkeypatch.setattr("headrace.audit.destination.EXPIRED_AT_ONCE", 3)
    destination = await destinations.open()
    now = datetime.now(UTC)
    await destination.write(batch(10, now - timedelta(days=11)))
    await destination.write(batch(20, now - timedelta(days=10)))
    # Behind the newer ones in the table's file.
    await database.execute("UPDATE changes SET context = '{\"moved\": 1}' WHERE position = 10")
    assert await destination.expire(7) == 3
    left = await database.fetch("SELECT DISTINCT position FROM changes")
    assert [row["position"] for row in left] == [20]


async def test_an_older_auditors_table_is_taken_over_with_its_rows(
    destinations: Destinations, database: Database
) -> None:
    await database.execute(ZEMIS)
    destination = await destinations.open()
    await destination.write(batch(10, datetime.now(UTC), rows=1000))
    assert await database.fetchval("SELECT count(*) FROM changes") == 1001


# As the first version created it, with positions that are unique over all sources.
EARLIER = """
CREATE TABLE changes (
    id uuid NOT NULL DEFAULT gen_random_uuid(), database text NOT NULL, schema text NOT NULL, "table" text NOT NULL,
    operation text NOT NULL, before jsonb NOT NULL DEFAULT '{}', after jsonb NOT NULL DEFAULT '{}',
    context jsonb NOT NULL DEFAULT '{}', primary_key text, committed_at timestamptz NOT NULL, position bigint NOT NULL,
    ordinal bigint, transaction_id bigint NOT NULL, queued_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(), unchanged text[], PRIMARY KEY (id));
CREATE UNIQUE INDEX changes_position_ordinal ON changes (position, ordinal);
CREATE TABLE headrace_audit_state (
    source text PRIMARY KEY, position bigint NOT NULL, ordinal bigint NOT NULL, stream_seq bigint NOT NULL,
    open text, updated_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE headrace_audit_tables (
    source text NOT NULL, schema text NOT NULL, "table" text NOT NULL, key text[] NOT NULL,
    PRIMARY KEY (source, schema, "table"));
CREATE TABLE headrace_audit_gaps (
    source text NOT NULL, noticed_at timestamptz NOT NULL DEFAULT now(), stream_seq bigint NOT NULL,
    reason text NOT NULL, PRIMARY KEY (source, stream_seq));
INSERT INTO headrace_audit_state (source, position, ordinal, stream_seq) VALUES ('source', 5, 0, 1);
INSERT INTO headrace_audit_tables VALUES ('source', 'public', 'users', '{id}');
INSERT INTO changes (database, schema, "table", operation, committed_at, queued_at, transaction_id, position, ordinal)
VALUES ('d', 'public', 'users', 'CREATE', now(), now(), 1, 5, 0);
"""
PLACES = "SELECT position, ordinal, source FROM changes ORDER BY position, ordinal, source"


async def test_a_table_of_an_earlier_version_keeps_its_rows_and_takes_two_sources(
    destinations: Destinations, database: Database
) -> None:
    await database.execute(EARLIER)
    first, second = await destinations.open(), await destinations.open("other")
    assert await first.noted() == {("public", "users"): Noted(("id",), None)}
    book = TableBook(await first.noted())
    event = Event(
        "source", "public", "users", "INSERT", Position(10, 0), {}, "s", 1, "source", closes=True
    )
    # Its columns of bytea are asked for; its key is that of the changes, no matter what the
    # catalog has by now.
    assert book.missing([event]) == {("public", "users")}
    book.complete({("public", "users"): Noted(("new",), ("photo",))})
    assert book.tables == {("public", "users"): Noted(("id",), ("photo",))}
    await first.write(batch(10, datetime.now(UTC), rows=1))
    await second.write(batch(10, datetime.now(UTC), rows=1, source="other"))
    found = [tuple(row) for row in await database.fetch(PLACES)]
    assert found == [(5, 0, "source"), (10, 0, "other"), (10, 0, "source")]
    assert await database.fetchval("SELECT to_regclass('changes_position_ordinal')") is None


async def test_an_earlier_versions_table_is_read_while_its_index_is_made(
    destinations: Destinations, database: Database
) -> None:
    """Also where an upgrade ended before it."""
    await database.execute(EARLIER)
    await database.execute(AuditTable("public", "changes", False).upgrade())
    writer = await asyncpg.connect(database.dsn)
    await writer.execute("BEGIN; UPDATE changes SET context = '{}'")
    opening = asyncio.create_task(destinations.open())
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'changes'::regclass"
    async with asyncio.timeout(30):
        while not await database.fetchval(waiting):  # noqa: ASYNC110  # PostgreSQL tells nobody
            await asyncio.sleep(0.02)
        assert await database.fetchval("SELECT count(*) FROM changes") == 1
        await writer.execute("COMMIT")
        await opening
    assert await database.fetchval("SELECT to_regclass('changes_place') IS NOT NULL")
    assert await database.fetchval("SELECT to_regclass('changes_position_ordinal') IS NULL")
    await writer.close()


@pytest.mark.parametrize("partitions", ["none", "month"])
async def test_two_sources_with_the_same_places_in_one_table_are_both_there_and_each_only_once(
    destinations: Destinations, database: Database, partitions: str
) -> None:
    now = datetime.now(UTC)
    for source in ("source", "other"):
        destination = await destinations.open(source, HEADRACE_AUDIT_PARTITIONS=partitions)
        await destination.write(batch(10, now, source=source))
    counts = "SELECT source, count(*) FROM changes GROUP BY 1 ORDER BY 1"
    assert [tuple(row) for row in await database.fetch(counts)] == [("other", 3), ("source", 3)]
    await database.execute(
        "UPDATE headrace_audit_state SET position = 0, ordinal = 0, stream_seq = 0"
    )
    again = await destinations.open("other", HEADRACE_AUDIT_PARTITIONS=partitions)
    with pytest.raises(asyncpg.UniqueViolationError):
        await again.write(batch(10, now, source="other"))


@pytest.mark.parametrize("named", [True, False])
async def test_a_late_context_of_a_transaction_in_parts_leaves_another_sources_rows_alone(
    destinations: Destinations, database: Database, named: bool
) -> None:
    """Also where rows of an earlier version don't name their source."""
    opened = {source: await destinations.open(source) for source in ("source", "other")}
    stitchers = {source: Stitcher(2, 1 << 20) for source in opened}
    for source, stitcher in stitchers.items():
        for seq in range(2):
            inserted(stitcher, seq, source=source)
        part = stitcher.cut()
        assert part is not None
        await opened[source].write(part)
    if not named:
        await database.execute("UPDATE changes SET source = NULL")
    said(stitchers["source"], 2, '{"who": 1}')
    inserted(stitchers["source"], 3, last=True)
    rest = stitchers["source"].cut()
    assert rest is not None
    await opened["source"].write(rest)
    assert (
        await database.fetchval("SELECT count(*) FROM changes WHERE context = '{\"who\": 1}'") == 3
    )
    assert await database.fetchval("SELECT count(*) FROM changes WHERE context = '{}'") == 2


def test_an_id_is_of_the_changes_place_and_source() -> None:
    for source, lsn, seq in (("source", 10, 0), ("other", 0x16F7348_9ABCDEF, 70_000)):
        maker = RowMaker("db", source, TableBook())
        tx = {"xid": 5, "lsn": lsn, "ts": "2026-01-01T00:00:00Z", "seq": seq, "last": True}
        payload = {"operation": "INSERT", "data": {"id": 1}, "tx": tx, "relation_id": 1}
        event = Event(
            source,
            "public",
            "users",
            "INSERT",
            Position(lsn, seq),
            payload,
            "s",
            1,
            source,
            closes=True,
        )
        assert maker.line(event, b"2026").split(b"\t")[0].decode() == str(
            change_id(source, lsn, seq)
        )


async def test_the_pages_earlier_changes_are_each_shown_once_also_an_older_auditors_and_of_two_sources(
    destinations: Destinations, database: Database
) -> None:
    await database.execute(ZEMIS)
    await database.execute(
        'INSERT INTO changes (database, schema, "table", operation, committed_at, queued_at, transaction_id, position)'
        " SELECT 'd', 'public', 't' || g, 'CREATE', now(), now(), 1, 2 + g / 5 FROM "
        "generate_series(0, 39) g"
    )
    now = datetime.now(UTC)
    for source in ("source", "other"):
        destination = await destinations.open(source)
        await destination.write(batch(5, now, rows=5, source=source))
    connection = await database.connect()
    seen: list[str] = []
    asked: dict[str, str] = {}
    while True:
        sql, arguments = query.rows(
            replace(page._search(asked), limit=3), AuditTable("public", "changes", False)
        )
        found = [page._document(row) for row in await connection.fetch(sql, *arguments)]
        if not found:
            break
        seen += [row["id"] for row in found]
        last = found[-1]
        asked = {"below": f"{last['position']}.{last['ordinal'] or ''}.{last['id']}"}
    in_order = "SELECT id::text FROM changes ORDER BY position DESC, ordinal DESC, id DESC"
    assert seen == [row["id"] for row in await database.fetch(in_order)]
    assert len(seen) == 51


async def test_a_second_writer_stands_by_and_a_late_one_is_fenced(
    destinations: Destinations, database: Database
) -> None:
    first, late = await destinations.open(), await destinations.open()
    await first.claim()
    with pytest.raises(ClaimedError):
        await late.claim()
    await first.write(batch(10, datetime.now(UTC)))
    with pytest.raises(DestinationFencedError):
        await late.write(batch(10, datetime.now(UTC)))
    assert await database.fetchval("SELECT count(*) FROM changes") == 3


@pytest.mark.parametrize(
    ("mode", "trusted", "named", "stranger"),
    [
        ("disable", False, False, False),
        ("prefer", True, True, True),
        # As libpq has it: with an authority at hand it is asked.
        ("require", True, True, False),
        ("verify-ca", True, True, False),
        ("verify-full", True, False, False),
    ],
)
async def test_the_destinations_ssl_modes_do_what_libpq_documents(  # a table of cases
    database: Database, tmp_path: Path, mode: str, trusted: bool, named: bool, stranger: bool
) -> None:
    """A server that speaks nothing but TLS: with a certificate of ours, with one for another host,
    and a stranger's.
    """
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "stranger")
    pairs = (
        ours.server("right"),
        ours.server("other", hosts=("elsewhere",), addresses=False),
        theirs.server("strange"),
    )
    for pair, expected in zip(pairs, (trusted, named, stranger), strict=True):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        async with TlsFront(lambda: database.port, context, plain=False) as front:
            audit = load_audit(
                {
                    "DEST_DB_HOST": "127.0.0.1",
                    "DEST_DB_PORT": str(front.port),
                    "DEST_DB_SSL_MODE": mode,
                    "DEST_DB_SSL_ROOT_CERT": str(ours.certificate),
                }
            )
            source = PostgresSettings(
                database=database.name, user=database.user, connect_timeout_s=10
            )
            try:
                connection = await connect(audit, source, "test")
            except HeadraceError:
                assert not expected, pair.certificate
            else:
                assert expected, pair.certificate
                assert await connection.fetchval("SELECT 1") == 1
                connection.terminate()


async def test_a_root_certificate_that_cannot_be_read_is_named(database: Database) -> None:
    audit = load_audit({"DEST_DB_SSL_MODE": "verify-full", "DEST_DB_SSL_ROOT_CERT": "missing.pem"})
    with pytest.raises(SettingError, match=r"missing\.pem"):
        await connect(audit, PostgresSettings(host="127.0.0.1", port=database.port), "test")
