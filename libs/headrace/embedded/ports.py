"""Free TCP ports on loopback for embedded servers.

A port is picked below the range from which the kernel takes source ports of outgoing connections.
In that range, a server that is down for a moment could find its port taken by a client's
connection, and a client that keeps trying to reach it could connect to itself. Nothing here
reserves a port: the caller binds it immediately, and tries again if another process was faster.
"""

from __future__ import annotations

import random
import socket

from headrace.errors import HeadraceError

LOOPBACK = "127.0.0.1"
_CANDIDATES = range(20_000, 30_000)
_ATTEMPTS_MAX = 200


class NoFreePortError(HeadraceError):
    """No free port was found on loopback."""

    remedy = "Name a free port, or stop the programs that listen on ports 20000 to 29999."


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
    """Return `preferred` if it is free, else a free port picked at random, so that parallel runs
    rarely collide.
    """
    if preferred and is_free(preferred):
        return preferred
    # Its own generator: a test run that seeds the shared one must not make two runs pick the same
    # ports.
    pick = random.SystemRandom()
    for _ in range(_ATTEMPTS_MAX):
        port = pick.choice(_CANDIDATES)
        if is_free(port):
            return port
    raise NoFreePortError(f"None of {_ATTEMPTS_MAX} ports tried on {LOOPBACK} is free")
