"""Folders whose names survive a failure of the machine."""

from __future__ import annotations

import os
from pathlib import Path


def sync(folder: Path) -> None:
    """Write the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_synced(folder: Path, *, below: Path | None = None) -> None:
    """Create a folder and those above it, but not `below`: a volume that is not mounted must not be
    replaced by an empty folder.
    """
    if folder.is_dir() or folder == below:
        return
    make_synced(folder.parent, below=below)
    folder.mkdir(exist_ok=True)
    # One by one: a folder's name is in its parent, and each of them may be new.
    sync(folder.parent)
