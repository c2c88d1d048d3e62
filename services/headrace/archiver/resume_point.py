"""The archive's end: read from its last file, and from a mark in the state bucket.

The last file contains everything needed to continue. The mark says how far the log was seen to
contain nothing more for the archive: without it, an idle hour could not be distinguished from a
lost one.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from headrace.archive import file_format, layout
from headrace.archive.chain import name_fault
from headrace.archive.errors import ArchiveError, WalFileCorruptError, naming
from headrace.archive.mark import ArchiveMark
from headrace.archive.metadata import WalFileInfo
from headrace.archive.store import Fetched, Get, Names, ObjectMetadata, Store
from headrace.archiver.builder import Begun
from headrace.bus.frame import Opening
from headrace.confirming import source_identity
from headrace.confirming.source_identity import SourceIdentity
from headrace.lsn import ORIGIN, Gap

_TAIL_BYTES = 256 * 1024


class ArchiveDivergedError(ArchiveError):
    """The archive belongs to another history than this PostgreSQL's."""

    remedy = "Set HEADRACE_ARCHIVE_URL to a new, empty location; the old archive stays as it is."


class ArchiveVanishedError(ArchiveError):
    """The archive had files, and is empty now: they were removed, or its volume is not mounted."""

    retry = True
    remedy = (
        "Mount or restore it: the archiver then continues automatically. Or set "
        "HEADRACE_ARCHIVE_URL to a new, empty location to start a new archive."
    )


@dataclass(frozen=True, slots=True)
class ArchiveEnd:
    """The archive's end."""

    archive: str
    info: WalFileInfo | None
    # Everything before is in the archive; 0 if it has not started.
    known_lsn: int
    next_id: int = layout.FIRST_ID
    epoch: int = 1

    def begun(self) -> Begun:
        if self.info is None:
            return Begun(ORIGIN, self.known_lsn)
        return Begun(self.info.last, self.known_lsn, self.info.time_us, self.info.versions)

    def gap_before(self, opening: Opening) -> Gap | None:
        """Changes that neither the slot nor the archive has."""
        begins = self.known_lsn
        if self.info is not None and not self.info.whole:
            # A part of a transaction: everything committed before it is in the archive.
            begins = max(begins, self.info.last.lsn)
        if self.known_lsn:
            return source_identity.gap_before(begins, opening)
        return None

    def check_source(self, opening: Opening) -> None:
        """Refuse to continue if LSNs have changed their meaning."""
        # Nothing in it could contradict another server.
        if self.info is None:
            return
        known = SourceIdentity(
            "archive", self.info.system_id, self.info.timeline, self.info.last.lsn
        )
        diverged = source_identity.divergence(known, opening)
        if diverged is not None:
            raise ArchiveDivergedError(diverged)


def last_info(store: Store, hint: int = 0) -> WalFileInfo | None:
    """The last file's metadata; `hint` is the id of a file that existed."""
    after = layout.file_name(max(hint, layout.FIRST_ID) - 1)
    found: list[ObjectMetadata] = store.ask(Names(after)) or []
    numbered = [number for item in found if (number := layout.file_id(item.location)) is not None]
    if not numbered:
        # The file of the mark was collected or lost since.
        if hint:
            return last_info(store)
        return None
    last = numbered[-1]
    with naming(last):
        fetched: Fetched | None = store.ask(Get(layout.file_name(last), _TAIL_BYTES))
        # A footer of very many tables.
        if fetched is not None and file_format.footer_bytes(
            fetched.data
        ) + file_format.SEAL_BYTES > len(fetched.data):
            fetched = store.ask(Get(layout.file_name(last)))
        if fetched is None:
            raise ArchiveError(
                f"{layout.described(last)} of the archive disappeared while it was read"
            )
        info = file_format.info_of(file_format.footer_of(fetched.data))
        if fault := name_fault(info, last):
            # Continuing from it would mean continuing from another position.
            raise WalFileCorruptError(fault)
        return info


def resume_point(info: WalFileInfo | None, mark: ArchiveMark, url: str, source: str) -> ArchiveEnd:
    """Where to continue. The mark counts only if it belongs to this very archive and file."""
    if info is None:
        if mark.url != url:
            return ArchiveEnd(secrets.token_hex(8), None, 0)
        if mark.file:
            # The content of the others is unknown: continuing would repeat it, or leave it out.
            raise ArchiveVanishedError(
                f"the archive {url} had file {mark.file}, and has no files now"
            )
        return ArchiveEnd(mark.archive, None, mark.lsn)
    if info.source != source:
        raise ArchiveDivergedError(
            f"the archive {url} belongs to the source {info.source}, not to {source}"
        )
    fits = mark.archive == info.archive and mark.file == info.id
    known = max(info.end_lsn, mark.lsn) if fits else info.end_lsn
    return ArchiveEnd(info.archive, info, known, info.next_id, info.epoch + 1)
