"""`headrace sinks pause`, `resume`, `reset`, `apply`: instructions that a sink's process follows.

Promises: an instruction is stored in NATS before the command reports it, so a process that starts
later follows it too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from nats.js.errors import NoKeysError, NotFoundError

from headrace.cli.session import nats
from headrace.cli.sinks.look import operator, shown
from headrace.jetstream.state import bucket
from headrace.settings import Settings
from headrace.sinks.configuration import SinkConfiguration
from headrace.sinks.control import ResetTo, durable_name
from headrace.sinks.operating import check_reset


async def pause(
    settings: Settings, sink: SinkConfiguration, *, paused: bool, as_json: bool
) -> None:
    """Store that the sink is to pause, or to continue."""
    async with operator(settings, "sinks") as sinks:
        if paused:
            await sinks.pause(sink.name)
        else:
            await sinks.resume(sink.name)
    done = "paused" if paused else "resumed"
    shown([{"sink": sink.name, "instruction": done}], as_json=as_json)


async def reset(settings: Settings, sink: SinkConfiguration, to: ResetTo, *, as_json: bool) -> None:
    """Store that the sink is to forget its position."""
    # Before NATS is needed.
    check_reset(sink, to)
    async with operator(settings, "sinks") as sinks:
        await sinks.reset(sink, to)
    shown([{"sink": sink.name, "instruction": f"reset to {to}"}], as_json=as_json)


async def apply(
    settings: Settings, sinks: Mapping[str, SinkConfiguration], *, as_json: bool
) -> None:
    """Remove what the suite keeps of sinks that the file no longer has."""
    source = settings.source.slot
    prefix = f"sink.{source}."
    rows = [{"sink": name, "outcome": "in the file"} for name in sinks]
    async with nats(settings, "sinks") as (client, _):
        js = client.jetstream()
        state = await bucket(js, settings.streams.state)
        try:
            keys = [key for key in await state.keys() if key.startswith(prefix)]
        # NATS's client raises this for an empty bucket, which a new suite has.
        except NoKeysError:
            keys = []
        # A sink's name has no dot: what follows the first one is the kind of the key.
        gone = {key.removeprefix(prefix).split(".")[0] for key in keys} - sinks.keys()
        for name in sorted(gone):
            # A sink that never read the stream has no consumer.
            with contextlib.suppress(NotFoundError):
                await js.delete_consumer(settings.streams.cdc, durable_name(source, name))
            # Last, because only its keys show that a removed sink has left something.
            for key in keys:
                if key.removeprefix(prefix).split(".")[0] == name:
                    await state.purge(key)
            rows.append({"sink": name, "outcome": "removed"})
    shown(rows, as_json=as_json)
