"""Answers about the suite, its tables and its events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from headrace.console import overview
from headrace.console.acts import ActsLog
from headrace.console.cells import Redaction, event_document, weight
from headrace.console.json_answers import answer, caller_of
from headrace.console.positions import lsn_in, missing, position_in
from headrace.console.problem import invalid, not_found
from headrace.console.reading import EventReader
from headrace.console.search import PAGE_BYTES_MAX, begin_of, limit_of, search
from headrace.console.suite_view import SuiteView
from headrace.console.tables import Tables
from headrace.contract.subjects_and_ids import split_table_token, table_token
from headrace.lsn import format_lsn

TRANSACTION_EVENTS_MAX = 10_000


class SuiteAnswers:
    def __init__(
        self,
        suite: SuiteView,
        reader: EventReader,
        tables: Tables,
        redaction: Redaction,
        acts: ActsLog,
    ) -> None:
        self._suite = suite
        self._reader = reader
        self._tables = tables
        self._redaction = redaction
        self._acts = acts

    async def overview(self, request: web.Request) -> web.Response:
        return answer(self._suite.overview(caller_of(request)))

    async def waterline(self, _: web.Request) -> web.Response:
        return answer({**self._suite.head(), "waterline": self._suite.waterline()})

    async def history(self, request: web.Request) -> web.Response:
        try:
            after = float(request.query.get("after", "0"))
        except ValueError as error:
            raise invalid("after is a time in seconds", "Ask with after=0.") from error
        return answer(self._suite.history(after))

    async def services(self, request: web.Request) -> web.Response:
        status = self._suite.status_for(caller_of(request))
        return self._list(overview.service_details(status))

    async def consumers(self, _: web.Request) -> web.Response:
        return self._list(overview.consumers(self._suite.status))

    def _list(self, items: list[dict[str, Any]]) -> web.Response:
        return answer({**self._suite.head(), "items": items})

    async def tables(self, request: web.Request) -> web.Response:
        return answer(await self._tables.page(request.query, limit_of(request.query)))

    async def table(self, request: web.Request) -> web.Response:
        token = request.match_info["token"]
        found = await self._tables.one(token)
        # Said once for the table, so that the page need not guess it from hidden cells.
        sees = caller_of(request).sees(*split_table_token(token))
        return answer({**found, "values": sees})

    async def schemas(self, request: web.Request) -> web.Response:
        return answer(await self._tables.versions(request.match_info["token"]))

    async def events(self, request: web.Request) -> web.Response:
        async with self._reader.turns:
            found = await search(self._reader, caller_of(request), self._redaction, request.query)
        return answer({**self._suite.head(), **found})

    async def event(self, request: web.Request) -> web.Response:
        position = position_in(request.match_info["position"])
        async with self._reader.turns:
            event = await self._reader.at(position)
            # Why it is missing depends on the stream's ends, which are only read then.
            if event is None:
                first_seq, _ = await self._reader.bounds()
                ends = await self._reader.ends()
                raise missing(position, *ends, discarded=first_seq > 1)
        characters_max = None
        if request.query.get("full") != "true":
            characters_max = 20_000
        document = event_document(event, caller_of(request), self._redaction, characters_max)
        return answer({**self._suite.head(), "event": document})

    async def transaction(self, request: web.Request) -> web.Response:
        lsn = lsn_in(request.match_info["lsn"])
        limit = limit_of(request.query)
        begin = begin_of(request.query)
        async with self._reader.turns:
            events, complete = await self._reader.transaction(lsn, TRANSACTION_EVENTS_MAX)
        # Complete or not, it is an answer; nothing at all is a wrong address or an old one.
        if not events:
            raise not_found(
                f"The stream has no transaction that committed at {format_lsn(lsn)}.",
                "The archive or the audit trail may have it.",
            )
        counts: dict[str, int] = {}
        for event in events:
            # The structure before a table's first change is no change of the transaction.
            if event.table and event.operation != "SCHEMA":
                token = table_token(event.schema, event.table)
                counts[token] = counts.get(token, 0) + 1
        tx: Mapping[str, Any] = events[-1].payload.get("tx") or {}
        caller = caller_of(request)
        items: list[dict[str, Any]] = []
        size = 0
        for event in events[begin : begin + limit]:
            items.append(event_document(event, caller, self._redaction))
            size += weight(items[-1])
            if size > PAGE_BYTES_MAX:
                break
        following = None
        if begin + len(items) < len(events):
            following = str(begin + len(items))
        return answer(
            {
                **self._suite.head(),
                "lsn": format_lsn(lsn),
                "xid": str(tx["xid"]) if tx.get("xid") else None,
                "at": tx.get("ts"),
                "context": None,
                "tables": {token: str(number) for token, number in counts.items()},
                "items": items,
                "next": following,
                "complete": complete,
            }
        )

    # No right beyond the role: the log has no values.
    async def acts(self, request: web.Request) -> web.Response:
        limit = limit_of(request.query)
        items, following = await self._acts.page(limit, request.query.get("cursor", ""))
        return answer({**self._suite.head(), "items": items, "next": following})
