"""How far a replication slot is confirmed, and waiting for it."""

from __future__ import annotations

import asyncio

from headrace.testing.database import Database

_CONFIRMED = (
    "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = $1"
)
_END = "SELECT (pg_current_wal_lsn() - '0/0')::bigint"


async def confirmed_lsn(database: Database, slot: str = "headrace") -> int:
    return int(await database.fetchval(_CONFIRMED, slot))


async def until_confirmed(
    database: Database, slot: str = "headrace", timeout_s: float = 60.0
) -> None:
    """Wait until PostgreSQL may forget everything that was written before the call."""
    end = int(await database.fetchval(_END))
    async with asyncio.timeout(timeout_s):
        while await confirmed_lsn(database, slot) < end:  # noqa: ASYNC110  # a slot gives no event
            await asyncio.sleep(0.05)
