"""`headrace sinks plan` and `ls`: what the file says, compared with the suite. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import typer
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from rich.table import Table
from rich.text import Text

from headrace.cli.session import nats
from headrace.cli.terminal import Console
from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import split_table_token
from headrace.errors import HeadraceError
from headrace.jetstream.state import bucket
from headrace.mirror.published import Published
from headrace.settings import Settings
from headrace.sinks.building import check_columns
from headrace.sinks.configuration import SinkConfiguration
from headrace.sinks.control import Control, control_key, durable_name
from headrace.sinks.dead_letters import DeadLetters
from headrace.sinks.routing import SKIP_PREFIX
from headrace.sinks.targets import promise_to

Sinks = Mapping[str, SinkConfiguration]


def shown(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print rows with equal keys, as JSON or as a table."""
    if as_json:
        typer.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    for name in rows[0] if rows else ():
        table.add_column(name.replace("_", " "))
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    Console().print(table)


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def promise_text(sink: SinkConfiguration) -> str:
    """The promise of the sink's class; empty if its address is a secret or can't be used here."""
    try:
        return str(promise_to(sink.to))
    except (HeadraceError, ImportError):
        return ""


async def plan(settings: Settings, sinks: Sinks, *, as_json: bool) -> None:
    """Show each sink with its tables, and raise if a condition does not fit them."""
    rows = []
    async with nats(settings, "sinks") as (client, _):
        js = client.jetstream()
        known = await Published(client, settings.streams.schemas).tokens(lambda _: True)
        for sink in sinks.values():
            tokens = [token for token in known if sink.takes(*split_table_token(token))]
            await _check(js, settings, sink, tokens)
            tables = [".".join(split_table_token(token)) for token in tokens]
            rows.append(
                {
                    "sink": sink.name,
                    "to": sink.to,
                    "promise": promise_text(sink),
                    "tables": tables,
                    "format": str(sink.format),
                    "snapshot": str(sink.snapshot),
                    "on_error": str(sink.on_error),
                }
            )
    shown(rows, as_json=as_json)
    if SKIP_PREFIX not in settings.format.message_prefixes and not as_json:
        note = f"skip marks have no effect: HEADRACE_MESSAGE_PREFIXES lacks {SKIP_PREFIX}"
        Console().print(Text(note, style="dim"))


async def _check(
    js: JetStreamContext, settings: Settings, sink: SinkConfiguration, tokens: list[str]
) -> None:
    for token in tokens:
        schema, table = split_table_token(token)
        if not sink.where_of(schema, table):
            continue
        schemas = await js.key_value(settings.streams.schemas)
        entry = await schemas.get(token)
        columns = decode(entry.value or b"")["columns"]
        types = {one["name"]: one.get("base_type") or one["data_type"] for one in columns}
        check_columns(sink, schema, table, types)


async def ls(settings: Settings, sinks: Sinks, *, as_json: bool) -> None:
    """Show how far each sink is."""
    rows = []
    source = settings.source.slot
    async with nats(settings, "sinks") as (client, _):
        js = client.jetstream()
        state = await bucket(js, settings.streams.state)
        parked = await DeadLetters(js, settings.streams.parked, source).names()
        for sink in sinks.values():
            instructions = await Control(state, control_key(source, sink.name)).read()
            rows.append(
                {
                    "sink": sink.name,
                    "to": sink.to,
                    "promise": promise_text(sink),
                    "state": "paused" if instructions.paused else "active",
                    "behind": await _behind(js, settings, sink.name),
                    "dead_letters": sum(owner == sink.name for owner, _ in parked),
                    "reason": instructions.reason,
                }
            )
    shown(rows, as_json=as_json)


async def _behind(js: JetStreamContext, settings: Settings, name: str) -> int | None:
    """The stream's messages that the sink has not committed; None if it has never run."""
    try:
        info = await js.consumer_info(
            settings.streams.cdc, durable_name(settings.source.slot, name)
        )
    except NotFoundError:
        return None
    return int(info.num_pending or 0) + int(info.num_ack_pending or 0)
