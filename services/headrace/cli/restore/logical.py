"""`headrace restore --way logical`: one table from the archive, into a database of any kind.

A replay from the table's newest base before the moment. Needs neither a backup store nor a cluster;
the table has its rows and its key, and nothing else of PostgreSQL.
"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta

from headrace.backup.plan import RestoreTarget, TargetKind
from headrace.cli.archive.read import chosen_url
from headrace.cli.archive.replay import into_database
from headrace.cli.archive.replay_range import ReplayRange, ReplayRun
from headrace.cli.restore.moment import RestoreMoment, target
from headrace.errors import SettingError
from headrace.lsn import format_lsn
from headrace.settings import load

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def run(table: str | None, moment: RestoreMoment, into: str, others: list[str]) -> str:
    """Restore a table, and return how far; `others` are given options that only the physical way
    has.
    """
    if others:
        raise SettingError(
            f"--way logical has no {others[0]}",
            remedy="Leave it out, or restore with --way physical.",
        )
    if table is None or into == "live":
        raise SettingError(
            "--way logical restores one table, into a database that --into names",
            remedy="Name both: --table orders --into sqlite:///restored.db, or postgresql://….",
        )
    url = chosen_url(None, load(os.environ).archive.url)
    replay = ReplayRun(ReplayRange(url, end=_end(target(moment)), tables=(table,)))
    asyncio.run(into_database(replay, into))
    return replay.summary()


def _end(moment: RestoreTarget) -> str | None:
    """The end of the range: before it is everything that the moment includes."""
    if moment.kind is TargetKind.TIME:
        # A transaction that committed at this very time is included.
        return (_EPOCH + timedelta(microseconds=moment.value + 1)).isoformat()
    if moment.kind is TargetKind.LSN:
        return format_lsn(moment.value)
    return None
