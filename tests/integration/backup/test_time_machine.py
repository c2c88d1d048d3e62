"""A cluster comes back as it was at a moment, and a dropped table comes back next to the others."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.time_machine import DATABASE, TimeMachine, digests

ORDERS = """
CREATE TYPE state AS ENUM ('new', 'paid');
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer int NOT NULL REFERENCES customers,
    state state DEFAULT 'new',
    amount numeric CHECK (amount > 0)
);
CREATE INDEX orders_state ON orders (state);
INSERT INTO customers SELECT n, 'name ' || n FROM generate_series(1, 50) n;
INSERT INTO orders (customer, amount) SELECT n % 50 + 1, n FROM generate_series(1, 5000) n;
"""


@pytest.mark.parametrize("pg_version", [16, 18], indirect=True)
async def test_a_restore_has_exactly_the_rows_of_its_moment(machine: TimeMachine) -> None:
    await machine.execute(ORDERS)
    await machine.begin()
    await machine.backup()
    await machine.execute("UPDATE orders SET state = 'paid' WHERE id <= 1000")
    lsn = await machine.value("SELECT pg_current_wal_insert_lsn()::text")
    time = await machine.value("SELECT clock_timestamp()::text")
    then = await machine.digests()
    xid = await machine.value("INSERT INTO customers VALUES (51, 'late') RETURNING xmin::text")
    later = await machine.digests()
    await machine.execute("DELETE FROM orders WHERE id <= 3000")
    last = await machine.digests()
    await machine.stored()
    assert len({str(one) for one in (then, later, last)}) == 3
    assert await machine.restored_digests("--lsn", lsn) == then
    assert await machine.restored_digests("--at", time) == then
    assert await machine.restored_digests("--xid", xid) == later
    assert await machine.restored_digests("--before-xid", xid) == then
    assert await machine.restored_digests() == last


async def test_a_dropped_table_comes_back_beside_the_others(machine: TimeMachine) -> None:
    await machine.begin()
    await machine.backup()
    await machine.execute(ORDERS)
    await machine.execute("UPDATE orders SET state = 'paid' WHERE id <= 10")
    before = await machine.digests()
    await machine.name_stored("orders")
    await machine.execute("DROP TABLE orders")
    await machine.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
    await machine.execute("UPDATE customers SET name = 'changed' WHERE id = 1")
    now = await machine.digests()
    await machine.stored()
    done = await machine.run("restore", "--table", "orders", "--before-drop")
    assert "left out: foreign key orders_customer_fkey" in done.out
    found = await machine.digests()
    assert found.pop("public.orders_restored") == before["public.orders"]
    assert found == now
    indexes = await machine.value(
        "SELECT string_agg(indexname, ' ' ORDER BY indexname) FROM pg_indexes "
        "WHERE tablename = 'orders_restored'"
    )
    assert indexes == "orders_restored_pkey orders_restored_state"
    await machine.execute("INSERT INTO orders_restored (customer, amount) VALUES (7, 1)")
    # PostgreSQL logs a sequence some values ahead.
    assert await machine.value("SELECT max(id) FROM orders_restored") > 5000


async def test_a_restored_cluster_cannot_write_to_the_store_it_came_from(
    machine: TimeMachine,
) -> None:
    await machine.execute(ORDERS)
    await machine.begin()
    await machine.backup()
    folder = await machine.restore()
    async with machine.serving(folder) as server:
        assert await digests(server.dsn(DATABASE)) == await machine.digests()
        refused = await machine.run("backup", "init", code=1, **server.environment(DATABASE))
        assert "was restored from" in refused.err
        assert "HEADRACE_BACKUP_URL" in refused.err


async def test_the_log_continues_after_the_archiver_was_killed(machine: TimeMachine) -> None:
    await machine.execute("CREATE TABLE t (n int)")
    await machine.begin()
    await machine.backup()
    for number in range(5):
        await machine.execute(f"INSERT INTO t SELECT {number} FROM generate_series(1, 20000)")
        await asyncio.sleep(0)
        await machine.suite.kill("wal-archiver")
        await machine.execute(f"INSERT INTO t SELECT {number} FROM generate_series(1, 20000)")
        await machine.suite.start("wal-archiver")
    await machine.stored()
    assert await machine.restored_digests() == await machine.digests()
