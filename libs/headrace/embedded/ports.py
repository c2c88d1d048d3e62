"""Free TCP ports on loopback for embedded servers.

A port is picked below the range from which the kernel takes source ports of outgoing connections.
In that range, a server that is down for a moment could find its port taken by a client's
connection, and a client that keeps trying to reach it could connect to itself.

Each process picks from a block of ports that no other process of the user picks from, so that a
port stays the caller's until a server binds it, and while that server is down. A lock on a file,
which the kernel releases when the process ends, holds the block. Programs that don't ask here can
still take a port: the caller binds it immediately.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

from headrace.errors import HeadraceError

LOOPBACK = "127.0.0.1"
_CANDIDATES = range(20_000, 30_000)
_BLOCK_PORTS = 250
_ATTEMPTS_MAX = 1_000


class NoFreePortError(HeadraceError):
    """No free port was found on loopback."""

    remedy = "Name a free port, or stop the programs that listen on ports 20000 to 29999."


class _Block:
    """The ports that a process picks from, one after the other."""

    def __init__(self) -> None:
        self._owner = 0
        self._ports: list[int] = []
        self._next = 0
        self._lock = -1

    def next(self) -> int:
        # A forked child has its parent's memory, and must not pick the same ports.
        if self._owner != os.getpid():
            self._reserve()
            self._owner = os.getpid()
        # In turn: a port that was just given away is not bound yet, and would look free.
        port = self._ports[self._next % len(self._ports)]
        self._next += 1
        return port

    def _reserve(self) -> None:
        # Its own generator: a test run that seeds the shared one must not make two runs pick the
        # same ports.
        pick = random.SystemRandom()
        starts = list(_CANDIDATES[::_BLOCK_PORTS])
        pick.shuffle(starts)
        blocks = (ports for ports in map(self._locked, starts) if ports)
        self._ports = next(blocks, list(_CANDIDATES))
        pick.shuffle(self._ports)

    def _locked(self, start: int) -> list[int]:
        """The block's ports; none of them if another process has it."""
        folder = Path(tempfile.gettempdir()) / f"headrace-ports-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            # Never inherited by a child: it would keep the block after this process.
            lock = os.open(folder / str(start), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:
            return []
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return []
        self._lock = lock
        return list(range(start, start + _BLOCK_PORTS))


_block = _Block()


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Servers set it too: a connection in TIME_WAIT doesn't make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port(preferred: int = 0) -> int:
    """Return `preferred` if it is free, else a free port that no other process is given."""
    if preferred and is_free(preferred):
        return preferred
    for _ in range(_ATTEMPTS_MAX):
        port = _block.next()
        if is_free(port):
            return port
    raise NoFreePortError(f"None of {_ATTEMPTS_MAX} ports tried on {LOOPBACK} is free")
