"""The trail in a browser: search by table, key, time and context, and the differences of a change.

Serves `/audit` (one page, no other files) and `/audit/changes` (the rows as JSON) on the
audit-writer's own port. Because it shows rows, it answers only if no other machine can reach the
port, or to requests with HEADRACE_AUDIT_TOKEN; reads through a separate connection that can't
write.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import asyncpg
from aiohttp import web

from headrace.audit.destination import connect
from headrace.audit.query import Search, TrailPosition, rows
from headrace.audit.settings import AuditSettings
from headrace.audit.table import AuditTable
from headrace.errors import HeadraceError
from headrace.http.answers import refusal
from headrace.http.authority import bears, is_loopback
from headrace.http.page import HEADERS, page
from headrace.settings import Settings

# More than the statement's own limit, so that PostgreSQL cancels first.
QUERY_TIMEOUT_S = 10.0
_HEADERS = {**HEADERS, "Cache-Control": "no-store"}


class Page:
    """The routes; limits parallel searches, so that the page never crowds the writer out."""

    def __init__(self, settings: Settings, audit: AuditSettings) -> None:
        self._settings = settings
        self._audit = audit
        self._table = AuditTable.of(audit)
        self._searches = asyncio.Semaphore(4)

    def extend(self, app: web.Application) -> None:
        app.router.add_get("/audit", self.page)
        app.router.add_get("/audit/changes", self.changes)

    async def page(self, request: web.Request) -> web.Response:
        # The page itself has no rows; it would only ask for a token that does not exist.
        if not self._local(request) and self._audit.token is None:
            return refusal(
                403,
                "the audit page answers on this machine only",
                "Set HEADRACE_AUDIT_TOKEN.",
                _HEADERS,
            )
        return page("headrace.audit_writer", cached="no-store")

    async def changes(self, request: web.Request) -> web.Response:
        if not self._may(request):
            return refusal(
                401,
                "the audit page requires a bearer token",
                "Send Authorization: Bearer <HEADRACE_AUDIT_TOKEN>.",
                _HEADERS,
            )
        try:
            search = _search(request.query)
            async with asyncio.timeout(QUERY_TIMEOUT_S), self._searches:
                found = await self._found(search)
        except (HeadraceError, ValueError) as error:
            return refusal(400, str(error), "See the fields of the page.", _HEADERS)
        except (TimeoutError, asyncpg.PostgresError) as error:
            return refusal(
                503,
                str(error) or "the search took too long",
                "Narrow it by table, key or time.",
                _HEADERS,
            )
        # `default`: times and ids.
        body = json.dumps({"changes": [_document(row) for row in found]}, default=str)
        return web.Response(text=body, content_type="application/json", headers=_HEADERS)

    async def _found(self, search: Search) -> list[Any]:
        connection = await connect(self._audit, self._settings.postgres, "headrace audit page")
        try:
            # A search can't write, even if someone injected a statement.
            await connection.execute(
                "SET default_transaction_read_only = on; SET statement_timeout = '9s'"
            )
            sql, arguments = rows(search, self._table)
            return list(await connection.fetch(sql, *arguments))
        finally:
            connection.terminate()

    def _local(self, request: web.Request) -> bool:
        """Whether the request names this machine; another name that leads here belongs to another
        site.
        """
        host = self._settings.process.http_host
        asked = request.url.host or ""
        return (
            is_loopback(host)
            and is_loopback(asked)
            and request.headers.get("Sec-Fetch-Site") != "cross-site"
        )

    def _may(self, request: web.Request) -> bool:
        token = self._audit.token
        if token is None:
            return self._local(request)
        return bears(request.headers.get("Authorization", ""), token)


def _search(asked: Mapping[str, str]) -> Search:
    return Search(
        table=asked.get("table") or None,
        key=asked.get("key") or None,
        context=asked.get("context") or None,
        operation=asked.get("operation") or None,
        since=_time(asked.get("since")),
        until=_time(asked.get("until")),
        below=_place(asked["below"]) if asked.get("below") else None,
    )


def _place(text: str) -> TrailPosition:
    """A position from the page: position, ordinal (empty in an older auditor's rows), id."""
    position, ordinal, change = text.split(".")
    # A malformed id is refused here, and not by PostgreSQL.
    return TrailPosition(int(position), int(ordinal) if ordinal else None, str(uuid.UUID(change)))


def _time(text: str | None) -> datetime | None:
    if not text:
        return None
    time = datetime.fromisoformat(text)
    if time.tzinfo:
        return time
    return time.replace(tzinfo=UTC)


def _document(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for the page; 64-bit positions as texts, because a browser's numbers are doubles."""
    document = dict(row)
    for name in ("before", "after", "context", "exact"):
        document[name] = json.loads(document[name] or "null")
    places = {
        name: str(document[name])
        for name in ("position", "ordinal", "id")
        if document[name] is not None
    }
    return {**document, **places}
