"""Where the archive ends: read from its last file, and from the mark that says what passed since
then.

The last file says all that is needed to go on. The mark, in the state bucket, says how far the log
was seen to have nothing more for the archive: without it, an idle hour could not be told from a
lost one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.archive import layout, segment
from headrace.archive.chain import name_fault
from headrace.archive.errors import ArchiveError, WalFileCorruptError, naming
from headrace.archive.metadata import SegmentInfo
from headrace.archive.store import Fetched, Get, Names, ObjectMetadata, Store
from headrace.archiver.builder import Begun
from headrace.bus.frame import Opening
from headrace.confirming import source_identity
from headrace.confirming.source_identity import SourceIdentity
from headrace.jetstream.state import Cell
from headrace.lsn import ORIGIN, Gap

_TAIL_BYTES = 256 * 1024


class ArchiveDivergedError(ArchiveError):
    """The archive is of another history than this PostgreSQL."""

    remedy = "Point HEADRACE_ARCHIVE_URL at a new, empty place; the old archive stays as it is."


class ArchiveVanishedError(ArchiveError):
    """The archive had files, and has none: they were removed, or its volume is not mounted."""

    retry = True
    remedy = (
        "Mount or restore it: the archiver goes on by itself. Or point HEADRACE_ARCHIVE_URL at a "
        "new, empty place, "
        "where an archive begins anew."
    )


@dataclass(frozen=True, slots=True)
class ArchiveMark:
    """What passed up to here without a change since this file; and that this file was there."""

    archive: str
    file: int
    lsn: int
    url: str

    @classmethod
    def of(cls, value: Mapping[str, Any] | None) -> ArchiveMark:
        known = value or {}
        return cls(
            known.get("archive", ""),
            known.get("file", 0),
            known.get("lsn", 0),
            known.get("url", ""),
        )

    def encode(self) -> dict[str, Any]:
        return {"archive": self.archive, "file": self.file, "lsn": self.lsn, "url": self.url}


@dataclass(frozen=True, slots=True)
class ArchiveEnd:
    """The archive's end."""

    archive: str
    info: SegmentInfo | None
    # Everything before is in the archive; 0 where it has not begun.
    known_lsn: int
    next_id: int = layout.FIRST_ID
    epoch: int = 1

    def begun(self) -> Begun:
        if self.info is None:
            return Begun(ORIGIN, self.known_lsn)
        return Begun(self.info.last, self.known_lsn, self.info.time_us, self.info.versions)

    def gap_before(self, opening: Opening) -> Gap | None:
        """What the slot no longer has and the archive does not have."""
        begins = self.known_lsn
        if self.info is not None and not self.info.whole:
            # A part of a transaction: what was committed before it is all there.
            begins = max(begins, self.info.last.lsn)
        return source_identity.gap_before(begins, opening) if self.known_lsn else None

    def check_source(self, opening: Opening) -> None:
        """Refuse to go on where LSNs no longer mean what they meant."""
        if self.info is None:
            return
        known = SourceIdentity(
            "archive", self.info.system_id, self.info.timeline, self.info.last.lsn
        )
        diverged = source_identity.divergence(known, opening)
        if diverged is not None:
            raise ArchiveDivergedError(diverged)


def last_info(store: Store, hint: int = 0) -> SegmentInfo | None:
    """The last file's own account; `hint` is the id of one that was there."""
    after = layout.file_name(max(hint, layout.FIRST_ID) - 1)
    found: list[ObjectMetadata] = store.ask(Names(after)) or []
    numbered = [number for item in found if (number := layout.file_id(item.location)) is not None]
    if not numbered:
        return last_info(store) if hint else None
    last = numbered[-1]
    with naming(last):
        fetched: Fetched | None = store.ask(Get(layout.file_name(last), _TAIL_BYTES))
        if fetched is not None and segment.footer_bytes(fetched.data) + segment.SEAL_BYTES > len(
            fetched.data
        ):
            fetched = store.ask(Get(layout.file_name(last)))
        if fetched is None:
            raise ArchiveError(
                f"{layout.described(last)} of the archive vanished while it was read"
            )
        info = segment.info_of(segment.footer_of(fetched.data))
        if fault := name_fault(info, last):
            # To go on from it would be to go on from another place.
            raise WalFileCorruptError(fault)
        return info


def resume_point(info: SegmentInfo | None, mark: ArchiveMark, url: str, source: str) -> ArchiveEnd:
    """Where to go on. The mark counts where it is of this very archive and file."""
    if info is None:
        if mark.url != url:
            return ArchiveEnd(secrets.token_hex(8), None, 0)
        if mark.file:
            # What else was in them nobody knows: to go on would double it, or leave it out.
            raise ArchiveVanishedError(
                f"the archive {url} had file {mark.file}, and has no files now"
            )
        return ArchiveEnd(mark.archive, None, mark.lsn)
    if info.source != source:
        raise ArchiveDivergedError(
            f"the archive {url} is of the source {info.source}, not of {source}"
        )
    fits = mark.archive == info.archive and mark.file == info.id
    known = max(info.end_lsn, mark.lsn) if fits else info.end_lsn
    return ArchiveEnd(info.archive, info, known, info.next_id, info.epoch + 1)


async def read_mark(cell: Cell) -> ArchiveMark:
    return ArchiveMark.of(await cell.read())
