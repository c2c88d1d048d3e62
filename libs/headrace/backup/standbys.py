"""Standbys and their lag: those that are fed from the store, and those that stream.

A feeder notes in the store how far its standby's log is; PostgreSQL knows those that stream.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import orjson

from headrace.backup import layout
from headrace.backup.store import BackupStore
from headrace.errors import HeadraceError
from headrace.lsn import parse_lsn
from headrace.postgres.physical import PhysicalConnection
from headrace.settings import PostgresSettings

# The slots and connections of streaming standbys begin with it.
STREAMING = "headrace_standby_"
# A role without pg_monitor sees the rows, but no positions.
_STREAMING = rf"""
SELECT application_name, replay_lsn::text,
       extract(epoch FROM coalesce(replay_lag, interval '0'))::text
FROM pg_catalog.pg_stat_replication
WHERE application_name LIKE '{STREAMING.replace("_", chr(92) + "_")}%' ORDER BY 1
"""  # noqa: S608  # a constant


@dataclass(frozen=True, slots=True)
class StandbyLag:
    """A standby, and how far behind it is."""

    name: str
    # store or primary: where its log comes from.
    source: str
    # The end of its log; None if the role may not see it.
    lsn: int | None
    # Everything older than this is in the standby's log, in seconds.
    lag_s: float | None
    # When this was known, in microseconds since 1970.
    noted_us: int


def note(store: BackupStore, name: str, lsn: int, complete_us: int | None) -> None:
    """Store how far a fed standby's log is."""
    now_us = time.time_ns() // 1000
    lag_s = None
    if complete_us is not None:
        lag_s = max(0.0, (now_us - complete_us) / 1e6)
    body = asdict(StandbyLag(name, "store", lsn, lag_s, now_us))
    store.replace_note(layout.STANDBYS, f"{name}.json", orjson.dumps(body))


def fed(store: BackupStore) -> Iterator[StandbyLag]:
    """The standbys that feeders have noted; the lag has grown since."""
    for name in store.names(layout.STANDBYS):
        data = store.get(layout.STANDBYS, name)
        if data is not None:
            found = StandbyLag(**orjson.loads(data))
            since_s = max(0.0, (time.time_ns() // 1000 - found.noted_us) / 1e6)
            if found.lag_s is not None:
                found = replace(found, lag_s=found.lag_s + since_s)
            yield found


async def streaming(postgres: PostgresSettings) -> list[StandbyLag]:
    """The standbys that stream from the primary; none if it doesn't answer."""
    try:
        connection = await PhysicalConnection.open(postgres, "headrace backup status")
    except HeadraceError:
        return []
    try:
        rows = await connection.rows(_STREAMING)
    finally:
        connection.close()
    now_us = time.time_ns() // 1000
    return [_streaming(now_us, *row) for row in rows]


def _streaming(now_us: int, *row: str | None) -> StandbyLag:
    name, lsn, lag = row
    if lsn is None:
        return StandbyLag(name or "", "primary", None, None, now_us)
    return StandbyLag(name or "", "primary", parse_lsn(lsn), float(lag or 0), now_us)
