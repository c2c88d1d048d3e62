"""The checks of `headrace doctor` on backups: the server's settings, the slot, the store.

Stores nothing. Whether the log arrives is shown by what the store has and by the slot, which depend
on no report.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.cli.doctor.checks import Findings
from headrace.cli.session import postgres
from headrace.errors import HeadraceError
from headrace.lsn import format_lsn
from headrace.settings import Settings

if TYPE_CHECKING:
    from headrace.backup.store import BackupStore

GROUP = "Backups"
_DENIED_REMEDY = "Grant the role CONNECT on the database."
_START = "Start `headrace wal-archiver`; look at its log."
_TAKE = "Run `headrace backup now`, regularly."
_MIB = 1024 * 1024
# Log that is not stored and is more than this is late.
BEHIND_BYTES_MAX = 1024 * _MIB
LOG_AGE_S_MAX = 60.0
# The documentation suggests a backup a day; a week without one is an oversight.
BACKUP_AGE_S_MAX = 7 * 86_400.0
_SERVER = """
SELECT current_setting('wal_level') AS wal_level,
       current_setting('max_wal_senders')::int AS senders_max,
       (SELECT count(*) FROM pg_stat_get_wal_senders()) AS senders,
       current_setting('max_slot_wal_keep_size') AS keep_size,
       (SELECT system_identifier FROM pg_control_system())::text AS system_id
"""
_SLOT = """
SELECT slot_type, active, wal_status,
       (pg_current_wal_lsn() - restart_lsn)::bigint AS behind
FROM pg_replication_slots WHERE slot_name = $1
"""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the store has. Times are seconds since 1970; None if there is nothing."""

    log_time: float | None
    backup_time: float | None
    backups: int
    holes: tuple[str, ...]


async def examine(settings: Settings) -> Findings:
    findings = Findings(GROUP, [])
    if not settings.backup.url:
        return findings
    system_id = await _server(settings, findings)
    try:
        from headrace.backup.store import BackupStore  # an extra
    except ModuleNotFoundError as error:
        findings.unread("store", str(error.name), "archive")
        return findings
    store = BackupStore(settings.backup.url, settings.backup.put_timeout_s)
    try:
        if await asyncio.to_thread(_belongs, store, system_id, findings):
            _judge(await asyncio.to_thread(_kept, store), findings)
    except HeadraceError as error:
        findings.fail("store", str(error.args[0]), error.remedy)
    return findings


async def _server(settings: Settings, findings: Findings) -> str | None:
    """Check PostgreSQL's side; returns the cluster's system identifier."""
    try:
        async with postgres(settings, "doctor", _DENIED_REMEDY) as session:
            server = await session.fetchrow(_SERVER)
            slot = await session.fetchrow(_SLOT, settings.backup.slot)
    except HeadraceError:
        # The group PostgreSQL reports it.
        findings.warn("server", "can't be checked", "Fix PostgreSQL first.")
        return None
    findings.judge(
        "wal_level",
        server["wal_level"],
        "Set wal_level = replica or logical in postgresql.conf and restart PostgreSQL.",
        good=server["wal_level"] != "minimal",
    )
    _senders(server, slot, findings)
    if slot is None or slot["slot_type"] != "physical":
        _no_slot(settings.backup.slot, slot, findings)
    else:
        _slot(slot, server["keep_size"], findings)
    return str(server["system_id"])


def _senders(server: Any, slot: Any, findings: Findings) -> None:
    """A base backup takes one, and so does a wal-archiver that is not connected."""
    running = slot is not None and slot["active"]
    needed = 2 - int(running)
    free = server["senders_max"] - server["senders"]
    findings.judge(
        "max_wal_senders",
        f"{server['senders_max']}, of which {free} are free",
        f"Raise max_wal_senders by {needed - free} and restart PostgreSQL.",
        good=free >= needed,
    )


def _no_slot(name: str, slot: Any, findings: Findings) -> None:
    if slot is None:
        found = f"{name} does not exist: PostgreSQL removes log that is not stored"
        findings.fail("physical slot", found, "Run `headrace backup init`.")
    else:
        findings.fail(
            "physical slot", f"{name} is a logical one", "Name another in HEADRACE_BACKUP_SLOT."
        )


def _slot(slot: Any, keep_size: str, findings: Findings) -> None:
    # NULL until the first connection, if somebody created the slot without reserving the log.
    behind = slot["behind"] or 0
    retains = f"retains {behind / _MIB:,.1f} MiB of log (max_slot_wal_keep_size {keep_size})"
    if slot["wal_status"] == "lost":
        findings.fail(
            "physical slot",
            "PostgreSQL removed log that is not stored: there will be a hole",
            "Start `headrace wal-archiver`, then run `headrace backup now`; raise "
            "max_slot_wal_keep_size.",
        )
    elif not slot["active"]:
        findings.warn("physical slot", f"no wal-archiver is connected; it {retains}", _START)
    elif behind > BEHIND_BYTES_MAX:
        findings.warn("physical slot", retains, "See wal-archiver's /readyz and log.")
    else:
        findings.ok("physical slot", f"active; {retains}")


def _belongs(store: BackupStore, system_id: str | None, findings: Findings) -> bool:
    """Whether the store can be read, and is this cluster's."""
    identity = store.identify()
    # A server that can't be asked is reported once, and not as another cluster.
    if system_id not in {None, identity.system_id}:
        findings.fail(
            "store",
            f"{store.url} is not of this cluster, but of {identity.system_id}",
            "Give each cluster its own store: change HEADRACE_BACKUP_URL.",
        )
        return False
    findings.ok("store", f"{store.url}, of the cluster {identity.system_id}")
    return True


def _kept(store: BackupStore) -> _Kept:
    from headrace.backup.plan import Planner  # an extra
    from headrace.backup.segments import holes, ranges

    planner = Planner(store)
    status = store.status()
    # The server's clock, as all times in a store: the group PostgreSQL compares it with this one's.
    stored = None
    if status is not None:
        stored = status.time_us / 1e6
    return _Kept(
        stored,
        max((record.end_us / 1e6 for record in planner.records), default=None),
        len(planner.records),
        tuple(
            f"{format_lsn(hole.start)} to {format_lsn(hole.end)}"
            for hole in holes(ranges(planner.pieces))
        ),
    )


def _judge(kept: _Kept, findings: Findings) -> None:
    now = time.time()
    if kept.log_time is None:
        findings.warn("log", "nothing is stored yet", _START)
    elif now - kept.log_time > LOG_AGE_S_MAX:
        findings.warn("log", f"stored up to {now - kept.log_time:,.0f} s ago", _START)
    else:
        findings.ok("log", "stored up to this minute")
    if kept.holes:
        findings.warn(
            "holes",
            f"moments that can't be restored: {', '.join(kept.holes)}",
            "Take a backup after the hole: `headrace backup now`.",
        )
    if kept.backup_time is None:
        findings.fail("base backup", "there is none, so nothing can be restored", _TAKE)
        return
    hours = (now - kept.backup_time) / 3600
    found = f"{kept.backups}, the last one {hours:,.1f} hours ago"
    if now - kept.backup_time > BACKUP_AGE_S_MAX:
        findings.warn("base backup", f"{found}: a restore replays all log since then", _TAKE)
    else:
        findings.ok("base backup", found)
