"""Named crash points: `HEADRACE_FAILPOINT=publisher.after_ack:3` kills the process at the third
hit.

`…:3:stop` suspends the process there instead, so that a test can kill a server that it uses and
then let it continue (SIGCONT).

With `HEADRACE_FAILPOINT_ONCE=/path` only the first of several processes is killed: the one that
creates that file.

For tests only; without the variable a failpoint costs one dictionary lookup.
"""

from __future__ import annotations

import os
import signal

# SIGKILL, because no `finally` may run, as when the machine fails.
_SIGNALS = {"": signal.SIGKILL, "stop": signal.SIGSTOP}

_armed: dict[str, int] = {}
_signals: dict[str, signal.Signals] = {}


def arm(spec: str) -> None:
    """Arm `name[:hits[:stop]]`."""
    name, _, rest = spec.partition(":")
    hits, _, action = rest.partition(":")
    _armed[name] = int(hits or 1)
    _signals[name] = _SIGNALS[action]


def failpoint(name: str) -> None:
    left = _armed.get(name)
    if left is None:
        return
    _armed[name] = left - 1
    if left > 1 or not _first():
        return
    if _signals[name] is signal.SIGSTOP:
        del _armed[name]
    os.kill(os.getpid(), _signals[name])


def _first() -> bool:
    once = os.environ.get("HEADRACE_FAILPOINT_ONCE")
    if once is None:
        return True
    try:
        # With O_EXCL the file system lets only one process create the file.
        os.close(os.open(once, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


if "HEADRACE_FAILPOINT" in os.environ:
    arm(os.environ["HEADRACE_FAILPOINT"])
