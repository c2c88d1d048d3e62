"""`headrace dead-letters`: records that a sink's target refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import typer

from headrace.cli.session import nats
from headrace.cli.sinks.look import operator, shown
from headrace.settings import Settings
from headrace.sinks.dead_letters import DeadLetterError, DeadLetters
from headrace.sinks.formats.json_values import dumps


async def ls(settings: Settings, sink: str | None, *, as_json: bool) -> None:
    """List them, without their content."""
    rows: list[dict[str, Any]] = []
    async with nats(settings, "dead-letters") as (client, _):
        letters = DeadLetters(client.jetstream(), settings.streams.parked, settings.source.slot)
        for owner, record_id in await letters.names(sink):
            try:
                letter = await letters.get(owner, record_id)
            # The sink has delivered it meanwhile.
            except DeadLetterError:
                continue
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
    # By the sinks' encoder: a row may have values that JSON lacks, such as bytes.
    text = dumps(body)
    if not as_json:
        text = orjson.dumps(orjson.loads(text), option=orjson.OPT_INDENT_2)
    typer.echo(text.decode())


async def replay(settings: Settings, sink: str, record_id: str | None, *, as_json: bool) -> None:
    """Store that the sink's process is to deliver them."""
    async with operator(settings, "dead-letters") as sinks:
        if record_id is None:
            # Those of this moment: a record that is parked later waits for another instruction.
            wanted = tuple(one for _, one in await sinks.letters.names(sink))
        else:
            # Raises if there is no such record.
            wanted = ((await sinks.letters.get(sink, record_id)).id,)
        await sinks.deliver(sink, wanted)
    rows = [{"sink": sink, "id": one, "instruction": "deliver again"} for one in wanted]
    shown(rows, as_json=as_json)


def wanted(given: Sequence[str], nulls: Sequence[str]) -> dict[str, str | None]:
    """The values of `--set` and `--null`, by column."""
    found: dict[str, str | None] = dict.fromkeys(nulls)
    for one in given:
        name, separator, text = one.partition("=")
        if not separator:
            raise typer.BadParameter(f"--set {one!r} has no =: write COLUMN=TEXT")
        found[name] = text
    if not found:
        raise typer.BadParameter("name a column with --set COLUMN=TEXT or --null COLUMN")
    return found


async def correct(
    settings: Settings,
    sink: str,
    record_id: str,
    columns: Mapping[str, str | None],
    *,
    as_json: bool,
) -> None:
    """Store other values for columns of one."""
    async with nats(settings, "dead-letters") as (client, _):
        letters = DeadLetters(client.jetstream(), settings.streams.parked, settings.source.slot)
        await letters.correct(sink, record_id, columns, "the command line")
    shown([{"sink": sink, "id": record_id, "corrected": list(columns)}], as_json=as_json)


async def drop(settings: Settings, sink: str, record_id: str, *, as_json: bool) -> None:
    """Remove one."""
    async with nats(settings, "dead-letters") as (client, _):
        letters = DeadLetters(client.jetstream(), settings.streams.parked, settings.source.slot)
        await letters.get(sink, record_id)
        await letters.drop(sink, record_id)
    shown([{"sink": sink, "id": record_id, "outcome": "dropped"}], as_json=as_json)
