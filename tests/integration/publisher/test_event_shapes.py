"""Every kind of change on every shape of table, from a real PostgreSQL to the stream."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.contract.naming import table_token
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.postgres_install import PostgresVersion
from headrace.testing.database import fresh_database
from headrace.testing.line import Line, Lines, brief, running_line
from headrace.testing.plugin import OwnNats, OwnPostgres

pytestmark = pytest.mark.asyncio(loop_scope="module")

on_both_versions = pytest.mark.parametrize("version", [16, 18])
LARGE = "repeat(md5(random()::text), 400)"


@async_fixture(loop_scope="module")
async def line(lines: Lines, version: PostgresVersion) -> Line:
    """A line that publishes all tables; nothing of an earlier test is left in it."""
    found = await lines(version, HEADRACE_MESSAGE_PREFIXES="orders,odd prefix.ü")
    await found.take()
    return found


@pytest.fixture
def version() -> PostgresVersion:
    """PostgreSQL's version where a test names none."""
    return 18


# TOAST


@on_both_versions
async def test_an_unchanged_toasted_value_is_named_and_never_null(line: Line) -> None:
    await line.execute("CREATE TABLE toast (id int PRIMARY KEY, big text, other text, n int)")
    await line.execute(
        "ALTER TABLE toast ALTER big SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL"
    )
    await line.execute(f"INSERT INTO toast VALUES (1, {LARGE}, NULL, 0)")
    await line.execute("UPDATE toast SET n = 1")
    await line.execute(f"UPDATE toast SET other = {LARGE}")
    await line.execute("UPDATE toast SET big = NULL, n = 2")
    inserted, n_changed, other_changed, big_gone = await line.rows()
    assert len(inserted.row["big"]) == 12_800
    assert "unchanged" not in inserted.payload
    assert n_changed.row == {"id": 1, "other": None, "n": 1}
    assert n_changed.payload["unchanged"] == ["big"]
    assert other_changed.payload["unchanged"] == ["big"]
    assert len(other_changed.row["other"]) == 12_800
    assert big_gone.row == {"id": 1, "big": None, "n": 2}
    assert big_gone.payload["unchanged"] == ["other"]


@on_both_versions
async def test_a_full_old_row_has_the_toasted_value_and_the_new_one_names_it(line: Line) -> None:
    await line.execute("CREATE TABLE toast_full (id int PRIMARY KEY, big text, n int)")
    await line.execute(
        "ALTER TABLE toast_full ALTER big SET STORAGE EXTERNAL, REPLICA IDENTITY FULL"
    )
    await line.execute(f"INSERT INTO toast_full VALUES (1, {LARGE}, 0)")
    await line.execute("UPDATE toast_full SET n = 1")
    await line.execute("DELETE FROM toast_full")
    inserted, updated, deleted = await line.rows()
    assert updated.payload["old"] == inserted.row
    # PostgreSQL writes the value of an unchanged TOAST column into the old row only.
    assert updated.row == {"id": 1, "n": 1}
    assert updated.payload["unchanged"] == ["big"]
    assert deleted.payload["old"] == {**inserted.row, "n": 1}
    assert deleted.row == {"id": 1, "big": None, "n": None}


@on_both_versions
async def test_an_unchanged_toasted_key_is_not_null_in_a_full_or_a_key_row(line: Line) -> None:
    await line.execute("CREATE TABLE toast_key (k text, n int, PRIMARY KEY (k))")
    await line.execute("ALTER TABLE toast_key ALTER k SET STORAGE EXTERNAL")
    await line.execute("INSERT INTO toast_key VALUES (repeat('k', 2500), 0)")
    await line.execute("UPDATE toast_key SET n = 1")
    await line.execute("DELETE FROM toast_key")
    inserted, updated, deleted = await line.rows()
    key = "k" * 2500
    assert inserted.row == {"k": key, "n": 0}
    known = {**updated.payload.get("old", {}), **updated.row}
    assert known == {"k": key, "n": 1}
    assert deleted.row == {"k": key, "n": None}


# Keys and replica identities


@on_both_versions
async def test_an_update_of_the_primary_key_carries_the_old_key(line: Line) -> None:
    await line.execute("CREATE TABLE moved (a int, b text, note text, PRIMARY KEY (b, a))")
    await line.execute("INSERT INTO moved VALUES (1, 'x', 'n')")
    await line.execute("UPDATE moved SET a = 2")
    await line.execute("UPDATE moved SET note = 'm'")
    await line.execute("DELETE FROM moved")
    _, moved, noted, deleted = await line.rows()
    assert moved.payload["old"] == {"a": 1, "b": "x"}
    assert moved.row == {"a": 2, "b": "x", "note": "n"}
    assert "old" not in noted.payload
    assert deleted.payload["old"] == {"a": 2, "b": "x"}
    assert deleted.row == {"a": 2, "b": "x", "note": None}


@on_both_versions
async def test_keys_have_the_forms_that_rows_have(line: Line) -> None:
    await line.execute("CREATE DOMAIN at AS timestamptz")
    await line.execute("CREATE TABLE odd_key (t at, b bytea, n numeric, PRIMARY KEY (t, b, n))")
    await line.execute(r"INSERT INTO odd_key VALUES ('2020-01-01 00:00+00', '\x00ff', 1.10)")
    await line.execute("UPDATE odd_key SET n = 2.0")
    await line.execute("DELETE FROM odd_key")
    inserted, updated, deleted = await line.rows()
    assert inserted.row == {"t": "2020-01-01T00:00:00Z", "b": b"\0\xff", "n": "1.10"}
    assert updated.payload["old"] == inserted.row
    assert deleted.row == deleted.payload["old"] == updated.row


@on_both_versions
async def test_a_table_without_a_key_delivers_inserts_and_full_old_rows(line: Line) -> None:
    await line.execute("CREATE TABLE keyless (a int, b text)")
    await line.execute("INSERT INTO keyless VALUES (1, NULL), (1, NULL), (2, 'x')")
    await line.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    await line.execute("UPDATE keyless SET a = 3 WHERE b = 'x'")
    await line.execute("DELETE FROM keyless WHERE b IS NULL")
    events = await line.rows()
    assert brief(events) == [
        ("INSERT", {"a": 1, "b": None}),
        ("INSERT", {"a": 1, "b": None}),
        ("INSERT", {"a": 2, "b": "x"}),
        ("UPDATE", {"a": 3, "b": "x"}),
        ("DELETE", {"a": 1, "b": None}),
        ("DELETE", {"a": 1, "b": None}),
    ]
    assert events[3].payload["old"] == {"a": 2, "b": "x"}
    assert events[4].payload["old"] == {"a": 1, "b": None}


async def test_replica_identity_nothing_delivers_inserts_and_truncates(line: Line) -> None:
    await line.execute(
        "CREATE TABLE inserted_only (id int PRIMARY KEY); ALTER TABLE inserted_only REPLICA "
        "IDENTITY NOTHING"
    )
    await line.execute("INSERT INTO inserted_only VALUES (1); TRUNCATE inserted_only")
    assert brief(await line.rows()) == [("INSERT", {"id": 1}), ("TRUNCATE", {})]


@on_both_versions
async def test_replica_identity_using_index_gives_the_index_as_old_key_and_the_primary_key_as_data(
    line: Line,
) -> None:
    await line.execute("CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL, n int)")
    await line.execute("CREATE UNIQUE INDEX by_code ON by_index (code)")
    await line.execute("ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_code")
    await line.execute("INSERT INTO by_index VALUES (1, 'a', 0)")
    await line.execute("UPDATE by_index SET code = 'b'")
    await line.execute("UPDATE by_index SET id = 2")
    await line.execute("DELETE FROM by_index")
    _, recoded, renumbered, deleted = await line.rows()
    assert recoded.payload["old"] == {"code": "a"}
    assert "old" not in renumbered.payload
    assert deleted.payload["old"] == {"code": "b"}
    # What identifies the row must be in `data`, and PostgreSQL sent no more than the index's
    # columns.
    assert deleted.row == {"id": None, "code": "b", "n": None}


async def test_a_table_keyed_by_an_index_alone_is_deleted_by_it(line: Line) -> None:
    await line.execute(
        "CREATE TABLE index_only (a int NOT NULL, b int); CREATE UNIQUE INDEX index_a ON "
        "index_only (a)"
    )
    await line.execute("ALTER TABLE index_only REPLICA IDENTITY USING INDEX index_a")
    await line.execute("INSERT INTO index_only VALUES (1, 2)")
    await line.execute("DELETE FROM index_only")
    assert brief(await line.rows())[1] == ("DELETE", {"a": 1, "b": None})


async def test_a_table_without_columns_delivers_its_rows(line: Line) -> None:
    await line.execute("CREATE TABLE empty_rows (); INSERT INTO empty_rows DEFAULT VALUES")
    assert brief(await line.rows()) == [("INSERT", {})]


# TRUNCATE


@on_both_versions
async def test_a_truncate_of_several_tables_is_an_event_of_each(line: Line) -> None:
    await line.execute(
        "CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int REFERENCES parent)"
    )
    await line.execute("CREATE TABLE alone (id int)")
    await line.execute(
        "INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1); INSERT INTO alone VALUES (1)"
    )
    await line.rows()
    await line.execute("TRUNCATE parent, alone CASCADE")
    events = await line.rows()
    assert {event.subject for event in events} == {
        "cdc.parent.truncate",
        "cdc.child.truncate",
        "cdc.alone.truncate",
    }
    assert [event.payload["tx"]["seq"] for event in events] == [0, 1, 2]
    assert [event.payload["tx"]["last"] for event in events] == [False, False, True]
    assert len({event.msg_id for event in events}) == 3
    assert all(event.row == {} for event in events)


async def test_the_same_table_truncated_twice_in_a_transaction_is_two_events(line: Line) -> None:
    await line.execute("CREATE TABLE twice (id int)")
    await line.execute("TRUNCATE twice; INSERT INTO twice VALUES (1); TRUNCATE twice")
    events = await line.rows()
    assert [event.operation for event in events] == ["TRUNCATE", "INSERT", "TRUNCATE"]
    assert len({event.msg_id for event in events}) == 3


# Ids and places


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
    await line.execute("CREATE TABLE tried (id int PRIMARY KEY)")
    await line.execute("BEGIN; INSERT INTO tried VALUES (1); ROLLBACK")
    await line.execute(
        "BEGIN; INSERT INTO tried VALUES (2); SAVEPOINT a; INSERT INTO tried VALUES (3); SAVEPOINT "
        "b;"
        "INSERT INTO tried VALUES (4); ROLLBACK TO a; INSERT INTO tried VALUES (5); SAVEPOINT c;"
        "INSERT INTO tried VALUES (6); RELEASE c; COMMIT"
    )
    events = await line.rows()
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
        await line.execute("CREATE TABLE prepared (id int)")
        await line.execute("BEGIN; INSERT INTO prepared VALUES (1); PREPARE TRANSACTION 'later'")
        await line.execute("BEGIN; INSERT INTO prepared VALUES (2); PREPARE TRANSACTION 'never'")
        assert await line.rows() == []
        await line.execute("COMMIT PREPARED 'later'")
        await line.execute("ROLLBACK PREPARED 'never'")
        assert brief(await line.rows()) == [("INSERT", {"id": 1})]


@on_both_versions
async def test_rows_come_by_whatever_way_they_were_written(line: Line) -> None:
    await line.execute("CREATE TABLE ways (id int PRIMARY KEY, n int)")
    await line.execute(
        "CREATE TABLE follows (id int PRIMARY KEY REFERENCES ways ON DELETE CASCADE ON UPDATE "
        "CASCADE)"
    )
    await line.execute("INSERT INTO ways VALUES (1, 1); INSERT INTO follows VALUES (1)")
    await line.execute(
        "INSERT INTO ways VALUES (1, 2), (2, 2) ON CONFLICT (id) DO UPDATE SET n = excluded.n"
    )
    await line.execute(
        "MERGE INTO ways USING (VALUES (2, 9), (3, 3)) AS v (id, n) ON ways.id = v.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.n)"
    )
    await line.execute("UPDATE ways SET id = 4 WHERE id = 1; DELETE FROM ways WHERE id = 4")
    assert brief(await line.rows()) == [
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
    await line.execute("CREATE TABLE hopped (id int)")
    await line.execute("SELECT pg_replication_origin_create('elsewhere')")
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
    await line.execute("ALTER TABLE packed ALTER n TYPE bigint; ALTER TABLE packed SET UNLOGGED")
    await line.execute(
        "ALTER TABLE packed SET LOGGED; CREATE MATERIALIZED VIEW seen AS SELECT * FROM packed"
    )
    await line.execute("REFRESH MATERIALIZED VIEW seen; CREATE TEMP TABLE passing AS SELECT 1")
    await line.execute("CREATE UNLOGGED TABLE loose (id int)")
    await line.execute("INSERT INTO loose VALUES (1)")
    assert await line.take() == []


async def test_a_database_that_is_not_utf8_is_delivered_as_utf8(
    postgres_server: EmbeddedPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    async with (
        fresh_database(postgres_server, "latin", "ENCODING 'LATIN1' LOCALE 'C'") as database,
        running_line(database, await own_nats(), tmp_path, {}) as line,
    ):
        await line.execute('CREATE TABLE "café" ("naïve" text PRIMARY KEY)')
        await line.execute("INSERT INTO \"café\" VALUES ('déjà vu')")
        row = (await line.rows())[0]
    assert (row.payload["table"], row.row) == ("café", {"naïve": "déjà vu"})


# Names

NAMES = (
    "Mixed Case",
    "dots.and.more",
    'quo"te',
    "sla/sh",
    "star*and>gt",
    "ünïcödé 😀",
    "a" * 63,
    "ß" * 31,
    "_gap",
    "_message",
    "=2F",
    "select",
    " ",
    "%s {x} $1",
    "new\nline",
)


@on_both_versions
async def test_any_name_of_a_table_and_of_a_column_arrives_as_it_is(line: Line) -> None:
    quoted = {name: '"' + name.replace('"', '""') + '"' for name in NAMES}
    await line.execute('CREATE SCHEMA "Odd.Schema/ü"')
    for schema in ("public", '"Odd.Schema/ü"'):
        for name in NAMES:
            await line.execute(
                f"CREATE TABLE {schema}.{quoted[name]} ({quoted[name]} int PRIMARY KEY)"
            )
            await line.execute(f"INSERT INTO {schema}.{quoted[name]} VALUES (7)")
    events = await line.rows()
    expected = [(schema, name) for schema in ("public", "Odd.Schema/ü") for name in NAMES]
    assert [(event.payload["schema"], event.payload["table"]) for event in events] == expected
    for event, (schema, name) in zip(events, expected, strict=True):
        assert event.row == {name: 7}
        assert (
            event.subject == event.payload["subject"] == f"cdc.{table_token(schema, name)}.insert"
        )
        assert re.fullmatch(r"cdc\.[A-Za-z0-9_=-]+\.insert", event.subject)
    assert len({event.subject for event in events}) == len(expected)


async def test_tables_of_the_same_name_in_two_schemas_stay_apart(line: Line) -> None:
    await line.execute("CREATE SCHEMA sales; CREATE SCHEMA stock")
    for schema in ("public", "sales", "stock"):
        await line.execute(f"CREATE TABLE {schema}.items (id int PRIMARY KEY)")
    await line.execute(
        "INSERT INTO items VALUES (1); INSERT INTO sales.items VALUES (2); INSERT INTO stock.items "
        "VALUES (3)"
    )
    events = await line.rows()
    assert [(event.subject, event.payload["schema"], event.row["id"]) for event in events] == [
        ("cdc.items.insert", "public", 1),
        ("cdc.sales=2Fitems.insert", "sales", 2),
        ("cdc.stock=2Fitems.insert", "stock", 3),
    ]


@on_both_versions
async def test_a_table_of_1600_columns_arrives_whole(line: Line) -> None:
    columns = ", ".join(f"c{n} int" for n in range(1600))
    await line.execute(f"CREATE TABLE wide ({columns}); ALTER TABLE wide REPLICA IDENTITY FULL")
    await line.execute(f"INSERT INTO wide SELECT {', '.join(str(n) for n in range(1600))}")
    await line.execute("UPDATE wide SET c1599 = NULL")
    told, inserted, updated = await line.take()
    assert len(told.payload["columns"]) == 1600
    assert inserted.row == {f"c{n}": n for n in range(1600)}
    assert updated.row == {**inserted.row, "c1599": None}
    assert updated.payload["old"] == inserted.row


# Messages


@on_both_versions
async def test_a_message_of_a_configured_prefix_takes_its_place_in_its_transaction(
    line: Line,
) -> None:
    await line.execute("CREATE TABLE with_message (id int PRIMARY KEY)")
    await line.execute(
        "INSERT INTO with_message VALUES (1); SELECT pg_logical_emit_message(true, 'orders', "
        "'été');"
        "SELECT pg_logical_emit_message(true, 'unknown', 'x'); INSERT INTO with_message VALUES (2)"
    )
    first, message, second = await line.rows()
    assert message.subject == "cdc._message.orders"
    assert message.payload["content"] == "été"
    assert message.payload["prefix"] == "orders"
    # The unknown one is counted too.
    assert [event.payload["tx"]["seq"] for event in (first, message, second)] == [0, 1, 3]
    assert {event.payload["tx"]["xid"] for event in (first, message, second)} == {
        first.payload["tx"]["xid"]
    }
    assert [event.payload["tx"]["last"] for event in (first, message, second)] == [
        False,
        False,
        True,
    ]


@on_both_versions
async def test_a_message_outside_transactions_is_one_of_its_own(line: Line) -> None:
    connection = await line.database.connect()
    await connection.execute("CREATE TABLE around (id int)")
    await connection.execute("BEGIN; INSERT INTO around VALUES (1)")
    # Sent at once, whatever becomes of the transaction it is called in.
    await connection.execute(
        r"SELECT pg_logical_emit_message(false, 'odd prefix.ü', '\xff00'::bytea)"
    )
    await connection.execute("SELECT pg_logical_emit_message(false, 'orders', 'soon')")
    await connection.execute("COMMIT")
    await connection.close()
    odd, soon, row = await line.rows()
    assert odd.subject == "cdc._message.odd=20prefix=2E=C3=BC"
    assert odd.payload["content"] == b"\xff\0"
    assert soon.payload["content"] == "soon"
    assert row.operation == "INSERT"
    for message in (odd, soon):
        tx = message.payload["tx"]
        assert (tx["seq"], tx["last"], tx["xid"], tx["ts"]) == (0, True, 0, None)
    # The second one's record ends where that of the commit begins.
    assert soon.payload["lsn"] == row.payload["tx"]["lsn"]
    places = [
        (event.payload["tx"]["lsn"], event.payload["tx"]["seq"]) for event in (odd, soon, row)
    ]
    assert places == sorted(set(places))
