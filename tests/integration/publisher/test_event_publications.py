"""The changes that a publication, its partitions and the suite's selection include or exclude."""

from __future__ import annotations

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.embedded.postgres_install import PostgresVersion
from headrace.testing.line import Line, Lines, brief, only

pytestmark = pytest.mark.asyncio(loop_scope="module")

on_both_versions = pytest.mark.parametrize("version", [16, 18])
NOTHING_PUBLISHED = "FOR TABLE line_marker"


@async_fixture(loop_scope="module")
async def line(lines: Lines, version: PostgresVersion) -> Line:
    """A line that publishes all tables; nothing of an earlier test is left in it."""
    found = await lines(
        version,
        HEADRACE_EXCLUDE="hidden_*,archive.*",
        HEADRACE_EXCLUDE_COLUMNS="guarded.secret,vault.guarded.pin",
    )
    await found.take()
    return found


@async_fixture(loop_scope="module")
async def chosen(lines: Lines, version: PostgresVersion) -> Line:
    """A line whose publication has only what the test adds; in JSON."""
    found = await lines(version, NOTHING_PUBLISHED, HEADRACE_ENCODING="json")
    await found.take()
    return found


@pytest.fixture
def version() -> PostgresVersion:
    """PostgreSQL's version where a test names none."""
    return 18


# Publications


@on_both_versions
async def test_a_row_filter_makes_updates_that_cross_it_inserts_and_deletes(chosen: Line) -> None:
    await chosen.execute("CREATE TABLE filtered (id int PRIMARY KEY, region int, n int)")
    await chosen.execute("ALTER TABLE filtered REPLICA IDENTITY FULL")
    await chosen.execute("ALTER PUBLICATION headrace ADD TABLE filtered WHERE (region = 1)")
    await chosen.execute("INSERT INTO filtered VALUES (1, 1, 0), (2, 2, 0)")
    await chosen.execute("UPDATE filtered SET n = 1")
    await chosen.execute("UPDATE filtered SET region = 3 - region")
    await chosen.execute("DELETE FROM filtered")
    events = await chosen.rows()
    assert brief(events) == [
        ("INSERT", {"id": 1, "region": 1, "n": 0}),
        ("UPDATE", {"id": 1, "region": 1, "n": 1}),
        ("DELETE", {"id": 1, "region": None, "n": None}),
        ("INSERT", {"id": 2, "region": 1, "n": 1}),
        ("DELETE", {"id": 2, "region": None, "n": None}),
    ]


@on_both_versions
async def test_a_column_list_holds_in_data_old_and_schema(chosen: Line) -> None:
    await chosen.execute("CREATE TABLE listed (id int PRIMARY KEY, shown text, secret text)")
    await chosen.execute("ALTER PUBLICATION headrace ADD TABLE listed (id, shown)")
    await chosen.execute("INSERT INTO listed VALUES (1, 'a', 'classified')")
    await chosen.execute("UPDATE listed SET id = 2, secret = 'classified'")
    await chosen.execute("UPDATE listed SET secret = 'classified too'")
    await chosen.execute("DELETE FROM listed")
    events = await chosen.take()
    assert [column["name"] for column in only(events, "SCHEMA")[0].payload["columns"]] == [
        "id",
        "shown",
    ]
    assert brief(only(events, "INSERT", "UPDATE", "DELETE")) == [
        ("INSERT", {"id": 1, "shown": "a"}),
        ("UPDATE", {"id": 2, "shown": "a"}),
        ("UPDATE", {"id": 2, "shown": "a"}),
        ("DELETE", {"id": 2, "shown": None}),
    ]
    assert not any(b"classified" in event.data or b"secret" in event.data for event in events)


async def test_a_column_list_without_the_key_delivers_inserts(chosen: Line) -> None:
    await chosen.execute("CREATE TABLE listed_odd (id int PRIMARY KEY, shown text, other text)")
    await chosen.execute("ALTER TABLE listed_odd REPLICA IDENTITY NOTHING")
    await chosen.execute("ALTER PUBLICATION headrace ADD TABLE listed_odd (other, shown)")
    await chosen.execute("INSERT INTO listed_odd VALUES (1, 'a', 'b')")
    assert brief(await chosen.rows()) == [("INSERT", {"shown": "a", "other": "b"})]


async def test_a_publication_of_some_operations_delivers_those(chosen: Line) -> None:
    await chosen.execute(
        "CREATE TABLE partly (id int PRIMARY KEY); ALTER PUBLICATION headrace ADD TABLE partly"
    )
    await chosen.execute("ALTER PUBLICATION headrace SET (publish = 'insert, update')")
    await chosen.execute(
        "INSERT INTO partly VALUES (1); DELETE FROM partly; TRUNCATE partly; INSERT INTO partly "
        "VALUES (2)"
    )
    events = await chosen.rows()
    await chosen.execute(
        "ALTER PUBLICATION headrace SET (publish = 'insert, update, delete, truncate')"
    )
    assert brief(events) == [("INSERT", {"id": 1}), ("INSERT", {"id": 2})]
    # What PostgreSQL does not send can't be counted.
    assert [event.payload["tx"]["seq"] for event in events] == [0, 1]


@on_both_versions
async def test_generated_columns_are_absent_unless_the_publication_has_them(
    chosen: Line, version: PostgresVersion
) -> None:
    await chosen.execute(
        "CREATE TABLE made (id int PRIMARY KEY, n int, double int GENERATED ALWAYS AS (n * 2) "
        "STORED)"
    )
    await chosen.execute("ALTER PUBLICATION headrace ADD TABLE made")
    await chosen.execute("INSERT INTO made VALUES (1, 5)")
    assert brief(await chosen.rows()) == [("INSERT", {"id": 1, "n": 5})]
    if version < 18:
        return
    await chosen.execute("ALTER PUBLICATION headrace SET (publish_generated_columns = stored)")
    await chosen.execute("UPDATE made SET n = 6")
    events = await chosen.take()
    await chosen.execute("ALTER PUBLICATION headrace SET (publish_generated_columns = none)")
    assert brief(only(events, "UPDATE")) == [("UPDATE", {"id": 1, "n": 6, "double": 12})]
    told = events[0].payload
    assert told["operation"] == "SCHEMA"
    assert told["resync"]
    assert [column["name"] for column in told["columns"]] == ["id", "n", "double"]


async def test_virtual_generated_columns_are_never_sent(chosen: Line) -> None:
    await chosen.execute(
        "CREATE TABLE virtual (id int PRIMARY KEY, n int GENERATED ALWAYS AS (id * 2) VIRTUAL)"
    )
    await chosen.execute("ALTER PUBLICATION headrace ADD TABLE virtual")
    await chosen.execute("INSERT INTO virtual VALUES (1)")
    assert brief(await chosen.rows()) == [("INSERT", {"id": 1})]


async def test_a_generated_column_in_a_column_list_is_delivered(chosen: Line) -> None:
    await chosen.execute(
        "CREATE TABLE made_listed (id int PRIMARY KEY, n int GENERATED ALWAYS AS (id * 2) STORED)"
    )
    await chosen.execute("ALTER PUBLICATION headrace ADD TABLE made_listed (id, n)")
    await chosen.execute("INSERT INTO made_listed VALUES (1)")
    assert brief(await chosen.rows()) == [("INSERT", {"id": 1, "n": 2})]


# Partitions


@on_both_versions
async def test_a_partition_is_its_own_table(line: Line) -> None:
    await line.execute("CREATE TABLE split (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
    await line.execute("CREATE TABLE split_low PARTITION OF split FOR VALUES FROM (0) TO (10)")
    await line.execute("CREATE TABLE split_high PARTITION OF split FOR VALUES FROM (10) TO (20)")
    await line.execute("INSERT INTO split VALUES (1, 1), (11, 1)")
    await line.execute("UPDATE split SET id = 12 WHERE id = 1")
    await line.execute(
        "ALTER TABLE split DETACH PARTITION split_low; INSERT INTO split_low VALUES (2, 2)"
    )
    await line.execute("TRUNCATE split")
    events = await line.rows()
    assert [(event.payload["table"], event.operation, event.row) for event in events] == [
        ("split_low", "INSERT", {"id": 1, "n": 1}),
        ("split_high", "INSERT", {"id": 11, "n": 1}),
        ("split_low", "DELETE", {"id": 1, "n": None}),
        ("split_high", "INSERT", {"id": 12, "n": 1}),
        ("split_low", "INSERT", {"id": 2, "n": 2}),
        ("split_high", "TRUNCATE", {}),
    ]


@on_both_versions
async def test_via_the_root_partitions_are_one_table_with_the_roots_columns(chosen: Line) -> None:
    await chosen.execute("ALTER PUBLICATION headrace SET (publish_via_partition_root = true)")
    await chosen.execute("CREATE TABLE rooted (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
    await chosen.execute("CREATE TABLE rooted_low PARTITION OF rooted FOR VALUES FROM (0) TO (10)")
    await chosen.execute("ALTER PUBLICATION headrace ADD TABLE rooted")
    await chosen.execute("INSERT INTO rooted VALUES (1, 1)")
    # Another order of columns, and one that was dropped.
    await chosen.execute("CREATE TABLE rooted_high (gone text, n int, id int NOT NULL)")
    await chosen.execute("ALTER TABLE rooted_high DROP gone, ADD PRIMARY KEY (id)")
    await chosen.execute("INSERT INTO rooted_high (id, n) VALUES (10, 9)")
    await chosen.execute(
        "ALTER TABLE rooted ATTACH PARTITION rooted_high FOR VALUES FROM (10) TO (20)"
    )
    await chosen.execute("INSERT INTO rooted VALUES (11, 2)")
    await chosen.execute("UPDATE rooted SET id = 12 WHERE id = 1")
    await chosen.execute("UPDATE rooted SET n = 3 WHERE id = 11")
    await chosen.execute("DELETE FROM rooted WHERE id = 11")
    await chosen.execute(
        "ALTER TABLE rooted DETACH PARTITION rooted_low; INSERT INTO rooted_low VALUES (2, 2)"
    )
    await chosen.execute("TRUNCATE rooted")
    events = await chosen.rows()
    await chosen.execute("ALTER PUBLICATION headrace SET (publish_via_partition_root = false)")
    assert {event.payload["table"] for event in events} == {"rooted"}
    assert brief(events) == [
        ("INSERT", {"id": 1, "n": 1}),
        ("INSERT", {"id": 11, "n": 2}),
        ("DELETE", {"id": 1, "n": None}),
        ("INSERT", {"id": 12, "n": 1}),
        ("UPDATE", {"id": 11, "n": 3}),
        ("DELETE", {"id": 11, "n": None}),
        ("TRUNCATE", {}),
    ]
    assert len({event.payload["relation_id"] for event in events}) == 1


async def test_a_partition_of_a_published_root_is_delivered_by_its_own_name(chosen: Line) -> None:
    await chosen.execute("CREATE TABLE leafy (id int PRIMARY KEY) PARTITION BY LIST (id)")
    await chosen.execute("CREATE TABLE leafy_mid PARTITION OF leafy DEFAULT PARTITION BY LIST (id)")
    await chosen.execute("CREATE TABLE leafy_leaf PARTITION OF leafy_mid DEFAULT")
    await chosen.execute("ALTER PUBLICATION headrace ADD TABLE leafy")
    await chosen.execute("INSERT INTO leafy VALUES (1)")
    assert [(event.payload["table"], event.row) for event in await chosen.rows()] == [
        ("leafy_leaf", {"id": 1})
    ]


# Selection


async def test_an_excluded_table_is_left_out_and_its_changes_are_counted(line: Line) -> None:
    await line.execute("CREATE TABLE hidden_one (id int); CREATE TABLE open_one (id int)")
    await line.execute("CREATE SCHEMA archive; CREATE TABLE archive.old (id int)")
    await line.execute(
        "INSERT INTO hidden_one VALUES (1); INSERT INTO open_one VALUES (1); INSERT INTO "
        "archive.old VALUES (1)"
    )
    await line.execute("TRUNCATE hidden_one, open_one")
    events = await line.take()
    assert [
        (event.subject, event.payload["tx"]["last"]) for event in only(events, "INSERT", "TRUNCATE")
    ] == [
        ("cdc.open_one.insert", True),
        ("cdc.open_one.truncate", True),
    ]
    assert only(events, "INSERT")[0].payload["tx"]["seq"] == 1
    assert {event.payload["table"] for event in events} == {"open_one"}


async def test_only_included_tables_are_delivered(lines: Lines) -> None:
    line = await lines(18, HEADRACE_INCLUDE="line_marker,kept*,shop.*")
    await line.execute(
        "CREATE SCHEMA shop; CREATE TABLE shop.any (id int); CREATE TABLE other (id int)"
    )
    await line.execute("CREATE TABLE kept_one (id int); CREATE TABLE shop.kept_two (id int)")
    for table in ("shop.any", "other", "kept_one", "shop.kept_two"):
        await line.execute(f"INSERT INTO {table} VALUES (1)")
    assert [event.payload["table"] for event in await line.rows()] == [
        "any",
        "kept_one",
        "kept_two",
    ]


async def test_an_excluded_column_is_nowhere(line: Line) -> None:
    await line.execute(
        "CREATE TABLE guarded (secret text, id int, note text, PRIMARY KEY (id, secret))"
    )
    await line.execute(
        "CREATE SCHEMA vault; CREATE TABLE vault.guarded (id int PRIMARY KEY, pin text)"
    )
    await line.execute("INSERT INTO guarded VALUES ('classified', 1, 'a')")
    await line.execute("UPDATE guarded SET id = 2; DELETE FROM guarded")
    await line.execute("ALTER TABLE guarded REPLICA IDENTITY FULL")
    await line.execute("INSERT INTO guarded VALUES ('classified', 3, 'a')")
    await line.execute("UPDATE guarded SET note = 'b'; DELETE FROM guarded")
    await line.execute("INSERT INTO vault.guarded VALUES (1, 'classified')")
    events = await line.take()
    assert brief(only(events, "DELETE")) == [
        ("DELETE", {"id": 2, "note": None}),
        ("DELETE", {"id": 3, "note": None}),
    ]
    assert [event.payload.get("old") for event in only(events, "UPDATE")] == [
        {"id": 1},
        {"id": 3, "note": "a"},
    ]
    assert events[-1].row == {"id": 1}
    for event in events:
        for word in (b"classified", b"secret", b"pin"):
            assert word not in event.data
