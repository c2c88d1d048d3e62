"""`headrace archive ls|cat|verify|gc`: inspects and prunes an archive. Needs no running suite."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import orjson
from rich.table import Table

from headrace.archive import (
    ListedFile,
    RowEntry,
    WalFileCollectedError,
    WalReader,
    WalReaderOptions,
)
from headrace.archive import check as checking
from headrace.archive import collect as collecting
from headrace.archive.metadata import WalFileInfo
from headrace.archive.registry import registered
from headrace.archive.store import Store
from headrace.cli.terminal import Console
from headrace.errors import HeadraceError, SettingError
from headrace.lsn import format_lsn, parse_lsn
from headrace.terminal.text import one_line


class UnknownTableError(HeadraceError):
    """The archive contains no change of a table."""


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class ArchiveFaultError(HeadraceError):
    """The archive is inconsistent."""

    remedy = "Restore the files named above from a copy of the store."


def chosen_url(url: str | None, configured: str | None) -> str:
    """The selected archive."""
    found = url or configured
    if not found:
        raise SettingError(
            "no archive is named", remedy="Name it by --url, or set HEADRACE_ARCHIVE_URL."
        )
    parts = urlsplit(found)
    # Opening creates no folder: a mistyped path would otherwise yield an empty archive.
    if parts.scheme == "file" and not Path(url2pathname(parts.path)).exists():
        raise SettingError(
            f"there is no archive at {found}",
            remedy="Check the path; the archiver creates the folder.",
        )
    return found


TableName = tuple[str | None, str | None]
# Of those that the archive contains, in an error.
SHOWN_TABLES = 20
# Older than any archive, and still a date of the calendar.
DURATION_S_MAX = 1000 * 365 * 86400.0


def duration_s(text: str) -> float:
    """`90`, `30m`, `12h`, `7d` in seconds."""
    if text[-1:] in _UNITS:
        number, unit = (text[:-1], text[-1])
    else:
        number, unit = (text, "s")
    # Neither a sign nor an exponent: a negative age would collect the whole archive.
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", number):
        raise SettingError(f"{text!r} is not a valid duration", remedy="Write 90, 30m, 12h or 7d.")
    return min(float(number) * _UNITS[unit], DURATION_S_MAX)


def place(text: str | None) -> dict[str, int | datetime]:
    """The start, as a person writes it: a file's id, an LSN or a time."""
    if text is None:
        return {}
    if text.isdigit():
        return {"from_id": int(text)}
    if "/" in text:
        return {"from_lsn": parse_lsn(text)}
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise SettingError(
            f"{text!r} is not a position in an archive",
            remedy="Name a file's id, an LSN (0/191BFD0) or a time (2025-12-12T12:00Z).",
        ) from error
    return {"from_time": moment if moment.tzinfo else moment.replace(tzinfo=UTC)}


_HEADINGS = (
    "file",
    "rows",
    "bytes",
    "first",
    "last",
    "end LSN",
    "last commit",
    "epoch",
    "tables",
    "gap",
)
_NUMBERS = frozenset({"file", "rows", "bytes", "first", "last"})
# Columns that narrow terminals omit; --json always has them.
_FOR_WIDE = frozenset({"bytes", "end LSN", "epoch"})
_WIDE = 120


def ls(url: str, *, as_json: bool, limit: int | None) -> None:
    """The files, or the last ones if there is a limit."""
    reader = WalReader(url)
    listed = reader.list()
    shown = listed[-limit:] if limit else listed
    if as_json:
        _print_documents(reader, shown)
        return
    console = Console()
    if shown:
        console.print(_table(reader, shown, console.width))
    console.print(
        f"{len(listed):,} file{'' if len(listed) == 1 else 's'} in {url}",
        style="dim",
        soft_wrap=True,
    )


def _print_documents(reader: WalReader, shown: Sequence[ListedFile]) -> None:
    for file_id, item in shown:
        file = reader.get(file_id)
        if file is not None:
            more = {"bytes": item.size, "location": item.location}
            print(orjson.dumps({**_account(file.info), **more}).decode())


def _table(reader: WalReader, shown: Sequence[ListedFile], width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    wanted = [heading for heading in _HEADINGS if width >= _WIDE or heading not in _FOR_WIDE]
    for heading in wanted:
        table.add_column(
            heading, justify="right" if heading in _NUMBERS else "left", no_wrap=heading != "tables"
        )
    for file_id, item in shown:
        file = reader.get(file_id)
        if file is None:
            continue
        cells = _cells(file.info, item.size)
        table.add_row(
            *(
                str(cell)
                for heading, cell in zip(_HEADINGS, cells, strict=True)
                if heading in wanted
            )
        )
    return table


def _cells(info: WalFileInfo, size: int) -> tuple[object, ...]:
    """The row of a file, in the order of `_HEADINGS`."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=info.time_us)
    names = ", ".join(sorted({f"{known.schema}.{known.table}" for known in info.tables}))
    if info.gap:
        gap = f"gap {format_lsn(info.gap.after)} to {format_lsn(info.gap.up_to)}"
    else:
        gap = ""
    return (
        info.id,
        info.rows,
        size,
        info.first,
        info.last,
        format_lsn(info.end_lsn),
        f"{moment:%F %T}",
        info.epoch,
        names,
        gap,
    )


def _account(info: object) -> dict[str, object]:
    body: dict[str, object] = orjson.loads(orjson.dumps(info, default=list))
    return body


def cat(url: str, begin: str | None, tables: list[str], *, limit: int | None, follow: bool) -> None:
    """Rows, one JSON document per line."""
    # A gap is a row of the output.
    reader = WalReader(url, WalReaderOptions(tables=tuple(tables), raise_at_gap=False))
    # Each place has its own type.
    rows = reader.follow(**place(begin), wait=follow)  # type: ignore[arg-type]
    out = sys.stdout.buffer
    seen: set[TableName] = set()
    for entry in _limited(rows, limit):
        seen.add((entry.schema, entry.table))
        out.write(line(entry))
        # Someone reads along, or a pipe waits for each line.
        if follow:
            out.flush()
    out.flush()
    if limit is None:
        check_tables(reader, seen)


def check_tables(reader: WalReader, seen: AbstractSet[TableName]) -> None:
    """Raise for a selected table without any row in the archive, which is probably misspelled.

    `seen` are tables with rows. The others may have some outside the range that was read.
    """
    missing = set(reader.reading.options.wanted) - seen
    known: set[TableName] = set()
    for file_id, _ in reader.list():
        if not missing - known:
            return
        # A garbage collection may run next to this command.
        with contextlib.suppress(WalFileCollectedError):
            if file := reader.get(file_id):
                known |= {(one.schema, one.table) for one in file.info.tables}
    if lost := missing - known:
        raise UnknownTableError(
            f"the archive contains no change of {_listed(lost)}",
            remedy=f"It contains {_listed(known) or 'no table'}.",
        )


def _listed(tables: Iterable[TableName]) -> str:
    names = sorted(f"{schema}.{table}" for schema, table in tables)
    text = ", ".join(names[:SHOWN_TABLES])
    if len(names) > SHOWN_TABLES:
        text += f" and {len(names) - SHOWN_TABLES} more"
    return text


def _limited(rows: Iterator[RowEntry], limit: int | None) -> Iterator[RowEntry]:
    if limit is None:
        return rows
    return islice(rows, limit)


def line(entry: RowEntry) -> bytes:
    """A row as JSON, with its texts unchanged."""
    body: dict[str, object] = {
        "position": str(entry.position),
        "commit_lsn": entry.commit_lsn,
        "ordinal": entry.ordinal,
        "xid": entry.xid,
        "commit_time": entry.commit_time,
        "schema": entry.schema,
        "table": entry.table,
        "operation": entry.operation,
        "key": _fragment(entry.key_json),
        "before": _fragment(entry.before_json),
        "after": _fragment(entry.after_json),
        "unchanged": entry.unchanged,
        "schema_version": entry.schema_version,
    }
    return orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE)


def _fragment(text: str | None) -> orjson.Fragment | None:
    if text is None:
        return None
    return orjson.Fragment(text.encode())


def verify(url: str) -> None:
    """Verify everything and report faults; raises if there are any."""
    totals = checking.ArchiveTotals()
    reader = WalReader(url)
    for finding in checking.verify(reader, totals):
        print(one_line(f"file {finding.file_id} {finding.fault}"))
    for fault in checking.verify_bases(reader.store, totals):
        print(one_line(fault))
    print(
        f"{totals.files} files, {totals.bases} bases, {totals.rows} rows, {totals.bytes} bytes, "
        f"{totals.faults} faults"
    )
    if totals.faults:
        raise ArchiveFaultError(f"{totals.faults} faults in {url}")


def gc(url: str, older_than: str, *, past_readers: bool, dry_run: bool) -> None:
    """Remove files that are old and read, or show them."""
    store = Store(url)
    planned = collecting.plan(store, duration_s(older_than), past_readers=past_readers)
    # The same plan is shown and carried out: files that come meanwhile are not in it.
    if not dry_run:
        collecting.carry_out(store, planned)
    size = sum(item.size for item in planned.remove)
    print(
        f"{len(planned.remove)} files, {size} bytes "
        f"{('would be removed' if dry_run else 'removed')}"
    )
    verb = "would be removed" if dry_run else "removed"
    for record in planned.bases:
        print(one_line(f"{record} {verb}"))
    for left in planned.unfinished:
        print(one_line(f"the unfinished base {left.id} {verb}"))
    if planned.kept_for is not None:
        print(one_line(f"files from {planned.kept_for.next_id} on are kept for {planned.kept_for}"))
    for reader in planned.kept_by:
        whose = one_line(reader.name)
        print(
            f"files from {reader.next_id} on are kept for the reader {whose}, last active at "
            f"{reader.at:%F %T}"
        )


def readers(url: str) -> None:
    """Registered readers and their positions."""
    for reader in registered(Store(url)):
        print(
            f"{one_line(reader.name)} reads file {reader.next_id} next, last active at "
            f"{reader.at:%F %T}"
        )
