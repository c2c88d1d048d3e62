"""The audit's destination: its memory over restarts, the objects that it creates, and those that it
never replaces.
"""

from __future__ import annotations

import asyncio
import socket
import time
from datetime import UTC, datetime, timedelta

import pytest

from headrace.audit.destination import AuditTableError, Destination, connect
from headrace.audit.settings import load_audit
from headrace.audit.table_book import Noted
from headrace.lsn import Position
from headrace.postgres.connection import PostgresError
from headrace.settings import PostgresSettings
from headrace.testing.database import Database
from tests.support.audit_destinations import Destinations, batch

NOW = datetime.now(UTC)
# `1e-40000` is JSON, and beyond what jsonb takes.
REFUSED = b'{"n": 1e-40000}'


async def test_a_restart_goes_on_where_the_last_batch_ended(destinations: Destinations) -> None:
    one = await destinations.open()
    assert (one.state.position, one.state.stream_seq, one.state.open) == (Position(0, 0), 0, None)
    for made in (batch(10, NOW), batch(20, NOW, rows=5, parts=2)):
        await one.write(made)
        again = await destinations.open()
        assert again.state == one.state
        assert again.state.position == made.position
        assert again.state.stream_seq == made.stream_seq
        assert again.state.open == made.open
    assert one.state.open is not None, "the rest of its transaction is still to come"
    assert (await destinations.open("other")).state.open is None


async def test_what_is_known_of_tables_is_kept_with_the_batch(destinations: Destinations) -> None:
    known = {
        ("public", "users"): Noted(("id", "at"), ("photo",), 5, Position(7, 2), "files"),
        ("app", "users"): Noted((), None, None, None, None),
    }
    one = await destinations.open()
    await one.write(batch(10, NOW), known)
    assert await (await destinations.open()).noted() == known
    assert await (await destinations.open("other")).noted() == {}
    newer = {("app", "users"): Noted(("id",), (), 6, Position(9, 0), "moved")}
    await one.write(batch(20, NOW), newer)
    assert await one.noted() == known | newer


async def test_gaps_are_recorded_and_passed(destinations: Destinations, database: Database) -> None:
    one = await destinations.open()
    made = batch(10, NOW)
    made.gaps = [(3, "slot_moved"), (4, "stream_damaged")]
    await one.write(made)
    before = one.state
    await one.note_gap(77, "fallen behind")
    again = (await destinations.open()).state
    assert (again.position, again.stream_seq) == (before.position, 77)
    found = await database.fetch("SELECT * FROM headrace_audit_gaps ORDER BY stream_seq")
    assert [(row["source"], row["stream_seq"], row["reason"]) for row in found] == [
        ("source", 3, "slot_moved"), ("source", 4, "stream_damaged"), ("source", 77, "fallen behind"),
    ]  # fmt: skip


async def test_the_audits_own_tables_are_known_by_name_and_oid(
    destinations: Destinations, database: Database
) -> None:
    one = await destinations.open(HEADRACE_AUDIT_PARTITIONS="month")
    names = {"changes", "headrace_audit_state", "headrace_audit_tables", "headrace_audit_gaps"}
    assert {name for _, _, name in one.own} == one.names == names
    await one.write(batch(10, datetime(2026, 12, 31, 23, tzinfo=UTC)))
    names.add("changes_p2026_12")
    assert {name for _, _, name in one.own} == names
    for oid, schema, name in (*one.own, *(await destinations.open()).own):
        found = await database.fetchval("SELECT to_regclass($1)::oid", f"{schema}.{name}")
        assert found == oid


async def test_a_schema_is_created_for_the_trail_or_used_as_it_is(
    destinations: Destinations, database: Database
) -> None:
    await database.execute("CREATE SCHEMA there")
    for schema in ("there", "new"):
        one = await destinations.open(HEADRACE_AUDIT_SCHEMA=schema)
        await one.write(batch(10, NOW))
        assert await database.fetchval(f"SELECT count(*) FROM {schema}.changes") == 3
        assert {name for _, name, _ in one.own} == {schema}


async def test_a_trails_table_that_is_gone_is_not_created_again(
    destinations: Destinations, database: Database
) -> None:
    await destinations.open()
    await database.execute("ALTER TABLE changes RENAME TO changes_2025")
    with pytest.raises(AuditTableError, match="no longer exists"):
        await destinations.open()
    await database.execute("DELETE FROM headrace_audit_state")
    await (await destinations.open()).write(batch(10, NOW))
    assert await database.fetchval("SELECT count(*) FROM changes") == 3


async def test_a_table_with_other_columns_is_not_taken_over(
    destinations: Destinations, database: Database
) -> None:
    await database.execute("CREATE TABLE changes (id int, before jsonb, after jsonb)")
    with pytest.raises(AuditTableError, match="is not an audit table"):
        await destinations.open()


async def test_a_column_that_an_earlier_version_lacks_is_added(
    destinations: Destinations, database: Database
) -> None:
    await destinations.open()
    await database.execute("ALTER TABLE headrace_audit_tables DROP COLUMN files, DROP relation_id")
    one = await destinations.open()
    known = {("public", "users"): Noted(("id",), (), 5, Position(7, 2), "files")}
    await one.write(batch(10, NOW), known)
    assert await one.noted() == known


@pytest.mark.parametrize(("sources", "named"), [(["a"], "a"), (["a", "b"], None), ([], None)])
async def test_earlier_rows_are_of_the_only_source_or_of_none_that_is_known(
    destinations: Destinations, database: Database, sources: list[str], named: str | None
) -> None:
    for source in sources or ["a"]:
        await (await destinations.open(source)).write(batch(10, NOW, source=source))
    if not sources:
        await database.execute("DELETE FROM headrace_audit_state")
    await database.execute("ALTER TABLE changes DROP COLUMN source, DROP COLUMN exact")
    await destinations.open("c")
    found = await database.fetch("SELECT DISTINCT source FROM changes")
    assert [row["source"] for row in found] == [named]


async def test_writers_that_start_at_the_same_moment_find_one_table(
    destinations: Destinations, database: Database
) -> None:
    sources = [f"source_{number}" for number in range(6)]
    await asyncio.gather(*(destinations.open(source) for source in sources))
    found = await database.fetch("SELECT source FROM headrace_audit_state ORDER BY 1")
    assert [row["source"] for row in found] == sources


async def test_a_row_that_jsonb_refuses_is_kept_as_text_and_no_other(
    destinations: Destinations, database: Database
) -> None:
    one = await destinations.open()
    made = batch(10, NOW)
    for place, field in ((0, 5), (1, 6)):
        fields = made.lines[place].split(b"\t")
        fields[field] = REFUSED
        made.lines[place] = b"\t".join(fields)
    await one.write(made)
    query = (
        "SELECT before ->> '_text', after ->> '_text', after ->> 'id' FROM changes ORDER BY ordinal"
    )
    found = [tuple(row) for row in await database.fetch(query)]
    text = REFUSED.decode()
    assert found == [(text, None, "0"), (None, text, None), (None, None, "2")]


async def test_an_error_that_no_value_causes_is_not_mended(
    destinations: Destinations, database: Database
) -> None:
    one = await destinations.open()
    await database.execute("ALTER TABLE changes ADD CHECK (transaction_id <> 5)")
    with pytest.raises(Exception, match="violates check constraint"):
        await one.write(batch(10, NOW))
    assert await database.fetchval("SELECT count(*) FROM changes") == 0
    assert (await destinations.open()).state.stream_seq == 0


async def test_old_rows_are_deleted_some_at_a_time(
    destinations: Destinations, database: Database
) -> None:
    one = await destinations.open()
    await one.write(batch(10, NOW - timedelta(days=10)))
    await database.execute(
        'INSERT INTO changes (database, schema, "table", operation, committed_at, queued_at,'
        " transaction_id, position, ordinal) SELECT 'd', 'public', 't', 'CREATE',"
        " now() - interval '9 days', now(), 1, 2, g FROM generate_series(1, 10000) g"
    )
    assert [await one.expire(7) for _ in range(3)] == [10_000, 3, 0]


async def test_the_end_of_its_connection_is_noticed(destinations: Destinations) -> None:
    one: Destination = await destinations.open()
    assert not one.is_lost
    destinations.close()
    await asyncio.sleep(0)
    assert one.is_lost


async def test_a_destination_that_does_not_answer_is_named_after_its_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        to = PostgresSettings(host="127.0.0.1", port=port, connect_timeout_s=1)
        began = time.monotonic()
        with pytest.raises(PostgresError, match="did not answer in time"):
            await connect(load_audit({}), to, "test")
        assert time.monotonic() - began < 10
    with pytest.raises(PostgresError, match=r"refused|Connect call failed"):
        await connect(load_audit({}), to, "test")
