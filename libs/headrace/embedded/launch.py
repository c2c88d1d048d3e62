"""The program a server's process starts as: drops root, ties itself to its parent, becomes the
server.

Run as a script with `python -I -S`, never imported. A separate script, not a `preexec_fn`, because
Python code between fork and exec can deadlock when the parent has threads. It imports nothing of
Headrace, and opens nothing, so that it works for an account that can't read the virtual
environment.

Arguments: the parent's pid, the signal to get when the parent dies, uid and gid (-1 to keep them),
the command.
"""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1


def become(parent_pid: int, death_signal: int, uid: int, gid: int, command: list[str]) -> None:
    """Replace this process by the command. Returns only by an exception."""
    if uid >= 0:
        # Groups first: after setuid the process may not change them.
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    # After the change of user, which would clear it; execve keeps it.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # A parent that died before prctl sends no signal, and this process has another parent by now.
    if os.getppid() != parent_pid:
        sys.exit("the parent died before the server was started")
    # The point of this program is to become another, without a shell.
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    parent, death, user, group = (int(argument) for argument in sys.argv[1:5])
    become(parent, death, user, group, sys.argv[5:])
