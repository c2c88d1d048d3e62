"""Lists of the pages and traces as files, for callers with the right `export`.

Promises: a file has no value that the page would not show to this caller, and rows only of tables
that the right covers; each export is in the log of acts before its first byte is sent.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web

from headrace.console.access import Caller
from headrace.console.acts import ActsLog
from headrace.console.audit_answers import AuditAnswers
from headrace.console.cells import Redaction, shown, weight
from headrace.console.exported import EVENT_COLUMNS, FORMATS, event_line, file_of, plain
from headrace.console.json_answers import caller_of
from headrace.console.problem import ProblemError, invalid
from headrace.console.reading import EventReader
from headrace.console.search import LIMIT_MAX, search
from headrace.console.sql import SqlRuns
from headrace.console.trace import Tracing

ROWS_MAX = 10_000
BYTES_MAX = 16 << 20
# Less than a request may take.
SECONDS_MAX = 8.0
NEXT = "X-Headrace-Next"
LEFT_OUT = "X-Headrace-Left-Out"
_TYPES = {**FORMATS, "json": "application/json"}
Page = Callable[[dict[str, str]], Awaitable[tuple[Sequence[Mapping[str, Any]], str | None]]]


class Exports:
    def __init__(
        self,
        reader: EventReader,
        redaction: Redaction,
        audit: AuditAnswers,
        sql: SqlRuns,
        tracing: Tracing,
        acts: ActsLog,
    ) -> None:
        self._reader = reader
        self._redaction = redaction
        self._audit = audit
        self._sql = sql
        self._tracing = tracing
        self._acts = acts

    async def events(self, request: web.Request) -> web.Response:
        """The events of a search."""
        caller = _exporter(request)

        async def page(query: dict[str, str]) -> tuple[Sequence[Mapping[str, Any]], str | None]:
            async with self._reader.turns:
                found = await search(self._reader, caller, self._redaction, query, None)
            return found["items"], found["next"]

        return await self._list(request, "events", page)

    async def audit(self, request: web.Request) -> web.Response:
        """The changes of a search in the trail."""
        caller = _exporter(request)

        async def page(query: dict[str, str]) -> tuple[Sequence[Mapping[str, Any]], str | None]:
            found = await self._audit.searched(caller, query)
            changes = [
                {**change, "at": one["at"], "xid": one["xid"]}
                for one in found["items"]
                for change in one["changes"]
            ]
            return changes, found["next"]

        return await self._list(request, "audit", page)

    async def sql(self, request: web.Request) -> web.Response:
        """The result of a statement, which may have read any table."""
        caller = _exporter(request)
        run = self._sql.mine(request)
        if "*" not in caller.export:
            raise _refused("A result may have rows of any table, and you may not export all.")
        rows = [[plain(shown(value, None)) for value in row] for row in run.rows]
        names = [column["name"] for column in run.columns]
        return await self._answer(request, "sql", names, rows, {})

    async def trace(self, request: web.Request) -> web.Response:
        """A change with its stations, as the page shows them but with whole values."""
        caller = _exporter(request)
        found = await self._tracing.document(request, None)
        event = found["event"]
        # The trace of a change that the stream has discarded has no values.
        if event is not None and not _covers(caller, event):
            raise _refused("You may not export changes of this table.")
        await self._acts.note(request, caller, "export", "trace", detail=found["position"])
        name = re.sub(r"[/+]", "-", found["position"])
        return _file(orjson.dumps(found, option=orjson.OPT_INDENT_2), f"trace-{name}", "json")

    async def _list(self, request: web.Request, name: str, page: Page) -> web.Response:
        caller = caller_of(request)
        query = {key: value for key, value in request.query.items() if key != "format"}
        # A file takes many pages, so each is as long as a search permits.
        query["limit"] = str(LIMIT_MAX)
        lines: list[dict[str, Any]] = []
        left_out = size = 0
        began = time.monotonic()
        following: str | None = None
        while True:
            items, following = await page(query)
            for item in items:
                if _covers(caller, item):
                    lines.append(event_line(item))
                    size += weight(item)
                else:
                    left_out += 1
            late = time.monotonic() - began > SECONDS_MAX
            if following is None or late or len(lines) >= ROWS_MAX or size > BYTES_MAX:
                break
            query["cursor"] = following
        headers = {LEFT_OUT: str(left_out), **({NEXT: following} if following else {})}
        rows = [[line[column] for column in EVENT_COLUMNS] for line in lines]
        return await self._answer(request, name, EVENT_COLUMNS, rows, headers)

    async def _answer(
        self,
        request: web.Request,
        name: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        headers: dict[str, str],
    ) -> web.Response:
        kind = _format(request)
        body = file_of(kind, columns, rows)
        # The filter may contain values, so the log has the names of its fields only.
        fields = ", ".join(sorted(set(request.query) - {"format", "cursor"})) or "none"
        detail = f"{len(rows)} rows, {kind}, filters: {fields}"
        await self._acts.note(request, caller_of(request), "export", name, detail=detail)
        # A browser shows no headers: the name tells users of the file that there is more.
        if NEXT in headers:
            name += "-part"
        return _file(body, name, kind, headers)


def _file(
    body: bytes | bytearray, name: str, kind: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    found = {
        **(headers or {}),
        "Content-Type": _TYPES[kind],
        "Content-Disposition": f'attachment; filename="headrace-{name}.{kind}"',
        "Cache-Control": "no-store",
    }
    return web.Response(body=body, headers=found)


def _format(request: web.Request) -> str:
    kind = request.query.get("format", "csv")
    if kind not in FORMATS:
        raise invalid(f"format={kind!r} is unknown", f"Use {' or '.join(FORMATS)}.")
    return kind


def _exporter(request: web.Request) -> Caller:
    # Before anything is read.
    _format(request)
    caller = caller_of(request)
    if not caller.export:
        raise _refused("You may not export anything.")
    return caller


def _covers(caller: Caller, item: Mapping[str, Any]) -> bool:
    if item["table"] is None:
        # A gap or a schema has no values; the content of a message belongs to no table.
        return not item["columns"] or "*" in caller.export
    return caller.may_export(item["schema"], item["table"])


def _refused(detail: str) -> ProblemError:
    return ProblemError(403, "export", detail, "Ask for the right `export`.")
