"""Takes a base backup over the replication protocol, straight into the store.

Promises that a backup is listed only once all of its parts are stored and the log that makes them
consistent is stored without a hole. A backup that fails leaves parts without a record, which
`expire` removes. Never writes a local file.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.backup.backups import MANIFEST, Backups, new_label
from headrace.backup.errors import BackupError, LogHoleError
from headrace.backup.record import Archive, BackupRecord
from headrace.backup.segments import reach
from headrace.backup.store import BackupStore
from headrace.backup.timelines import parents, way
from headrace.lsn import format_lsn
from headrace.postgres.physical import BackupPoint, PhysicalConnection
from headrace.process.failpoint import failpoint
from headrace.settings import Settings

# The first byte of each message of PostgreSQL 15 and newer.
_NEW_ARCHIVE, _DATA, _MANIFEST, _PROGRESS = b"n", b"d", b"m", b"p"
_PROGRESS_FORM = struct.Struct(">xQ")
# Parts that are compressed or on their way at the same time.
_PUTS_MAX = 3
# The store gives no event when the log has arrived.
_LOG_POLL_S = 0.2


@dataclass(slots=True)
class BackupProgress:
    """How far a backup is."""

    label: str
    bytes: int = 0
    stored_bytes: int = 0
    # Empty while data is copied.
    waits_for: str = ""


class _Writer:
    """Cuts the tar streams into parts and stores these, a few at a time."""

    def __init__(self, backups: Backups, progress: BackupProgress, part_bytes: int) -> None:
        self._backups = backups
        self._progress = progress
        self._part_bytes = part_bytes
        self._name = ""
        self._location = ""
        self._number = 0
        self._size = 0
        self._buffer = bytearray()
        self._puts: set[asyncio.Task[None]] = set()
        # Complete tar streams, in the order in which the server sent them.
        self.archives: list[Archive] = []
        # In memory: about 150 bytes for each file of the cluster.
        self.manifest = bytearray()

    async def message(self, data: bytes) -> None:
        kind = data[:1]
        if kind == _DATA:
            await self._data(data)
        elif kind == _NEW_ARCHIVE:
            await self._end_archive()
            name, location, *_ = data[1:].split(b"\0")
            # The data directory is base.tar, a tablespace is named by its number.
            self._name = name.decode().removesuffix(".tar")
            self._location = location.decode()
        elif kind == _MANIFEST:
            await self._end_archive()
            self._name = MANIFEST
        elif kind == _PROGRESS:
            (self._progress.bytes,) = _PROGRESS_FORM.unpack(data)

    async def _data(self, data: bytes) -> None:
        if self._name == MANIFEST:
            # The first byte is the kind of the message.
            self.manifest += memoryview(data)[1:]
            return
        self._buffer += memoryview(data)[1:]
        while len(self._buffer) >= self._part_bytes:
            part = bytes(self._buffer[: self._part_bytes])
            del self._buffer[: self._part_bytes]
            await self._store(part)

    async def _store(self, part: bytes) -> None:
        # Backpressure: without it a fast server would fill the memory while a slow store is
        # written.
        if len(self._puts) >= _PUTS_MAX:
            await asyncio.wait(self._puts, return_when=asyncio.FIRST_COMPLETED)
        self._raise_failed()
        work = self._put(self._name, self._number, part)
        self._puts.add(asyncio.create_task(work, name="store-part"))
        self._number += 1
        self._size += len(part)

    async def _put(self, name: str, number: int, part: bytes) -> None:
        label = self._progress.label
        stored = await asyncio.to_thread(self._backups.put_part, label, name, number, part)
        self._progress.stored_bytes += stored
        failpoint("backup.after_part")

    def _raise_failed(self) -> None:
        for task in [task for task in self._puts if task.done()]:
            self._puts.remove(task)
            # Raises the error of a part that could not be stored, which ends the backup.
            task.result()

    async def _end_archive(self) -> None:
        if not self._name or self._name == MANIFEST:
            return
        if self._buffer:
            await self._store(bytes(self._buffer))
            self._buffer.clear()
        self.archives.append(Archive(self._name, self._location, self._number, self._size))
        self._number = 0
        self._size = 0

    async def end(self) -> None:
        """Wait until all parts are stored."""
        if self._puts:
            await asyncio.wait(self._puts)
        self._raise_failed()
        # After the parts: a manifest without them would describe nothing.
        await self._put(MANIFEST, 0, bytes(self.manifest))

    def cancel(self) -> None:
        for task in self._puts:
            task.cancel()


async def take_backup(
    settings: Settings,
    store: BackupStore,
    *,
    fast: bool,
    parent: BackupRecord | None = None,
    tags: tuple[str, ...] = (),
    log_timeout_s: float = 300.0,
    tell: Callable[[BackupProgress], None] = lambda _: None,
) -> BackupRecord:
    """Take a backup, wait for its log, and list it."""
    backups = Backups(store)
    label = new_label()
    progress = BackupProgress(label)
    manifest = None
    if parent is not None:
        manifest = await asyncio.to_thread(backups.manifest, parent)
    connection = await PhysicalConnection.open(settings.postgres, "headrace backup")
    writer = _Writer(backups, progress, settings.backup.part_bytes)
    try:
        identity = await connection.identify()
        # Before the first part: the settings may name another cluster and this store.
        await asyncio.to_thread(store.check, identity.system_id)
        start, messages = await connection.base_backup(
            label, fast=fast, incremental_to=manifest, rate_kib_s=settings.backup.rate_kib_s
        )
        async for message in messages:
            await writer.message(message)
            tell(progress)
        end = await connection.backup_end()
        # By the clock that commits are stamped with, because restores to a time compare the two.
        end_us = await _server_clock_us(connection)
        await writer.end()
        progress.waits_for = f"the log up to {format_lsn(end.lsn)}"
        tell(progress)
        history = await connection.history(end.timeline)
        # The last step before the record: a listed backup can be restored.
        await _await_log(store, start.point, end, history, log_timeout_s)
        version = connection.server_version
    finally:
        # After an error nobody waits for the parts; `expire` removes those that were stored.
        writer.cancel()
        connection.close()
    made = BackupRecord(
        label,
        parent.label if parent is not None else None,
        end.timeline,
        start.point.lsn,
        end.lsn,
        end_us,
        version,
        tuple(writer.archives),
        progress.stored_bytes,
        tags,
    )
    failpoint("backup.before_record")
    await asyncio.to_thread(backups.put_record, made)
    if parent is not None:
        await asyncio.to_thread(_require_parent, backups, parent, made)
    return made


def _require_parent(backups: Backups, parent: BackupRecord, made: BackupRecord) -> None:
    """Expiry may have removed the parent before it could see this backup."""
    if parent.label not in {record.label for record in backups.all()}:
        backups.remove(made.label)
        raise BackupError(
            f"the backup {parent.label} expired during the backup that follows it",
            remedy="Take a full backup: without --incremental.",
        )


async def _server_clock_us(connection: PhysicalConnection) -> int:
    (text,) = await connection.facts(
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    )
    return int(text or 0)


async def _await_log(
    store: BackupStore, start: BackupPoint, end: BackupPoint, history: bytes, timeout_s: float
) -> None:
    """Without its log a backup's files are inconsistent: wait for wal-archiver to store it."""
    # A backup from a standby that was promoted meanwhile: its files are of two histories.
    if start.timeline != end.timeline:
        raise BackupError(
            "the server changed its timeline during the backup", remedy="Start it again."
        )
    stretches = way(end.timeline, parents(history))
    deadline = time.monotonic() + timeout_s
    while True:
        pieces = await asyncio.to_thread(store.pieces)
        stored = reach(pieces, stretches, start.lsn)
        if stored >= end.lsn:
            return
        if time.monotonic() > deadline:
            raise LogHoleError(
                f"the log that the backup needs is stored only up to {format_lsn(stored)}, not up "
                f"to {format_lsn(end.lsn)}",
                remedy="Start wal-archiver, see why it is not ready, and take the backup again.",
            )
        await asyncio.sleep(_LOG_POLL_S)
