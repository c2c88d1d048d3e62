"""The servers of one test session, and their folder.

It starts each shared server at its first use, and stops all servers at the end of the session. If
pytest is killed, the servers die with it, and the next session removes their folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.postgres_install import PostgresVersion
from headrace.embedded.server import EmbeddedServer

# Without fsync only a crash of the machine loses data; the tests crash servers.
POSTGRES_TEST_SETTINGS: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_replication_slots": "50",
    "max_wal_senders": "50",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    # In the server's folder, which goes after the test; elsewhere a killed server's would stay.
    "dynamic_shared_memory_type": "mmap",
}
_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder made in it has a random name and one owner
_MEMORY_BYTES_MIN = 8 * 1024**3
_FOLDER_PREFIX = "headrace-tests-"
# Without a limit, nats-server takes three quarters of what other tests leave free when it starts.
_FILE_STORE_BYTES_MAX = 1 << 40

S = TypeVar("S", bound=EmbeddedServer)


class SessionServers:
    """The shared and separate servers of a session; `close` ends all of them."""

    def __init__(self) -> None:
        _remove_leftovers()
        # Not under pytest's own folder, which only its user may enter: as root, PostgreSQL runs as
        # another.
        self.folder = _enterable_folder(_quickest_folder(), f"{_FOLDER_PREFIX}{os.getpid()}-")
        self._made: list[EmbeddedServer] = []
        self._shared_postgres: dict[PostgresVersion, EmbeddedPostgres] = {}
        self._shared_nats: EmbeddedNats | None = None
        self._shared: dict[str, EmbeddedServer] = {}

    def shared_postgres(self, version: PostgresVersion) -> EmbeddedPostgres:
        """Return the session's server of this version, running."""
        if version not in self._shared_postgres:
            self._shared_postgres[version] = self.new_postgres(version)
        server = self._shared_postgres[version]
        server.start_blocking()
        return server

    def shared_nats(self) -> EmbeddedNats:
        """Return the session's nats-server, running."""
        if self._shared_nats is None:
            self._shared_nats = self.new_nats()
        self._shared_nats.start_blocking()
        return self._shared_nats

    def new_postgres(
        self, version: PostgresVersion, settings: Mapping[str, str] | None = None
    ) -> EmbeddedPostgres:
        """Return another server with a separate folder, not yet started."""
        folder = self._new_folder(f"postgres{version}")
        server = EmbeddedPostgres(
            folder, version, settings={**POSTGRES_TEST_SETTINGS, **(settings or {})}
        )
        self._made.append(server)
        return server

    def new_nats(self, **options: Any) -> EmbeddedNats:
        """Return another nats-server with a separate folder, not yet started; the options are those
        of `EmbeddedNats`.
        """
        server = EmbeddedNats(self._new_folder("nats"), **_with_room(options))
        self._made.append(server)
        return server

    def shared(self, kind: str, make: Callable[[Path], S]) -> S:
        """Return the session's server of this kind, running; `make` creates it in a folder."""
        if kind not in self._shared:
            self._shared[kind] = self.new(kind, make)
        server = self._shared[kind]
        server.start_blocking()
        return server  # type: ignore[return-value]  # one kind is always made by one function

    def new(self, kind: str, make: Callable[[Path], S]) -> S:
        """Return another server of this kind with a separate folder, not yet started."""
        server = make(self._new_folder(kind))
        self._made.append(server)
        return server

    def discard(self, server: EmbeddedServer) -> None:
        """End a server and remove its folder."""
        server.remove_blocking()
        self._made.remove(server)

    def close(self) -> None:
        """End every server, and remove all folders."""
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder)
            for server in self._made:
                stack.callback(server.remove_blocking)

    def _new_folder(self, name: str) -> Path:
        return _enterable_folder(self.folder, f"{name}-")


def _with_room(options: Mapping[str, Any]) -> dict[str, Any]:
    config = options.get("config", {})
    if not isinstance(config, Mapping):
        return dict(options)
    jetstream = config.get("jetstream", {})
    if isinstance(jetstream, Mapping):
        config = {**config, "jetstream": {"max_file_store": _FILE_STORE_BYTES_MAX, **jetstream}}
    return {**options, "config": config}


def _quickest_folder() -> Path:
    """Return a folder in memory if it has space, because creating a database is ten times faster
    there, or else one on disk.

    A file there outlives a kill of every process, and the tests need nothing more.
    """
    try:
        roomy = shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN
    except FileNotFoundError:
        roomy = False
    return _MEMORY if roomy else Path(tempfile.gettempdir())


def _enterable_folder(parent: Path, prefix: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    folder.chmod(0o711)
    return folder


def _remove_leftovers() -> None:
    """Remove the folders of sessions that were killed."""
    for parent in (_MEMORY, Path(tempfile.gettempdir())):
        for folder in parent.glob(f"{_FOLDER_PREFIX}*"):
            pid = folder.name.removeprefix(_FOLDER_PREFIX).partition("-")[0]
            if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(folder, ignore_errors=True)
