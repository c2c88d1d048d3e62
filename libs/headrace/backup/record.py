"""A backup's record: its place in the log, its parts, the backup that it follows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from headrace.backup.errors import DamagedError


@dataclass(frozen=True, slots=True)
class Archive:
    """A tar stream of a backup: the data directory, or a tablespace."""

    # `base`, or the tablespace's number.
    name: str
    # The tablespace's folder on the server; empty for the data directory.
    location: str
    # Its objects are numbered from 0.
    parts: int
    # The size of the tar stream before compression.
    bytes: int


@dataclass(frozen=True, slots=True)
class BackupRecord:
    """A complete backup."""

    # Its name, which begins with the time of its beginning.
    label: str
    # The backup that this one follows; None for a full one.
    parent: str | None
    # The server's when the backup was taken.
    timeline: int
    # Recovery begins here, at the last checkpoint before the copy.
    start_lsn: int
    # From here on the copied files are consistent.
    end_lsn: int
    # The server's clock when the backup had ended.
    end_us: int
    # The major version, whose programs a restore needs.
    server_version: int
    # The data directory, and each tablespace.
    archives: tuple[Archive, ...]
    # The size of its objects in the store.
    stored_bytes: int
    # With a tag it never expires.
    tags: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """The size of its files."""
        return sum(archive.bytes for archive in self.archives)


def written(record: BackupRecord) -> bytes:
    """The record as it is stored."""
    return orjson.dumps(asdict(record))


def read(data: bytes, name: str) -> BackupRecord:
    """A stored record."""
    try:
        body: dict[str, Any] = orjson.loads(data)
        archives = tuple(Archive(**one) for one in body.pop("archives"))
        return BackupRecord(archives=archives, tags=tuple(body.pop("tags")), **body)
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"{name} is damaged: it is no backup's record") from error


def chain(record: BackupRecord, records: Mapping[str, BackupRecord]) -> Sequence[BackupRecord]:
    """The backups that this one needs, the full one first, itself last."""
    found = [record]
    while (parent := found[0].parent) is not None:
        if parent not in records:
            raise DamagedError(f"backup {found[0].label} follows {parent}, which is missing")
        found.insert(0, records[parent])
    return found
