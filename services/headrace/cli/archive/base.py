"""`headrace archive base now|ls|rm`: takes, lists and removes base snapshots."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import orjson
from rich.table import Table
from rich.text import Text

from headrace.archive import WalReader
from headrace.archive.bases import BaseRecord, Bases
from headrace.archive.errors import BaseMissingError
from headrace.archive.mark import ArchiveMark, mark_key
from headrace.archive.store import Store
from headrace.bases.copying import Progress
from headrace.bases.taking import (
    BaseAheadError,
    CopiedBase,
    complete_base,
    copy_base,
    inline,
)
from headrace.cli import session
from headrace.cli.backup.listing import shown
from headrace.cli.terminal import Console
from headrace.contract.selection import Selection
from headrace.contract.table_patterns import table_of
from headrace.jetstream.state import Cell, bucket
from headrace.lsn import format_lsn
from headrace.postgres import catalog
from headrace.settings import Settings
from headrace.terminal.text import one_line

COMMAND = "archive base"
_TELL_S = 2.0
_DENIED_REMEDY = "Grant the role CONNECT on the database."


async def now(
    settings: Settings,
    tables: Sequence[str],
    *,
    due_s: float | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Take a base of each of these tables, or of all that are published."""
    assert settings.archive.url, "checked by the caller"
    reader = WalReader(settings.archive.url)
    # In buckets, this finds out whether a record can be created only once.
    await asyncio.to_thread(reader.store.prepare)
    names = [table_of(table) for table in tables] or await _published(settings)
    if due_s is not None:
        recent = await asyncio.to_thread(_recent, reader.store, due_s)
        names = [name for name in names if name not in recent]
    async with session.nats(settings, "archive-base") as (client, _):
        cell = Cell(
            await bucket(client.jetstream(), settings.streams.state),
            mark_key(settings.source.slot),
        )

        async def mark() -> ArchiveMark:
            return ArchiveMark.of(await cell.read())

        copied: list[CopiedBase] = []
        for name in names:
            copier = inline(settings, _told(".".join(name)))
            copied.append(await copy_base(settings, reader, name, copier))
            # An archive that is behind, or whose source is idle, is awaited once for all.
            with contextlib.suppress(BaseAheadError):
                while copied:
                    _show(
                        await complete_base(settings, reader, copied[0], mark, 0), as_json=as_json
                    )
                    del copied[0]
        for one in copied:
            record = await complete_base(settings, reader, one, mark, timeout_s)
            _show(record, as_json=as_json)
    if not names and not as_json:
        print("every base is recent enough")


async def _published(settings: Settings) -> list[tuple[str, str]]:
    chosen = settings.format
    selection = Selection(chosen.include, chosen.exclude, chosen.exclude_columns)
    async with session.postgres(settings, COMMAND, _DENIED_REMEDY) as connection:
        published = await catalog.published_tables(connection, settings.source.publication)
    return sorted((table.schema, table.name) for table in catalog.delivered(published, selection))


def _recent(store: Store, due_s: float) -> set[tuple[str, str]]:
    """The tables with a base that is younger than this."""
    since = datetime.now(UTC) - timedelta(seconds=due_s)
    return {base.record.name for base in Bases(store).all() if base.record.time > since}


def _told(name: str) -> Progress:
    """Shows progress on a terminal's stderr, now and then."""
    console = Console(stderr=True)
    told_at = time.monotonic()

    def tell(rows: int) -> None:
        nonlocal told_at
        if console.is_terminal and time.monotonic() - told_at >= _TELL_S:
            told_at = time.monotonic()
            console.print(f"{name}: {rows:,} rows", markup=False, highlight=False)

    return tell


def _show(record: BaseRecord, *, as_json: bool) -> None:
    if as_json:
        print(orjson.dumps(_account(record)).decode())
        return
    print(
        one_line(
            f"base {record.id}: {'.'.join(record.name)} at {format_lsn(record.lsn)}, "
            f"{record.rows:,} rows, {shown(record.bytes)}"
        )
    )


def _account(record: BaseRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "schema": record.table.schema,
        "table": record.table.table,
        "lsn": format_lsn(record.lsn),
        "time": record.time,
        "rows": record.rows,
        "bytes": record.bytes,
        "next_id": record.next_id,
        "parts": [asdict(part) for part in record.parts],
    }


def ls(url: str, *, as_json: bool) -> None:
    """The complete bases, by LSN."""
    records = [base.record for base in Bases(Store(url)).all()]
    if as_json:
        for record in records:
            print(orjson.dumps(_account(record)).decode())
        return
    if not records:
        print("no base: `headrace archive base now` takes one of each published table")
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("base", "table", "LSN", "time", "rows", "bytes", "next file"):
        numeric = heading in {"rows", "bytes", "next file"}
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=True)
    for record in records:
        table.add_row(
            record.id,
            Text(one_line(".".join(record.name))),
            format_lsn(record.lsn),
            f"{record.time:%F %T}",
            f"{record.rows:,}",
            shown(record.bytes),
            str(record.next_id),
        )
    Console().print(table)


def rm(url: str, ids: Sequence[str]) -> None:
    """Remove these bases."""
    bases = Bases(Store(url))
    found = {base.record.id: base.record for base in bases.all()}
    if missing := [one for one in ids if one not in found]:
        raise BaseMissingError(
            f"there is no base {missing[0]}",
            remedy="`headrace archive base ls` shows them.",
        )
    for one in ids:
        bases.remove(found[one])
        print(f"removed {one_line(str(found[one]))}")
