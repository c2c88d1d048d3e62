"""`headrace sinks pause`, `resume`, `reset`, `apply`: instructions that a sink's process follows.

Promises: an instruction is stored in NATS before the command reports it, so a process that starts
later follows it too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace

from nats.js.errors import NoKeysError, NotFoundError

from headrace.cli.session import nats
from headrace.cli.sinks.look import shown
from headrace.jetstream.state import bucket
from headrace.settings import Settings
from headrace.sinks.configuration import ConfigurationError, SinkConfiguration
from headrace.sinks.control import Control, ResetTo, control_key, durable_name
from headrace.sinks.targets import is_database


async def pause(
    settings: Settings, sink: SinkConfiguration, *, paused: bool, as_json: bool
) -> None:
    """Store that the sink is to pause, or to continue."""
    async with nats(settings, "sinks") as (client, _):
        state = await bucket(client.jetstream(), settings.streams.state)
        control = Control(state, control_key(settings.source.slot, sink.name))
        if paused:
            await control.pause("paused by an operator")
        else:
            await control.resume()
    done = "paused" if paused else "resumed"
    shown([{"sink": sink.name, "instruction": done}], as_json=as_json)


async def reset(settings: Settings, sink: SinkConfiguration, to: ResetTo, *, as_json: bool) -> None:
    """Store that the sink is to forget its position."""
    if to is not ResetTo.SNAPSHOT and is_database(sink.address(os.environ)):
        raise ConfigurationError(
            f"sink {sink.name!r} is a copy of tables, which can't begin in the middle",
            remedy="Use `--to snapshot`, which copies the tables again.",
        )
    async with nats(settings, "sinks") as (client, _):
        state = await bucket(client.jetstream(), settings.streams.state)
        control = Control(state, control_key(settings.source.slot, sink.name))
        await control.change(lambda found: replace(found, reset=to))
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
        except NoKeysError:
            keys = []
        gone = {key.removeprefix(prefix).split(".")[0] for key in keys} - sinks.keys()
        for key in keys:
            if key.removeprefix(prefix).split(".")[0] in gone:
                await state.purge(key)
        for name in sorted(gone):
            with contextlib.suppress(NotFoundError):
                await js.delete_consumer(settings.streams.cdc, durable_name(source, name))
            rows.append({"sink": name, "outcome": "removed"})
    shown(rows, as_json=as_json)
