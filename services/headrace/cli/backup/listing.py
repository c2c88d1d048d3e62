"""`headrace backup ls`, `status` and `drops`: what can be restored."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from rich.table import Table

from headrace.backup import drills, layout, standbys
from headrace.backup.backups import Backups
from headrace.backup.dropped import drops
from headrace.backup.plan import Planner, format_time
from headrace.backup.segments import holes, ranges, reach
from headrace.backup.standbys import StandbyLag
from headrace.backup.store import BackupStore
from headrace.cli.terminal import Console
from headrace.lsn import format_lsn
from headrace.settings import Settings

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def shown(size: float) -> str:
    """A size for people."""
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    if unit == 0:
        return f"{size:.0f} {_UNITS[unit]}"
    return f"{size:.1f} {_UNITS[unit]}"


def ls(store: BackupStore, *, as_json: bool) -> None:
    """The backups, the oldest first."""
    planner = Planner(store)
    rows: list[dict[str, Any]] = []
    for record in planner.records:
        end = reach(planner.pieces, planner.way(record.timeline), record.start_lsn)
        rows.append(
            {
                "label": record.label,
                "kind": "full" if record.parent is None else "incremental",
                "parent": record.parent,
                "time": format_time(record.end_us),
                "timeline": record.timeline,
                "lsn": format_lsn(record.end_lsn),
                "log_until": format_lsn(end),
                "bytes": record.bytes,
                "stored": record.stored_bytes,
                "tags": list(record.tags),
                # The files are consistent only with the log of the time when they were copied.
                "restorable": end >= record.end_lsn,
            }
        )
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("backup", "kind", "time", "LSN", "log until", "size", "stored", "tags", box=None)
    for row in rows:
        table.add_row(
            row["label"],
            row["kind"],
            row["time"],
            row["lsn"],
            row["log_until"],
            shown(row["bytes"]),
            shown(row["stored"]),
            ", ".join(row["tags"]),
        )
    Console().print(table)


def status(settings: Settings, store: BackupStore, *, as_json: bool) -> None:
    """How far the log is stored, what is missing, and what the store takes."""
    planner = Planner(store)
    found = ranges(planner.pieces)
    missing = holes(found)
    said = store.status()
    # By a listing: what interrupted backups have left takes room, too, and has no record.
    stored = sum(size for _, size in store.tree(""))
    body = {
        "store": store.url,
        "system_id": store.identity.system_id,
        "backups": len(planner.records),
        "log_until": format_lsn(found[-1].end) if found else None,
        "time": format_time(said.time_us) if said is not None else None,
        "timeline": planner.timeline,
        "holes": [
            {"timeline": one.timeline, "from": format_lsn(one.start), "to": format_lsn(one.end)}
            for one in missing
        ],
        "unfinished_backups": sorted(Backups(store).unfinished()),
        "standbys": [_standby(one) for one in _standbys(settings, store)],
        "last_drill": _last_drill(store),
        "stored_bytes": stored,
    }
    if as_json:
        print(json.dumps(body))
        return
    console = Console()
    people = {**body, "stored_bytes": shown(stored)}
    for name, value in people.items():
        for place, line in enumerate(_lines(value)):
            title = "" if place else name.removesuffix("_bytes").replace("_", " ")
            console.print(f"{title:<20} {line}")


def _lines(value: object) -> list[str]:
    """A value for people, in one line or several."""
    if value is None or value == []:
        return ["none"]
    if isinstance(value, list):
        return [_line(one) for one in value]
    return [str(value)]


def _line(value: object) -> str:
    if not isinstance(value, dict):
        return str(value)
    known = {key: one for key, one in value.items() if one is not None}
    return ", ".join(f"{key.replace('_', ' ')} {one}" for key, one in known.items())


def _standbys(settings: Settings, store: BackupStore) -> list[StandbyLag]:
    # Those that read the store are known without the primary.
    found = list(standbys.fed(store))
    # After the loss of a primary nobody waits for it, if it isn't named.
    if settings.postgres.host is not None or "PGHOST" in os.environ:
        found += asyncio.run(standbys.streaming(settings.postgres))
    return found


def _standby(one: StandbyLag) -> dict[str, Any]:
    lsn = None
    if one.lsn is not None:
        lsn = format_lsn(one.lsn)
    return {
        "name": one.name,
        "from": one.source,
        "lsn": lsn,
        "lag_s": one.lag_s,
        "noted": format_time(one.noted_us),
    }


def _last_drill(store: BackupStore) -> str | None:
    found = drills.listed(store.names(layout.DRILLS))
    if not found:
        return None
    word = "passed" if found[-1].passed else "failed"
    return f"{word} at {found[-1].time.isoformat(sep=' ')}"


def list_drops(store: BackupStore, *, as_json: bool) -> None:
    """The dropped tables that can be brought back, the last one first."""
    # A restore asks for a table by its name, and not every dropped OID has a noted one.
    found = [drop for drop in drops(store, Planner(store)) if drop.name is not None]
    if as_json:
        print(
            json.dumps(
                [
                    {"table": one.name, "xid": one.xid, "time": format_time(one.time_us)}
                    for one in found
                ]
            )
        )
        return
    table = Table("table", "transaction", "time", box=None)
    for one in found:
        table.add_row(one.name, str(one.xid), format_time(one.time_us))
    Console().print(table)
