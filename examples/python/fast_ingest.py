"""Publishes the lines of a file to a JetStream stream, each once and in order, as fast as nats-server
accepts them.

    python fast_ingest.py nats://127.0.0.1:4222 LINES lines.txt

Uses `headrace.jetstream.publishing.fast` without PostgreSQL; any numbered source will do. Kill the
program or the server at any moment and start it again: it reads its position from the stream, and
continues after it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import nats
from nats.aio.client import Client

from headrace.jetstream.publishing.errors import IngestError
from headrace.jetstream.publishing.fast import FastPipe, offers_fast_ingest
from headrace.jetstream.publishing.message import Outgoing
from headrace.jetstream.publishing.pipe import Window
from headrace.jetstream.publishing.stream_tail import StreamTail, TailError, TailMark
from headrace.lsn import ORIGIN, Position
from headrace.metrics.counters import Counters

PAUSE_S = 0.5


def mark(_payload: bytes, headers: dict[str, str]) -> TailMark | None:
    """The source's position as stated in a message of the stream; None for another source's message."""
    msg_id = headers.get("Nats-Msg-Id", "")
    source, _, number = msg_id.partition("-")
    return TailMark(msg_id, Position(int(number), 0)) if source == "line" else None


async def numbered(path: Path, after: int) -> AsyncIterator[Outgoing]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number > after:
                yield Outgoing(f"lines.{path.stem}", f"line-{number}", line.rstrip(b"\n"))


async def publish(client: Client, stream: str, path: Path) -> int:
    """Publish the lines that are not in the stream yet; return how many lines it then has."""
    js = client.jetstream()
    tail = StreamTail(js, stream, mark)
    end = await tail.after(0)
    there = (end.position or ORIGIN).lsn
    ingest = FastPipe(
        client, tail, Counters(), Window(messages_max=4096, bytes_max=8 << 20, ack_timeout_s=5)
    )
    await ingest.open(end)
    try:
        async for message in numbered(path, there):
            await ingest.publish(message)
        await ingest.drain()
        return there + ingest.acked
    finally:
        await ingest.close()


async def lost(error: Exception) -> None:
    print(f"nats: {error!r}", file=sys.stderr)


async def main(url: str, stream: str, path: Path) -> None:
    client = await nats.connect(
        url.split(","), max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=lost
    )
    while True:
        try:
            if not await offers_fast_ingest(client.jetstream(), client, stream):
                sys.exit(f"{stream} needs nats-server 2.14 and allow_batched")
            print(f"{await publish(client, stream, path)} lines are in the stream")
            break
        except (IngestError, TailError, nats.errors.Error, TimeoutError) as error:
            # Only the stream knows whether the messages in flight were stored.
            print(f"again: {error!r}", file=sys.stderr)
            await asyncio.sleep(PAUSE_S)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
