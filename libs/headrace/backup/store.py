"""The objects of a backup store, in a folder or a bucket. Blocking.

Promises that nothing is ever overwritten except `status.json` and notes: an object is created once,
and a second writer of the same name raises unless it brings the same content. Names the setting in
every error. Decides nothing about which objects belong together.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson

from headrace.archive import store as objects
from headrace.archive.errors import (
    ArchiveError,
    FileTakenError,
    StoreFullError,
    StoreUnfitError,
)
from headrace.archive.local_folders import make_synced
from headrace.backup import layout
from headrace.backup.errors import (
    BackupError,
    BackupStoreError,
    BackupStoreFullError,
    DamagedError,
    DivergedError,
    ForeignStoreError,
    NoBackupStoreError,
    ObjectMissingError,
    TakenError,
)
from headrace.backup.layout import LogPiece, Segments
from headrace.backup.sealed import TAIL_BYTES, facts_in, seal, unseal

FORMAT = 1
# Stores have no common status for a lack of space: these are the words of S3, MinIO, Ceph and
# Linux.
_FULL_WORDS = ("no space left", "quota", "507 ", "insufficientstorage", "xminiostoragefull")
_UNFIT_REMEDY = (
    "Use a store with conditional puts (If-None-Match) for HEADRACE_BACKUP_URL, or a version of "
    "this one that supports them."
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose backups these are."""

    # Random: a restored cluster remembers which store it came from.
    store: str
    # Given by initdb: a standby and a restored cluster have the same.
    system_id: str
    # Chosen at initdb; it decides the names of segments.
    segment_size: int
    # The major version when the store was created.
    server_version: int
    # The role that initdb created: a restored cluster is opened with it.
    superuser: str
    # When, for people.
    created: str


@dataclass(frozen=True, slots=True)
class StoredUntil:
    """Everything committed by `time_us` (the server's clock) is stored: it is before `lsn`."""

    timeline: int
    lsn: int
    time_us: int


class BackupStore:
    """One store. The identity is known after `identify` or `create`."""

    def __init__(self, url: str, timeout_s: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        # One client for each folder of names: a listing then has only one kind of object.
        self._folders: dict[str, objects.Store] = {}
        self._identity: Identity | None = None
        parts = urlsplit(self.url)
        self.folder = Path(unquote(parts.path)) if parts.scheme == "file" else None

    @property
    def identity(self) -> Identity:
        assert self._identity is not None, "identify() comes first"
        return self._identity

    @property
    def segments(self) -> Segments:
        return Segments(self.identity.segment_size)

    def identify(self) -> Identity:
        """Read whose store this is."""
        if self.folder is not None and not self.folder.is_dir():
            raise NoBackupStoreError(f"there is no backup store at {self.url}")
        data = self.get("", layout.IDENTITY)
        if data is None:
            raise NoBackupStoreError(f"there is no backup store at {self.url}")
        body = self._json(data, layout.IDENTITY)
        # A newer format may give the same names another meaning.
        if body.pop("format", None) != FORMAT:
            raise BackupError(
                f"{self.url} was written by a newer version of Headrace",
                remedy="Use that version, or name another location in HEADRACE_BACKUP_URL.",
            )
        self._identity = Identity(**body)
        return self._identity

    def create(self, system_id: str, segment_size: int, version: int, superuser: str) -> bool:
        """Create the store, or accept that it is this cluster's; returns whether it is new."""
        with self._errors(layout.IDENTITY):
            self._at("").prepare()
        identity = Identity(
            secrets.token_hex(8),
            system_id,
            segment_size,
            version,
            superuser,
            datetime.now(UTC).isoformat(timespec="seconds"),
        )
        try:
            self.put_new("", layout.IDENTITY, orjson.dumps({"format": FORMAT, **asdict(identity)}))
        except TakenError:
            # Created by another process at the same time, or long ago.
            self.check(system_id)
            return False
        self._identity = identity
        return True

    def check(self, system_id: str) -> None:
        """Raise if this is another cluster's store."""
        found = self.identify()
        if found.system_id != system_id:
            raise ForeignStoreError(
                f"{self.url} contains the backups of the cluster {found.system_id}, and this is "
                f"the cluster {system_id}"
            )

    # The log

    def pieces(self) -> list[LogPiece]:
        """Every stored part of the log."""
        found = (self.segments.piece(name) for name in self.names(layout.WAL))
        return [piece for piece in found if piece is not None]

    def put_piece(
        self, piece: LogPiece, content: bytes | memoryview, facts: dict[str, Any]
    ) -> None:
        """Store a part of the log; one that is there already must have the same content."""
        name = self.segments.object_name(piece)
        try:
            self.put_new(layout.WAL, name, seal(content, facts))
        except TakenError as error:
            # A life of the same wal-archiver that was killed after the put has stored the same.
            if self.read_piece(piece) != bytes(content):
                raise DivergedError(
                    f"{layout.WAL}/{name} of {self.url} differs from what the server sends"
                ) from error

    def read_piece(self, piece: LogPiece) -> bytes:
        """The content of a stored part of the log."""
        name = self.segments.object_name(piece)
        content = self.get_sealed(layout.WAL, name)
        if len(content) != piece.end - piece.start:
            raise DamagedError(f"{layout.WAL}/{name} has {len(content)} bytes of log")
        return content

    def remove_piece(self, piece: LogPiece) -> None:
        """Remove a part of the log."""
        self.delete(layout.WAL, self.segments.object_name(piece))

    def facts(self, piece: LogPiece) -> dict[str, Any]:
        """The facts about the commits in a part of the log."""
        name = self.segments.object_name(piece)
        full = f"{layout.WAL}/{name}"
        # A segment in which very many tables were dropped has more facts.
        for size in (TAIL_BYTES, None):
            with self._errors(full):
                fetched = self._at(layout.WAL).ask(objects.Get(name, size))
            if fetched is None:
                raise ObjectMissingError(f"{full} is missing in {self.url}")
            found = facts_in(fetched.data, full)
            if found is not None:
                return found
        raise DamagedError(f"{full} is damaged: its facts can't be read")

    def histories(self) -> dict[int, bytes]:
        """The history file of each timeline after the first."""
        found = {}
        for name in self.names(layout.WAL):
            timeline = layout.history_timeline(name)
            if timeline is not None:
                found[timeline] = self.get(layout.WAL, name) or b""
        return found

    def put_history(self, timeline: int, content: bytes) -> None:
        """Store a timeline's history; another one of the same number must not replace it."""
        name = layout.history_name(timeline)
        try:
            self.put_new(layout.WAL, name, content)
        except TakenError as error:
            if self.get(layout.WAL, name) != content:
                raise DivergedError(
                    f"{layout.WAL}/{name} of {self.url} describes another timeline {timeline}: two "
                    "clusters have left it"
                ) from error

    # Status

    def status(self) -> StoredUntil | None:
        """How far the log is stored; None if wal-archiver never said."""
        data = self.get("", layout.STATUS)
        if data is None:
            return None
        return StoredUntil(**self._json(data, layout.STATUS))

    def put_status(self, status: StoredUntil) -> None:
        with self._errors(layout.STATUS):
            self._at("").put(layout.STATUS, orjson.dumps(asdict(status)))

    def replace_note(self, folder: str, name: str, data: bytes) -> None:
        """Store a note that only its writer replaces; nothing depends on it."""
        with self._errors(f"{folder}/{name}"):
            self._at(folder).put(name, data)

    # Objects in general

    def names(self, folder: str) -> list[str]:
        """The objects directly in a folder, in order."""
        with self._errors(folder):
            found: list[objects.ObjectMetadata] = (
                self._at(folder).ask(objects.Names(after="")) or []
            )
        return [item.location for item in found if "/" not in item.location]

    def tree(self, folder: str) -> list[tuple[str, int]]:
        """Name and size of all objects below a folder."""
        with self._errors(folder):
            found: list[objects.ObjectMetadata] = (
                self._at(folder).ask(objects.Names(after="")) or []
            )
        return [(item.location, item.size) for item in found]

    def get(self, folder: str, name: str) -> bytes | None:
        """An object; None if it doesn't exist."""
        fetched: objects.Fetched | None
        with self._errors(f"{folder}/{name}"):
            fetched = self._at(folder).ask(objects.Get(name))
        if fetched is None:
            return None
        return fetched.data

    def get_sealed(self, folder: str, name: str) -> bytes:
        """The content of a sealed object."""
        data = self.get(folder, name)
        if data is None:
            raise ObjectMissingError(f"{folder}/{name} is missing in {self.url}")
        return unseal(data, f"{folder}/{name}")

    def put_new(self, folder: str, name: str, data: bytes) -> None:
        """Create an object; raises `TakenError` if it exists."""
        with self._errors(f"{folder}/{name}"):
            # A bucket has no folders; in a local one they must exist.
            if self.folder is not None and "/" in name:
                _make_synced((self.folder / folder / name).parent)
            self._at(folder).put_new(name, data)

    def delete(self, folder: str, name: str) -> None:
        """Remove an object; it is no error if it doesn't exist."""
        with self._errors(f"{folder}/{name}"):
            self._at(folder).delete(name)

    def _at(self, folder: str) -> objects.Store:
        if folder not in self._folders:
            url = f"{self.url}/{folder}" if folder else self.url
            with self._errors(folder):
                self._folders[folder] = objects.Store(url, timeout_s=self._timeout_s)
        return self._folders[folder]

    def _json(self, data: bytes, name: str) -> dict[str, Any]:
        try:
            return dict(orjson.loads(data))
        except (ValueError, TypeError) as error:
            raise DamagedError(f"{self.url}/{name} can't be read as JSON") from error

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """The archive's store raises its own errors: here they name the backup's setting."""
        try:
            yield
        except FileTakenError as error:
            raise TakenError(f"{self.url}/{name} exists") from error
        except StoreUnfitError as error:
            raise BackupError(error.args[0], remedy=_UNFIT_REMEDY) from error
        except ArchiveError as error:
            text = str(error.args[0])
            full = isinstance(error, StoreFullError)
            if full or any(words in text.lower() for words in _FULL_WORDS):
                raise BackupStoreFullError(f"the backup store is full: {text}") from error
            raise BackupStoreError(f"the backup store can't be used: {text}") from error
        except OSError as error:
            # Of a folder that is no folder any more, or whose disk has failed.
            raise BackupStoreError(f"{self.url}/{name} can't be used: {error.strerror}") from error


def _make_synced(folder: Path) -> None:
    """Create a folder whose name is on disk."""
    if folder.is_dir():
        return
    try:
        make_synced(folder)
    except OSError as error:
        raise BackupStoreError(f"{folder} can't be created: {error.strerror}") from error
