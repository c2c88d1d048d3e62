"""Runs without the functions in C: those in Python answer, which are their oracle."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

# The modules that have functions in C.
_USERS = (
    "headrace.bus.frame",
    "headrace.confirming.native_rows",
    "headrace.jetstream.publishing.fast_batch",
    "headrace.publisher.assembler",
)


@contextlib.contextmanager
def without_accelerator() -> Iterator[None]:
    """Everything runs in Python."""
    with contextlib.ExitStack() as stack:
        for module in _USERS:
            stack.enter_context(mock.patch(f"{module}.native", None))
        yield


@contextlib.contextmanager
def with_accelerator() -> Iterator[None]:
    """Rows, frames and commands are read and written in C."""
    yield


Way = Callable[[], contextlib.AbstractContextManager[None]]
WAYS: tuple[Way, ...] = (with_accelerator, without_accelerator)
