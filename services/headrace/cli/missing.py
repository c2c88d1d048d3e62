"""A command whose optional package is missing: one sentence with the remedy.

In a clone whose `.venv` was made by `./taskw`, the package is installed from the lock, with its
names and sizes shown, and the command starts again: `./taskw up` installs only what it needs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from headrace.extras import MissingPackageError
from headrace.terminal.text import plain

# Set for the second try, so that a package that is still missing is an error and no loop.
_AGAIN = "_HEADRACE_INSTALLED"


def end(error: MissingPackageError) -> NoReturn:
    """Install the package and run the command again, if this is a clone's; else report it."""
    if _AGAIN not in os.environ and installed(error.extras):
        os.environ[_AGAIN] = "1"
        again = [sys.executable, "-m", "headrace.cli", *sys.argv[1:]]
        os.execv(sys.executable, again)  # noqa: S606  # the same command
    report(error)


def report(error: MissingPackageError) -> NoReturn:
    print(plain(f"headrace: {error}"), file=sys.stderr)
    sys.exit(1)


def installed(extras: Sequence[str]) -> bool:
    """Whether this is a clone's environment that now has the extras."""
    clone = Path(sys.prefix).parent
    taskw = clone / "taskw"
    if not (Path(sys.prefix) / ".headrace-installed").is_file() or not os.access(taskw, os.X_OK):
        return False
    print(f"headrace: this needs {' and '.join(extras)}; installing", file=sys.stderr, flush=True)
    return subprocess.run([taskw, "install", *extras], check=False).returncode == 0
