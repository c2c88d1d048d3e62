"""Deliver a database's changes to files, and act on orders in this program, with one import.

    python pipeline.py postgresql://postgres@localhost:5432/shop

It starts a nats-server and the services as children, and Ctrl-C stops them. The next run continues
where this one stopped: positions are in ./pipeline.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from headrace.pipeline import Files, pipeline


async def main(source: str) -> None:
    folder = Path("pipeline")
    changes = folder / "changes"
    changes.mkdir(parents=True, exist_ok=True)
    sinks = [Files(changes.absolute().as_uri(), batch={"wait_ms": 1000})]
    async with pipeline(source=source, sinks=sinks, folder=folder) as running:
        # `await running.run()` waits instead, if the sinks are all that is wanted.
        async for transaction in running.follow("orders"):
            rows = [(event.operation, dict(event.data)) for event in transaction.events]
            print(rows, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1]))
