"""Temporary folders of restores: a process that is killed leaves its own, and the next one removes
it.

Each is locked while its process lives. Only folders with this module's prefix are removed, and
never a locked one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "headrace-restored-"


class TemporaryFolder:
    """A new folder; those that killed processes left in the same parent are removed first."""

    def __init__(self, parent: Path | None = None) -> None:
        place = Path(tempfile.gettempdir()) if parent is None else parent
        _remove_left(place)
        self.path, self._lock = _locked(place)

    def remove(self) -> None:
        """Remove it with its content; safe to repeat."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _locked(parent: Path) -> tuple[Path, int | None]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            # A file system without locks: then nobody can lock it to remove it, either.
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            # Before it was locked, another process may have taken it for one that was left.
            if path.exists():
                return path, lock
            os.close(lock)


def _remove_left(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        # Others' folders can't be opened, and some are removed meanwhile.
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
