"""`headrace status`: shows telemetry's `/status`, using only HTTP."""

from __future__ import annotations

from typing import Any

import orjson
import typer
from rich.table import Table
from rich.text import Text

from headrace.cli.terminal import Console
from headrace.settings import Settings
from headrace.suite.services import facts_of
from headrace.suite.status import fetch, telemetry_address

STYLES = {"ready": "green", "not ready": "yellow", "silent": "red"}


async def run(settings: Settings, *, as_json: bool) -> None:
    """Fetch the status and show it."""
    body = await fetch(telemetry_address(settings))
    if as_json:
        typer.echo(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode())
        return
    console = Console()
    console.print(_headline(body))
    console.print(_services(body["services"]))


def _headline(body: dict[str, Any]) -> Text:
    connected = bool(body["is_connected"])
    text = Text.assemble(
        (f"{body['source']} ", "bold"),
        (body["status"], "green" if connected else "red"),
        f"   up {span(body['uptime_seconds'])}   LSN {body['current_lsn']}   lag "
        f"{size(body['wal_lag_bytes'])}",
        f"   {body['cdc_events_published']:,} events",
    )
    for part in ("postgres", "nats"):
        ok = body[part].get("reachable", body[part].get("connected"))
        if not ok:
            text.append(f"\n{part}: {body[part].get('reason') or 'not connected'}", style="red")
    if body["postgres"]["reachable"] and body["postgres"]["reason"]:
        text.append(f"\n{body['postgres']['reason']}", style="yellow")
    return text.append("\n")


def _services(services: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    for header in ("service", "state", "up", "figures"):
        table.add_column(header)
    for name, service in services.items():
        style = STYLES.get(service["state"], "")
        reasons = "; ".join(service["reasons"].values())
        if service["instances"] < 2:
            state = service["state"]
        else:
            state = f"{service['state']} ({service['instances']})"
        shown = reasons or _figures(name, service["figures"])
        up = span(service["figures"].get("uptime_seconds", 0))
        table.add_row(
            name, Text(state, style=style), up, Text(shown, style="yellow" if reasons else "")
        )
    return table


def _figures(name: str, figures: dict[str, Any]) -> str:
    told = []
    facts = facts_of(name)
    for key in facts.telling if facts is not None else ():
        value = figures.get(key)
        if value is not None:
            if key.endswith("_bytes"):
                amount = size(value)
            else:
                amount = f"{value:,}"
            told.append(f"{key.removesuffix('_bytes').replace('_', ' ')} {amount}")
    return ", ".join(told)


def size(count: float) -> str:
    """A number of bytes, abbreviated."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            if unit == "B":
                return f"{count:.0f} {unit}"
            return f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def span(seconds: float) -> str:
    whole = int(seconds)
    days, rest = divmod(whole, 86_400)
    parts = [(days, "d"), (rest // 3600, "h"), (rest // 60 % 60, "m"), (rest % 60, "s")]
    shown = [f"{amount}{unit}" for amount, unit in parts if amount][:2]
    return " ".join(shown) or "0s"
