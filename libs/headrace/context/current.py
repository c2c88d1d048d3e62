"""The context of the work at hand, and the statement that tells it. Pure, but for the connections
it is given.

Promises: a context belongs to its task or thread and ends with its block; one inside another adds
to it; what can't be written as JSON is written as its text, so that auditing never breaks the work.
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
    """Changes in this block are made by, for, or because of these facts."""
    merged = {**(_current.get() or {}), **facts}
    token = _current.set(merged)
    try:
        yield merged
    finally:
        _current.reset(token)


def current_context() -> Mapping[str, Any] | None:
    """The facts at hand; None outside any block."""
    return _current.get()


def statement(context: Mapping[str, Any]) -> str:
    """The SQL that tells a context to the transaction it runs in; it has no parameters."""
    # E'…' reads a backslash the same whatever standard_conforming_strings says.
    text = json.dumps(context, default=str).replace("\\", "\\\\").replace("'", "''")
    return f"SELECT pg_logical_emit_message(true, '{PREFIX}', E'{text}')"


def tell(connection: Executes) -> None:
    """Tell the context at hand, if there is one; inside a transaction, before its changes."""
    if (context := _current.get()) is not None:
        connection.execute(statement(context))


async def tell_async(connection: ExecutesAsync) -> None:
    """The same on an asynchronous connection."""
    if (context := _current.get()) is not None:
        await connection.execute(statement(context))
