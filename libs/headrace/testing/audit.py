"""A second audit, in plain SQL, that the audit trail is held against: triggers that write what
happened to each row.

Its table is in a separate schema, outside the publication. Promises the same facts as the trail, in
the order in which they happened: operation, table, key, row before and after, transaction.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from headrace.testing.database import Database

SETTLE_S = 60.0

_ORACLE = """
CREATE SCHEMA oracle;
CREATE TABLE oracle.changes (
    n bigserial PRIMARY KEY, xid bigint, operation text, "table" text, key text, before jsonb,
        after jsonb);
CREATE FUNCTION oracle.note() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = '' AS $$
DECLARE
    b jsonb := CASE WHEN TG_OP IN ('UPDATE', 'DELETE') THEN to_jsonb(OLD) ELSE '{}' END;
    a jsonb := CASE WHEN TG_OP IN ('UPDATE', 'INSERT') THEN to_jsonb(NEW) ELSE '{}' END;
BEGIN
    INSERT INTO oracle.changes (xid, operation, "table", key, before, after)
    VALUES ((pg_current_xact_id()::text::numeric % 4294967296)::bigint,
            CASE TG_OP WHEN 'INSERT' THEN 'CREATE' ELSE TG_OP END, TG_TABLE_NAME,
            CASE TG_OP WHEN 'TRUNCATE' THEN NULL WHEN 'DELETE' THEN b ->> 'id' ELSE a ->> 'id' END,
                b, a);
    RETURN NULL;
END $$;
"""
_AUDITED = """
CREATE TRIGGER oracle_rows AFTER INSERT OR UPDATE OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION oracle.note();
CREATE TRIGGER oracle_truncate AFTER TRUNCATE ON {table} FOR EACH STATEMENT
    EXECUTE FUNCTION oracle.note();
"""
_FACTS = 'operation, "table", {key} AS key, before::text, after::text, {xid} AS xid'

Fact = tuple[str, str, str | None, Any, Any, int]


class AuditOracle:
    """The triggers, and the comparison."""

    def __init__(
        self, database: Database, destination: Database | None = None, table: str = "changes"
    ) -> None:
        self._database = database
        self._destination = destination or database
        self._table = table

    async def begin(self, *tables: str) -> None:
        """From here on what happens to these tables is noted; each has a key `id` and REPLICA
        IDENTITY FULL.
        """
        await self._database.execute(_ORACLE)
        for table in tables:
            await self.also(table)

    async def also(self, table: str) -> None:
        """Note this one too."""
        await self._database.execute(
            _AUDITED.replace("{table}", table) + f"ALTER TABLE {table} REPLICA IDENTITY FULL;"
        )

    async def expected(self) -> list[Fact]:
        """What PostgreSQL committed, in order."""
        facts = _FACTS.format(key="key", xid="xid")
        return _facts(await self._database.fetch(f"SELECT {facts} FROM oracle.changes ORDER BY n"))  # noqa: S608  # constants

    async def trail(self) -> list[Fact]:
        """The rows of the trail, in the order of their positions."""
        facts = _FACTS.format(key="primary_key", xid="transaction_id")
        return _facts(
            await self._destination.fetch(
                f"SELECT {facts} FROM {self._table} ORDER BY position, ordinal"  # noqa: S608  # constants
            )
        )

    async def _rows(self) -> int:
        """The number of rows in the trail; 0 if it doesn't exist yet."""
        if await self._destination.fetchval("SELECT to_regclass($1)", self._table) is None:
            return 0
        return int(await self._destination.fetchval(f"SELECT count(*) FROM {self._table}"))  # noqa: S608  # a constant

    async def settled(self, timeout_s: float = SETTLE_S) -> list[Fact]:
        """Wait until the trail has as many rows as were committed; then both must be the same."""
        expected = await self.expected()
        deadline = time.monotonic() + timeout_s
        while (found := await self._rows()) < len(expected):
            assert time.monotonic() < deadline, (
                f"{found} of {len(expected)} changes are in the trail"
            )
            await asyncio.sleep(0.05)
        trail = await self.trail()
        wrong = [(one, other) for one, other in zip(expected, trail, strict=False) if one != other]
        assert not wrong, f"{len(wrong)} of {len(expected)} differ, first {wrong[0]}"
        assert len(trail) == len(expected), f"{len(trail)} rows for {len(expected)} changes"
        return trail


def _facts(rows: list[Any]) -> list[Fact]:
    return [
        (
            row["operation"],
            row["table"],
            row["key"],
            json.loads(row["before"]),
            json.loads(row["after"]),
            row["xid"],
        )
        for row in rows
    ]
