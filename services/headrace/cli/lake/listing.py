"""`headrace lake ls`, `status` and `cuts`: what a lake contains. Reads metadata only."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from pyiceberg.table.metadata import TableMetadata
from rich.table import Table

from headrace.archive import WalReader
from headrace.cli import session
from headrace.cli.lake.selection import Lake
from headrace.cli.terminal import Console
from headrace.errors import HeadraceError, describe
from headrace.lake.catalog import Cut, TableName
from headrace.lake.requests import requests
from headrace.lsn import format_lsn, parse_lsn
from headrace.terminal.text import counted


def show(document: object) -> None:
    """Print one document for programs."""
    # Not by rich, which would wrap the line at the terminal's width.
    print(orjson.dumps(document).decode())


def ls(lake: Lake, *, as_json: bool) -> None:
    """The tables: rows, files, deleted rows, size, last change."""
    found = [_account(lake, name, metadata) for name, (_, metadata) in lake.tables().items()]
    if as_json:
        for table in found:
            show(table)
        return
    console = Console()
    if found:
        headings = ("table", "rows", "deleted", "files", "bytes", "last change", "")
        rows = [
            (
                each["table"],
                f"{each['rows']:,}",
                f"{each['deleted_rows']:,}",
                f"{each['files']}+{each['delete_files']}",
                f"{each['bytes']:,}",
                each["changed"] or "",
                "" if each["own"] else f"of {each['source'] or 'another program'}",
            )
            for each in found
        ]
        console.print(_table(headings, rows, {"rows", "deleted", "files", "bytes"}))
    total = f"{counted(len(found), 'table')} in {lake.files.root}"
    console.print(total, style="dim", soft_wrap=True)


def _account(lake: Lake, name: TableName, metadata: TableMetadata) -> dict[str, Any]:
    snapshot = metadata.current_snapshot()
    summary = {}
    if snapshot is not None and snapshot.summary is not None:
        # Iceberg keeps these totals with each snapshot, so no file of rows is read for them.
        summary = snapshot.summary.additional_properties

    def number(key: str) -> int:
        return int(summary.get(key, 0))

    deleted = number("total-position-deletes")
    return {
        "table": str(name),
        "rows": number("total-records") - deleted,
        "deleted_rows": deleted,
        "files": number("total-data-files"),
        "delete_files": number("total-delete-files"),
        "bytes": number("total-files-size"),
        "snapshots": len(metadata.snapshots),
        "changed": None if snapshot is None else _time(snapshot.timestamp_ms * 1000),
        "location": metadata.location,
        "source": metadata.properties.get("headrace.source"),
        "own": lake.owns(metadata),
    }


def cuts(lake: Lake, limit: int, *, as_json: bool) -> None:
    """The cuts that readers can go back to, the last one first."""
    found = lake.catalog.cuts(lake.slot, limit)
    if as_json:
        for cut in found:
            show({**_cut(cut), "tables": cut.tables})
        return
    changed = _changed(found)
    rows = [
        (
            str(cut.number),
            format_lsn(cut.lsn),
            _time(cut.made_us),
            "" if cut.commit_us is None else _time(cut.commit_us),
            str(len(cut.tables)),
            names,
        )
        for cut, names in zip(found, changed, strict=True)
    ]
    headings = ("cut", "LSN", "made", "last commit", "tables", "changed")
    Console().print(_table(headings, rows, {"cut", "tables"}))


def _changed(cuts: Sequence[Cut]) -> list[str]:
    """The tables that each cut changed; unknown for the first one."""
    found = []
    for cut, before in zip(cuts, [*cuts[1:], None], strict=True):
        if before is None:
            found.append("")
            continue
        # The symmetric difference also has tables that were created or dropped.
        different = {name for name, _ in cut.tables.items() ^ before.tables.items()}
        found.append(", ".join(sorted(different)))
    return found


async def status(lake: Lake, *, as_json: bool) -> None:
    """The last cut, its distance to the source, and what waits."""
    cut = lake.catalog.last_cut(lake.slot)
    waiting = [request for request in requests(lake.catalog, lake.slot).values() if request.open]
    body: dict[str, Any] = {
        "lake": lake.files.root,
        "source": lake.slot,
        "cut": None if cut is None else _cut(cut),
        "age_s": None if cut is None else round(time.time() - cut.made_us / 1e6, 1),
        "behind_bytes": None,
        "behind_files": None,
        "unknown": [],
        "copies": [{"table": str(each.table), "state": each.state} for each in waiting],
    }
    if cut is not None:
        await _add_distance(lake, cut, body)
        _add_files(lake, cut, body)
    if as_json:
        show(body)
        return
    console = Console(soft_wrap=True)
    console.print(f"lake      {body['lake']} ({lake.slot})")
    if cut is None:
        console.print("cut       none yet")
    else:
        console.print(
            f"cut       {cut.number} at {format_lsn(cut.lsn)}, made {body['age_s']:,.0f} s ago, "
            f"{counted(len(cut.tables), 'table')}"
        )
    if body["behind_bytes"] is not None:
        console.print(f"distance  {body['behind_bytes']:,} bytes of the source's log")
    if body["behind_files"] is not None:
        console.print(f"waiting   {body['behind_files']:,} files of the archive")
    for each in body["copies"]:
        console.print(f"copy      {each['table']}: {each['state']}")
    for reason in body["unknown"]:
        console.print(f"unknown   {reason}", style="yellow")


async def _add_distance(lake: Lake, cut: Cut, body: dict[str, Any]) -> None:
    try:
        async with session.postgres(lake.settings, "lake status") as source:
            now = parse_lsn(await source.fetchval("SELECT pg_current_wal_lsn()::text"))
    except HeadraceError as error:
        # Status is asked for when something is wrong: what can be known is shown without the rest.
        body["unknown"].append(f"the source's LSN: {describe(error)}")
        return
    # After a failover, the log of the new primary may end before the cut.
    body["behind_bytes"] = max(0, now - cut.lsn)


def _add_files(lake: Lake, cut: Cut, body: dict[str, Any]) -> None:
    url = lake.settings.archive.url
    if url is None:
        body["unknown"].append("the archive's files: HEADRACE_ARCHIVE_URL is not set")
        return
    try:
        listed = WalReader(url).list()
    except HeadraceError as error:
        body["unknown"].append(f"the archive's files: {describe(error)}")
        return
    body["behind_files"] = sum(1 for item in listed if item.id > cut.archive_file)


def _cut(cut: Cut) -> dict[str, Any]:
    return {
        "number": cut.number,
        "lsn": format_lsn(cut.lsn),
        "made": _time(cut.made_us),
        "last_commit": None if cut.commit_us is None else _time(cut.commit_us),
        "archive_file": cut.archive_file,
    }


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: set[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    for row in rows:
        table.add_row(*row)
    return table
