"""The ids and places of changes: every change of a transaction, in order, however it was written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.testing.database import fresh_database
from headrace.testing.line import Line, brief, running_line
from headrace.testing.plugin import OwnNats, OwnPostgres
from tests.support.versions import on_both_versions

pytestmark = pytest.mark.asyncio(loop_scope="module")


@on_both_versions
async def test_rows_of_one_wal_record_have_suffixed_and_unique_ids(line: Line) -> None:
    await line.execute("CREATE TABLE many (id int)")
    connection = await line.database.connect()
    await connection.copy_records_to_table("many", records=[(n,) for n in range(500)])
    await connection.close()
    events = await line.rows()
    assert [event.row["id"] for event in events] == list(range(500))
    assert len({event.msg_id for event in events}) == 500
    assert len({event.payload["lsn"] for event in events}) < 500
    repeats: dict[int, int] = {}
    for seq, event in enumerate(events):
        lsn = event.payload["lsn"]
        suffix = f"-{repeats[lsn]}" if lsn in repeats else ""
        repeats[lsn] = repeats.get(lsn, 0) + 1
        assert event.msg_id == event.payload["msg_id"] == f"{lsn:x}-many-insert{suffix}"
        assert event.payload["tx"]["seq"] == seq


@on_both_versions
async def test_tx_tells_the_transaction_the_place_and_the_end(line: Line) -> None:
    await line.execute("CREATE TABLE placed (id int PRIMARY KEY)")
    connection = await line.database.connect()
    async with connection.transaction():
        xid = int(await connection.fetchval("SELECT pg_current_xact_id()::text"))
        await connection.execute("INSERT INTO placed VALUES (1)")
        await connection.execute("UPDATE placed SET id = 2")
        await connection.execute("DELETE FROM placed")
    end_lsn = await connection.fetchval("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
    now = await connection.fetchval("SELECT now() AT TIME ZONE 'UTC'")
    await connection.close()
    events = await line.rows()
    assert [event.payload["tx"]["xid"] for event in events] == [xid] * 3
    assert [event.payload["tx"]["seq"] for event in events] == [0, 1, 2]
    assert [event.payload["tx"]["last"] for event in events] == [False, False, True]
    commits = {event.payload["tx"]["lsn"] for event in events}
    assert len(commits) == 1
    assert events[-1].payload["lsn"] < commits.pop() < end_lsn
    stamp = events[0].payload["tx"]["ts"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", stamp)
    assert "" < stamp <= now.isoformat(timespec="microseconds") + "Z"
    assert {event.payload["source"] for event in events} == {line.source}


async def test_rolled_back_work_leaves_no_event_and_takes_no_place(line: Line) -> None:
    events = await line.rows(
        "CREATE TABLE tried (id int PRIMARY KEY)",
        "BEGIN; INSERT INTO tried VALUES (1); ROLLBACK",
        "BEGIN; INSERT INTO tried VALUES (2); SAVEPOINT a; INSERT INTO tried VALUES (3); SAVEPOINT "
        "b;"
        "INSERT INTO tried VALUES (4); ROLLBACK TO a; INSERT INTO tried VALUES (5); SAVEPOINT c;"
        "INSERT INTO tried VALUES (6); RELEASE c; COMMIT",
    )
    assert [event.row["id"] for event in events] == [2, 5, 6]
    assert [event.payload["tx"]["seq"] for event in events] == [0, 1, 2]
    assert len({event.payload["tx"]["xid"] for event in events}) == 1


async def test_transactions_come_in_commit_order_whatever_the_order_of_their_rows(
    line: Line,
) -> None:
    await line.execute("CREATE TABLE raced (id int PRIMARY KEY)")
    first, second = await line.database.connect(), await line.database.connect()
    await first.execute("BEGIN; INSERT INTO raced VALUES (1)")
    await second.execute("BEGIN; INSERT INTO raced VALUES (2); COMMIT")
    await first.execute("INSERT INTO raced VALUES (3); COMMIT")
    await first.close()
    await second.close()
    events = await line.rows()
    assert [event.row["id"] for event in events] == [2, 1, 3]
    places = [(event.payload["tx"]["lsn"], event.payload["tx"]["seq"]) for event in events]
    assert places == sorted(places)
    assert events[1].payload["lsn"] < events[0].payload["lsn"]


async def test_a_prepared_transaction_comes_when_it_is_committed(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    postgres = await own_postgres(settings={"max_prepared_transactions": "5"})
    async with (
        fresh_database(postgres, "two_phases") as database,
        running_line(database, await own_nats(), tmp_path, {}) as line,
    ):
        await line.execute(
            "CREATE TABLE prepared (id int)",
            "BEGIN; INSERT INTO prepared VALUES (1); PREPARE TRANSACTION 'later'",
            "BEGIN; INSERT INTO prepared VALUES (2); PREPARE TRANSACTION 'never'",
        )
        assert await line.rows() == []
        await line.execute(
            "COMMIT PREPARED 'later'",
            "ROLLBACK PREPARED 'never'",
        )
        assert brief(await line.rows()) == [("INSERT", {"id": 1})]


@on_both_versions
async def test_rows_come_by_whatever_way_they_were_written(line: Line) -> None:
    assert await line.did(
        "CREATE TABLE ways (id int PRIMARY KEY, n int)",
        "CREATE TABLE follows (id int PRIMARY KEY REFERENCES ways ON DELETE CASCADE ON UPDATE "
        "CASCADE)",
        "INSERT INTO ways VALUES (1, 1); INSERT INTO follows VALUES (1)",
        "INSERT INTO ways VALUES (1, 2), (2, 2) ON CONFLICT (id) DO UPDATE SET n = excluded.n",
        "MERGE INTO ways USING (VALUES (2, 9), (3, 3)) AS v (id, n) ON ways.id = v.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.n)",
        "UPDATE ways SET id = 4 WHERE id = 1; DELETE FROM ways WHERE id = 4",
    ) == [
        ("INSERT", {"id": 1, "n": 1}),
        ("INSERT", {"id": 1}),
        ("UPDATE", {"id": 1, "n": 2}),
        ("INSERT", {"id": 2, "n": 2}),
        ("DELETE", {"id": 2, "n": None}),
        ("INSERT", {"id": 3, "n": 3}),
        ("UPDATE", {"id": 4, "n": 2}),
        ("UPDATE", {"id": 4}),
        ("DELETE", {"id": 4, "n": None}),
        ("DELETE", {"id": 4}),
    ]


async def test_rows_that_were_replicated_from_elsewhere_come_too(line: Line) -> None:
    await line.execute(
        "CREATE TABLE hopped (id int)",
        "SELECT pg_replication_origin_create('elsewhere')",
    )
    connection = await line.database.connect()
    await connection.execute("SELECT pg_replication_origin_session_setup('elsewhere')")
    await connection.execute("INSERT INTO hopped VALUES (1)")
    await connection.close()
    rows = await line.rows()
    await line.execute("SELECT pg_replication_origin_drop('elsewhere')")
    assert brief(rows) == [("INSERT", {"id": 1})]


async def test_a_rewrite_of_a_table_is_no_change_of_its_rows(line: Line) -> None:
    await line.execute(
        "CREATE TABLE packed (id int PRIMARY KEY, n int); INSERT INTO packed VALUES (1, 1), (2, 2)"
    )
    await line.take()
    await line.database.execute("VACUUM FULL packed")
    await line.database.execute("CLUSTER packed USING packed_pkey")
    await line.execute(
        "ALTER TABLE packed ALTER n TYPE bigint; ALTER TABLE packed SET UNLOGGED",
        "ALTER TABLE packed SET LOGGED; CREATE MATERIALIZED VIEW seen AS SELECT * FROM packed",
        "REFRESH MATERIALIZED VIEW seen; CREATE TEMP TABLE passing AS SELECT 1",
        "CREATE UNLOGGED TABLE loose (id int)",
        "INSERT INTO loose VALUES (1)",
    )
    assert await line.take() == []


async def test_a_database_that_is_not_utf8_is_delivered_as_utf8(
    postgres_server: EmbeddedPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    async with (
        fresh_database(postgres_server, "latin", "ENCODING 'LATIN1' LOCALE 'C'") as database,
        running_line(database, await own_nats(), tmp_path, {}) as line,
    ):
        await line.execute(
            'CREATE TABLE "café" ("naïve" text PRIMARY KEY)',
            "INSERT INTO \"café\" VALUES ('déjà vu')",
        )
        row = (await line.rows())[0]
    assert (row.payload["table"], row.row) == ("café", {"naïve": "déjà vu"})
