"""Follow a table and print every change, with the consumer library.

    python follow.py nats://127.0.0.1:4222 users        Ctrl-C stops it

Stores its position in follow.marks (a small file), so that the next run continues where this one
stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import nats

from headrace.consumer import FileWatermarks, Subscription, follow


async def main(url: str, table: str) -> None:
    client = await nats.connect(url)
    # `users` for a table of schema public, `app=2Forders` for app.orders.
    subscription = Subscription(filters=(f"cdc.{table}.>",))
    try:
        async with follow(client, subscription, FileWatermarks(Path("follow.marks"))) as consumer:
            async for event in consumer:
                print(event.operation, event.table, dict(event.data), flush=True)
                await consumer.done(event)
    finally:
        await client.close()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:3]))
