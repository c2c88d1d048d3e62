"""A table's shape is reported in order: right before the first row that has it, and once.

The catalog is not watched here: schema events come with rows, at their exact position.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Sequence

import nats
import pytest
from pytest_asyncio import fixture as async_fixture

from headrace.consumer import MemoryWatermarks, Subscription, follow
from headrace.contract.schemas import renamed
from headrace.embedded.postgres_install import PostgresVersion
from headrace.testing.line import Delivered, Line, Lines, only

pytestmark = pytest.mark.asyncio(loop_scope="module")

on_both_versions = pytest.mark.parametrize("version", [16, 18])
NOTHING_PUBLISHED = "FOR TABLE line_marker"


@pytest.fixture
def version() -> PostgresVersion:
    """PostgreSQL's version where a test names none."""
    return 18


@async_fixture(loop_scope="module")
async def line(lines: Lines, version: PostgresVersion) -> Line:
    """A line that publishes all tables; nothing of an earlier test is left in it."""
    found = await lines(version)
    await found.take()
    return found


@async_fixture(loop_scope="module")
async def chosen(lines: Lines, version: PostgresVersion) -> Line:
    """A line whose publication has only what the test adds."""
    found = await lines(version, NOTHING_PUBLISHED)
    await found.take()
    return found


def kinds(event: Delivered) -> list[str]:
    return [change["change"] for change in event.payload["changes"]]


def place(event: Delivered) -> tuple[int, int]:
    return event.payload["tx"]["lsn"], event.payload["tx"]["seq"]


def columns(event: Delivered) -> list[tuple[str, str]]:
    return [(column["name"], column["data_type"]) for column in event.payload["columns"]]


async def told_after(line: Line, ddl: str, row: str) -> Delivered:
    """The one schema event that comes with the first row after some DDL."""
    await line.execute(ddl)
    await line.execute(row)
    told, first = await line.take()
    assert told.operation == "SCHEMA"
    assert place(told) == place(first)
    return told


# Order


@on_both_versions
async def test_a_new_table_is_told_right_before_its_first_row_and_once(line: Line) -> None:
    await line.execute(
        "CREATE TABLE fresh (id int PRIMARY KEY, note varchar(10) DEFAULT 'x', n numeric(10,2) NOT "
        "NULL)"
    )
    await line.execute(
        "INSERT INTO line_marker VALUES (2, -1); INSERT INTO fresh VALUES (1, 'a', 1)"
    )
    await line.execute("INSERT INTO fresh VALUES (2, 'a', 1); UPDATE fresh SET n = 2")
    told, *rows = await line.take()
    assert [event.operation for event in rows] == ["INSERT", "INSERT", "UPDATE", "UPDATE"]
    assert told.subject == "cdc.fresh.schema"
    assert place(told) == place(rows[0]) == (rows[0].payload["tx"]["lsn"], 1)
    assert told.seq == rows[0].seq - 1
    assert told.msg_id == told.payload["msg_id"] == f"{rows[0].payload['lsn']:x}-fresh-schema"
    payload = told.payload
    assert payload["columns"] == [
        {
            "name": "id",
            "position": 1,
            "data_type": "integer",
            "is_nullable": False,
            "column_default": None,
        },
        {
            "name": "note",
            "position": 2,
            "data_type": "character varying(10)",
            "is_nullable": True,
            "column_default": "'x'::character varying",
        },
        {
            "name": "n",
            "position": 3,
            "data_type": "numeric(10,2)",
            "is_nullable": False,
            "column_default": None,
        },
    ]
    assert (payload["table"], payload["schema"], payload["source"]) == (
        "fresh",
        "public",
        line.source,
    )
    assert (payload["version"], payload["primary_key"], payload["replica_identity"]) == (
        1,
        ["id"],
        "d",
    )
    assert (payload["changes"], payload["resync"]) == ([{"change": "table_first_seen"}], False)
    assert payload["relation_id"] == rows[0].payload["relation_id"]


@on_both_versions
async def test_a_table_made_and_filled_in_one_transaction_is_known_whole(line: Line) -> None:
    """The log has a commit before others can see its effects: a catalog read too early knows no
    such table.
    """
    for n in range(40):
        await line.execute(
            f"CREATE DOMAIN quick_{n} AS int;"
            f"CREATE TABLE made_{n} (id quick_{n} PRIMARY KEY, n int DEFAULT 1 NOT NULL);"
            f"INSERT INTO made_{n} VALUES (1), (2)"
        )
    events = await line.take()
    assert [event.row for event in only(events, "INSERT")] == [
        {"id": 1, "n": 1},
        {"id": 2, "n": 1},
    ] * 40
    for event in only(events, "SCHEMA"):
        assert event.payload["primary_key"] == ["id"]
        assert event.payload["columns"][1]["column_default"] == "1"
        assert not event.payload["columns"][1]["is_nullable"]


@on_both_versions
async def test_ddl_between_two_changes_of_one_transaction_is_told_between_them(line: Line) -> None:
    await line.execute("CREATE TABLE inside (id int PRIMARY KEY, a int)")
    await line.execute(
        "INSERT INTO inside VALUES (1, 1); ALTER TABLE inside ADD b text; INSERT INTO inside "
        "VALUES (2, 2, 'b');"
        "ALTER TABLE inside ALTER a TYPE text; INSERT INTO inside VALUES (3, 'three', 'b');"
        "ALTER TABLE inside DROP b; ALTER TABLE inside RENAME a TO c; INSERT INTO inside VALUES "
        "(4, 'four')"
    )
    events = await line.take()
    assert [event.operation for event in events] == ["SCHEMA", "INSERT"] * 4
    shapes = [columns(event) for event in events[::2]]
    assert shapes == [
        [("id", "integer"), ("a", "integer")],
        [("id", "integer"), ("a", "integer"), ("b", "text")],
        [("id", "integer"), ("a", "text"), ("b", "text")],
        [("id", "integer"), ("c", "text")],
    ]
    assert [event.row for event in events[1::2]] == [
        {"id": 1, "a": 1},
        {"id": 2, "a": 2, "b": "b"},
        {"id": 3, "a": "three", "b": "b"},
        {"id": 4, "c": "four"},
    ]
    assert [event.payload["version"] for event in events[::2]] == [1, 2, 3, 4]
    assert [event.payload["tx"]["seq"] for event in events] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert events[4].payload["resync"]


async def test_a_transaction_that_began_before_the_ddl_of_another_is_told_by_its_own_shape(
    line: Line,
) -> None:
    await line.execute("CREATE TABLE crossed (id int PRIMARY KEY); CREATE TABLE elsewhere (id int)")
    connection = await line.database.connect()
    await connection.execute("BEGIN; INSERT INTO elsewhere VALUES (1)")
    await line.execute("INSERT INTO crossed VALUES (1); ALTER TABLE crossed ADD n int")
    await connection.execute("INSERT INTO crossed VALUES (2, 2); COMMIT")
    await connection.close()
    events = [event for event in await line.take() if event.payload["table"] == "crossed"]
    assert [(event.operation, event.payload.get("data")) for event in events] == [
        ("SCHEMA", None),
        ("INSERT", {"id": 1}),
        ("SCHEMA", None),
        ("INSERT", {"id": 2, "n": 2}),
    ]


async def test_what_changes_no_row_tells_nothing(line: Line) -> None:
    await line.execute(
        "CREATE TABLE steady (id int PRIMARY KEY, n int); INSERT INTO steady VALUES (1, 1)"
    )
    await line.take()
    for statement in (
        "CREATE INDEX ON steady (n)",
        "ANALYZE steady",
        "ALTER TABLE steady ADD CHECK (n > 0)",
        "ALTER TABLE steady SET (fillfactor = 50)",
        "CREATE STATISTICS steady_statistics ON id, n FROM steady",
        "COMMENT ON TABLE steady IS 'x'",
        "GRANT SELECT ON steady TO PUBLIC",
        "CREATE VIEW steady_view AS SELECT * FROM steady",
        "ALTER TABLE steady DISABLE TRIGGER USER",
    ):
        await line.execute(statement)
        await line.execute("UPDATE steady SET n = n + 1")
    assert [event.operation for event in await line.take()] == ["UPDATE"] * 9


async def test_an_enum_value_added_later_arrives_without_a_word(line: Line) -> None:
    await line.execute(
        "CREATE TYPE stage AS ENUM ('open'); CREATE TABLE staged (id int PRIMARY KEY, s stage)"
    )
    await line.execute("INSERT INTO staged VALUES (1, 'open')")
    await line.execute("ALTER TYPE stage ADD VALUE 'closed'")
    await line.execute("UPDATE staged SET s = 'closed'")
    assert [event.operation for event in await line.take()] == ["SCHEMA", "INSERT", "UPDATE"]


# The reported changes, and whether rows can carry them

ROW = "INSERT INTO {} (id) VALUES (1)"
COLUMN_CASES: Sequence[tuple[str, str, list[str], bool]] = (
    ("added", "ADD c int", ["column_added"], False),
    # A constant default's value comes with the event (test_added_columns.py).
    ("added_with_default", "ADD c int DEFAULT 5", ["column_added"], False),
    ("added_not_null", "ADD c text NOT NULL DEFAULT ''", ["column_added"], False),
    ("added_volatile", "ADD c float8 DEFAULT random()", ["column_added"], True),
    ("added_serial", "ADD c serial", ["column_added"], True),
    ("added_identity", "ADD c int GENERATED ALWAYS AS IDENTITY", ["column_added"], True),
    ("added_domain_default", "ADD c filling", ["column_added"], False),
    (
        "default_dropped",
        "ADD c int DEFAULT 5; ALTER TABLE {} ALTER c DROP DEFAULT",
        ["column_added"],
        False,
    ),
    ("dropped", "DROP v", ["column_dropped"], False),
    ("renamed", "RENAME v TO w", ["column_renamed"], False),
    ("widened", "ALTER v TYPE varchar(20)", ["column_retyped"], False),
    ("unbounded", "ALTER v TYPE varchar", ["column_retyped"], False),
    ("narrowed", "ALTER v TYPE varchar(5)", ["column_retyped"], True),
    ("retyped", "ALTER n TYPE bigint", ["column_retyped"], True),
    ("retyped_using", "ALTER n TYPE text USING n * 2", ["column_retyped"], True),
    # Another column of the same name: what a mirror has under it is not what the source has.
    ("replaced", "DROP n, ADD n int", ["column_dropped", "column_added"], True),
    ("replaced_last", "DROP v, ADD v varchar(10)", ["column_dropped", "column_added"], True),
    (
        "replaced_filled",
        "DROP v, ADD v varchar(10) DEFAULT 'x'",
        ["column_dropped", "column_added"],
        True,
    ),
    ("full", "REPLICA IDENTITY FULL", ["replica_identity_changed"], False),
    ("keyless", "DROP CONSTRAINT {}_pkey", ["key_changed"], False),
)


@on_both_versions
@pytest.mark.parametrize(
    ("name", "ddl", "changes", "resync"), COLUMN_CASES, ids=[case[0] for case in COLUMN_CASES]
)
async def test_a_change_of_a_table_says_what_it_is_and_whether_rows_carry_it(
    line: Line, name: str, ddl: str, changes: list[str], resync: bool
) -> None:
    table = f"altered_{name}"
    if "filling" in ddl:
        await line.execute("CREATE DOMAIN filling AS int DEFAULT 7")
    await line.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int, v varchar(10))")
    await line.execute(f"INSERT INTO {table} VALUES (0, 1, 'a')")
    await line.take()
    alter = f"ALTER TABLE {table} {ddl.format(table)}"
    told = await told_after(line, alter, f"INSERT INTO {table} (id) VALUES (1)")
    assert (kinds(told), told.payload["resync"], told.payload["version"]) == (changes, resync, 2)


RENAMES = {
    "swap": "RENAME v TO spare; ALTER TABLE {0} RENAME w TO v; ALTER TABLE {0} RENAME spare TO w",
    "chain": "RENAME w TO x; ALTER TABLE {0} RENAME v TO w",
    "ring": "RENAME u TO spare; ALTER TABLE {0} RENAME v TO u; ALTER TABLE {0} RENAME w TO v;"
    "ALTER TABLE {0} RENAME spare TO w",
    "reuse": "DROP u; ALTER TABLE {0} RENAME v TO u; ALTER TABLE {0} ADD v text",
}


@pytest.mark.parametrize("name", RENAMES)
async def test_changes_applied_one_after_the_other_give_every_column_its_name(
    line: Line, name: str
) -> None:
    table, copy = f"renames_{name}", f"copy_{name}"
    for made in (table, copy):
        await line.execute(f"CREATE TABLE {made} (id int PRIMARY KEY, u text, v text, w text)")
        await line.execute(f"INSERT INTO {made} VALUES (1, 'u', 'v', 'w')")
    await line.take()
    told = await told_after(
        line, f"ALTER TABLE {table} {RENAMES[name].format(table)}", f"UPDATE {table} SET id = id"
    )
    for change in told.payload["changes"]:
        body = {
            "column_renamed": f"RENAME {change.get('from')} TO {change['column']}",
            "column_dropped": f"DROP {change['column']}",
            "column_added": f"ADD {change['column']} text",
        }[change["change"]]
        await line.execute(f"ALTER TABLE {copy} {body}")
    rows = [await line.database.fetch(f"SELECT to_jsonb(t) FROM {of} t") for of in (table, copy)]
    assert rows[0] == rows[1]
    await line.take()


async def test_a_primary_key_that_moves_is_told_before_the_rows_it_names(line: Line) -> None:
    await line.execute(
        "CREATE TABLE rekeyed (a int PRIMARY KEY, b int NOT NULL); INSERT INTO rekeyed VALUES (1, "
        "2)"
    )
    await line.execute("ALTER TABLE rekeyed REPLICA IDENTITY FULL; UPDATE rekeyed SET b = 3")
    await line.take()
    rekey = (
        "ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey; ALTER TABLE rekeyed ADD PRIMARY KEY (b)"
    )
    await line.execute(rekey)
    await line.execute("DELETE FROM rekeyed")
    told, deleted = await line.take()
    assert deleted.row == {"a": None, "b": 3}
    assert told.payload["primary_key"] == ["b"]
    assert {"change": "key_changed", "from": ["a"], "to": ["b"]} in told.payload["changes"]


async def test_an_identity_by_index_is_told(line: Line) -> None:
    await line.execute(
        "CREATE TABLE indexed (id int PRIMARY KEY, n int NOT NULL UNIQUE); INSERT INTO indexed "
        "VALUES (1, 1)"
    )
    await line.take()
    using = "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_n_key"
    told = await told_after(line, using, "UPDATE indexed SET n = 2")
    assert told.payload["changes"] == [
        {"change": "replica_identity_changed", "from": "d", "to": "i"}
    ]
    assert not told.payload["resync"]


@on_both_versions
async def test_a_table_dropped_and_made_again_must_be_copied_again(line: Line) -> None:
    await line.execute("CREATE TABLE again (id int PRIMARY KEY); INSERT INTO again VALUES (1)")
    first, _ = await line.take()
    told = await told_after(
        line,
        "DROP TABLE again; CREATE TABLE again (id int PRIMARY KEY)",
        "INSERT INTO again VALUES (2)",
    )
    assert kinds(told) == ["table_replaced"]
    assert told.payload["resync"]
    assert told.payload["version"] == 2
    assert told.payload["relation_id"] != first.payload["relation_id"]


async def test_a_renamed_table_goes_on_under_its_new_name(line: Line) -> None:
    await line.execute(
        "CREATE TABLE before (id int PRIMARY KEY); INSERT INTO before VALUES (1); CREATE SCHEMA "
        "attic"
    )
    await line.take()
    told = await told_after(
        line, "ALTER TABLE before RENAME TO after", "INSERT INTO after VALUES (2)"
    )
    assert told.subject == "cdc.after.schema"
    assert told.payload["changes"] == [renamed("from", "public", "before")]
    assert told.payload["resync"]
    moved = await told_after(
        line, "ALTER TABLE after SET SCHEMA attic", "INSERT INTO attic.after VALUES (3)"
    )
    assert moved.subject == "cdc.attic=2Fafter.schema"
    assert moved.payload["changes"] == [renamed("from", "public", "after")]


async def test_two_tables_that_swap_their_names_are_both_copied_again(line: Line) -> None:
    await line.execute(
        "CREATE TABLE left_one (id int PRIMARY KEY); CREATE TABLE right_one (id int PRIMARY KEY)"
    )
    await line.execute("INSERT INTO left_one VALUES (1); INSERT INTO right_one VALUES (2)")
    await line.take()
    await line.execute(
        "ALTER TABLE left_one RENAME TO spare; ALTER TABLE right_one RENAME TO left_one;"
        "ALTER TABLE spare RENAME TO right_one"
    )
    await line.execute("INSERT INTO left_one VALUES (3); INSERT INTO right_one VALUES (4)")
    events = only(await line.take(), "SCHEMA")
    assert [(event.payload["table"], event.payload["version"]) for event in events] == [
        ("left_one", 2),
        ("right_one", 2),
    ]
    assert all(event.payload["resync"] for event in events)


# Publications


@on_both_versions
async def test_a_table_that_was_out_of_the_publication_must_be_copied_again(chosen: Line) -> None:
    await chosen.execute(
        "CREATE TABLE in_and_out (id int PRIMARY KEY); ALTER PUBLICATION headrace ADD TABLE "
        "in_and_out"
    )
    await chosen.execute("INSERT INTO in_and_out VALUES (1)")
    first, _ = await chosen.take()
    assert kinds(first) == ["table_first_seen"]
    await chosen.execute("ALTER PUBLICATION headrace DROP TABLE in_and_out")
    await chosen.execute("INSERT INTO in_and_out VALUES (2)")
    assert await chosen.take() == []
    told = await told_after(
        chosen,
        "ALTER PUBLICATION headrace ADD TABLE in_and_out",
        "INSERT INTO in_and_out VALUES (3)",
    )
    assert kinds(told) == ["publication_changed"]
    assert told.payload["resync"]


@pytest.mark.parametrize("what", ["WHERE (id > 10)", "(id)"], ids=["row_filter", "column_list"])
async def test_a_publication_that_shows_other_rows_or_columns_must_be_copied_again(
    chosen: Line, what: str
) -> None:
    table = "refiltered" if "WHERE" in what else "relisted"
    await chosen.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, n int); ALTER PUBLICATION headrace ADD TABLE "
        f"{table}"
    )
    await chosen.execute(f"INSERT INTO {table} VALUES (1, 1)")
    await chosen.take()
    change = f"ALTER PUBLICATION headrace SET TABLE line_marker, {table} {what}"
    told = await told_after(chosen, change, f"INSERT INTO {table} VALUES (11, 1)")
    assert told.payload["resync"]


async def test_a_row_of_a_table_that_is_gone_by_now_is_told_by_what_was_known(chosen: Line) -> None:
    line = chosen
    await line.execute(
        "CREATE TABLE late (id int PRIMARY KEY, n int); ALTER PUBLICATION headrace ADD TABLE late"
    )
    await line.execute("INSERT INTO late VALUES (1, 1)")
    await line.take()
    with frozen(line, "publisher"):
        await line.execute("ALTER TABLE late ADD m int")
        await line.execute("UPDATE late SET n = 2")
        await line.execute("DROP TABLE late")
    told, updated = await line.take()
    assert updated.row == {"id": 1, "n": 2, "m": None}
    assert kinds(told) == ["column_added"]
    assert told.payload["primary_key"] == ["id"]


@contextlib.contextmanager
def frozen(line: Line, service: str) -> Iterator[None]:
    """A service that PostgreSQL leaves behind."""
    os.kill(line.suite.pid(service), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(line.suite.pid(service), signal.SIGCONT)


# Versions, restarts, consumers


async def test_versions_only_grow_whatever_is_killed(lines: Lines) -> None:
    line = await lines(18, HEADRACE_SHUTDOWN_TIMEOUT_S="9")
    await line.execute("CREATE TABLE grown (id int PRIMARY KEY)")
    await line.take()

    async def alter(first: int) -> None:
        for n in range(first, first + 12):
            await line.execute(f"ALTER TABLE grown ADD c{n} int")
            await line.execute(f"INSERT INTO grown (id, c{n}) VALUES ({n}, {n})")
            await asyncio.sleep(0.03)

    for round_ in range(4):
        writer = asyncio.create_task(alter(12 * round_), name="writer")
        await asyncio.sleep(0.1 * (round_ + 1))
        await line.suite.kill("publisher")
        await line.suite.start("publisher")
        await writer
    events = await line.take()
    assert [event.row["id"] for event in only(events, "INSERT")] == list(range(48))
    versions = [event.payload["version"] for event in only(events, "SCHEMA")]
    assert versions == list(range(1, 49))
    for told, row in zip(events[::2], events[1::2], strict=True):
        assert (told.operation, row.operation) == ("SCHEMA", "INSERT")
        assert [name for name, _ in columns(told)] == list(row.row)


async def test_a_schema_event_takes_no_consumer_forward(line: Line) -> None:
    """A consumer that handled the schema event and crashed still gets the row, which has the same
    position.
    """
    await line.execute("CREATE TABLE stood (id int PRIMARY KEY); INSERT INTO stood VALUES (1)")
    await line.take()
    store = MemoryWatermarks()
    assert await followed(line, store, "cdc.stood.*", 1) == ["SCHEMA"]
    assert await store.load() == {}
    assert await followed(line, store, "cdc.stood.*", 2) == ["SCHEMA", "INSERT"]
    assert [mark.position for mark in (await store.load()).values()] != []
    assert await followed(line, store, "cdc.stood.*", 1) == []


async def followed(line: Line, store: MemoryWatermarks, subject: str, count: int) -> list[str]:
    """The operations of the next events that a consumer is given, each of them done."""
    operations: list[str] = []
    client = await nats.connect(line.nats_url)
    try:
        async with follow(client, Subscription(filters=(subject,)), store) as consumer:
            while len(operations) < count and (event := await consumer.next(0.5)) is not None:
                operations.append(event.operation)
                await consumer.done(event)
    finally:
        await client.close()
    return operations


@pytest.mark.parametrize("kept", [True, False], ids=["known_before", "just_made"])
async def test_a_publication_that_changed_while_the_publisher_was_down_is_told(
    lines: Lines, kept: bool
) -> None:
    """A replay reads a newer catalog, and must not swallow changes that only the catalog shows."""
    table = f"absent_{kept}".lower()
    line = await lines(18, NOTHING_PUBLISHED, HEADRACE_PROGRESS_INTERVAL_S="600")
    await line.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY); ALTER PUBLICATION headrace ADD TABLE {table}"
    )
    await line.execute(f"INSERT INTO {table} VALUES (1)")
    await line.take()
    if kept:
        assert await line.suite.stop("publisher") == 0
        await line.suite.start("publisher")
    await line.execute(f"INSERT INTO {table} VALUES (2)")
    await line.take()
    await line.suite.kill("publisher")
    await line.execute(f"ALTER PUBLICATION headrace DROP TABLE {table}")
    await line.execute(f"INSERT INTO {table} VALUES (3)")
    await line.execute(f"ALTER PUBLICATION headrace ADD TABLE {table}")
    await line.execute(f"INSERT INTO {table} VALUES (4)")
    await line.suite.start("publisher")
    told, row = await line.take()
    assert row.row == {"id": 4}
    assert (kinds(told), told.payload["resync"], told.payload["version"]) == (
        ["publication_changed"],
        True,
        2,
    )


async def test_a_change_that_was_kept_and_not_stored_is_told_again_whole(lines: Lines) -> None:
    """The publisher dies between keeping a table's new shape and publishing its event."""
    line = await lines(18, HEADRACE_PROGRESS_INTERVAL_S="600")
    await line.execute("CREATE TABLE halved (id int PRIMARY KEY); INSERT INTO halved VALUES (1)")
    await line.take()
    await line.suite.kill("publisher")
    await line.suite.start("publisher", HEADRACE_FAILPOINT="publisher.after_shape_before_event")
    await line.execute("ALTER TABLE halved ADD n int DEFAULT 5")
    await line.execute("INSERT INTO halved VALUES (2)")
    await line.suite.exit_code("publisher", 20)
    await line.suite.start("publisher")
    told, row = await line.take()
    assert row.row == {"id": 2, "n": 5}
    assert (kinds(told), told.payload["resync"], told.payload["version"]) == (
        ["column_added"],
        False,
        2,
    )
    assert told.payload["changes"][0]["filled"] == 5


async def test_a_replay_that_a_newer_catalog_describes_loses_no_report(lines: Lines) -> None:
    """The wal-reader dies before the table's row is confirmed, so the row comes again after the
    table has left the publication and come back.
    """
    line = await lines(18, NOTHING_PUBLISHED, HEADRACE_PROGRESS_INTERVAL_S="600")
    await line.execute("CREATE TABLE replayed (id int PRIMARY KEY)")
    await line.execute("ALTER PUBLICATION headrace ADD TABLE replayed")
    await line.execute("INSERT INTO replayed VALUES (1)")
    await line.take()
    await line.suite.kill("wal-reader")
    await line.execute("ALTER PUBLICATION headrace DROP TABLE replayed")
    await line.execute("INSERT INTO replayed VALUES (2)")
    await line.execute("ALTER PUBLICATION headrace ADD TABLE replayed")
    await line.execute("INSERT INTO replayed VALUES (3)")
    await line.suite.start("wal-reader")
    told, row = await line.take()
    assert row.row == {"id": 3}
    assert (kinds(told), told.payload["resync"]) == (["publication_changed"], True)
