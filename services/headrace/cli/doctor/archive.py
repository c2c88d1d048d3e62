"""The checks of `headrace doctor` on the archive: its source, its end, its writer.

Stores nothing. Whether an archiver runs is shown by its lease, which it renews: that depends on no
clock.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError

from headrace.cli.doctor.checks import Findings
from headrace.cli.doctor.leases import is_renewed
from headrace.cli.session import postgres
from headrace.errors import HeadraceError
from headrace.lsn import format_lsn
from headrace.settings import Settings

if TYPE_CHECKING:
    from headrace.archive import WalFileInfo
    from headrace.archive.bases import BaseRecord

GROUP = "Archive"
ARCHIVER = "archiver"
_SLOT = (
    "SELECT active, (confirmed_flush_lsn - '0/0')::bigint AS lsn FROM "
    "pg_replication_slots WHERE slot_name = $1"
)
_DENIED_REMEDY = "Grant the role CONNECT on the database."


async def examine(settings: Settings) -> Findings:
    findings = Findings(GROUP, [])
    if settings.archive.url:
        await _store(settings, settings.archive.url, findings)
        await examine_bases(settings, settings.archive.url, findings)
        try:
            await _keeper(settings, findings)
        except (HeadraceError, NatsError, TimeoutError):
            # The other groups report problems of PostgreSQL or NATS.
            findings.warn("archiver", "can't be checked", "Fix PostgreSQL and NATS first.")
    return findings


async def _store(settings: Settings, url: str, findings: Findings) -> None:
    try:
        files, info = await asyncio.to_thread(_last, url)
    except ModuleNotFoundError as error:
        findings.unread("store", str(error.name), "archive")
        return
    except HeadraceError as error:
        findings.fail("store", str(error.args[0]), error.remedy)
        return
    if info is None:
        findings.ok("store", f"{url}: no file yet")
        return
    found = f"{url}: {files} files, the last is {info.id}, up to {format_lsn(info.end_lsn)}"
    remedy = "Give each slot its own archive: change HEADRACE_ARCHIVE_URL."
    mine = info.source == settings.source.slot
    findings.judge(
        "store", found if mine else f"{url} belongs to the slot {info.source}", remedy, good=mine
    )


def _last(url: str) -> tuple[int, WalFileInfo | None]:
    """The number of files, and the last one's metadata."""
    from headrace.archive import WalReader  # an extra

    reader = WalReader(url)
    listed = reader.list()
    if not listed:
        return 0, None
    file = reader.get(listed[-1][0])
    if file is None:
        return len(listed), None
    return len(listed), file.info


async def examine_bases(settings: Settings, url: str, findings: Findings) -> None:
    """The base snapshots; where old files are removed, whether they keep what replays need."""
    try:
        newest = await asyncio.to_thread(_newest_bases, url)
    except (ModuleNotFoundError, HeadraceError):
        # The store's own check has the reason, or `headrace archive verify`.
        newest = None
    keep_s = settings.archive.keep_s
    if newest is None:
        findings.warn(
            "bases", "can't be read", "Run `headrace archive base ls`; it names the object."
        )
    elif newest:
        oldest = min(newest, key=lambda record: record.time_us)
        name = ".".join(oldest.name)
        found = f"tables with a base: {len(newest)}; the oldest is of {name}, {oldest.time:%F %T}"
        age_s = (datetime.now(UTC) - oldest.time).total_seconds()
        if keep_s is not None and age_s > 2 * keep_s:
            findings.warn(
                "bases",
                f"{found}: the archive keeps all files since then",
                "Take a new base (`headrace archive base now`), or remove that of a table that "
                "nobody copies any more (`headrace archive base rm`).",
            )
        else:
            findings.ok("bases", found)
    elif keep_s is not None:
        findings.warn(
            "bases",
            "no table has a base, and HEADRACE_ARCHIVE_KEEP_S removes old files",
            "Run `headrace archive base now` regularly: without a base, a replay needs a table's "
            "whole history.",
        )


def _newest_bases(url: str) -> list[BaseRecord]:
    from headrace.archive.bases import Bases  # an extra
    from headrace.archive.store import Store

    # By LSN: the last one of a table remains.
    return list({base.record.name: base.record for base in Bases(Store(url)).all()}.values())


async def _keeper(settings: Settings, findings: Findings) -> None:
    """Whether an archiver writes it; if not, what that means for the slot."""
    async with postgres(settings, "doctor", _DENIED_REMEDY) as session:
        slot = await session.fetchrow(_SLOT, settings.source.slot)
    if await is_renewed(settings, ARCHIVER):
        findings.ok("archiver", "runs")
        return
    kind = "required" if settings.archive.required else "optional"
    remedy = "Start `headrace archiver`; look at its log."
    found = f"no archiver is running; the archive is {kind}"
    if slot is not None and slot["active"] and settings.archive.required:
        held = f"the slot retains all WAL from {format_lsn(slot['lsn'])} on until it runs"
        findings.fail("archiver", f"{found}: {held}", remedy)
    else:
        findings.warn("archiver", found, remedy)
