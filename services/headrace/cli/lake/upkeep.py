"""`headrace lake compact`, `expire`, `orphans` and `gc`: upkeep by hand, also next to a running
lake-writer.

Each step is a cut, which is refused if another writer was first; then it begins again from the last
cut. The lake-writer does the same when a step of these commands was first.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from headrace.cli.lake.listing import show
from headrace.cli.lake.selection import InterruptedByOthersError, Lake
from headrace.cli.terminal import Console
from headrace.lake import cleanup
from headrace.lake.catalog import PointerMovedError
from headrace.lake.compaction import Compaction, CompactionLimits, compact, plan
from headrace.lake.errors import CutRefusedError
from headrace.lake.expiry import CutRetention
from headrace.lake.requests import held
from headrace.lake.writer import LakeWriter

_REFUSED_MAX = 20
_PAUSE_S = 0.2
T = TypeVar("T")


def compact_all(lake: Lake, *, as_json: bool) -> None:
    """Join small files, and remove deleted rows, until little is left."""
    limits = CompactionLimits.of(lake.settings.lake).everything()
    # A step has to be able to write at least one file of the target size.
    limits = replace(limits, bytes_max=max(limits.bytes_max, limits.target_bytes))
    left = _worth(lake.writer(), limits)
    total = Compaction()
    # A running lake-writer adds small files all the time: what is there now is rewritten.
    for _ in range(left // limits.bytes_max + 2):
        done = _in_a_cut(lake, lambda writer: compact(lake.files, writer, limits))
        if not done.files_before:
            break
        total = Compaction(
            max(total.tables, done.tables),
            total.files_before + done.files_before,
            total.files_after + done.files_after,
            total.bytes + done.bytes,
        )
        _progress(f"{total.bytes:,} of about {left:,} bytes rewritten")
    if as_json:
        show(
            {
                "files_before": total.files_before,
                "files_after": total.files_after,
                "bytes": total.bytes,
            }
        )
        return
    _say(f"{total.files_before} files became {total.files_after}, {total.bytes:,} bytes were read")


def _worth(writer: LakeWriter, limits: CompactionLimits) -> int:
    everything = replace(limits, bytes_max=sys.maxsize)
    plans = [plan(table.files, everything) for table in writer.snapshots.values()]
    return sum(rewrite.bytes for rewrites in plans for rewrite in rewrites)


def _in_a_cut(lake: Lake, step: Callable[[LakeWriter], T]) -> T:
    """Do a step of upkeep, and make the cut with it; a running lake-writer makes none meanwhile."""
    lake.catalog.prepare()
    with held(lake.catalog, lake.slot):
        for _ in range(_REFUSED_MAX):
            # Read again for each try: the cut that came first may have replaced the files.
            writer = lake.writer()
            done = step(writer)
            last = writer.last_cut
            if last is None or not writer.changed:
                return done
            try:
                writer.cut(last.lsn, last.ordinal, last.archive_file, last.commit_us)
            except (CutRefusedError, PointerMovedError):
                # It has not seen the hold yet.
                time.sleep(_PAUSE_S)
                continue
            return done
    raise InterruptedByOthersError(f"{_REFUSED_MAX} cuts of the lake-writer came first")


def expire(lake: Lake, keep_cuts: int | None, older_than_s: float | None, *, as_json: bool) -> None:
    """Drop snapshots that readers don't need any more."""
    settings = lake.settings.lake
    keep = CutRetention(
        settings.keep_cuts if keep_cuts is None else keep_cuts,
        settings.keep_s if older_than_s is None else older_than_s,
    )
    dropped = _in_a_cut(lake, lambda writer: writer.expire(keep))
    if as_json:
        show({"snapshots_dropped": dropped})
        return
    _say(f"{dropped} snapshots dropped; `headrace lake orphans --remove` removes their files")


def orphans(lake: Lake, older_than_s: float | None, *, remove: bool, as_json: bool) -> None:
    """Show or remove files that nothing refers to, and folders of dropped tables."""
    now = time.time()
    grace_s = lake.settings.lake.grace_s if older_than_s is None else older_than_s
    # Files since the last cut may become part of the next one.
    before = min(now, lake.last_cut().made_us / 1e6) - grace_s
    found = []
    for name, (location, _) in lake.own_tables().items():
        _progress(f"looking at {name}")
        found += cleanup.unused_files(lake.files, location, before)
    folders = cleanup.unused_folders(lake.files, lake.catalog, lake.slot, before)
    # A dropped table may be wanted back, and readers of older cuts still see it.
    keep_s = lake.settings.lake.keep_dropped_s
    ripe = [folder for folder in folders if folder.since <= now - keep_s]
    if remove:
        lake.files.delete([each.location for each in found])
        for folder in ripe:
            cleanup.remove_folder(lake.files, lake.catalog, lake.slot, folder)
    size = sum(each.size for each in found) + sum(folder.size for folder in ripe)
    if as_json:
        show(
            {
                "removed": remove,
                "files": [each.location for each in found],
                "folders": [folder.location for folder in ripe],
                "folders_kept": [
                    {"location": folder.location, "for_s": round(folder.since + keep_s - now)}
                    for folder in folders
                    if folder not in ripe
                ],
                "bytes": size,
            }
        )
        return
    console = Console(soft_wrap=True)
    if not remove:
        for location in [*(each.location for each in found), *(each.location for each in ripe)]:
            console.print(location)
    what = "removed" if remove else "could be removed with --remove"
    _say(f"{len(found)} files and {len(ripe)} folders of dropped tables {what}, {size:,} bytes")
    for folder in folders:
        if folder not in ripe:
            days = math.ceil((folder.since + keep_s - now) / 86_400)
            console.print(f"{folder.location} is kept for {days} more days", style="dim")


def gc(lake: Lake, *, as_json: bool) -> None:
    """Compact, expire, and remove files that nothing refers to."""
    compact_all(lake, as_json=as_json)
    expire(lake, None, None, as_json=as_json)
    orphans(lake, None, remove=True, as_json=as_json)


def _say(text: str) -> None:
    Console(soft_wrap=True).print(text)


def _progress(text: str) -> None:
    """A line on a terminal, which the next one follows; nothing for programs."""
    if sys.stderr.isatty():
        Console(stderr=True, soft_wrap=True).print(text, style="dim")
