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
    """Give changes in this block these facts as their context.

    A nested block adds to the context of the outer one. The context belongs to the current task or
    thread. A fact that isn't JSON is written as text.
    """
    merged = {**(_current.get() or {}), **facts}
    token = _current.set(merged)
    try:
        yield merged
    finally:
        _current.reset(token)


def current_context() -> Mapping[str, Any] | None:
    """Return the current facts, or None outside any block."""
    return _current.get()


def statement(context: Mapping[str, Any]) -> str:
    """Return the SQL that gives its transaction a context; it has no parameters.

    For a driver that `tell` does not know: execute it inside the transaction, before its changes.
    """
    # E'…' reads a backslash the same with any standard_conforming_strings.
    text = json.dumps(context, default=str).replace("\\", "\\\\").replace("'", "''")
    return f"SELECT pg_logical_emit_message(true, '{PREFIX}', E'{text}')"


def tell(connection: Executes) -> None:
    """Pass the current context, if there is one, to PostgreSQL through a psycopg connection.

    Call it inside a transaction, before its changes.
    """
    if (context := _current.get()) is not None:
        connection.execute(statement(context))


async def tell_async(connection: ExecutesAsync) -> None:
    """Pass the current context to PostgreSQL through an asyncpg connection, or psycopg's async one.

    Call it inside a transaction, before its changes.
    """
    if (context := _current.get()) is not None:
        await connection.execute(statement(context))
