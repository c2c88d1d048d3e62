"""A backup's tar streams as files in a folder. Blocking.

Promises never to write outside of the folders that it was given, and never over an existing file.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

from headrace.backup.backups import Backups
from headrace.backup.errors import DamagedError, RestoreError
from headrace.backup.record import BackupRecord

_READ_BYTES = 1 << 20
TABLESPACE_MAP = "tablespace_map"
BASE = "base"


class _Stream:
    """Parts as one file to read."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._left = memoryview(b"")

    def read(self, size: int) -> bytes:
        """The next bytes, as many as there are."""
        found = bytearray()
        while len(found) < size:
            if not self._left:
                part = next(self._parts, None)
                if part is None:
                    break
                self._left = memoryview(part)
            taken = self._left[: size - len(found)]
            found += taken
            self._left = self._left[len(taken) :]
        return bytes(found)


def members(parts: Iterator[bytes]) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """The files of a tar stream, each with its content, to be read before the next one."""
    try:
        stream: Any = _Stream(parts)
        with tarfile.open(fileobj=stream, mode="r|", bufsize=_READ_BYTES) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isfile() else None
                yield member, content
    except tarfile.TarError as error:
        raise DamagedError(f"a backup's tar stream can't be read: {error}") from error


def unpack(
    backups: Backups,
    record: BackupRecord,
    folder: Path,
    tablespaces: Mapping[str, Path],
    tell: Callable[[int], None] = lambda _: None,
) -> None:
    """Write a backup's files into an empty folder, and its tablespaces into theirs."""
    check_tablespaces(record, tablespaces)
    for archive in record.archives:
        if archive.location:
            target = tablespaces[archive.location]
        else:
            target = folder
        # Before the first file of each archive: a tablespace's folder may be in use.
        require_empty(target)
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        target.chmod(0o700)
        for member, content in members(backups.stream(record, archive)):
            _write(target, member, content)
            tell(member.size)
    _map_tablespaces(record, folder, tablespaces)


def check_tablespaces(record: BackupRecord, tablespaces: Mapping[str, Path]) -> None:
    """Every tablespace needs a new place: its old one may still be in use."""
    for archive in record.archives:
        if archive.location and archive.location not in tablespaces:
            raise RestoreError(
                f"the cluster has a tablespace at {archive.location}, which has no new place",
                remedy=f"Name one with --tablespace {archive.location}=FOLDER.",
            )


def require_empty(folder: Path) -> None:
    """Raise if a folder contains anything: a restore never overwrites."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RestoreError(
            f"{folder} exists and is not an empty folder",
            remedy="Name a folder that doesn't exist or is empty; nothing was written.",
        )


def _write(target: Path, member: tarfile.TarInfo, content: IO[bytes] | None) -> None:
    name = PurePosixPath(member.name)
    # The store may be tampered with: a name must not lead out of the folder.
    if name.is_absolute() or ".." in name.parts:
        raise DamagedError(f"a backup contains the unsafe name {member.name}")
    path = target / name
    if member.isdir():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    elif content is not None:
        # Created, never opened: not even a link that is already in the folder is followed.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            shutil.copyfileobj(content, file, _READ_BYTES)
    else:
        raise DamagedError(f"a backup contains {member.name}, which is no file and no folder")


def _map_tablespaces(record: BackupRecord, folder: Path, tablespaces: Mapping[str, Path]) -> None:
    """The server links its tablespaces by this file when it starts."""
    outside = [archive for archive in record.archives if archive.location]
    if not outside:
        return
    lines = [f"{archive.name} {tablespaces[archive.location].resolve()}\n" for archive in outside]
    (folder / TABLESPACE_MAP).write_text("".join(lines))
