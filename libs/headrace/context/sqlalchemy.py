"""Passes on the context of changes that SQLAlchemy 2 makes.

    tell_from(engine)                    # a sync Engine, or an AsyncEngine

The context is sent once per transaction, and again whenever it changes. No statement of the
application is changed. Changes in autocommit get no context, because each statement is its own
transaction there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from headrace.context.current import current_context, statement

__all__ = ["tell_from"]

if TYPE_CHECKING:
    # It needs greenlet, which only asynchronous programs install.
    from sqlalchemy.ext.asyncio import AsyncEngine

_WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|MERGE|TRUNCATE|WITH|COPY|CALL)\b", re.IGNORECASE)
_TOLD = "headrace_told"


def tell_from(engine: Engine | AsyncEngine) -> None:
    """Pass on the context of all changes through this engine."""
    target = getattr(engine, "sync_engine", engine)
    event.listen(target, "before_cursor_execute", _before)
    # A message that was rolled back, also to a savepoint, was never sent.
    for name in ("begin", "commit", "rollback", "rollback_savepoint"):
        event.listen(target, name, _forget)


def _forget(connection: Connection, *_: Any) -> None:
    connection.info.pop(_TOLD, None)


def _before(connection: Connection, cursor: Any, sql: str, *_: Any) -> None:
    context = current_context()
    if not _WRITES.match(sql) or connection.get_isolation_level() == "AUTOCOMMIT":
        return
    if context is None and _TOLD not in connection.info:
        return
    told = statement(context or {})
    if connection.info.get(_TOLD) != told:
        cursor.execute(told)
        connection.info[_TOLD] = told
