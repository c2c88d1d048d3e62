"""Every kind of change on every shape of table, from a real PostgreSQL to the stream."""

from __future__ import annotations

import re

import pytest

from headrace.contract.subjects_and_ids import table_token
from headrace.testing.line import Line, brief
from tests.support.versions import on_both_versions

pytestmark = pytest.mark.asyncio(loop_scope="module")

LARGE = "repeat(md5(random()::text), 400)"


# TOAST


@on_both_versions
async def test_an_unchanged_toasted_value_is_named_and_never_null(line: Line) -> None:
    inserted, n_changed, other_changed, big_gone = await line.rows(
        "CREATE TABLE toast (id int PRIMARY KEY, big text, other text, n int)",
        "ALTER TABLE toast ALTER big SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL",
        f"INSERT INTO toast VALUES (1, {LARGE}, NULL, 0)",
        "UPDATE toast SET n = 1",
        f"UPDATE toast SET other = {LARGE}",
        "UPDATE toast SET big = NULL, n = 2",
    )
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
    inserted, updated, deleted = await line.rows(
        "CREATE TABLE toast_full (id int PRIMARY KEY, big text, n int)",
        "ALTER TABLE toast_full ALTER big SET STORAGE EXTERNAL, REPLICA IDENTITY FULL",
        f"INSERT INTO toast_full VALUES (1, {LARGE}, 0)",
        "UPDATE toast_full SET n = 1",
        "DELETE FROM toast_full",
    )
    assert updated.payload["old"] == inserted.row
    # PostgreSQL writes the value of an unchanged TOAST column into the old row only.
    assert updated.row == {"id": 1, "n": 1}
    assert updated.payload["unchanged"] == ["big"]
    assert deleted.payload["old"] == {**inserted.row, "n": 1}
    assert deleted.row == {"id": 1, "big": None, "n": None}


@on_both_versions
async def test_an_unchanged_toasted_key_is_not_null_in_a_full_or_a_key_row(line: Line) -> None:
    inserted, updated, deleted = await line.rows(
        "CREATE TABLE toast_key (k text, n int, PRIMARY KEY (k))",
        "ALTER TABLE toast_key ALTER k SET STORAGE EXTERNAL",
        "INSERT INTO toast_key VALUES (repeat('k', 2500), 0)",
        "UPDATE toast_key SET n = 1",
        "DELETE FROM toast_key",
    )
    key = "k" * 2500
    assert inserted.row == {"k": key, "n": 0}
    known = {**updated.payload.get("old", {}), **updated.row}
    assert known == {"k": key, "n": 1}
    assert deleted.row == {"k": key, "n": None}


# Keys and replica identities


@on_both_versions
async def test_an_update_of_the_primary_key_carries_the_old_key(line: Line) -> None:
    _, moved, noted, deleted = await line.rows(
        "CREATE TABLE moved (a int, b text, note text, PRIMARY KEY (b, a))",
        "INSERT INTO moved VALUES (1, 'x', 'n')",
        "UPDATE moved SET a = 2",
        "UPDATE moved SET note = 'm'",
        "DELETE FROM moved",
    )
    assert moved.payload["old"] == {"a": 1, "b": "x"}
    assert moved.row == {"a": 2, "b": "x", "note": "n"}
    assert "old" not in noted.payload
    assert deleted.payload["old"] == {"a": 2, "b": "x"}
    assert deleted.row == {"a": 2, "b": "x", "note": None}


@on_both_versions
async def test_keys_have_the_forms_that_rows_have(line: Line) -> None:
    inserted, updated, deleted = await line.rows(
        "CREATE DOMAIN at AS timestamptz",
        "CREATE TABLE odd_key (t at, b bytea, n numeric, PRIMARY KEY (t, b, n))",
        r"INSERT INTO odd_key VALUES ('2020-01-01 00:00+00', '\x00ff', 1.10)",
        "UPDATE odd_key SET n = 2.0",
        "DELETE FROM odd_key",
    )
    assert inserted.row == {"t": "2020-01-01T00:00:00Z", "b": b"\0\xff", "n": "1.10"}
    assert updated.payload["old"] == inserted.row
    assert deleted.row == deleted.payload["old"] == updated.row


@on_both_versions
async def test_a_table_without_a_key_delivers_inserts_and_full_old_rows(line: Line) -> None:
    events = await line.rows(
        "CREATE TABLE keyless (a int, b text)",
        "INSERT INTO keyless VALUES (1, NULL), (1, NULL), (2, 'x')",
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
        "UPDATE keyless SET a = 3 WHERE b = 'x'",
        "DELETE FROM keyless WHERE b IS NULL",
    )
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
    assert await line.did(
        "CREATE TABLE inserted_only (id int PRIMARY KEY); ALTER TABLE inserted_only REPLICA "
        "IDENTITY NOTHING",
        "INSERT INTO inserted_only VALUES (1); TRUNCATE inserted_only",
    ) == [("INSERT", {"id": 1}), ("TRUNCATE", {})]


@on_both_versions
async def test_replica_identity_using_index_gives_the_index_as_old_key_and_the_primary_key_as_data(
    line: Line,
) -> None:
    _, recoded, renumbered, deleted = await line.rows(
        "CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL, n int)",
        "CREATE UNIQUE INDEX by_code ON by_index (code)",
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_code",
        "INSERT INTO by_index VALUES (1, 'a', 0)",
        "UPDATE by_index SET code = 'b'",
        "UPDATE by_index SET id = 2",
        "DELETE FROM by_index",
    )
    assert recoded.payload["old"] == {"code": "a"}
    assert "old" not in renumbered.payload
    assert deleted.payload["old"] == {"code": "b"}
    # The columns that identify the row must be in `data`, and PostgreSQL sent no more than the
    # index's columns.
    assert deleted.row == {"id": None, "code": "b", "n": None}


async def test_a_table_keyed_by_an_index_alone_is_deleted_by_it(line: Line) -> None:
    await line.execute(
        "CREATE TABLE index_only (a int NOT NULL, b int); CREATE UNIQUE INDEX index_a ON "
        "index_only (a)",
        "ALTER TABLE index_only REPLICA IDENTITY USING INDEX index_a",
        "INSERT INTO index_only VALUES (1, 2)",
        "DELETE FROM index_only",
    )
    assert brief(await line.rows())[1] == ("DELETE", {"a": 1, "b": None})


async def test_a_table_without_columns_delivers_its_rows(line: Line) -> None:
    assert await line.did("CREATE TABLE empty_rows (); INSERT INTO empty_rows DEFAULT VALUES") == [
        ("INSERT", {})
    ]


# TRUNCATE


@on_both_versions
async def test_a_truncate_of_several_tables_is_an_event_of_each(line: Line) -> None:
    await line.execute(
        "CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int REFERENCES parent)",
        "CREATE TABLE single (id int)",
        "INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1); INSERT INTO single VALUES (1)",
    )
    await line.rows()
    events = await line.rows("TRUNCATE parent, single CASCADE")
    assert {event.subject for event in events} == {
        "cdc.parent.truncate",
        "cdc.child.truncate",
        "cdc.single.truncate",
    }
    assert [event.payload["tx"]["seq"] for event in events] == [0, 1, 2]
    assert [event.payload["tx"]["last"] for event in events] == [False, False, True]
    assert len({event.msg_id for event in events}) == 3
    assert all(event.row == {} for event in events)


async def test_the_same_table_truncated_twice_in_a_transaction_is_two_events(line: Line) -> None:
    events = await line.rows(
        "CREATE TABLE twice (id int)",
        "TRUNCATE twice; INSERT INTO twice VALUES (1); TRUNCATE twice",
    )
    assert [event.operation for event in events] == ["TRUNCATE", "INSERT", "TRUNCATE"]
    assert len({event.msg_id for event in events}) == 3


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
                f"CREATE TABLE {schema}.{quoted[name]} ({quoted[name]} int PRIMARY KEY)",
                f"INSERT INTO {schema}.{quoted[name]} VALUES (7)",
            )
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
    events = await line.rows(
        "INSERT INTO items VALUES (1); INSERT INTO sales.items VALUES (2); INSERT INTO stock.items "
        "VALUES (3)"
    )
    assert [(event.subject, event.payload["schema"], event.row["id"]) for event in events] == [
        ("cdc.items.insert", "public", 1),
        ("cdc.sales=2Fitems.insert", "sales", 2),
        ("cdc.stock=2Fitems.insert", "stock", 3),
    ]


@on_both_versions
async def test_a_table_of_1600_columns_arrives_whole(line: Line) -> None:
    columns = ", ".join(f"c{n} int" for n in range(1600))
    told, inserted, updated = await line.take(
        f"CREATE TABLE wide ({columns}); ALTER TABLE wide REPLICA IDENTITY FULL",
        f"INSERT INTO wide SELECT {', '.join(str(n) for n in range(1600))}",
        "UPDATE wide SET c1599 = NULL",
    )
    assert len(told.payload["columns"]) == 1600
    assert inserted.row == {f"c{n}": n for n in range(1600)}
    assert updated.row == {**inserted.row, "c1599": None}
    assert updated.payload["old"] == inserted.row


# Messages


@on_both_versions
async def test_a_message_of_a_configured_prefix_takes_its_place_in_its_transaction(
    line: Line,
) -> None:
    first, message, second = await line.rows(
        "CREATE TABLE with_message (id int PRIMARY KEY)",
        "INSERT INTO with_message VALUES (1); SELECT pg_logical_emit_message(true, 'orders', "
        "'été');"
        "SELECT pg_logical_emit_message(true, 'unknown', 'x'); INSERT INTO with_message VALUES (2)",
    )
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
    # Sent immediately, even if the transaction that calls it rolls back.
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
