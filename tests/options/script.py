"""The script at the source: the same rows, DDL and emitted messages for every combination of
options.

Triggers record every row change, in the order in which it happened. Everything else is compared
with that record and with the tables themselves. One connection writes, so this order is the order
of commits.
"""

from __future__ import annotations

import random
from typing import Any

SEED = 20261119
MESSAGES = 20
PUBLISHED = "FOR TABLES IN SCHEMA public, app"
PUBLISHED_SECOND = "FOR TABLES IN SCHEMA other"

_NOTES = """
CREATE SCHEMA oracle;
CREATE TABLE oracle.notes (n bigserial PRIMARY KEY, "table" text, operation text, id text, who int);
CREATE FUNCTION oracle.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO oracle.notes ("table", operation, id, who) VALUES (TG_TABLE_NAME, TG_OP,
        CASE WHEN TG_OP = 'TRUNCATE' THEN NULL WHEN TG_OP = 'DELETE' THEN OLD.id::text ELSE NEW.id::text END,
        nullif(current_setting('oracle.who', true), '')::int);
    RETURN NULL;
END $$;
"""
_NOTED = """
CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION oracle.note();
CREATE TRIGGER noted_truncate AFTER TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION oracle.note();
"""
_TABLES = """
CREATE SCHEMA app; CREATE SCHEMA other;
CREATE TABLE items (
    id int PRIMARY KEY, doc jsonb, n numeric, b bytea, at timestamptz, f float8, flag bool, big int8, tags int[],
    names text[], docs jsonb[], note text, large text, hidden text);
ALTER TABLE items ALTER large SET STORAGE EXTERNAL;
CREATE TABLE rows_full (id int, doc jsonb, note text);
ALTER TABLE rows_full REPLICA IDENTITY FULL;
CREATE TABLE moved (id int PRIMARY KEY, n int);
CREATE TABLE secret (id int PRIMARY KEY, body text);
CREATE TABLE app.orders (id int PRIMARY KEY, total numeric(12,2), status text);
CREATE TABLE other.things (id int PRIMARY KEY, n int);
CREATE TABLE last_one (id int PRIMARY KEY);
"""
TABLES = ("items", "rows_full", "moved", "secret", "app.orders", "other.things", "last_one")
# Named by the combinations that leave something out.
EXCLUDED_TABLE, EXCLUDED_COLUMN = "secret", "items.hidden"

_DOCUMENTS = (
    """'{"a": 1, "b": [true, null, "x"]}'""",
    "'null'",
    """'{"n": 12345678901234567890123}'""",
    """'{"price": 1.50, "rate": 0.1234567890123456789}'""",
    "'18446744073709551616'",
    "'\"null\"'",
    "NULL",
    """'{"name": "O''Brien \\"x\\" 😀"}'""",
    "'[1e-400, 1e400, -0.0]'",
    "'{}'",
)
_NUMBERS = ("1.50", "'NaN'", "-0.000", "123456789012345678901234567890.123456789", "NULL", "0")
_FLOATS = ("0.1", "'NaN'", "'-Infinity'", "1e308", "-0.0", "NULL", "3")
_TIMES = ("'2026-11-19 12:00:00.123456+00'", "'infinity'", "'0044-03-15 12:00:00+00 BC'", "NULL")
_TEXTS = (
    "'plain'",
    "''",
    "NULL",
    "E'tab\\tline\\nend \\\\ \\' \"'",
    "'äöü 😀'",
    "'{a,b}'",
    "'null'",
)


class Script:
    """Writes to the source, step by step."""

    def __init__(self, connection: Any) -> None:
        self._do = connection.execute
        self._chance = random.Random(SEED)
        self._next = 1

    async def prepare(self) -> None:
        """The tables with rows that no change tells of."""
        await self._do(_TABLES)
        for _ in range(20):
            await self._do(self._item())
        await self._do(
            "INSERT INTO app.orders SELECT g, g * 1.5, 'new' FROM generate_series(1, 500) g"
        )
        await self._do(_NOTES + "".join(_NOTED.replace("{table}", table) for table in TABLES))

    async def run(self) -> None:
        """The part that arrives as changes."""
        self._next = 100
        for number in range(MESSAGES):
            await self._transaction(number)
        await self._shapes()
        for number in range(MESSAGES, MESSAGES + 5):
            await self._transaction(number)
        # Not part of any transaction's changes: the end, for every reader.
        await self._do("INSERT INTO last_one VALUES (1)")

    async def _transaction(self, number: int) -> None:
        """Rows of several tables and both sources, and one who is at work."""
        statements = [self._item() for _ in range(4)]
        statements += [
            (
                f"UPDATE items SET note = {self._one_of(_TEXTS)} WHERE id = "
                f"{self._chance.randrange(1, self._next)}"
            ),
            f"UPDATE items SET doc = {self._one_of(_DOCUMENTS)} WHERE id % 7 = {number % 7}",
            f"DELETE FROM items WHERE id = {self._chance.randrange(1, self._next)}",
            (
                f"INSERT INTO rows_full VALUES ({number}, {self._one_of(_DOCUMENTS)}, "
                f"{self._one_of(_TEXTS)})"
            ),
            f"UPDATE rows_full SET doc = {self._one_of(_DOCUMENTS)} WHERE id = {number - 3}",
            f"DELETE FROM rows_full WHERE id = {number - 7}",
            f"INSERT INTO moved VALUES ({number}, {number})",
            f"UPDATE moved SET id = id + 1000, n = n + 1 WHERE id = {number - 2}",
            f"INSERT INTO secret VALUES ({number}, 'top secret {number}')",
            f"UPDATE app.orders SET total = total + 0.01, status = 'paid' WHERE id % 50 = {number}",
            (
                f"INSERT INTO other.things VALUES ({number}, {number}); UPDATE other.things SET n "
                "= n + 1"
            ),
        ]
        self._chance.shuffle(statements)
        who = f"SELECT set_config('oracle.who', '{number}', true)"
        said = f"""SELECT pg_logical_emit_message(true, '_bemi', '{{"user_id": {number}}}')"""
        said_last = f"SELECT pg_logical_emit_message({number % 2 == 0}, 'note', 'message {number}')"
        body = ";".join([who, said, *statements, *([said_last] if number < MESSAGES else [])])
        await self._do(f"BEGIN; {body}; COMMIT")

    def _item(self) -> str:
        self._next += 1
        values = [
            self._one_of(_DOCUMENTS),
            self._one_of(_NUMBERS),
            self._one_of((r"'\x00ff5c'", "''", "NULL")),
            self._one_of(_TIMES),
            self._one_of(_FLOATS),
            self._one_of(("true", "false", "NULL")),
            self._one_of(("9223372036854775807", "-1", "NULL")),
            self._one_of(("'{1,2,NULL}'", "'{{1,2},{3,4}}'", "'{}'", "NULL")),
            self._one_of((r"""'{"a b",NULL,"NULL","{x}","\"q\""}'""", "'{}'", "NULL")),
            self._one_of((r"""ARRAY['null', '"1"', '{"a": 1.50}', '[1, 2]']::jsonb[]""", "NULL")),
            self._one_of(_TEXTS),
            self._one_of(("repeat(md5(random()::text), 300)", "NULL", "'short'")),
            "'hidden away'",
        ]
        return f"INSERT INTO items VALUES ({self._next}, {', '.join(values)})"

    async def _shapes(self) -> None:
        """Shapes change between rows and without any, also in one transaction with them."""
        await self._do("ALTER TABLE items ADD COLUMN added int DEFAULT 7; " + self._touch("items"))
        await self._do("ALTER TABLE items RENAME COLUMN note TO remark; " + self._touch("items"))
        await self._do("ALTER TABLE items RENAME COLUMN remark TO note")
        await self._do(
            "ALTER TABLE app.orders ALTER COLUMN total TYPE numeric(14,3) USING total * 10"
        )
        await self._do("ALTER TABLE app.orders ADD COLUMN doc jsonb DEFAULT '{\"p\": 1.50}'")
        await self._do("TRUNCATE rows_full")
        await self._do(
            "CREATE TABLE fresh (id int PRIMARY KEY, v text); " + _NOTED.replace("{table}", "fresh")
        )
        await self._do("INSERT INTO fresh SELECT g, 'v' || g FROM generate_series(1, 30) g")
        again = "CREATE TABLE fresh (id int PRIMARY KEY, w int); " + _NOTED.replace(
            "{table}", "fresh"
        )
        await self._do("DROP TABLE fresh; " + again)
        await self._do("INSERT INTO fresh SELECT g, g FROM generate_series(1, 10) g")
        await self._do(
            "ALTER TABLE moved RENAME COLUMN n TO counter; "
            + self._touch("moved", "counter = counter")
        )
        await self._do("ALTER TABLE moved RENAME COLUMN counter TO n")

    def _touch(self, table: str, what: str = "flag = NOT flag") -> str:
        return f"UPDATE {table} SET {what} WHERE id % 5 = 0"

    def _one_of(self, choices: tuple[str, ...]) -> str:
        return self._chance.choice(choices)
