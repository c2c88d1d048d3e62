"""The current context, and the statement that passes it to PostgreSQL. Does no I/O itself.

Promises: a context belongs to its task or thread and ends with its block; a nested context adds to
the outer one; values that aren't JSON are written as text, so that auditing never breaks the
application.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

PREFIX = "_bemi"
_current: ContextVar[Mapping[str, Any] | None] = ContextVar("headrace_change_context", default=None)


class Executes(Protocol):
    """A psycopg connection or cursor."""

    def execute(self, query: str, /) -> Any:
        """Run a statement."""
        ...


class ExecutesAsync(Protocol):
    """An asyncpg connection, or psycopg's async one."""

    async def execute(self, query: str, /) -> Any:
        """Run a statement."""
        ...


@contextlib.contextmanager
def change_context(**facts: Any) -> Iterator[Mapping[str, Any]]:
    """Changes in this block get these facts as their context."""
    merged = {**(_current.get() or {}), **facts}
    token = _current.set(merged)
    try:
        yield merged
    finally:
        _current.reset(token)


def current_context() -> Mapping[str, Any] | None:
    """The current facts; None outside any block."""
    return _current.get()


def statement(context: Mapping[str, Any]) -> str:
    """The SQL that gives its transaction a context; it has no parameters."""
    # E'…' reads a backslash the same with any standard_conforming_strings.
    text = json.dumps(context, default=str).replace("\\", "\\\\").replace("'", "''")
    return f"SELECT pg_logical_emit_message(true, '{PREFIX}', E'{text}')"


def tell(connection: Executes) -> None:
    """Pass on the current context, if there is one; call it inside a transaction, before its
    changes.
    """
    if (context := _current.get()) is not None:
        connection.execute(statement(context))


async def tell_async(connection: ExecutesAsync) -> None:
    """The same on an asynchronous connection."""
    if (context := _current.get()) is not None:
        await connection.execute(statement(context))
