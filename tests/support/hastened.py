"""`headrace` with some of the code's own waits shortened, for tests that wait until one is over.

    python tests/support/hastened.py headrace.mirror.sqlite.BUSY_TIMEOUT_S=1 -- mirror --to …

A wait that users can't set is a constant of a module; a test in the same process patches it, and a
test that starts processes starts them through this program.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping


def hastened(constants: Mapping[str, float]) -> tuple[str, ...]:
    """The program to run in place of `headrace`, with these values of constants by full name."""
    return (sys.executable, __file__, *(f"{name}={s}" for name, s in constants.items()), "--")


def _run(arguments: list[str]) -> None:
    end = arguments.index("--")
    for assignment in arguments[:end]:
        name, _, value = assignment.partition("=")
        module, _, constant = name.rpartition(".")
        owner = importlib.import_module(module)
        if not isinstance(getattr(owner, constant), int | float):
            raise TypeError(f"{name} is no number of seconds")
        setattr(owner, constant, float(value))
    sys.argv[1:] = arguments[end + 1 :]
    importlib.import_module("headrace.cli.entry").main()


if __name__ == "__main__":
    # The folder of this file, which Python puts there.
    sys.path.pop(0)
    _run(sys.argv[1:])
