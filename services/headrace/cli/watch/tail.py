"""`headrace tail`: live events in a terminal, readable or as one JSON document per line."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import NoKeysError
from rich.text import Text

from headrace.cli import session
from headrace.cli.terminal import Console
from headrace.consumer import Event, MemoryWatermarks, Start, Subscription, follow
from headrace.contract.subjects_and_ids import CDC, table_token
from headrace.contract.table_patterns import table_of
from headrace.settings import Settings
from headrace.terminal.text import one_line, plain

_STYLES = {
    "INSERT": "green",
    "UPDATE": "yellow",
    "DELETE": "red",
    "TRUNCATE": "red bold",
    "SCHEMA": "cyan",
}
_VALUE_CHARACTERS_MAX = 60
_TABLES_SHOWN_MAX = 10
_SCHEMAS_S = 5.0


def filters(tables: Iterable[str]) -> tuple[str, ...]:
    """Subjects of `users`, `app.orders`, …"""
    return tuple(f"{CDC}.{_token(table)}.>" for table in tables)


async def run(
    settings: Settings, tables: list[str], *, as_json: bool, from_start: bool, limit: int | None
) -> None:
    """Print events until interrupted, or until `limit` of them."""
    console = Console(soft_wrap=True)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    subscription = Subscription(
        settings.streams.cdc,
        filters(tables),
        start=Start.ALL if from_start else Start.NEW,
        state_bucket=settings.streams.state,
    )
    async with (
        session.nats(settings, "tail") as (client, _),
        follow(client, subscription, MemoryWatermarks()) as consumer,
    ):
        if console.is_terminal:
            print("following; Ctrl-C ends", file=sys.stderr)
        shown = 0
        unasked = bool(tables)
        while not stop.is_set() and shown != limit:
            event = await _next_or_stop(consumer.next(0.5), stop)
            if event is None and unasked:
                # Only now: the first row of a new table may come before its schema.
                unasked = False
                await _tell_unknown(client, settings, tables)
            if event is not None:
                show(console, event, as_json=as_json)
                await consumer.done(event)
                shown += 1


async def _tell_unknown(client: Client, settings: Settings, tables: Iterable[str]) -> None:
    """Report which of the tables have no schema yet, and which tables exist; nothing if the bucket
    can't be read.
    """
    try:
        schemas = await client.jetstream().key_value(settings.streams.schemas)
        async with asyncio.timeout(_SCHEMAS_S):
            known = {*await schemas.keys()}
    except NoKeysError:
        known = set()
    except (NatsError, TimeoutError):
        return
    missing = [table for table in tables if _token(table) not in known]
    if not missing:
        return
    shown = sorted(known)[:_TABLES_SHOWN_MAX]
    if len(known) > len(shown):
        more = f" and {len(known) - len(shown)} more"
    else:
        more = ""
    if known:
        there = f"there are: {', '.join(shown)}{more}"
    else:
        there = "there are none yet"
    text = (
        f"headrace: no table {', '.join(missing)} is published ({there}). Waiting for it; "
        "Ctrl-C ends."
    )
    print(plain(text), file=sys.stderr, flush=True)


def _token(table: str) -> str:
    """A user's name for a table, as in subjects and the schemas bucket."""
    return table_token(*table_of(table))


async def _next_or_stop(work: Any, stop: asyncio.Event) -> Event | None:
    fetch = asyncio.create_task(work, name="tail-fetch")
    halt = asyncio.create_task(stop.wait(), name="tail-stop")
    await asyncio.wait({fetch, halt}, return_when=asyncio.FIRST_COMPLETED)
    halt.cancel()
    if not fetch.done():
        fetch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await fetch
        return None
    event: Event | None = fetch.result()
    return event


def show(console: Console, event: Event, *, as_json: bool) -> None:
    if as_json:
        print(plain(json.dumps(event.payload, default=_json_value, ensure_ascii=False)), flush=True)
        return
    if event.schema in ("public", ""):
        table = event.table
    else:
        table = f"{event.schema}.{event.table}"
    line = Text(f"{_time(event.payload)}  ", style="dim")
    line.append(f"{event.operation:<8} ", style=_STYLES.get(event.operation, ""))
    line.append(f"{one_line(table)}  ", style="bold")
    line.append(one_line(_columns(event)))
    line.append(f"  {event.position}", style="dim")
    console.print(line)


def _time(payload: Mapping[str, Any]) -> str:
    return str(payload.get("tx", {}).get("ts", ""))[11:23]


def _columns(event: Event) -> str:
    if event.operation == "DELETE":
        values = {name: value for name, value in event.data.items() if value is not None}
    else:
        values = dict(event.data)
    parts = [f"{name}={_short(value)}" for name, value in values.items()]
    return " ".join(parts + [f"{name}=(unchanged)" for name in event.unchanged])


def _short(value: object) -> str:
    text = json.dumps(value, default=_json_value, ensure_ascii=False)
    if len(text) <= _VALUE_CHARACTERS_MAX:
        return text
    return text[: _VALUE_CHARACTERS_MAX - 1] + "…"


def _json_value(value: object) -> str:
    # bytea has no form in JSON; this is the contract's.
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(type(value).__name__)
