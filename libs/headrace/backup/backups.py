"""The backups in a store: their records, their parts, and what unfinished ones left.

Promises that a backup without a record is never listed, and that a part which was exchanged for
another one is noticed.
"""

from __future__ import annotations

import contextlib
import functools
import re
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime

from headrace.backup import layout, record
from headrace.backup.errors import DamagedError, ObjectMissingError
from headrace.backup.record import Archive, BackupRecord
from headrace.backup.sealed import TAIL_BYTES, facts_in, seal, unseal
from headrace.backup.store import BackupStore


class Backups:
    """All backups of a store."""

    def __init__(self, store: BackupStore) -> None:
        self._store = store

    def all(self) -> list[BackupRecord]:
        """The complete backups, the oldest first."""
        names = [name for name, _ in self._store.tree(layout.BACKUPS)]
        found = []
        for name in [name for name in names if name.endswith(f"/{layout.RECORD}")]:
            # It may have expired since the listing.
            with contextlib.suppress(ObjectMissingError):
                found.append(self._read(name))
        return sorted(found, key=lambda one: (one.end_us, one.end_lsn))

    def newest_label(self) -> str | None:
        """The label of the newest complete backup, without reading a record."""
        names = [name for name, _ in self._store.tree(layout.BACKUPS)]
        labels = [name.partition("/")[0] for name in names if name.endswith(f"/{layout.RECORD}")]
        # A folder that somebody else has made has no time.
        return max(filter(_LABEL.match, labels), default=None)

    def _read(self, name: str) -> BackupRecord:
        # A record is sealed as well: a damaged one must not hide a backup or invent one.
        content = self._store.get_sealed(layout.BACKUPS, name)
        return record.read(content, f"{layout.BACKUPS}/{name}")

    def put_part(self, label: str, archive: str, number: int, content: bytes) -> int:
        """Store a part of a tar stream, or the manifest; returns its stored size."""
        # They tie the part to its place: a part of another backup is intact, and wrong here.
        facts = {"label": label, "archive": archive, "number": number}
        data = seal(content, facts)
        self._store.put_new(layout.BACKUPS, f"{label}/{part_name(archive, number)}", data)
        return len(data)

    def put_record(self, made: BackupRecord) -> None:
        """Make a backup count. Everything that it needs must be stored."""
        name = f"{made.label}/{layout.RECORD}"
        self._store.put_new(layout.BACKUPS, name, seal(record.written(made)))

    def part(self, label: str, archive: str, number: int) -> bytes:
        """The content of a part."""
        name = f"{label}/{part_name(archive, number)}"
        data = self._store.get(layout.BACKUPS, name)
        if data is None:
            raise DamagedError(f"{layout.BACKUPS}/{name} is missing in {self._store.url}")
        content = unseal(data, f"{layout.BACKUPS}/{name}")
        facts = facts_in(data[-TAIL_BYTES:], name)
        if facts != {"label": label, "archive": archive, "number": number}:
            raise DamagedError(f"{layout.BACKUPS}/{name} is another object's content")
        return content

    def stream(self, made: BackupRecord, archive: Archive) -> Iterator[bytes]:
        """The tar stream of an archive."""
        for number in range(archive.parts):
            yield self.part(made.label, archive.name, number)

    def manifest(self, made: BackupRecord) -> bytes:
        """PostgreSQL's manifest of a backup."""
        return self.part(made.label, MANIFEST, 0)

    def unfinished(self) -> dict[str, list[str]]:
        """The objects of backups without a record, by label."""
        names = [name for name, _ in self._store.tree(layout.BACKUPS)]
        found: dict[str, list[str]] = {}
        for name in names:
            found.setdefault(name.partition("/")[0], []).append(name)
        return {label: own for label, own in found.items() if f"{label}/{layout.RECORD}" not in own}

    def remove(self, label: str) -> None:
        """Remove a backup: its record first, so that it is never listed in part."""
        names = [name for name, _ in self._store.tree(layout.BACKUPS)]
        own = [name for name in names if name.startswith(f"{label}/")]
        # False sorts first, so the record is the first to go.
        own.sort(key=lambda name: not name.endswith(f"/{layout.RECORD}"))
        for name in own:
            self._store.delete(layout.BACKUPS, name)


MANIFEST = "manifest"


_LABEL_FORM = "%Y%m%dT%H%M%SZ"
_LABEL = re.compile(r"\d{8}T\d{6}Z-")


def new_label() -> str:
    """A backup's name: by time, so that a listing is in order; random, so that two backups of one
    second differ.
    """
    return f"{datetime.now(UTC):{_LABEL_FORM}}-{secrets.token_hex(3)}"


def label_time(label: str) -> datetime:
    """When the backup of this label began."""
    return datetime.strptime(label.partition("-")[0], _LABEL_FORM).replace(tzinfo=UTC)


@functools.cache
def part_name(archive: str, number: int) -> str:
    """The object of a part."""
    return f"{archive}.{number:06d}.zst"
