"""Passes on the context of changes that Django makes during a request.

    MIDDLEWARE = [..., "headrace.context.django.ContextMiddleware"]
    HEADRACE_CONTEXT = "myapp.audit.context"     # a function of the request that returns a dict

Without HEADRACE_CONTEXT, the context is the user's ID, the method and the path. Outside requests,
use `with telling(): ...`. A change in autocommit is put into a transaction with its context.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from django.conf import settings
from django.db import connections, transaction
from django.utils.module_loading import import_string

from headrace.context.current import change_context, current_context, statement

__all__ = ["ContextMiddleware", "request_context", "telling"]

_WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|MERGE|TRUNCATE|WITH|CALL)\b", re.IGNORECASE)


class ContextMiddleware:
    """Gives the changes of each request a context; list it in MIDDLEWARE after authentication."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response
        named = getattr(settings, "HEADRACE_CONTEXT", None)
        self._context: Callable[[Any], Mapping[str, Any]] = (
            import_string(named) if named else request_context
        )

    def __call__(self, request: Any) -> Any:
        with change_context(**self._context(request)), telling():
            return self._get_response(request)


def request_context(request: Any) -> dict[str, Any]:
    """Return the default context of a request: its user's ID, its method and its path."""
    user = getattr(request, "user", None)
    return {"user_id": getattr(user, "pk", None), "method": request.method, "path": request.path}


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Pass on the context of changes in this block, on every PostgreSQL that Django knows."""
    with contextlib.ExitStack() as stack:
        for connection in connections.all():
            if connection.vendor == "postgresql":
                stack.enter_context(connection.execute_wrapper(_execute))
        yield


def _execute(
    execute: Callable[..., Any], sql: str, params: Any, many: Any, context: dict[str, Any]
) -> Any:
    facts = current_context()
    if facts is None or not _WRITES.match(sql):
        return execute(sql, params, many, context)
    connection = context["connection"]
    with contextlib.ExitStack() as stack:
        if not connection.in_atomic_block:
            stack.enter_context(transaction.atomic(using=connection.alias))
        with connection.connection.cursor() as teller:
            teller.execute(statement(facts))
        return execute(sql, params, many, context)
