"""`headrace restore --way logical`: one table from the archive, without a cluster.

A replay from the table's newest base before the moment. The table has its rows and its key, and
nothing else of PostgreSQL. Promises that it arrives as a whole or not at all, under a name that is
free, and that an archive which does not reach the moment is refused.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg

from headrace.archive import WalFileInfo
from headrace.backup.errors import RestoreError
from headrace.backup.live_rows import LiveRows
from headrace.backup.plan import RestoreTarget, TargetKind
from headrace.cli.archive.read import chosen_url
from headrace.cli.archive.replay import restore_one
from headrace.cli.archive.replay_bases import newest_bases
from headrace.cli.archive.replay_range import ReplayRange, ReplayRun
from headrace.cli.backup.listing import shown
from headrace.cli.restore import new_table
from headrace.cli.restore.moment import target
from headrace.cli.restore.rows import bring_back, connected, refusals
from headrace.cli.restore.table import LIVE
from headrace.cli.restore.text_rows import TextRows
from headrace.cli.restore.wanted import Wanted
from headrace.cli.terminal import Console
from headrace.contract.table_patterns import table_of
from headrace.errors import SettingError
from headrace.lsn import format_lsn
from headrace.mirror import RowMissingError, Table, Target, TargetAwayError, opened
from headrace.settings import load
from headrace.terminal.text import counted, plain

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def run(wanted: Wanted, others: Sequence[str]) -> None:
    """Restore a table or rows of it; `others` are given options that only the physical way has."""
    if others:
        raise SettingError(
            f"--way logical has no {others[0]}",
            remedy="Leave it out, or restore with --way physical.",
        )
    if wanted.table is None:
        raise SettingError("--way logical restores one table", remedy="Name it with --table.")
    if wanted.rows.given and wanted.name is not None:
        raise SettingError(
            "--replace and --where change rows of a live table", remedy="Leave --as out."
        )
    is_postgres = wanted.into == LIVE or wanted.into.startswith(("postgresql://", "postgres://"))
    if wanted.rows.given and not is_postgres:
        raise SettingError(
            "--replace and --where change rows of a live table in PostgreSQL",
            remedy="Name live or postgresql://… with --into, or leave them out.",
        )
    settings = load(os.environ)
    url = chosen_url(None, settings.archive.url)
    schema, table = table_of(wanted.table)
    moment = target(wanted.moment)
    called = table if wanted.rows.given else wanted.name or f"{table}_restored"
    replay = ReplayRun(ReplayRange(url, end=_end(moment), tables=(wanted.table,), called=called))
    console = Console(stderr=True, soft_wrap=True)
    _say(console, replay, moment)
    _require_reached(replay, moment)
    if wanted.plan_only:
        return
    if is_postgres:
        with refusals(), connected(settings.postgres, wanted.into) as session:
            _into_postgres(session, replay, wanted, (schema, table))
    else:
        asyncio.run(_into(replay, wanted.into))
        print(plain(f"{schema}.{called}: {replay.summary()}"))


def _end(moment: RestoreTarget) -> str | None:
    """The end of the range: before it is everything that the moment includes."""
    if moment.kind is TargetKind.TIME:
        # A transaction that committed at this very time is included.
        return (_EPOCH + timedelta(microseconds=moment.value + 1)).isoformat()
    if moment.kind is TargetKind.LSN:
        return format_lsn(moment.value)
    return None


def _say(console: Console, replay: ReplayRun, moment: RestoreTarget) -> None:
    console.print(f"moment  {moment}")
    for record in newest_bases(replay).values():
        console.print(f"base    {record.id}, {counted(record.rows, 'row')}, {shown(record.bytes)}")
    last = replay.last()
    if last is not None:
        console.print(f"log     up to {format_lsn(last.end_lsn)}, {_time(last)}")


def _require_reached(replay: ReplayRun, moment: RestoreTarget) -> None:
    """Raise if changes from before the moment may still be on their way into the archive."""
    last = replay.last()
    if moment.kind is TargetKind.LATEST:
        return
    if moment.kind is TargetKind.TIME:
        reached = last is not None and last.time_us > moment.value
    else:
        reached = last is not None and last.end_lsn >= moment.value
    if not reached:
        end = "has no files"
        if last is not None:
            end = f"ends at {format_lsn(last.end_lsn)}, with a transaction of {_time(last)}"
        raise RestoreError(
            f"the archive {end}, and so does not show everything from before that moment",
            remedy="Wait until it contains a later transaction, or restore its end: name neither "
            "--at nor --lsn.",
        )


def _time(info: WalFileInfo) -> str:
    return (_EPOCH + timedelta(microseconds=info.time_us)).isoformat()


async def _into(replay: ReplayRun, into: str) -> None:
    async with opened(into) as there:
        await _restored(replay, there)


async def _restored(replay: ReplayRun, there: Target) -> Table:
    try:
        return await restore_one(replay, there)
    except RowMissingError as error:
        raise RestoreError(
            f"{error.args[0]}: the archive lacks a change",
            remedy="Nothing was changed. Run `headrace archive verify`, or restore with --way "
            "physical.",
        ) from error
    except TargetAwayError as error:
        raise RestoreError(
            str(error.args[0]),
            remedy="Nothing was changed. Check the place that the error names, and run the "
            "command again.",
        ) from error


def _into_postgres(
    session: psycopg.Connection, replay: ReplayRun, wanted: Wanted, name: tuple[str, str]
) -> None:
    live = LiveRows(session, name, wanted.rows.where)
    changes_rows = wanted.rows.given and live.exists
    called = replay.called or name[1]
    if not changes_rows:
        new_table.require_free(session, name[0], called)
    # Amounts of money have the archive's form.
    session.execute("SET lc_monetary = 'C'")
    with tempfile.TemporaryDirectory(prefix="headrace-restore-", dir=wanted.work) as folder:
        rows = TextRows(Path(folder) / "rows.db", new_table.domains(session))
        table = asyncio.run(_kept(replay, rows))
        print(plain(replay.summary()))
        if changes_rows:
            former = {column.name: column.data_type for column in table.columns}
            live.take_rows(former, rows.rows)
            bring_back(live, ".".join(name), target(wanted.moment), wanted.rows)
            return
        made = new_table.create(session, table, called, rows.rows)
    for column in made.as_text:
        print(plain(f"left out: the type {table.type_of(column)} of {column}, which is text"))
    print(
        plain(
            f"{name[0]}.{called}: {counted(made.rows, 'row')} of {'.'.join(name)}, "
            f"{target(wanted.moment)}"
        )
    )


async def _kept(replay: ReplayRun, rows: TextRows) -> Table:
    try:
        return await _restored(replay, rows)
    finally:
        await rows.close()
