"""Checks a store inside its objects, without restoring: every byte of backups and log. Blocking.

Promises to name each object that is damaged or missing, and each range of log that a moment after
the oldest backup needs and the store lacks. Reads everything; changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import orjson

from headrace.backup.backups import Backups
from headrace.backup.errors import BackupError, DamagedError, ObjectMissingError
from headrace.backup.layout import LogPiece
from headrace.backup.log_reading import merged_into
from headrace.backup.plan import Planner
from headrace.backup.record import BackupRecord
from headrace.backup.segments import holes, ranges, reach
from headrace.backup.store import BackupStore
from headrace.backup.unpack import members
from headrace.lsn import format_lsn

_READ_BYTES = 1 << 20
_PAGE = 8192
# PostgreSQL writes these itself when a backup ends, and its manifest doesn't list them.
_UNLISTED = frozenset({"backup_manifest"})


@dataclass(frozen=True, slots=True)
class BackupDamage:
    """Something wrong, by the name of the object or the range."""

    name: str
    what: str


@dataclass(slots=True)
class Checked:
    """How much was read."""

    # Those whose parts were read.
    backups: int = 0
    files: int = 0
    log_bytes: int = 0


def verify(
    store: BackupStore,
    checked: Checked,
    tell: Callable[[str], None] = lambda _: None,
    up_to: int | None = None,
) -> Iterator[BackupDamage]:
    """Check all backups and all of the log; `up_to` is where the server's log ends now."""
    planner = Planner(store)
    for record in planner.records:
        tell(f"backup {record.label}")
        yield from _backup(store, record, planner.records, checked)
        checked.backups += 1
    yield from _histories(planner)
    tell("log")
    yield from _pieces(store, planner, checked)
    yield from _log(planner, up_to)


def _backup(
    store: BackupStore, record: BackupRecord, records: list[BackupRecord], checked: Checked
) -> Iterator[BackupDamage]:
    backups = Backups(store)
    if record.parent is not None and record.parent not in {one.label for one in records}:
        yield BackupDamage(record.label, f"follows the backup {record.parent}, which is missing")
    try:
        listed = _listed(backups.manifest(record), record.label)
    except BackupError as error:
        yield BackupDamage(record.label, str(error.args[0]))
        return
    for archive in record.archives:
        prefix = f"pg_tblspc/{archive.name}/" if archive.location else ""
        try:
            for member, content in members(backups.stream(record, archive)):
                if content is None:
                    continue
                name = f"{prefix}{member.name}"
                checked.files += 1
                expected = listed.pop(name, None)
                # Files that the manifest leaves out: the map of tablespaces and the manifest.
                if expected is None:
                    continue
                digest = hashlib.sha256()
                while data := content.read(_READ_BYTES):
                    digest.update(data)
                if (digest.hexdigest(), member.size) != expected:
                    yield BackupDamage(f"{record.label}: {name}", "differs from the manifest")
        except BackupError as error:
            yield BackupDamage(f"{record.label}: {archive.name}", str(error.args[0]))
            return
    for name in listed:
        yield BackupDamage(f"{record.label}: {name}", "is missing")


def _listed(manifest: bytes, label: str) -> dict[str, tuple[str, int]]:
    """SHA-256 and size of each file, from PostgreSQL's manifest, which contains a checksum of
    itself.
    """
    # The checksum covers everything before its own line.
    begin = manifest.rfind(b'"Manifest-Checksum"')
    try:
        body = orjson.loads(manifest)
        if hashlib.sha256(manifest[:begin]).hexdigest() != body["Manifest-Checksum"]:
            raise DamagedError(f"{label}: the manifest's checksum differs")
        return {
            _path(one): (one["Checksum"], one["Size"])
            for one in body["Files"]
            if _path(one) not in _UNLISTED
        }
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{label}: the manifest can't be read") from error


def _path(entry: dict[str, str]) -> str:
    if "Path" in entry:
        return entry["Path"]
    return bytes.fromhex(entry["Encoded-Path"]).decode(errors="surrogateescape")


def _histories(planner: Planner) -> Iterator[BackupDamage]:
    for timeline in {piece.timeline for piece in planner.pieces}:
        if timeline > 1 and timeline not in planner.histories:
            yield BackupDamage(f"timeline {timeline}", "its history file is missing")


def _pieces(store: BackupStore, planner: Planner, checked: Checked) -> Iterator[BackupDamage]:
    left = sorted(planner.pieces, reverse=True)
    seen = set(left)
    while left:
        piece = left.pop()
        try:
            content = store.read_piece(piece)
        except ObjectMissingError as error:
            # wal-archiver may have merged it since the listing: what replaces it is read instead.
            larger = merged_into(store, piece)
            if not larger:
                yield BackupDamage(store.segments.object_name(piece), str(error.args[0]))
            left += [one for one in larger if one not in seen]
            seen.update(larger)
        except BackupError as error:
            yield BackupDamage(store.segments.object_name(piece), str(error.args[0]))
        else:
            yield from _piece(store, piece, content, checked)


def _piece(
    store: BackupStore, piece: LogPiece, content: bytes, checked: Checked
) -> Iterator[BackupDamage]:
    name = store.segments.object_name(piece)
    checked.log_bytes += len(content)
    for offset in range(0, len(content) - 16, _PAGE):
        # A part may begin within a page.
        if (piece.start + offset) % _PAGE:
            break
        # Each page of the log names its LSN in its header.
        address = int.from_bytes(content[offset + 8 : offset + 16], "little")
        # After a switch to the next segment the rest of this one may be zeros.
        if address != piece.start + offset and any(content[offset : offset + _PAGE]):
            yield BackupDamage(
                name, f"its page at {format_lsn(piece.start + offset)} is of another LSN"
            )
            return


def _log(planner: Planner, up_to: int | None) -> Iterator[BackupDamage]:
    """The log that moments after the oldest backup need."""
    for hole in holes(ranges(planner.pieces)):
        text = f"{format_lsn(hole.start)} to {format_lsn(hole.end)}"
        yield BackupDamage(f"log of timeline {hole.timeline}", f"{text} is missing")
    for record in planner.records:
        end = reach(planner.pieces, planner.way(record.timeline), record.start_lsn)
        if end < record.end_lsn:
            yield BackupDamage(
                record.label, f"its log ends at {format_lsn(end)}, it can't be restored"
            )
    if planner.records and up_to is not None:
        newest = planner.records[-1]
        end = reach(planner.pieces, planner.way(planner.timeline), newest.start_lsn)
        if end < up_to:
            yield BackupDamage(
                "log",
                f"it is stored up to {format_lsn(end)}, and the server's ends at "
                f"{format_lsn(up_to)}",
            )
