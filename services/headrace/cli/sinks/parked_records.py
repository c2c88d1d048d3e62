"""`headrace dead-letters`: records that a sink's target refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import typer

from headrace.cli.session import nats
from headrace.cli.sinks.look import shown
from headrace.jetstream.state import bucket
from headrace.settings import Settings
from headrace.sinks.control import Control, control_key
from headrace.sinks.dead_letters import DeadLetters
from headrace.sinks.formats.json_values import dumps


async def ls(settings: Settings, sink: str | None, *, as_json: bool) -> None:
    """List them, without their content."""
    rows: list[dict[str, Any]] = []
    async with nats(settings, "dead-letters") as (client, _):
        letters = DeadLetters(client.jetstream(), settings.streams.parked, settings.source.slot)
        for owner, record_id in await letters.names(sink):
            letter = await letters.get(owner, record_id)
            rows.append(
                {
                    "sink": owner,
                    "id": record_id,
                    "destination": letter.destination,
                    "parked_at": letter.parked_at,
                    "reason": letter.reason,
                }
            )
    shown(rows, as_json=as_json)


async def show(settings: Settings, sink: str, record_id: str, *, as_json: bool) -> None:
    """Show one with its content."""
    async with nats(settings, "dead-letters") as (client, _):
        letters = DeadLetters(client.jetstream(), settings.streams.parked, settings.source.slot)
        body = (await letters.get(sink, record_id)).packed()
    text = dumps(body)
    if not as_json:
        text = orjson.dumps(orjson.loads(text), option=orjson.OPT_INDENT_2)
    typer.echo(text.decode())


async def replay(settings: Settings, sink: str, record_id: str | None, *, as_json: bool) -> None:
    """Store that the sink's process is to deliver them."""
    source = settings.source.slot
    async with nats(settings, "dead-letters") as (client, _):
        js = client.jetstream()
        letters = DeadLetters(js, settings.streams.parked, source)
        if record_id is None:
            wanted = tuple(one for _, one in await letters.names(sink))
        else:
            # Raises if there is no such record.
            wanted = ((await letters.get(sink, record_id)).id,)
        state = await bucket(js, settings.streams.state)
        control = Control(state, control_key(source, sink))
        await control.change(
            lambda found: replace(found, replay=tuple(dict.fromkeys((*found.replay, *wanted))))
        )
    rows = [{"sink": sink, "id": one, "instruction": "deliver again"} for one in wanted]
    shown(rows, as_json=as_json)


async def drop(settings: Settings, sink: str, record_id: str, *, as_json: bool) -> None:
    """Remove one."""
    async with nats(settings, "dead-letters") as (client, _):
        letters = DeadLetters(client.jetstream(), settings.streams.parked, settings.source.slot)
        await letters.get(sink, record_id)
        await letters.drop(sink, record_id)
    shown([{"sink": sink, "id": record_id, "outcome": "dropped"}], as_json=as_json)
