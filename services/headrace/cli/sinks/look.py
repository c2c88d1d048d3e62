"""`headrace sinks plan` and `ls`: what the file says, compared with the suite. Reads only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
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
from headrace.jetstream.state import bucket
from headrace.mirror.event_steps import shape
from headrace.mirror.published import Published
from headrace.mirror.table import Table as MirrorTable
from headrace.mirror.target_tables import planned
from headrace.settings import Settings
from headrace.sinks.building import check_columns
from headrace.sinks.configuration import SinkConfiguration, known_address
from headrace.sinks.operating import SinkOperator, promise_text
from headrace.sinks.routing import SKIP_PREFIX
from headrace.sinks.targets import is_database

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


@contextlib.asynccontextmanager
async def operator(settings: Settings, command: str) -> AsyncIterator[SinkOperator]:
    """The sinks of a suite, for the time of a command."""
    async with nats(settings, command) as (client, _):
        js = client.jetstream()
        yield SinkOperator(js, await bucket(js, settings.streams.state), settings)


async def plan(settings: Settings, sinks: Sinks, *, as_json: bool) -> None:
    """Show each sink with its tables, and raise if a condition does not fit them."""
    rows = []
    async with nats(settings, "sinks") as (client, _):
        js = client.jetstream()
        known = await Published(client, settings.streams.schemas).tokens(lambda _: True)
        for sink in sinks.values():
            tokens = [token for token in known if sink.takes(*split_table_token(token))]
            scheme = known_address(sink.to, os.environ).partition("://")[0]
            copies = is_database(f"{scheme}://")
            # Each description is a request; most tables have no condition to check.
            asked = [one for one in tokens if copies or sink.where_of(*split_table_token(one))]
            described = await tables_described(js, settings, asked)
            tables = [".".join(split_table_token(token)) for token in tokens]
            row: dict[str, Any] = {
                "sink": sink.name,
                "to": sink.to,
                "promise": promise_text(sink),
                "tables": tables,
            }
            if copies:
                known_tables = [shape(body) for body in described.values()]
                made = planned(scheme, known_tables, sink.rules)
                row["tables"] = list(map(_copied, known_tables, made))
            else:
                _check(sink, described)
            rows.append(
                {
                    **row,
                    "format": str(sink.format),
                    "snapshot": str(sink.snapshot),
                    "on_error": str(sink.on_error),
                }
            )
    shown(rows, as_json=as_json)
    if SKIP_PREFIX not in settings.format.message_prefixes and not as_json:
        note = f"skip marks have no effect: HEADRACE_MESSAGE_PREFIXES lacks {SKIP_PREFIX}"
        Console().print(Text(note, style="dim"))


async def tables_described(
    js: JetStreamContext, settings: Settings, tokens: list[str]
) -> dict[str, Mapping[str, Any]]:
    """The tables as the bucket of schemas has them, by token."""
    if not tokens:
        return {}
    schemas = await js.key_value(settings.streams.schemas)
    found = {}
    for token in tokens:
        # A table may be dropped meanwhile.
        with contextlib.suppress(NotFoundError):
            found[token] = decode((await schemas.get(token)).value or b"")
    return found


def _check(sink: SinkConfiguration, described: Mapping[str, Mapping[str, Any]]) -> None:
    for token, body in described.items():
        schema, table = split_table_token(token)
        # A domain's values compare as those of its base type.
        types = {one["name"]: one.get("base_type") or one["data_type"] for one in body["columns"]}
        check_columns(sink, schema, table, types)


def _copied(source: MirrorTable, made: MirrorTable) -> str:
    """A table with its name and columns in the target, where these are others."""
    name = f"{source.schema}.{source.name}"
    place = ".".join(made.place)
    there = {column.name for column in made.columns}
    lost = [column.name for column in source.columns if column.name not in there]
    if place != name:
        name += f" as {place}"
    if lost:
        name += f" without {', '.join(lost)}"
    return name


async def ls(settings: Settings, sinks: Sinks, *, as_json: bool) -> None:
    """Show how far each sink is."""
    rows = []
    async with operator(settings, "sinks") as known:
        # Once for all sinks, because each listing reads the names of the whole bucket.
        parked = await known.letters.names()
        for sink in sinks.values():
            instructions = await known.instructions(sink.name)
            read = await known.read_up_to(sink.name)
            rows.append(
                {
                    "sink": sink.name,
                    "to": sink.to,
                    "promise": promise_text(sink),
                    "state": "paused" if instructions.paused else "active",
                    "behind": None if read is None else read.behind,
                    "dead_letters": sum(owner == sink.name for owner, _ in parked),
                    "reason": instructions.reason,
                }
            )
    shown(rows, as_json=as_json)
