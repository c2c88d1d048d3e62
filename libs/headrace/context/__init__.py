"""Gives the audit trail context from a Python application: who makes a change, and why.

    with change_context(user_id=42, endpoint="/orders"):
        ...                                  # every change of these transactions has that context

`headrace.context.sqlalchemy` and `headrace.context.django` pass the context on automatically. With
psycopg or asyncpg, call `tell` (or `tell_async`) inside the transaction, before its changes. The
context is the message with prefix `_bemi` that Bemi's packages write; other languages can write it
with the SQL in docs/audit.md.

Any program may import it. It never opens a connection, never changes a statement, and needs nothing
else of Headrace.
"""

from headrace.context.current import change_context, current_context, statement, tell, tell_async

__all__ = ["change_context", "current_context", "statement", "tell", "tell_async"]
