"""Orders with an audit trail: `headrace.context` records who placed and shipped each order, and the
program reads it back from the trail.

Run it with `headrace audit up` on the same database: `python examples/python/audit_context.py
postgresql://…`.
"""

from __future__ import annotations

import asyncio
import json
import sys

import asyncpg

from headrace.context import change_context, tell_async

SETUP = "CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, item text, state text)"
TRAIL = """
SELECT operation, after ->> 'state' AS state, context FROM changes
WHERE "table" = 'orders' AND primary_key = $1 ORDER BY position, ordinal
"""


async def place(connection: asyncpg.Connection, order: int, item: str) -> None:
    async with connection.transaction():
        await tell_async(connection)
        await connection.execute("INSERT INTO orders VALUES ($1, $2, 'placed')", order, item)


async def ship(connection: asyncpg.Connection, order: int) -> None:
    async with connection.transaction():
        await tell_async(connection)
        await connection.execute("UPDATE orders SET state = 'shipped' WHERE id = $1", order)


async def trail(connection: asyncpg.Connection, order: int, changes: int) -> None:
    """The trail's rows for an order, as soon as it has that many changes."""
    for _ in range(600):
        rows = await connection.fetch(TRAIL, str(order))
        if len(rows) >= changes:
            break
        await asyncio.sleep(0.1)
    for row in rows:
        who = json.loads(row["context"])
        print(f"{row['operation']}: {row['state']}, by {who.get('user')} in {who.get('request')}")


async def main(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(SETUP)
    order = 1 + (await connection.fetchval("SELECT coalesce(max(id), 0) FROM orders"))
    with change_context(user="ann", request="POST /orders"):
        await place(connection, order, "lamp")
    with change_context(user="bob", request="POST /shipments"):
        await ship(connection, order)
    await trail(connection, order, 2)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
