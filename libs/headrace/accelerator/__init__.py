"""The accelerator: hot functions of the publisher in C, with the same bytes as in Python.

`native.c` is built where a C compiler is available (`deploy/release/accelerator.py`); without it,
everything runs in Python. Each function of `native` has one in Python next to its only caller,
which the tests compare it with, and which answers where the one in C declines (docs/adr/0047).

Only `bus`, `cli`, `confirming`, `jetstream` and `publisher` may import it. It never decides
anything, and never imports a module of Headrace.
"""

from __future__ import annotations

import contextlib
from importlib import import_module
from types import ModuleType

native: ModuleType | None = None
"""The functions in C; None where they are not built, or if HEADRACE_ACCELERATOR is `off`."""

# Increased with each change of the functions' arguments or answers: a checkout may contain an
# extension that was built for another version.
INTERFACE = 1

# Its import fails also if the setting is `off`: no settings are loaded yet.
with contextlib.suppress(ImportError):
    _found = import_module("headrace.accelerator._native")
    if getattr(_found, "INTERFACE", None) == INTERFACE:
        native = _found
