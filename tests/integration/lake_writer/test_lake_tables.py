"""A table that can't be in the lake is parked with its reason, and the others continue."""

from __future__ import annotations

from pathlib import Path

from headrace.lake.catalog import Cut, Move, TableName
from headrace.lake.sqlite_catalog import SqliteCatalog
from headrace.testing.suite import Suite
from tests.oracle.lake import ForeignLake
from tests.support.archiving import Archiving
from tests.support.lake import SERVICES, lake_environment, reached


async def test_a_table_that_can_not_be_copied_is_parked_and_the_others_go_on(
    archiving: Archiving, tmp_path: Path
) -> None:
    database = archiving.database
    await database.execute("CREATE TABLE hidden (a int, b int, PRIMARY KEY (a, b))")
    await database.execute("INSERT INTO items VALUES (1, 'x')")
    foreign = SqliteCatalog(tmp_path / "lake" / "catalog.db")
    foreign.prepare()
    taken = Move(TableName("public", "orders"), None, "file:///elsewhere/metadata.json")
    foreign.commit(Cut("another", 1, "a", "", "", 0, 0, 0, 0), [taken], 0)
    foreign.close()
    environment = lake_environment(archiving, tmp_path, HEADRACE_EXCLUDE_COLUMNS="public.hidden.b")
    lake = ForeignLake(tmp_path / "lake")
    async with Suite(environment, tmp_path, SERVICES) as suite:
        await reached(lake, database, suite)
        await database.execute(
            "INSERT INTO items VALUES (2, 'y'); INSERT INTO hidden VALUES (1, 1)"
        )
        await reached(lake, database, suite)
        assert sorted(lake.rows("public.items", "a, b")) == [(1, "x"), (2, "y")]
        log = suite.log("lake-writer")
    assert set(lake.locations()) == {"public.items", "public.full_rows", "public.orders"}
    assert "public.hidden has the key column b, which is excluded" in log
    assert "the lake has a table public.orders that this suite did not make" in log


async def test_no_cut_after_a_new_tables_first_rows_is_without_the_table(
    archiving: Archiving, tmp_path: Path
) -> None:
    database = archiving.database
    environment = lake_environment(archiving, tmp_path)
    lake = ForeignLake(tmp_path / "lake")
    committed: dict[str, int] = {}
    async with Suite(environment, tmp_path, SERVICES) as suite:
        await reached(lake, database, suite)
        for number in range(6):
            await database.execute("INSERT INTO items SELECT coalesce(max(a), 0) + 1 FROM items")
            name = f"new_{number}"
            await database.execute(
                f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1)"
            )
            committed[f"public.{name}"] = await database.fetchval(
                "SELECT pg_current_wal_insert_lsn() - '0/0'"
            )
            await reached(lake, database, suite)
            assert lake.rows(f"public.{name}") != []
    for cut in lake.cuts():
        for name, lsn in committed.items():
            assert cut.lsn < lsn or name in cut.tables, (name, lsn, cut)
