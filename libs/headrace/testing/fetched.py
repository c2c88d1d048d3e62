"""Programs that tests run and no wheel contains: fetched once, into the user's cache folder.

It promises that a folder of the cache is complete, and that its files are the pinned ones: they are
compared with their SHA-256 before the folder gets its name. The ordinary package clients fetch
them, so their own configuration decides from where.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.errors import HeadraceError

FETCH_TIMEOUT_S = 600


class FetchError(HeadraceError):
    """A program that the tests need can't be fetched on this machine."""

    remedy = "Check the network and the configuration of the package client, then try again."


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder `name` of the cache. If it does not exist, `make` fills it first; other
    processes wait meanwhile.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    root.mkdir(parents=True, exist_ok=True)
    folder = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            draft = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
            try:
                make(draft)
                draft.rename(folder)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
    return folder


def pins(file: Path) -> dict[str, str]:
    """The file names of a list as `sha256sum` writes it, each with its SHA-256."""
    pairs = (line.split() for line in file.read_text().splitlines() if line)
    return {name: digest for digest, name in pairs}


def check_pins(folder: Path, pinned: Mapping[str, str]) -> None:
    """Compare the files of a folder with the pinned ones; raise `FetchError` if any differs."""
    for path in sorted(folder.iterdir()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if pinned.get(path.name) != digest:
            raise FetchError(
                f"{path.name} has the SHA-256 {digest}, which is not the pinned one",
                remedy="Do not use it: compare the package with its publisher's.",
            )
    if missing := pinned.keys() - {path.name for path in folder.iterdir()}:
        raise FetchError(f"The package client did not fetch {', '.join(sorted(missing))}")


def fetch(command: Sequence[str | Path], folder: Path) -> None:
    """Run a package client in a folder; raise `FetchError` with its last lines if it fails."""
    program = shutil.which(str(command[0]))
    if program is None:
        raise FetchError(
            f"{command[0]} is not installed", remedy=f"Install {command[0]}, then try again."
        )
    done = subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        said = " ".join((done.stderr + done.stdout).strip().splitlines()[-3:])
        raise FetchError(f"{command[0]} failed: {said}")
