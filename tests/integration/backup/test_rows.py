"""Rows of a live table come back exactly, and nothing else of the database changes."""

from __future__ import annotations

from tests.support.time_machine import TimeMachine

SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, notes json);
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer int NOT NULL REFERENCES customers ON DELETE CASCADE,
    state text NOT NULL,
    amount numeric,
    cents bigint GENERATED ALWAYS AS (amount * 100) STORED
);
CREATE TABLE log (n bigserial, what text);
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO log (what) VALUES (TG_OP); NEW.state := 'touched'; RETURN NEW; END $$;
INSERT INTO customers SELECT n, 'name ' || n, '{"a": 1}' FROM generate_series(1, 20) n;
INSERT INTO orders (customer, state, amount)
  SELECT n % 20 + 1, 'new', n / 4.0 FROM generate_series(1, 2000) n;
CREATE TRIGGER noted BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION noted();
CREATE VIEW totals AS SELECT customer, sum(amount) AS amount FROM orders GROUP BY customer;
GRANT SELECT ON orders TO PUBLIC;
"""
ATTACHED = """
SELECT (SELECT string_agg(conname, ' ' ORDER BY conname) FROM pg_constraint)
  || (SELECT string_agg(tgname || tgenabled::text, ' ' ORDER BY tgname) FROM pg_trigger)
  || (SELECT relacl::text FROM pg_class WHERE relname = 'orders')
  || (SELECT count(*) FROM totals) || (SELECT last_value FROM orders_id_seq)
"""


async def test_a_bad_update_is_undone_and_rows_of_others_stay(machine: TimeMachine) -> None:
    await machine.execute(SHOP)
    await machine.begin()
    await machine.backup()
    then = await machine.value("SELECT clock_timestamp()::text")
    rows = "SELECT md5(string_agg(o::text, '|' ORDER BY id)) FROM orders o WHERE customer = 7"
    before = await machine.value(rows)
    bad = "UPDATE orders SET state = 'paid', amount = 0 WHERE customer = 7"
    await machine.execute("ALTER TABLE orders DISABLE TRIGGER noted; " + bad)
    await machine.execute("ALTER TABLE orders ENABLE TRIGGER noted")
    # Changes that are no part of the mistake.
    await machine.execute("INSERT INTO orders (customer, state, amount) VALUES (7, 'new', 1)")
    await machine.execute("UPDATE customers SET name = 'other' WHERE id = 7")
    await machine.execute("DELETE FROM orders WHERE customer = 8 AND id < 100")
    attached = await machine.value(ATTACHED)
    others = await machine.digests()
    await machine.stored()
    arguments = ("restore", "--table", "orders", "--at", then, "--where", "customer = 7")
    plan = await machine.run(*arguments, "--plan")
    assert [line.split()[0] for line in plan.err.splitlines()] == [
        "moment",
        "backup",
        "log",
        "room",
        "time",
    ]
    asked = await machine.run(*arguments, code=1)
    assert "state 'paid' -> 'new'" in asked.out
    assert "0 rows to insert, 100 to update, 1 inserted since, which stay" in asked.out
    assert await machine.digests() == others
    done = await machine.run(*arguments, "--yes")
    assert "0 rows inserted, 100 updated, 0 deleted" in done.out
    later = "SELECT id FROM orders WHERE customer = 7 AND id > 2000"
    added = await machine.value(later)
    assert added is not None
    assert await machine.value(rows.replace("= 7", f"= 7 AND id <> {added}")) == before
    now = await machine.digests()
    # Neither the trigger's log nor another table, and everything is attached as it was.
    assert {name for name in now if now[name] != others[name]} == {"public.orders"}
    assert await machine.value(ATTACHED) == attached
    assert "nothing to change" in (await machine.run(*arguments, "--yes")).out


async def test_a_table_is_replaced_only_if_nothing_later_is_lost(machine: TimeMachine) -> None:
    await machine.execute(SHOP)
    await machine.begin()
    await machine.backup()
    then = await machine.value("SELECT clock_timestamp()::text")
    before = await machine.digests()
    await machine.execute("DELETE FROM orders WHERE id % 3 = 0")
    await machine.execute("INSERT INTO orders (customer, state, amount) VALUES (1, 'new', 1)")
    changed = await machine.digests()
    attached = await machine.value(ATTACHED)
    await machine.stored()
    arguments = ("restore", "--table", "orders", "--at", then, "--replace", "--yes")
    refused = await machine.run(*arguments, code=1)
    assert "1 rows of public.orders were inserted since that moment" in refused.err
    assert "--discard-later" in refused.err
    assert await machine.digests() == changed
    killed = await machine.run(
        *arguments, "--discard-later", code=-9, HEADRACE_FAILPOINT="restore.before_commit"
    )
    assert "rows inserted" not in killed.out
    assert await machine.digests() == changed
    done = await machine.run(*arguments, "--discard-later")
    assert "666 rows inserted, 0 updated, 1 deleted" in done.out
    assert await machine.digests() == before
    assert await machine.value(ATTACHED) == attached
    # A row that others point at: its deletion would take theirs along.
    await machine.execute("INSERT INTO customers VALUES (21, 'late', NULL)")
    await machine.execute("INSERT INTO orders (customer, state, amount) VALUES (21, 'new', 1)")
    await machine.stored()
    customers = ("restore", "--table", "customers", "--at", then, "--replace", "--yes")
    refused = await machine.run(*customers, "--discard-later", code=1)
    assert "orders orders_customer_fkey" in refused.err
    assert await machine.value("SELECT count(*) FROM orders WHERE customer = 21") == 1
    # A column that isn't there any more.
    await machine.execute("ALTER TABLE customers DROP COLUMN notes")
    refused = await machine.run(*customers, code=1)
    assert "customers" in refused.err
    assert "notes was json" in refused.err
