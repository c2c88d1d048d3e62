"""`headrace pause` and `headrace resume`: stop publishing while the slot retains changes, and
resume.

Promises: the request is stored in NATS before the command reports it; it then reports whether the
publisher has followed it.
"""

from __future__ import annotations

import asyncio

from nats.aio.client import Client
from nats.aio.msg import Msg
from rich.text import Text

from headrace.bus import participation, subjects
from headrace.cli.session import nats
from headrace.cli.terminal import Console
from headrace.errors import DecodeError
from headrace.jetstream.state import bucket
from headrace.settings import Settings
from headrace.suite import pause
from headrace.suite.pause import Pause
from headrace.timing.waits import wait_for

OBEYED_S = 10.0
SERVICE = "publisher"


async def run(settings: Settings, *, paused: bool, reason: str = "") -> None:
    """Store the request, wait a moment for the publisher to follow it, report the result."""
    console = Console(soft_wrap=True)
    async with nats(settings, "pause") as (client, _):
        obeyed = asyncio.Event()
        # Before the request: the report that shows its effect must not be missed.
        await _listen(client, settings.source.slot, obeyed, paused=paused)
        state = await bucket(client.jetstream(), settings.streams.state)
        await pause.write(
            client, state, settings, Pause(paused=paused, by=pause.someone(), reason=reason)
        )
        # No error: the request is stored, and the next publisher that starts follows it.
        if not await wait_for(obeyed, OBEYED_S):
            word = "paused" if paused else "resumed"
            console.print(
                Text(
                    f"{settings.source.slot} is {word} as soon as a publisher runs", style="yellow"
                )
            )
            console.print(
                Text("no publisher has confirmed it yet; see headrace status", style="dim")
            )
            return
    if paused:
        console.print(
            Text.assemble(
                ("✓ ", "green"), f"{settings.source.slot} is paused: nothing is published"
            )
        )
        console.print(
            Text(
                (
                    "PostgreSQL retains WAL meanwhile. headrace resume continues without "
                    "losing anything"
                ),
                style="dim",
            )
        )
    else:
        console.print(
            Text.assemble(("✓ ", "green"), f"{settings.source.slot} continues where it stopped")
        )


async def _listen(client: Client, slot: str, obeyed: asyncio.Event, *, paused: bool) -> None:
    async def report(message: Msg) -> None:
        try:
            stats = participation.decode_stats(message.data).stats
        except DecodeError:
            return
        # A standby doesn't report it.
        if stats.get("paused") == int(paused):
            obeyed.set()

    await client.subscribe(subjects.stats(slot, SERVICE), cb=report)
    await client.flush()
