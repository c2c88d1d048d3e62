"""Tables and rows come back from the archive into a live database, without a backup store.

The source's own SQL, asked at the moment, is the oracle.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.testing.process import Outcome
from headrace.testing.process import command as run
from headrace.testing.suite import Suite
from tests.integration.archive.test_archive_bases import reached, texts
from tests.support.archiving import WITH_ARCHIVE, Archiving

HOSTILE = '''
CREATE TYPE mood AS ENUM ('glad', 'it''s "sad"');
CREATE DOMAIN secret AS bytea;
CREATE DOMAIN flag AS boolean;
CREATE DOMAIN share AS numeric(9, 4) CHECK (VALUE < 10000);
CREATE SCHEMA "Odd.schema";
CREATE TABLE "Odd.schema"."Odd, ""name""" (
    "A" int, a text, "%s {0}" mood, hidden secret, yes flag, part share, doc jsonb, raw json,
    list text[], moods mood[], at timestamptz, took interval, paid money, bits varbit, f float8,
    b bytea, unlimited bpchar, PRIMARY KEY ("A", a));
CREATE TABLE keyless (a int, b text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
INSERT INTO "Odd.schema"."Odd, ""name""" VALUES
  (1, E'line\\n\\ttab \\\\N \\\\', 'it''s "sad"', '\\x00ff5c', true, 1.5000, '{"n": 1.50}', '{"b": 1.50, "a": 1}',
   ARRAY['x', NULL, 'a,"b'], ARRAY['glad']::mood[], '0044-03-15 BC', '-1 mon 3 days', '-12.34',
   B'10110', 'NaN', '\\x', 'longer than one '),
  (2, '', NULL, '', false, 0, 'null', 'null', '{}', '{}', 'infinity', '1 year', NULL, '',
   '-Infinity', '\\x01', NULL);
INSERT INTO keyless VALUES (1, 'twice'), (1, 'twice'), (2, NULL);
'''
ODD = '"Odd.schema"."Odd, ""name"""'
SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, notes json);
CREATE TABLE sales (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer int NOT NULL REFERENCES customers ON DELETE CASCADE,
    state text NOT NULL,
    amount numeric,
    cents bigint GENERATED ALWAYS AS (amount * 100) STORED
);
INSERT INTO customers SELECT n, 'name ' || n, '{"a":  1.50}' FROM generate_series(1, 20) n;
INSERT INTO sales (customer, state, amount)
  SELECT n % 20 + 1, 'new', n / 4.0 FROM generate_series(1, 2000) n;
"""
SALES = "SELECT md5(string_agg(s::text, '|' ORDER BY id)) FROM sales s"


class Shop:
    """A line with an archive and the commands of an operator."""

    def __init__(self, archiving: Archiving) -> None:
        self.archiving = archiving
        self.settings = archiving.environment()

    async def run(self, *arguments: str, code: int = 0, **more: str) -> Outcome:
        done = await run({**self.settings, **more}, *arguments, timeout_s=120)
        assert done.code == code, f"{arguments}: {done.code}\n{done.out}\n{done.err}"
        return done

    async def restore(self, *arguments: str, code: int = 0, **more: str) -> Outcome:
        return await self.run("restore", "--way", "logical", *arguments, code=code, **more)

    async def execute(self, *statements: str) -> None:
        for statement in statements:
            await self.archiving.database.execute(statement)

    async def value(self, query: str) -> object:
        [[found]] = await self.archiving.database.fetch(query)
        return found

    async def moment(self) -> str:
        """The present one, which the archive reaches with the next transaction."""
        then = str(await self.value("SELECT clock_timestamp()::text"))
        await self.execute("INSERT INTO items VALUES (1000000 + random() * 1000000, 'later')")
        await self.archived()
        return then

    async def archived(self) -> None:
        await reached(self.archiving.url, await self.archiving.oracle.changes())

    def dsn(self, database: str) -> str:
        return f"postgresql://headrace@127.0.0.1:{self.archiving.database.server.port}/{database}"


@pytest.fixture
async def shop(archiving: Archiving, tmp_path: Path) -> AsyncIterator[Shop]:
    found = Shop(archiving)
    await found.execute(HOSTILE, SHOP)
    async with Suite(found.settings, tmp_path, WITH_ARCHIVE) as suite:
        await suite.logged("archiver", "epoch_joined", timeout_s=60)
        await found.run("archive", "base", "now")
        yield found


async def test_a_table_comes_back_next_to_the_live_one_or_into_another_database(
    shop: Shop, tmp_path: Path
) -> None:
    await shop.execute(
        f"UPDATE {ODD} SET \"%s {{0}}\" = 'glad', hidden = '\\x0102', yes = NULL WHERE \"A\" = 2",
        f"INSERT INTO {ODD} (\"A\", a, moods, hidden) VALUES (3, 'x', ARRAY['it''s \"sad\"']::mood[], "
        "'\\xfe')",
        "DELETE FROM keyless WHERE ctid = (SELECT min(ctid) FROM keyless WHERE a = 1)",
    )
    live = shop.archiving.database.server.dsn(shop.archiving.database.name)
    before = await texts(live, (ODD, "keyless"))
    then = await shop.moment()
    await shop.execute(f"DROP TABLE {ODD}", "DELETE FROM keyless")
    await shop.archived()
    restored = '"Odd.schema"."Odd, ""name""_restored"'
    plan = await shop.restore("--table", ODD, "--at", then, "--plan")
    assert [line.split()[0] for line in plan.err.splitlines()] == ["moment", "base", "log"]
    assert await shop.value("SELECT to_regclass($$" + restored + "$$) IS NULL")
    done = await shop.restore("--table", ODD, "--at", then)
    assert "3 rows of Odd.schema.Odd" in done.out
    assert "left out" not in done.out
    assert (await texts(live, (restored,)))[restored] == before[ODD]
    key = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = "
    assert await shop.value(f"{key} $${restored}$$::regclass AND contype = 'p'") == (
        'PRIMARY KEY ("A", a)'
    )
    # Its type is that of the source, which is still there.
    kind = (
        "SELECT atttypid::regtype::text FROM pg_attribute WHERE attname = 'hidden' AND attrelid = "
    )
    assert await shop.value(f"{kind} $${restored}$$::regclass") == "secret"
    again = await shop.restore("--table", ODD, "--at", then, code=1)
    assert "exists already" in again.err
    assert "--as" in again.err
    long = await shop.restore("--table", "keyless", "--as", "é" * 32, code=1)
    assert "too long for PostgreSQL" in long.err
    await shop.restore("--table", "keyless", "--at", then, "--as", 'other "name"')
    other = 'public."other ""name"""'
    assert (await texts(live, (other,)))[other] == before["keyless"]
    # The live database gets a table, and nothing of a replay.
    assert await shop.value("SELECT to_regnamespace('headrace_mirror') IS NULL")

    await shop.execute("CREATE DATABASE copy")
    copy = shop.dsn("copy")
    refused = await shop.restore("--table", ODD, "--at", then, "--into", copy, code=1)
    assert 'schema "Odd.schema" does not exist' in refused.err
    assert "Nothing was changed" in refused.err
    await shop.restore("--table", "keyless", "--at", then, "--into", copy, "--as", "keyless")
    assert (await texts(copy, ("keyless",)))["keyless"] == before["keyless"]
    wrong = shop.dsn("missing")
    refused = await shop.restore("--table", "keyless", "--into", wrong, code=1)
    assert "missing" in refused.err
    file = f"sqlite:///{tmp_path}/restored.db"
    refused = await shop.restore("--table", "keyless", "--into", file, "--replace", code=1)
    assert "live table in PostgreSQL" in refused.err
    refused = await shop.restore("--table", "keyless", "--before-drop", code=1)
    assert "--way logical has no --before-drop" in refused.err
    future = await shop.restore("--table", "keyless", "--at", "2999-01-01", code=1)
    assert "does not show everything from before that moment" in future.err


async def test_rows_come_back_with_the_refusals_of_a_physical_restore(shop: Shop) -> None:
    before = await shop.value(SALES)
    then = await shop.moment()
    # Some rows, by a condition.
    await shop.execute(
        "UPDATE sales SET state = 'paid', amount = 0 WHERE customer = 7",
        "INSERT INTO sales (customer, state, amount) VALUES (7, 'new', 1)",
    )
    await shop.archived()
    where = ("--table", "sales", "--at", then, "--where", "customer = 7")
    changed = await shop.value(SALES)
    asked = await shop.restore(*where, code=1)
    assert "state 'paid' -> 'new'" in asked.out
    assert "0 rows to insert, 100 to update, 1 inserted since, which stay" in asked.out
    assert await shop.value(SALES) == changed
    done = await shop.restore(*where, "--yes")
    assert "0 rows inserted, 100 updated, 0 deleted" in done.out
    assert await shop.value(f"{SALES} WHERE id <= 2000") == before
    # All rows, unless later ones would be lost.
    await shop.execute("DELETE FROM sales WHERE id % 3 = 0 AND id <= 2000")
    await shop.archived()
    changed = await shop.value(SALES)
    replace = ("--table", "sales", "--at", then, "--replace", "--yes")
    refused = await shop.restore(*replace, code=1)
    assert "1 rows of public.sales were inserted since that moment" in refused.err
    assert "--discard-later" in refused.err
    killed = await shop.restore(
        *replace, "--discard-later", code=-9, HEADRACE_FAILPOINT="restore.before_commit"
    )
    assert "rows inserted" not in killed.out
    assert await shop.value(SALES) == changed
    done = await shop.restore(*replace, "--discard-later")
    assert "666 rows inserted, 0 updated, 1 deleted" in done.out
    assert await shop.value(SALES) == before
    assert "nothing to change" in (await shop.restore(*replace)).out
    # A row that others point at: its deletion would take theirs along.
    await shop.execute(
        "INSERT INTO customers VALUES (21, 'late', NULL)",
        "INSERT INTO sales (customer, state, amount) VALUES (21, 'new', 1)",
    )
    await shop.archived()
    customers = ("--table", "customers", "--at", then, "--yes")
    refused = await shop.restore(*customers, "--replace", "--discard-later", code=1)
    assert "sales sales_customer_fkey" in refused.err
    assert await shop.value("SELECT count(*) FROM sales WHERE customer = 21") == 1
    # The archive has a document, and not its whitespace, in which no row differs.
    done = await shop.restore(*customers, "--where", "id <= 20")
    assert "0 rows to insert, 0 to update, 0 inserted since" in done.out
    # A newer column has no value in rows that are inserted.
    await shop.execute(
        "ALTER TABLE sales ADD COLUMN extra text DEFAULT 'none'",
        "DELETE FROM sales WHERE id = 5 OR id > 2000",
    )
    await shop.archived()
    done = await shop.restore(*replace)
    assert "left out: extra" in done.out
    assert await shop.value("SELECT extra FROM sales WHERE id = 5") == "none"
    # A column that isn't there any more.
    await shop.execute("ALTER TABLE customers DROP COLUMN notes")
    refused = await shop.restore(*customers, "--replace", code=1)
    assert "notes was json" in refused.err
    refused = await shop.restore("--table", "keyless", "--at", then, "--replace", code=1)
    assert "no primary key" in refused.err
    refused = await shop.restore(*replace, "--as", "other", code=1)
    assert "Leave --as out" in refused.err
    # Dropped since: its name is free.
    await shop.execute("DROP TABLE sales")
    await shop.restore(*replace)
    assert await shop.value("SELECT count(*) FROM sales") == 2000
