"""Gives the audit trail context from a Python application: who makes a change, and why.

    with change_context(user_id=42, endpoint="/orders"):
        ...                                  # every change of these transactions has that context

`headrace.context.sqlalchemy.tell_from(engine)` and `headrace.context.django.ContextMiddleware` pass
it on automatically. With psycopg or asyncpg, call `tell` (or `tell_async`) inside the transaction,
before its changes. It is the message with prefix `_bemi` that Bemi's packages write; any language
can: docs/audit.md shows the SQL.
"""

from headrace.context.current import change_context, current_context, statement, tell, tell_async

__all__ = ["change_context", "current_context", "statement", "tell", "tell_async"]
