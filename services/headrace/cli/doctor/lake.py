"""The checks of `headrace doctor` on the lake: its place, its catalog, its last cut, its writer.

Stores nothing and creates nothing: a lake that doesn't exist yet is no problem of its place.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from nats.errors import Error as NatsError

from headrace.cli.doctor.checks import Findings
from headrace.cli.doctor.folders import blocking_part
from headrace.cli.doctor.leases import is_renewed
from headrace.cli.session import postgres
from headrace.errors import HeadraceError
from headrace.lake.opening import check_lake
from headrace.lsn import format_lsn, parse_lsn
from headrace.settings import Settings
from headrace.terminal.text import counted

if TYPE_CHECKING:
    from headrace.lake.catalog import Cut

GROUP = "Lake"
SERVICE = "lake-writer"
# A cut that is older than this, while the source has written more, is late.
AGE_S_MAX = 300.0
_DENIED_REMEDY = "Grant the role CONNECT on the database."


async def examine(settings: Settings) -> Findings:
    findings = Findings(GROUP, [])
    if not settings.lake.url:
        return findings
    try:
        check_lake(settings)
    except HeadraceError as error:
        findings.fail("settings", str(error.args[0]), error.remedy)
        return findings
    _archive(settings, findings)
    if not await asyncio.to_thread(_place, settings.lake.url, findings):
        return findings
    try:
        cut = await asyncio.to_thread(_last_cut, settings, findings)
        await _writer(settings, cut, findings)
    except ModuleNotFoundError as error:
        findings.unread("catalog", str(error.name), "lake")
    except (HeadraceError, NatsError, TimeoutError):
        # The other groups report problems of PostgreSQL or NATS.
        findings.warn(SERVICE, "can't be checked", "Fix PostgreSQL and NATS first.")
    return findings


def _archive(settings: Settings, findings: Findings) -> None:
    if settings.archive.required:
        findings.ok("archive", "required: it has every change")
    else:
        findings.warn(
            "archive",
            "optional: after a gap, the lake copies all tables again",
            "Set HEADRACE_ARCHIVE_REQUIRED=true for wal-reader and the archiver.",
        )


def _place(url: str, findings: Findings) -> bool:
    """Whether the folder can be written, or the bucket can be listed."""
    if url.startswith("file://"):
        folder = Path(unquote(urlsplit(url).path))
        # The lake-writer creates missing folders.
        there = blocking_part(folder)
        good = there is None
        remedy = "Let the user of the lake-writer write there, or change HEADRACE_LAKE_URL."
        findings.judge(
            "place",
            f"{url}: {'writable' if good else f'{there} is not writable'}",
            remedy,
            good=good,
        )
        return good
    try:
        from headrace.lake.files import LakeFiles  # an extra

        next(iter(LakeFiles(url).walk(f"{url.rstrip('/')}/metadata/")), None)
    except ModuleNotFoundError as error:
        findings.unread("place", str(error.name), "lake")
        return False
    except HeadraceError as error:
        findings.fail("place", str(error.args[0]), error.remedy)
        return False
    findings.ok("place", f"{url}: can be listed")
    return True


def _last_cut(settings: Settings, findings: Findings) -> Cut | None:
    """The last cut; None if there is none, or no catalog."""
    from headrace.cli.lake.selection import NoLakeError, opened  # an extra

    try:
        with opened(settings.lake.url, settings.lake.catalog) as lake:
            cut = lake.catalog.last_cut(settings.source.slot)
    except NoLakeError:
        findings.ok("catalog", "no lake yet; the lake-writer creates it")
        return None
    except HeadraceError as error:
        findings.fail("catalog", str(error.args[0]), error.remedy)
        return None
    if cut is None:
        findings.ok("catalog", "reachable; no cut yet")
    else:
        tables = counted(len(cut.tables), "table")
        findings.ok("catalog", f"reachable; the last cut is {cut.number}, {tables}")
    return cut


async def _writer(settings: Settings, cut: Cut | None, findings: Findings) -> None:
    """Whether a lake-writer runs, and how far its last cut is behind the source."""
    runs = await is_renewed(settings, SERVICE)
    if runs:
        findings.ok(SERVICE, "runs")
    else:
        findings.warn(
            SERVICE, "no lake-writer is running", "Start `headrace lake-writer`; look at its log."
        )
    if cut is None:
        return
    async with postgres(settings, "doctor", _DENIED_REMEDY) as session:
        end = parse_lsn(await session.fetchval("SELECT pg_current_wal_lsn()::text"))
    age_s = time.time() - cut.made_us / 1e6
    behind = max(0, end - cut.lsn)
    found = (
        f"made {age_s:,.0f} s ago, shows {format_lsn(cut.lsn)}: {behind:,} bytes before the end of "
        "the source's log"
    )
    if behind and runs and age_s > AGE_S_MAX:
        findings.warn("last cut", found, f"See {SERVICE}'s /readyz and log, and the archive.")
    else:
        findings.ok("last cut", found)
