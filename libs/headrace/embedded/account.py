"""The account a server runs under, and whether that account can reach a path.

PostgreSQL refuses to run as root. Then it runs as `nobody`, who must be able to traverse every
parent of its files. Files are judged by their mode bits, which is how fresh machines and containers
grant access; nothing here changes one.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class Account:
    """A user and a group, without supplementary groups."""

    uid: int
    gid: int

    def may(self, path: Path, wanted: int) -> bool:
        """Whether this path's mode bits give the account `wanted` (a sum of 4, 2, 1: read, write,
        enter).
        """
        status = path.stat()
        mode = stat.S_IMODE(status.st_mode)
        # As the kernel does: the first class that matches decides, even if a later one would allow
        # more.
        if status.st_uid == self.uid:
            return (mode >> 6) & wanted == wanted
        if status.st_gid == self.gid:
            return (mode >> 3) & wanted == wanted
        return mode & wanted == wanted

    def reaches(self, path: Path) -> bool:
        """Whether the account can traverse the path's parents and read the path, as far as they
        exist.
        """
        resolved = path.resolve()
        if resolved.exists() and not self.may(resolved, 5 if resolved.is_dir() else 4):
            return False
        return all(self.may(parent, 1) for parent in resolved.parents if parent.exists())

    def own(self, path: Path) -> None:
        """Give a file, or a folder with all in it, to the account."""
        # A link in the folder must not give away a file elsewhere.
        os.chown(path, self.uid, self.gid, follow_symlinks=False)
        if path.is_dir() and not path.is_symlink():
            for child in path.iterdir():
                self.own(child)


def unprivileged_account() -> Account | None:
    """Return the account to switch to, or None if this process isn't root and needs no other."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError as error:
        raise HeadraceError(
            "PostgreSQL can't run as root, and there is no user 'nobody' to run it as",
            remedy="Add a user named 'nobody', or run as an ordinary user.",
        ) from error
    return Account(entry.pw_uid, entry.pw_gid)


def copy_once(parts: Mapping[str, Path], target: Path) -> None:
    """Copy folders to their names under `target`, readable for every account; all or nothing, and
    only once.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # root's umask may have denied others the folder, which they must enter.
    target.parent.chmod(0o755)
    # Two processes may copy at the same time: each has its own draft, and the rename decides.
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    for name, source in parts.items():
        shutil.copytree(source, draft / name, symlinks=True)
    _open_to_all(draft)
    try:
        draft.rename(target)
    except OSError:
        # A rename can't replace a folder with content: another process was faster, and its copy is
        # as good as this one.
        shutil.rmtree(draft)
        if not target.exists():
            raise


def _open_to_all(folder: Path) -> None:
    """Let everyone read what its owner reads, and enter or run what its owner does."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | (mode & 0o500) >> 3 | (mode & 0o500) >> 6)
