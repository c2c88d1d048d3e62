"""The changes that a publication, its partitions and the suite's selection include or exclude."""

from __future__ import annotations

import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.embedded.postgres_install import PostgresVersion
from headrace.testing.line import Line, Lines, brief, only
from tests.support.versions import on_both_versions

pytestmark = pytest.mark.asyncio(loop_scope="module")

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


# Publications


@on_both_versions
async def test_a_row_filter_makes_updates_that_cross_it_inserts_and_deletes(chosen: Line) -> None:
    assert await chosen.did(
        "CREATE TABLE filtered (id int PRIMARY KEY, region int, n int)",
        "ALTER TABLE filtered REPLICA IDENTITY FULL",
        "ALTER PUBLICATION headrace ADD TABLE filtered WHERE (region = 1)",
        "INSERT INTO filtered VALUES (1, 1, 0), (2, 2, 0)",
        "UPDATE filtered SET n = 1",
        "UPDATE filtered SET region = 3 - region",
        "DELETE FROM filtered",
    ) == [
        ("INSERT", {"id": 1, "region": 1, "n": 0}),
        ("UPDATE", {"id": 1, "region": 1, "n": 1}),
        ("DELETE", {"id": 1, "region": None, "n": None}),
        ("INSERT", {"id": 2, "region": 1, "n": 1}),
        ("DELETE", {"id": 2, "region": None, "n": None}),
    ]


@on_both_versions
async def test_a_row_that_enters_the_filter_lacks_large_values_that_did_not_change(
    chosen: Line,
) -> None:
    (entered,) = await chosen.rows(
        "CREATE TABLE entered (id int PRIMARY KEY, large text)",
        "ALTER TABLE entered ALTER large SET STORAGE EXTERNAL",
        "ALTER PUBLICATION headrace ADD TABLE entered WHERE (id > 5)",
        "INSERT INTO entered VALUES (1, repeat('x', 5000))",
        "UPDATE entered SET id = 6",
    )
    assert (entered.operation, entered.row) == ("INSERT", {"id": 6})
    assert entered.payload["unchanged"] == ["large"]


@on_both_versions
async def test_a_column_list_holds_in_data_old_and_schema(chosen: Line) -> None:
    events = await chosen.take(
        "CREATE TABLE listed (id int PRIMARY KEY, shown text, secret text)",
        "ALTER PUBLICATION headrace ADD TABLE listed (id, shown)",
        "INSERT INTO listed VALUES (1, 'a', 'classified')",
        "UPDATE listed SET id = 2, secret = 'classified'",
        "UPDATE listed SET secret = 'classified too'",
        "DELETE FROM listed",
    )
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
    assert await chosen.did(
        "CREATE TABLE listed_odd (id int PRIMARY KEY, shown text, other text)",
        "ALTER TABLE listed_odd REPLICA IDENTITY NOTHING",
        "ALTER PUBLICATION headrace ADD TABLE listed_odd (other, shown)",
        "INSERT INTO listed_odd VALUES (1, 'a', 'b')",
    ) == [("INSERT", {"shown": "a", "other": "b"})]


async def test_a_publication_of_some_operations_delivers_those(chosen: Line) -> None:
    events = await chosen.rows(
        "CREATE TABLE partly (id int PRIMARY KEY); ALTER PUBLICATION headrace ADD TABLE partly",
        "ALTER PUBLICATION headrace SET (publish = 'insert, update')",
        "INSERT INTO partly VALUES (1); DELETE FROM partly; TRUNCATE partly; INSERT INTO partly "
        "VALUES (2)",
    )
    await chosen.execute(
        "ALTER PUBLICATION headrace SET (publish = 'insert, update, delete, truncate')"
    )
    assert brief(events) == [("INSERT", {"id": 1}), ("INSERT", {"id": 2})]
    # Rows that PostgreSQL does not send can't be counted.
    assert [event.payload["tx"]["seq"] for event in events] == [0, 1]


@on_both_versions
async def test_generated_columns_are_absent_unless_the_publication_has_them(
    chosen: Line, version: PostgresVersion
) -> None:
    assert await chosen.did(
        "CREATE TABLE made (id int PRIMARY KEY, n int, double int GENERATED ALWAYS AS (n * 2) "
        "STORED)",
        "ALTER PUBLICATION headrace ADD TABLE made",
        "INSERT INTO made VALUES (1, 5)",
    ) == [("INSERT", {"id": 1, "n": 5})]
    if version < 18:
        return
    events = await chosen.take(
        "ALTER PUBLICATION headrace SET (publish_generated_columns = stored)",
        "UPDATE made SET n = 6",
    )
    await chosen.execute("ALTER PUBLICATION headrace SET (publish_generated_columns = none)")
    assert brief(only(events, "UPDATE")) == [("UPDATE", {"id": 1, "n": 6, "double": 12})]
    told = events[0].payload
    assert told["operation"] == "SCHEMA"
    assert told["resync"]
    assert [column["name"] for column in told["columns"]] == ["id", "n", "double"]


async def test_virtual_generated_columns_are_never_sent(chosen: Line) -> None:
    assert await chosen.did(
        "CREATE TABLE virtual (id int PRIMARY KEY, n int GENERATED ALWAYS AS (id * 2) VIRTUAL)",
        "ALTER PUBLICATION headrace ADD TABLE virtual",
        "INSERT INTO virtual VALUES (1)",
    ) == [("INSERT", {"id": 1})]


async def test_a_generated_column_in_a_column_list_is_delivered(chosen: Line) -> None:
    assert await chosen.did(
        "CREATE TABLE made_listed (id int PRIMARY KEY, n int GENERATED ALWAYS AS (id * 2) STORED)",
        "ALTER PUBLICATION headrace ADD TABLE made_listed (id, n)",
        "INSERT INTO made_listed VALUES (1)",
    ) == [("INSERT", {"id": 1, "n": 2})]


# Partitions


@on_both_versions
async def test_a_partition_is_its_own_table(line: Line) -> None:
    events = await line.rows(
        "CREATE TABLE split (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE split_low PARTITION OF split FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE split_high PARTITION OF split FOR VALUES FROM (10) TO (20)",
        "INSERT INTO split VALUES (1, 1), (11, 1)",
        "UPDATE split SET id = 12 WHERE id = 1",
        "ALTER TABLE split DETACH PARTITION split_low; INSERT INTO split_low VALUES (2, 2)",
        "TRUNCATE split",
    )
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
    events = await chosen.rows(
        "ALTER PUBLICATION headrace SET (publish_via_partition_root = true)",
        "CREATE TABLE rooted (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE rooted_low PARTITION OF rooted FOR VALUES FROM (0) TO (10)",
        "ALTER PUBLICATION headrace ADD TABLE rooted",
        "INSERT INTO rooted VALUES (1, 1)",
        # Another order of columns, and one that was dropped.
        "CREATE TABLE rooted_high (gone text, n int, id int NOT NULL)",
        "ALTER TABLE rooted_high DROP gone, ADD PRIMARY KEY (id)",
        "INSERT INTO rooted_high (id, n) VALUES (10, 9)",
        "ALTER TABLE rooted ATTACH PARTITION rooted_high FOR VALUES FROM (10) TO (20)",
        "INSERT INTO rooted VALUES (11, 2)",
        "UPDATE rooted SET id = 12 WHERE id = 1",
        "UPDATE rooted SET n = 3 WHERE id = 11",
        "DELETE FROM rooted WHERE id = 11",
        "ALTER TABLE rooted DETACH PARTITION rooted_low; INSERT INTO rooted_low VALUES (2, 2)",
        "TRUNCATE rooted",
    )
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
    await chosen.execute(
        "CREATE TABLE leafy (id int PRIMARY KEY) PARTITION BY LIST (id)",
        "CREATE TABLE leafy_mid PARTITION OF leafy DEFAULT PARTITION BY LIST (id)",
        "CREATE TABLE leafy_leaf PARTITION OF leafy_mid DEFAULT",
        "ALTER PUBLICATION headrace ADD TABLE leafy",
        "INSERT INTO leafy VALUES (1)",
    )
    assert [(event.payload["table"], event.row) for event in await chosen.rows()] == [
        ("leafy_leaf", {"id": 1})
    ]


# Selection


async def test_an_excluded_table_is_left_out_and_its_changes_are_counted(line: Line) -> None:
    events = await line.take(
        "CREATE TABLE hidden_one (id int); CREATE TABLE open_one (id int)",
        "CREATE SCHEMA archive; CREATE TABLE archive.old (id int)",
        "INSERT INTO hidden_one VALUES (1); INSERT INTO open_one VALUES (1); INSERT INTO "
        "archive.old VALUES (1)",
        "TRUNCATE hidden_one, open_one",
    )
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
        "CREATE SCHEMA shop; CREATE TABLE shop.any (id int); CREATE TABLE other (id int)",
        "CREATE TABLE kept_one (id int); CREATE TABLE shop.kept_two (id int)",
    )
    for table in ("shop.any", "other", "kept_one", "shop.kept_two"):
        await line.execute(f"INSERT INTO {table} VALUES (1)")
    assert [event.payload["table"] for event in await line.rows()] == [
        "any",
        "kept_one",
        "kept_two",
    ]


async def test_an_excluded_column_is_nowhere(line: Line) -> None:
    events = await line.take(
        "CREATE TABLE guarded (secret text, id int, note text, PRIMARY KEY (id, secret))",
        "CREATE SCHEMA vault; CREATE TABLE vault.guarded (id int PRIMARY KEY, pin text)",
        "INSERT INTO guarded VALUES ('classified', 1, 'a')",
        "UPDATE guarded SET id = 2; DELETE FROM guarded",
        "ALTER TABLE guarded REPLICA IDENTITY FULL",
        "INSERT INTO guarded VALUES ('classified', 3, 'a')",
        "UPDATE guarded SET note = 'b'; DELETE FROM guarded",
        "INSERT INTO vault.guarded VALUES (1, 'classified')",
    )
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
