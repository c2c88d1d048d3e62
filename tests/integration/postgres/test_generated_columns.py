"""A publication that Headrace makes never lets an application's UPDATE fail for a generated column."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import asyncpg
import pytest

from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.process import command

STORED = "(id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED)"
VIRTUAL = "(id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) VIRTUAL)"


@pytest.fixture
async def database(own_postgres: OwnPostgres) -> AsyncIterator[Database]:
    """Of PostgreSQL 18, the first one that checks."""
    found = Database(await own_postgres(version=18), "postgres")
    yield found
    await found.close()


@pytest.fixture
async def settings(database: Database, own_nats: OwnNats, names: Names) -> dict[str, str]:
    return {
        **database.environment((await own_nats()).url),
        **names.settings,
    }


async def make_odd(database: Database, columns: str) -> None:
    """A table with its whole row as identity, among it a generated column."""
    await database.execute(f"CREATE TABLE odd {columns}; ALTER TABLE odd REPLICA IDENTITY FULL")
    await database.execute("INSERT INTO odd VALUES (1, 2)")


async def generated_check(settings: dict[str, str]) -> dict[str, str] | None:
    outcome = await command(settings, "doctor", "--json")
    found = [check for check in json.loads(outcome.out)["checks"] if check["name"] == "generated"]
    return found[0] if found else None


@pytest.mark.parametrize("tables", [(), ("--tables", "public.odd")])
async def test_a_table_with_its_whole_row_as_identity_and_a_stored_column_can_still_be_updated(
    database: Database, settings: dict[str, str], tables: tuple[str, ...]
) -> None:
    await make_odd(database, STORED)
    assert (await command(settings, "init", *tables)).code == 0
    await database.execute("UPDATE odd SET n = 3")
    await database.execute("DELETE FROM odd")
    assert await generated_check(settings) is None


async def test_the_doctor_names_the_tables_that_an_older_publication_breaks_and_its_remedy_mends_them(
    database: Database, settings: dict[str, str], names: Names
) -> None:
    await make_odd(database, STORED)
    await database.execute("CREATE TABLE plain (id int PRIMARY KEY)")
    await database.execute(
        f"CREATE TABLE by_key {STORED}; CREATE PUBLICATION {names.publication} FOR ALL TABLES"
    )
    with pytest.raises(asyncpg.PostgresError, match="cannot update table"):
        await database.execute("UPDATE odd SET n = 3")
    found = await generated_check(settings)
    assert found is not None
    assert found["state"] == "fail"
    assert "UPDATE and DELETE of public.odd:" in found["found"]
    await database.execute(found["remedy"].rstrip("."))
    await database.execute("UPDATE odd SET n = 3")
    assert await generated_check(settings) is None


async def test_a_table_that_no_publication_can_carry_is_refused_before_its_updates_fail(
    database: Database, settings: dict[str, str], names: Names
) -> None:
    await make_odd(database, VIRTUAL)
    refused = await command(settings, "init")
    assert refused.code == 1
    assert "refuse every UPDATE and DELETE of public.odd" in refused.err
    assert "ALTER TABLE public.odd REPLICA IDENTITY DEFAULT" in refused.err
    await database.execute("UPDATE odd SET n = 3")
    assert await database.fetchval("SELECT count(*) FROM pg_publication") == 0
    await database.execute("ALTER TABLE odd REPLICA IDENTITY DEFAULT")
    assert (await command(settings, "init")).code == 0
    await database.execute("UPDATE odd SET n = 4")
    await database.execute("ALTER TABLE odd REPLICA IDENTITY FULL")
    found = await generated_check(settings)
    assert found is not None
    assert "REPLICA IDENTITY DEFAULT" in found["remedy"]
